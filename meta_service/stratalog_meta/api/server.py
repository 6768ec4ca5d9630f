"""The meta service over HTTP: routes, snapshot and watch as lines of JSON, health, the cluster UI.

The caller starts the service first and closes the server before it. Without an access rule
(`stratalog.telemetry.http_access`) whoever reaches it may ask: bind it to loopback then, or to a private network. Its
limits, and what keeps foreign web pages out, are in `stratalog.telemetry.http_port`.
Lives on the service's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from aiohttp import web

from stratalog.event_loop.fair_turns import FairTurns
from stratalog.meta_api.problems import CONTENT_TYPE, to_problem
from stratalog.meta_api.streams import RECORDS_PER_SLICE, EncodedShards, cut, snapshot_slices, weight_of
from stratalog.meta_api.transport import CLUSTER_HEADER
from stratalog.meta_api.watch_lines import EncodedLines, WatchWriter, problem_line
from stratalog.meta_api.wire import PROBLEM, SEGMENT
from stratalog.model.addresses import written
from stratalog.model.errors import Fenced, InvalidRequest, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.metadata import ChangeSet, NodeChanged
from stratalog.model.tokens import Token
from stratalog.telemetry.audit_log import AuditLog
from stratalog.telemetry.http import listen_on
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_limits import MIB, HttpLimits, HttpStats
from stratalog.telemetry.http_port import HttpPort, asker_of, body_of, caller_of, declare, member_of
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.logs import logger
from stratalog.telemetry.request_guard import ServedNames
from stratalog.tls.outgoing import ClientTls
from stratalog.ui import UiHost, add_ui, why_no_records
from stratalog_meta.api.callers import Caller
from stratalog_meta.api.needs import OTHER_NEEDS
from stratalog_meta.api.openapi import document
from stratalog_meta.api.routes import ROUTES, Call, LongAnswer, Route, read_number
from stratalog_meta.service import MetaService

LIMITS: Final = HttpLimits(max_body_bytes=16 * MIB, max_bodies_bytes=64 * MIB)
HEARTBEAT_S: Final = 2.0
"""An empty line of a watch comes at least so often: what is silent for longer is dead."""
_BYTES_BEFORE_OTHERS: Final = 64 * 1024
_LINES: Final = {"Content-Type": "application/x-ndjson"}

_log = logger(__name__)


class Serving(Protocol):
    """A service, or an instance that leads now and then."""

    def leading(self) -> MetaService:
        """Raises NotLeader."""
        ...

    @property
    def why_no_changes(self) -> str | None:
        """Why no client of this instance can change anything, here or where it is redirected; None when it can."""
        ...


class MetaServer:
    """Serves one service, or one instance of several. `address` is known once started (port 0 takes a free one)."""

    def __init__(
        self,
        service: Serving,
        *,
        limits: HttpLimits = LIMITS,
        allowed_hosts: str = "",
        heartbeat_s: float = HEARTBEAT_S,
        access: HttpAccess | None = None,
        token: Token | None = None,
        own_nodes: Callable[[], Mapping[int, str]] = dict,
        tls: PortTls | None = None,
        to_nodes: ClientTls | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`allowed_hosts` are names under which it is served, beside the one of its address (see `request_guard`);
        `access`: the token that requests must show; `token`: the token that the pages show to nodes; `own_nodes`: the
        admin ports of nodes in this process. `tls`: what the port speaks TLS with; `to_nodes`: what the pages speak it
        with to the admin ports of nodes."""
        self._tls = tls
        self._to_nodes = to_nodes
        self._audit = audit or AuditLog(None, "")
        self._token = token
        self._own_nodes = own_nodes
        self._service = service
        self._limits = limits
        self._allowed_hosts = allowed_hosts
        self._heartbeat_s = heartbeat_s
        self._access = access
        self._http_port: HttpPort | None = None
        self._encoded = EncodedLines()
        self._encoded_shards = EncodedShards()
        self._turns = FairTurns()
        self._is_closing = asyncio.Event()
        self.stats = HttpStats()
        self.address = ""

    async def start(self, host: str, port: int) -> str:
        """Listen; returns `http://HOST:PORT`, or `https://`. Raises Unavailable when the address is taken."""
        try:
            listener = await listen_on(host, port)
        except OSError as error:
            raise Unavailable(
                f"the meta service cannot listen on {host}:{port} ({error.strerror}): choose another port"
            ) from error
        names = ServedNames(host, self._allowed_hosts)
        http_port = HttpPort(
            "meta.listen",
            self._limits,
            names,
            self.stats,
            _answer,
            self._access,
            tls=self._tls,
            audit=self._audit,
        )
        application = http_port.application()
        application.middlewares.append(_problems)
        declare(application, OTHER_NEEDS)
        declare(application, {(route.method, route.path): route.needs for route in ROUTES})
        for route in ROUTES:
            application.router.add_route(route.method, route.path, self._adapt(route))
        application.router.add_get("/v1/snapshot", self._snapshot)
        application.router.add_get("/v1/watch", self._watch)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/openapi.json", self._openapi)
        ui = UiHost(
            self._service.leading,
            self._token,
            why_no_records(host, has_token=self._access is not None),
            self._own_nodes,
            self._to_nodes,
        )
        add_ui(application, ui)
        self._http_port = http_port
        bound = listener.getsockname()[1]
        await http_port.open(application, listener)
        self.address = f"{'http' if self._tls is None else 'https'}://{written(host, bound)}"
        return self.address

    async def close(self) -> None:
        """End the watches, then stop listening."""
        self._is_closing.set()
        http_port, self._http_port = self._http_port, None
        if http_port is not None:
            await http_port.close()

    # Requests ---------------------------------------------------------------------------------------------------
    def _adapt(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            service = self._leading(request)
            connected = _is_connected(request)
            asker, body = asker_of(request), body_of(request)
            caller = self._caller_of(request)
            call = Call(service, request.match_info, request.query, body, connected, asker, self._audit, caller)
            answer = await route.handler(call)
            if request.method == "GET":
                self._service.leading()  # deposed meanwhile, it may have read what is not the newest any more
            if isinstance(answer, LongAnswer):
                return await self._send_long(request, answer)
            return web.Response(body=answer, content_type="application/json")

        return handle

    def _caller_of(self, request: web.Request) -> Caller:
        is_asked = self._tls is not None and self._tls.own() is not None
        return Caller(is_asked, member_of(request), caller_of(request))

    def _leading(self, request: web.Request) -> MetaService:
        """Raises NotLeader; Fenced if the client knows this address as another cluster's."""
        service = self._service.leading()
        self._audit.cluster_id = service.cluster_id
        wanted = request.headers.get(CLUSTER_HEADER, service.cluster_id)
        if wanted != service.cluster_id:
            raise Fenced(
                f"these are the metadata of cluster {service.cluster_id}, and those of cluster {wanted[:64]} are asked "
                "for: the service was started on another store, or on one that was emptied. Nothing was done"
            )
        return service

    def _asks_for_credentials(self, request: web.Request) -> bool:
        """Whether the reader is a node, which needs those of users. Raises InvalidRequest."""
        asked = request.query.get("credentials", "false")
        if asked not in ("true", "false"):
            raise InvalidRequest(f"credentials must be true or false, not {asked!r:.40}")
        return asked == "true"

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(document())

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        why = self._service.why_no_changes
        if why is None:
            return web.Response(text="ready\n")
        return web.Response(text=f"{why}\n", status=503)

    # Streams ----------------------------------------------------------------------------------------------------
    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        has_credentials, caller = self._asks_for_credentials(request), self._caller_of(request)
        snapshot = await self._leading(request).snapshot()
        if has_credentials:
            caller.check_credentials(snapshot.nodes)
        else:
            snapshot = replace(snapshot, credentials=())
        if not caller.sees_tokens:
            snapshot = replace(snapshot, nodes=caller.shown(snapshot.nodes))
        response = web.StreamResponse(headers=_LINES)
        await response.prepare(request)
        await self._turns.next()  # a large cluster's snapshot must not hold the loop, nor sixty of them
        for some in snapshot_slices(snapshot, self._encoded_shards):
            await response.write(some)
            await self._turns.next()
        await response.write_eof()
        return response

    async def _send_long(self, request: web.Request, answer: LongAnswer) -> web.StreamResponse:
        """Slice by slice, at the reader's pace, with turns for others between."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        line = answer.before
        if len(answer.segments) > RECORDS_PER_SLICE:
            await self._turns.next()
        for start, end in cut(answer.segments, weight_of, RECORDS_PER_SLICE):
            some = answer.segments[start:end]
            line += b",".join(map(SEGMENT.write, some))
            await response.write(line)
            await self._turns.next()
            line = b","
        await response.write(answer.after)
        await response.write_eof()
        return response

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        after = read_number(request.query.get("after", ""), "watch: after=VERSION")
        service, caller = self._leading(request), self._caller_of(request)
        has_credentials = self._asks_for_credentials(request)
        if has_credentials:
            caller.check_credentials((await service.snapshot()).nodes)
        changes = service.watch(after)
        writer = WatchWriter(self._encoded, with_credentials=has_credentials, with_tokens=caller.sees_tokens)
        response = web.StreamResponse(headers=_LINES)
        await response.prepare(request)
        try:
            await self._send_changes(changes, writer, response, caller)
        except StratalogError as error:
            await response.write(problem_line(to_problem(error)))
            await response.write_eof()
        except ConnectionError:
            pass  # the watcher has gone
        return response

    async def _send_changes(
        self, changes: AsyncIterator[ChangeSet], writer: WatchWriter, response: web.StreamResponse, caller: Caller
    ) -> None:
        """The lines of each change set until the watch ends; it ends when the server closes, and for a node that reads
        the keys of users with the change that retires it.

        The server waits for a slow reader, line by line, and closes the connection of one that makes no progress. A
        slow reader holds its place in the history, and no queue.
        """
        sent_bytes = 0
        closing = asyncio.ensure_future(self._is_closing.wait())
        following = asyncio.ensure_future(anext(changes))
        try:
            while True:
                # wait, not wait_for: a change set that comes at the very end of the time is not lost (F47)
                await asyncio.wait({following, closing}, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    change_set = following.result()
                    for line in writer.lines(change_set):
                        await response.write(line)
                        sent_bytes += len(line)
                        if sent_bytes > _BYTES_BEFORE_OTHERS:
                            sent_bytes = 0
                            await asyncio.sleep(0)  # a write does not wait while the socket takes everything
                    if writer.has_credentials:
                        nodes = [change.node for change in change_set.changes if isinstance(change, NodeChanged)]
                        caller.check_credentials(nodes)
                    following = asyncio.ensure_future(anext(changes))
                elif closing.done():
                    raise Unavailable("the meta service stops: watch again from the last version, here or elsewhere")
                else:
                    await response.write(b"\n")
        finally:
            closing.cancel()
            following.cancel()


def _is_connected(request: web.Request) -> Callable[[], bool]:
    """Whether the connection that a request came over is open; it outlives the request."""
    transport = request.transport
    return lambda: transport is not None and not transport.is_closing()


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Whatever a handler raises is answered as a problem, and never takes the server down."""
    try:
        return await handler(request)
    except StratalogError as error:
        return _answer(error, request=request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _answer(
            InvalidRequest(f"{request.method} {request.path}: {error.reason}: see /openapi.json for what there is"),
            error.status,
        )
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:  # a bug: the caller cannot know what was done
        _log.exception("request failed with an internal error", method=request.method, path=request.path)
        return _answer(
            OutcomeUnknown(f"{request.method} {request.path} failed inside ({error!r}): read before acting again")
        )


def _answer(error: StratalogError, status: int | None = None, request: web.Request | None = None) -> web.Response:
    problem = to_problem(error)
    headers = None if problem.leader is None or request is None else {"Location": problem.leader + request.path_qs}
    return web.Response(
        body=PROBLEM.write(problem),
        headers=headers,
        status=status or problem.status,
        content_type=CONTENT_TYPE,
    )
