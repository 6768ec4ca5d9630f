"""The status page of a cluster on one machine, at an address that stays whichever instance leads the metadata.

What it shows of the cluster the leading instance of the meta service tells; what runs, and how the rest ended, is known
here, so that the page says it when no instance answers. All instances are asked at once, and none is waited for longer
than `_PATIENCE_S`. Lives on the event loop of the process that runs the cluster. Importing it costs 0.3 s (aiohttp).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from aiohttp import web

from stratalog.meta_api.problems import CONTENT_TYPE, to_problem
from stratalog.meta_api.wire import PROBLEM
from stratalog.model.errors import StratalogError, Unavailable
from stratalog.model.tokens import bearer
from stratalog.telemetry.door import Door
from stratalog.telemetry.door_guard import ServedNames
from stratalog.telemetry.door_key import door_key
from stratalog.telemetry.door_limits import DoorLimits, DoorStats
from stratalog.telemetry.http import listen_on, split_address
from stratalog.telemetry.token_file import TokenFile, token_file
from stratalog_cli.cluster_plan import Part, Plan, Role
from stratalog_cli.cluster_starter import Starter
from stratalog_meta.page import PageSource, add_page

_PATIENCE_S: Final = 3.0
_PATHS: Final = ("/v1/overview", "/v1/courses")


class ClusterPage:
    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._door: Door | None = None
        self._http: aiohttp.ClientSession | None = None
        self._tokens: TokenFile | None = None
        self._leads: str | None = None
        """Which instance answered last."""

    async def start(self, address: str, allowed_hosts: str = "") -> str:
        """Returns its URL. Raises Unavailable when the address is taken, InvalidRequest for what is no token file."""
        host, port = split_address(address)
        # The page asks for what the parts ask for, or it would be the way around them.
        self._tokens = token_file(self._starter.plan.choices.settings.get("auth.token.file", ""))
        try:
            listener = await listen_on(host, port)
        except OSError as error:
            raise Unavailable(f"the status page cannot listen on {address} ({error.strerror})") from None
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE_S), trust_env=False)
        names, key = ServedNames(host, allowed_hosts), door_key(self._tokens)
        self._door = Door("cluster.page", DoorLimits(), names, DoorStats(), _problem, key)
        application = self._door.application()
        add_page(application, self._page_source)
        for path in _PATHS:
            application.router.add_get(path, self._relay)
        await self._door.open(application, listener)
        return f"http://{host}:{listener.getsockname()[1]}/"

    async def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            await door.close()
        if self._http is not None:
            await self._http.close()

    def _page_source(self) -> PageSource:
        return PageSource(None, "", part_rows(self._starter.plan, self._starter.state(), self._leads))

    async def _relay(self, request: web.Request) -> web.Response:
        """What the leading instance says; the others send the asker on, which is no answer."""
        alive = self._starter.state()["alive"]
        metas = [part for part in self._starter.plan.of(Role.META) if part.name in alive]
        asking = [asyncio.create_task(self._ask(part, request.path_qs)) for part in metas]
        try:
            for answered in asyncio.as_completed(asking):
                body = await answered
                if body is not None:
                    return web.Response(body=body, content_type="application/json")
        finally:
            for task in asking:
                task.cancel()
        self._leads = None
        return _problem(
            Unavailable("no instance of the meta service leads, or none answers: ask again in a moment"), 503
        )

    async def _ask(self, part: Part, path: str) -> bytes | None:
        assert self._http is not None
        try:
            headers = {} if self._tokens is None else {"Authorization": bearer(self._tokens.first())}
            url = f"http://{part.addresses['http']}{path}"
            async with self._http.get(url, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return None
        self._leads = part.name
        return body


def part_rows(plan: Plan, state: Mapping[str, Any], leads: str | None) -> list[dict[str, object]]:
    """Each part, whether it runs, and how it ended otherwise. `state` is what the starter knows."""
    rows: list[dict[str, object]] = []
    for part in plan.parts:
        life, end, retired = (state[what].get(part.name) for what in ("alive", "ends", "retired"))
        word, words = "stopped", "does not run"
        if life is not None:
            word, words = ("ready", "") if life["is_ready"] else ("starting", "")
        elif retired is not None:
            word, words = "retired", "has left permanently"
        elif end is not None:
            word, words = "stopped" if end["was_asked"] else "ended", end["how"]
        rows.append(
            {
                "name": part.name,
                "state": word,
                "words": words,
                "leads": life is not None and part.name == leads,
                "addresses": dict(part.addresses),
            }
        )
    return rows


def _problem(error: StratalogError, status: int) -> web.Response:
    return web.Response(body=PROBLEM.write(to_problem(error)), status=status, content_type=CONTENT_TYPE)
