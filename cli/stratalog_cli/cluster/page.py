"""The cluster UI of a cluster on one machine, at an address that stays whichever instance leads the metadata.

The metadata come from the leading instance of the meta service; what runs, and how the rest ended, is known here, so
that the page says it when no instance answers. Lives on the event loop of the process that runs the cluster. Importing
it costs 0.3 s (aiohttp).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from aiohttp import web

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.sasl.token_guesses import TokenGuesses
from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.meta_api.problems import CONTENT_TYPE, to_problem
from stratalog.meta_api.wire import COURSES, OVERVIEW, PROBLEM, CourseList
from stratalog.model.errors import InvalidRequest, StratalogError, Unavailable
from stratalog.model.roles import FOR_VIEWERS, Needs
from stratalog.model.tokens import NamedToken
from stratalog.telemetry.http import listen_on, split_address
from stratalog.telemetry.http_access import HttpAccess, http_access
from stratalog.telemetry.http_limits import HttpLimits, HttpStats
from stratalog.telemetry.http_port import HttpPort, declare
from stratalog.telemetry.request_guard import ServedNames
from stratalog.telemetry.token_file import TokenFile, role_file, token_file
from stratalog.ui import Process, UiHost, add_ui, why_no_records
from stratalog_cli.cluster.plan import Plan, Role
from stratalog_cli.cluster.starter import Starter

PAGE_NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    ("GET", "/v1/overview"): FOR_VIEWERS,
    ("GET", "/v1/courses"): FOR_VIEWERS,
}
"""The role that each request needs, beside those of the pages."""
T = TypeVar("T")
_PATIENCE_S: Final = 5.0
_WRONG_TOKEN_MS: Final = 100
"""How long the answer to a wrong token waits at least, as at the ports of the parts."""
_ATTEMPT_S: Final = 1.5
"""Short, because a person waits, and the page refreshes in a few seconds."""


class ClusterPage:
    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._http_port: HttpPort | None = None
        self._meta: HttpMetaClient | None = None
        self._tasks = TaskSet()

    async def start(self, address: str, allowed_hosts: str = "") -> str:
        """Returns its URL. Raises Unavailable when the address is taken, InvalidRequest for a file without tokens."""
        host, port = split_address(address)
        tokens = token_file(self._starter.plan.choices.settings.get("auth.token.file", ""))
        access = self._access(tokens)
        try:
            listener = await listen_on(host, port)
        except OSError as error:
            raise Unavailable(f"the UI cannot listen on {address} ({error.strerror})") from None
        token = None if tokens is None else tokens.first
        tls, files = None, self._starter.secure_files
        if files is not None and self._starter.plan.choices.parts_have_tls:
            identity, tls = await asyncio.to_thread(files.page_tls)
            self._tasks.start(identity.watch())
        instances = len(self._starter.plan.of(Role.META))
        policy = RetryPolicy(attempts=instances + 1, attempt_s=_ATTEMPT_S, connect_s=_ATTEMPT_S, longest_pause_s=0.1)
        to_parts = self._starter.access.tls
        meta = self._meta = HttpMetaClient(self._starter.plan.meta_urls, policy, token=token, tls=to_parts)
        names = ServedNames(host, allowed_hosts)
        self._http_port = HttpPort("cluster.page", HttpLimits(), names, HttpStats(), _problem, access, tls=tls)
        application = self._http_port.application()
        no_records = why_no_records(host, has_token=access is not None)
        add_ui(application, UiHost(lambda: meta, token, no_records, to_nodes=to_parts, processes=self._processes))
        declare(application, PAGE_NEEDS)
        application.router.add_get("/v1/overview", self._overview)
        application.router.add_get("/v1/courses", self._courses)
        await self._http_port.open(application, listener)
        return f"{'http' if tls is None else 'https'}://{host}:{listener.getsockname()[1]}/"

    def _access(self, tokens: TokenFile | None) -> HttpAccess | None:
        """The page asks for what the parts ask for, or it would be the way around them. Where they ask for certificates
        it asks browsers for the token that the start made. Raises: InvalidRequest for a file that cannot be used."""
        choices, files = self._starter.plan.choices, self._starter.secure_files
        roles = role_file(choices.settings.get("auth.role.tokens.file", ""), tokens)
        if files is None or not choices.parts_have_tls:
            return http_access(tokens, roles, delay_ms=_WRONG_TOKEN_MS)
        from stratalog_cli.cluster.secure_files import page_tokens

        own = TokenFile(files.token_file)

        def named() -> tuple[NamedToken, ...]:
            return (*page_tokens(own), *(() if roles is None else roles.all()))

        return HttpAccess(tuple, named=named, guesses=TokenGuesses(_WRONG_TOKEN_MS))

    async def close(self) -> None:
        http_port, self._http_port = self._http_port, None
        if http_port is not None:
            await http_port.close()
        await self._tasks.cancel()
        if self._meta is not None:
            await self._meta.close()

    async def _overview(self, _request: web.Request) -> web.Response:
        """As the leading instance of the meta service answers it."""
        assert self._meta is not None
        return await _answered(self._meta.overview(), OVERVIEW.write)

    async def _courses(self, request: web.Request) -> web.Response:
        assert self._meta is not None
        after = request.query.get("after", "0")
        if not after.isascii() or not after.isdigit():
            return _problem(InvalidRequest(f"after={after[:40]!r}: expected ms since 1970"), 400)
        return await _answered(self._meta.courses(int(after)), lambda items: COURSES.write(CourseList(items)))

    def _processes(self) -> list[Process]:
        assert self._meta is not None
        answered = self._meta.answered
        asked = None if answered is None else answered.partition("://")[2]
        return part_rows(self._starter.plan, self._starter.state(), asked)


def part_rows(plan: Plan, state: Mapping[str, Any], leads: str | None) -> list[Process]:
    """Each part, whether it runs, and how it ended otherwise. `state` is what the starter knows; `leads`: the address
    of the instance that answered last."""
    rows: list[Process] = []
    for part in plan.parts:
        life, end, retired = (state[what].get(part.name) for what in ("alive", "ends", "retired"))
        word, words = "stopped", "does not run"
        if life is not None:
            word, words = ("ready", "") if life["is_ready"] else ("starting", "")
        elif retired is not None:
            word, words = "retired", "has left permanently"
        elif end is not None:
            word, words = "stopped" if end["was_asked"] else "ended", end["how"]
        is_leader = life is not None and leads is not None and part.addresses.get("http") == leads
        rows.append(Process(part.name, word, words, is_leader, dict(part.addresses)))
    return rows


async def _answered(asked: Awaitable[T], write: Callable[[T], bytes]) -> web.Response:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return web.Response(body=write(await asked), content_type="application/json")
    except (StratalogError, TimeoutError) as error:
        why = str(error) or f"no answer within {_PATIENCE_S:.0f} s"
        return _problem(Unavailable(f"no instance of the meta service leads, or none answers ({why})"), 503)


def _problem(error: StratalogError, status: int) -> web.Response:
    return web.Response(body=PROBLEM.write(to_problem(error)), status=status, content_type=CONTENT_TYPE)
