"""Guards an HTTP port: limits its connections, and refuses requests from foreign pages. aiohttp speaks HTTP behind it.
It accepts the sockets itself, so that a connection above a limit costs a descriptor for a moment and no memory.
It is between each socket and aiohttp, so it knows since when a head, a body or a reader has made no progress. A handler
gets only whole requests (`body_of`) that may be answered (`request_guard`).

Requires: aiohttp may be imported; `open` after `application` was set up, `close` before the loop ends.
Memory: per connection a head, 64 KiB each way and an answer's piece; all bodies together `max_bodies_bytes`.
Lives on the event loop; one timer for all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from stratalog.event_loop.patience import TimedChecks
from stratalog.event_loop.task_set import TaskSet
from stratalog.event_loop.tls_handshakes import PortWords
from stratalog.event_loop.tls_transports import TlsTransports
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.machines.audit.lines import NOBODY_PROVEN, Asker, Change, Outcome
from stratalog.model.addresses import is_loopback
from stratalog.model.errors import Forbidden, InvalidRequest, LimitExceeded, StratalogError, Unauthorized, Unavailable
from stratalog.model.members import Member
from stratalog.model.roles import (
    ANYONE,
    FOR_ANYONE,
    FOR_VIEWERS,
    Caller,
    Needs,
    caller_of_part,
    role_name,
    why_forbidden,
)
from stratalog.model.tokens import digest_of, may_be_token
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog.telemetry.http_access import (
    CHALLENGES,
    PROBES,
    TOO_MANY_GUESSES,
    WITHOUT_TOKEN,
    WRONG_TOKEN,
    HttpAccess,
)
from stratalog.telemetry.http_connection import HttpConnection
from stratalog.telemetry.http_limits import HttpLimits, HttpStats
from stratalog.telemetry.http_tls import NOBODY, PortTls, Shown
from stratalog.telemetry.logs import logger
from stratalog.telemetry.request_guard import GUARDED, Asked, ServedNames, check_request
from stratalog.telemetry.web_login import FORMS, LOGIN, MOST_FORM_BYTES, WebLogins, is_page_asked, login_address

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer = Callable[[StratalogError, int], web.Response]
"""Makes the answer that tells of an error, with this HTTP status."""
ErrorPage = Callable[[StratalogError, int, str], web.Response]
"""Makes the page that tells a person of an error; the last names the person."""

_BACKLOG: Final = 4_096
"""The kernel may allow fewer. Connections beyond it wait for seconds, by the timers of their clients' kernels."""
_ACCEPTS_PER_TURN: Final = 16
_ACCEPT_RETRY_S: Final = 0.5
_GRACE_S: Final = 1.0
"""A new client has it for each step of its handshake and to ask, and one that neither sends nor reads on has it, before
its connection makes room for another. It begins when the port has done its own part."""
_LINE_CHECK_S: Final = 0.05
_LINGER_S: Final = 1.0
_NEVER_S: Final = 1e8
"""In place of aiohttp's own time limit, which does not see what lies unread."""
_FAREWELL_S: Final = 2.0
"""How long the end of TLS waits for the other side's."""
_WORDS: Final = PortWords("it is to ask by https://", "http.ssl.client.auth=required")
_MAX_HEADERS: Final = 64
_LONGEST_REASON: Final = 200
_CALLER: Final = web.RequestKey("caller", Caller)
_DELAY_MS: Final = web.RequestKey("delay_ms", int)
_PERSON: Final = web.RequestKey("person", str)
_PORT: Final = web.AppKey("port", object)
_NEEDS: Final = web.AppKey("needs", dict[tuple[str, str], Needs])
_BODY: Final = web.RequestKey("body", bytes)
_SHOWN: Final = web.RequestKey("shown", Shown)
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_READS: Final = frozenset({"GET", "HEAD"})
_METHODS: Final = _WITH_BODY | {"GET", "HEAD", "OPTIONS"}
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logger(__name__)


def body_of(request: web.Request) -> bytes:
    """The request's body, whole; empty where there was none."""
    body: bytes = request.get(_BODY, b"")
    return body


def member_of(request: web.Request) -> Member | None:
    """Of this cluster, as which the request's sender has proven itself by its certificate."""
    shown: Shown = request.get(_SHOWN, NOBODY)
    return shown.member


def asker_of(request: web.Request) -> Asker:
    """The caller, as the audit log names it."""
    member = member_of(request)
    if member is not None:
        return Asker(str(member.principal), request.remote or "")
    return Asker(request[_CALLER].principal if _CALLER in request else NOBODY_PROVEN, request.remote or "")


def caller_of(request: web.Request) -> Caller:
    """The caller. Of a port that asks for nothing, anyone, with all rights."""
    caller: Caller = request.get(_CALLER, ANYONE)
    return caller


def person_of(request: web.Request) -> str:
    """The person whose browser asks, with the role; empty unless one has logged in."""
    person: str = request.get(_PERSON, "")
    return person


def port_of(application: web.Application) -> HttpPort | None:
    port = application.get(_PORT)
    return port if isinstance(port, HttpPort) else None


def require(request: web.Request, needs: Needs) -> None:
    """For what a request needs beyond its route. Raises: Forbidden."""
    caller = caller_of(request)
    if not caller.may(needs):
        raise Forbidden(why_forbidden(caller, needs))


def declare(application: web.Application, needs: Mapping[tuple[str, str], Needs]) -> None:
    """What routes need, by method and path. A port does not open while a route lacks its declaration."""
    application[_NEEDS].update(needs)


def routes_without_needs(application: web.Application) -> list[str]:
    known = application[_NEEDS]
    found = {
        ("GET" if route.method == "HEAD" else route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.resource is not None
    }
    return sorted(f"{method} {path}" for method, path in found - known.keys())


def _path_of(request: web.Request) -> str | None:
    """Of the route that was found; None where there is none."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else None


def _needs_of(request: web.Request) -> Needs:
    """What has no route needs a viewer, so that an unknown caller does not learn which routes there are."""
    method = "GET" if request.method == "HEAD" else request.method
    needs: Needs = request.app[_NEEDS].get((method, _path_of(request) or ""), FOR_VIEWERS)
    return needs


def _target_host(target: str) -> str:
    """Of a request line with a whole address, `GET http://HOST/PATH`; empty for one with a path."""
    return "" if target.startswith("/") else target.partition("://")[2].partition("/")[0]


def _method_of(request: web.Request) -> str:
    return request.method if request.method in _METHODS else "(unknown method)"


class _Order(IntEnum):
    """Which connections make room first."""

    STILL = 0
    """It is idle, or its client alone keeps it open."""
    ASKS_ON = 1
    """Its first request was answered a while ago, and the next one is being worked on."""
    SPARED = 2
    """Not now: its client came a moment ago, or waits for the port."""


class HttpPort:
    """One port. `name` is what log lines call it."""

    def __init__(
        self,
        name: str,
        limits: HttpLimits,
        names: ServedNames,
        stats: HttpStats,
        answer: Answer,
        access: HttpAccess | None = None,
        *,
        is_for_all: bool = False,
        tls: PortTls | None = None,
        audit: AuditLog = NO_AUDIT,
    ) -> None:
        """Without `access`, everyone who reaches the port may ask. The log says so, unless that is intended
        (`is_for_all`)."""
        self._tls = tls
        self._is_for_all = is_for_all
        self._audit = audit
        self.limits = limits
        self.access = access
        self._logins = WebLogins(self._now_ms, is_secure=tls is not None)
        self._has_logins = False
        self._error_page: ErrorPage | None = None
        self.stats = stats
        self._name = name
        self._names = names
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._connections: dict[object, HttpConnection] = {}
        """By aiohttp's protocol: those that are connected, and those whose request is still worked on."""
        self._per_ip: dict[str, int] = {}
        self._leaving: set[HttpConnection] = set()
        """Closed to make room, and not gone yet."""
        self._line: asyncio.TimerHandle | None = None
        """While the listener is not looked at: those that wait there come in when a place is free."""
        self._busy_since: float | None = None
        """Since when there are requests in all places, and others wait for one."""
        self._connecting = TaskSet()
        self._arrivals = None if tls is None else TlsTransports(stats, _WORDS, shutdown_timeout_s=_FAREWELL_S)
        self._bodies_bytes = 0
        self._lines = BoundedLines(log, self._now_ms, "stratalog_http_turned_away_total counts by reason")
        self._reaper: asyncio.TimerHandle | None = None
        self._check_every_s = min(1.0, limits.request_timeout_s / 4, limits.max_idle_s / 4)
        self._checks = TimedChecks(self._loop.time, self._check_every_s)

    # Listening ------------------------------------------------------------------------------------------------------
    def application(self) -> web.Application:
        """The application that this port serves: add routes, then `open`."""
        application = web.Application(client_max_size=self.limits.max_body_bytes, middlewares=[self._middleware()])
        application.on_response_prepare.append(_add_headers)
        application[_PORT] = self
        application[_NEEDS] = dict.fromkeys((("GET", path) for path in PROBES), FOR_ANYONE)
        return application

    async def open(self, application: web.Application, listener: socket.socket) -> None:
        """Serve on a bound socket, which belongs to this object from now on."""
        missing = routes_without_needs(application)
        if missing:
            listener.close()
            raise AssertionError(f"routes that do not declare the role that they need: {', '.join(missing)}")
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            keepalive_timeout=_NEVER_S,
            lingering_time=_LINGER_S,
            auto_decompress=False,
            max_headers=_MAX_HEADERS,
            max_line_size=self.limits.max_head_bytes,
            max_field_size=self.limits.max_head_bytes,
            logger=self._server_log(),
        )
        await self._runner.setup()
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listener = listener
        self._warn_if_open(listener)
        self._loop.add_reader(listener.fileno(), self._accept)
        self._reap()

    def _warn_if_open(self, listener: socket.socket) -> None:
        host = str(listener.getsockname()[0])
        if self.access is None and not self._is_for_all and not is_loopback(host):
            log.warning(
                "everyone who can reach this HTTP port may read and change the cluster: set auth.token.file, or "
                "let it listen "
                "on loopback",
                port=self._name,
                host=host,
            )

    async def close(self) -> None:
        """Stop listening, give requests under way a moment, close all connections."""
        if self._reaper is not None:
            self._reaper.cancel()
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        for connection in list(self._connections.values()):
            if connection.arrival is not None:
                connection.abort()
        if self._arrivals is not None:
            await self._arrivals.close()
        await self._connecting.ended()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        for connection in list(self._connections.values()):
            connection.abort()

    def _accept(self) -> None:
        listener = self._listener
        for number in range(_ACCEPTS_PER_TURN):
            if listener is None or self._waits_for_room(is_connection_waiting=number == 0):
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("cannot accept HTTP connections now", port=self._name, error=error.strerror)
                # The listener stays readable: looking on would keep the loop busy with nothing.
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_ACCEPT_RETRY_S, self._accept_again)
                return
            peer_ip = str(address[0])
            if (full := self._why_full(peer_ip)) is not None:
                self._refuse(sock, peer_ip, full)
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._add_connection(sock, peer_ip)

    def _accept_again(self) -> None:
        if self._line is not None:
            self._line.cancel()
            self._line = None
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _why_full(self, peer_ip: str) -> TurnedAway | None:
        if self.stats.connections >= self.limits.max_connections:
            return TurnedAway.FULL
        is_crowded = self._per_ip.get(peer_ip, 0) >= self.limits.max_connections_per_ip
        return TurnedAway.ADDRESS if is_crowded and not self._make_room(peer_ip) else None

    def _waits_for_room(self, *, is_connection_waiting: bool) -> bool:
        """All places are taken, and one is being made free: the next connection waits in the listener's line, so that
        no more descriptors are used than the limit says. False: there is room, or none can be made."""
        if self.stats.connections < self.limits.max_connections:
            return False
        if not is_connection_waiting or len(self._connecting) > 0:
            return True
        is_room_coming = len(self._leaving) > 0 or self._make_room(None)
        if self._listener is None or (not is_room_coming and self._is_busy_for_long()):
            return False
        # Where many clients have come at once, most would get no answer if each ended the connection of an earlier one.
        self._loop.remove_reader(self._listener.fileno())
        self._line = self._loop.call_later(_LINE_CHECK_S, self._accept_again)
        return True

    def _is_busy_for_long(self) -> bool:
        """Every place has been used for a request for a while, and none came free."""
        now = self._loop.time()
        if any(not one.has_asked or one.is_idle or one.stalled_since is not None for one in self._connections.values()):
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        return self._busy_since is not None and now - self._busy_since >= _GRACE_S

    def _make_room(self, peer_ip: str | None) -> bool:
        """Close the connection that has stood still longest, without a whole request or because its client alone keeps
        it open; after those, the oldest that asks on and on without the token. With `peer_ip`, of that address. Those
        that showed the token go last, so that others keep no node out. False: all are at work, or the next one is
        spared."""
        now = self._loop.time()
        still = [
            (one.has_shown_token, *order, number, one)
            for number, one in enumerate(self._connections.values())
            if one not in self._leaving
            and (peer_ip is None or one.peer_ip == peer_ip)
            and (order := self._order_of_end(one, now)) is not None
        ]
        if not still:
            return False
        _, rank, _, _, last = min(still)
        if rank is _Order.SPARED:
            return False
        self.stats.turned_away[TurnedAway.MADE_ROOM] += 1
        self._leaving.add(last)
        last.abort()
        return True

    def _order_of_end(self, connection: HttpConnection, now: float) -> tuple[_Order, float] | None:
        """And since when it is idle, stuck or served. None: others may not have its place."""
        if connection.is_idle:
            idle_s = connection.idle_s(now)
            is_spared = idle_s is None or (not connection.has_asked and idle_s < _GRACE_S)
            return _Order.SPARED if is_spared else _Order.STILL, now - (idle_s or 0.0)
        since = connection.stalled_since
        if since is not None and now - since > _GRACE_S:
            return _Order.STILL, since
        since = connection.answered_since
        if self.access is None or connection.has_shown_token or since is None or now - since <= _GRACE_S:
            return None
        return _Order.ASKS_ON, since

    def _refuse(self, sock: socket.socket, peer_ip: str, why: TurnedAway) -> None:
        sock.close()
        self.stats.turned_away[why] += 1
        setting = self.limits.setting
        self._lines.warning(
            "HTTP connection refused",
            port=self._name,
            peer=peer_ip,
            open=self.stats.connections,
            limit=setting if why is TurnedAway.FULL else f"{setting}.per.ip",
        )

    def _add_connection(self, sock: socket.socket, peer_ip: str) -> None:
        assert self._runner is not None and self._runner.server is not None, "the port is open"
        connection = HttpConnection(self, self._runner.server(), peer_ip)
        self._connections[connection.inner] = connection
        self._per_ip[peer_ip] = self._per_ip.get(peer_ip, 0) + 1
        self.stats.accepted += 1
        self.stats.connections += 1
        if self._tls is None or self._arrivals is None:
            self._connecting.start(self._connect(connection, sock))
            return

        def failed(reason: str) -> None:
            if connection not in self._leaving:
                self.at_fault(connection, reason[:_LONGEST_REASON])
            self.left(connection)

        connection.arrival = self._arrivals.begin(sock, self._tls.context(), peer_ip, connection, failed)

    async def _connect(self, connection: HttpConnection, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:  # it has gone already
            sock.close()
            self.left(connection)

    def shown(self, transport: asyncio.BaseTransport) -> Shown:
        if self._tls is None:
            return NOBODY
        tls = transport.get_extra_info("ssl_object")
        return self._tls.shown(tls.getpeercert(binary_form=True))

    def left(self, connection: HttpConnection) -> None:
        """Its connection is closed and its request done: the place is free."""
        if self._connections.pop(connection.inner, None) is None:
            return
        self._leaving.discard(connection)
        self._busy_since = None
        self.stats.connections -= 1
        left = self._per_ip[connection.peer_ip] - 1
        if left:
            self._per_ip[connection.peer_ip] = left
        else:
            del self._per_ip[connection.peer_ip]
        if self._line is not None:
            self._accept_again()

    def at_fault(self, connection: HttpConnection, reason: str, why: TurnedAway | None = None) -> None:
        self.stats.closed_for_fault += 1
        if why is not None:
            self.stats.turned_away[why] += 1
        self._lines.info("HTTP connection closed", port=self._name, peer=connection.peer_ip, reason=reason)

    def _server_log(self) -> logging.Logger:
        """Where aiohttp logs failures. A client that went away or did not send HTTP is not our fault: one line, no
        stack."""
        server = logging.Logger("stratalog.http", logging.DEBUG)  # the level at which aiohttp reports what is no HTTP
        server.parent = logging.getLogger()
        server.addFilter(self._report_fault_of_client)
        return server

    def _report_fault_of_client(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (ConnectionError, HttpProcessingError)):
            return True
        if not isinstance(error, ConnectionError):  # the middleware has logged those
            self.stats.turned_away[TurnedAway.OTHER_PROTOCOL] += 1
            self._report_client(record.args[0] if isinstance(record.args, tuple) and record.args else None, error)
        return False

    def _report_client(self, peer: object, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        self._lines.info("HTTP request ended by its client", peer=peer, reason=words.splitlines()[0][:_LONGEST_REASON])

    def _reap(self) -> None:
        """Every so often, check for connections that make no progress."""
        now = self._loop.time()
        for connection in [] if self._checks.is_late() else list(self._connections.values()):
            connection.end_if_overdue(now)
        self._reaper = self._loop.call_later(self._check_every_s, self._reap)

    # Requests -------------------------------------------------------------------------------------------------------
    def _middleware(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._connections.get(request.protocol)
            if connection is not None:
                connection.request_began()
                request[_SHOWN] = connection.shown
            body = 0
            try:
                refused = self._refused(request)
                if refused is not None:
                    if _DELAY_MS in request:
                        await self._wait_for_guess(request, request[_DELAY_MS])
                    return refused
                if request.method in _WITH_BODY:
                    if connection is not None:
                        connection.await_body(request.content)
                    try:
                        request[_BODY] = await self._read_body(request)
                    except _NotTaken as error:
                        return self._closing(error.problem, error.status)
                    finally:
                        if connection is not None:
                            connection.body_ended()
                    body = len(request[_BODY])
                return await handler(request)
            except ConnectionError as error:
                self._report_client(connection.peer_ip if connection is not None else None, error)
                raise
            finally:
                self._bodies_bytes -= body
                if connection is not None:
                    connection.request_ended(is_body_whole=request.content.is_eof())

        return guarded

    def _refused(self, request: web.Request) -> web.Response | None:
        headers = request.headers
        refused = check_request(
            Asked(
                request.method,
                tuple(headers.getall("Host", ())),
                headers.get("Origin"),
                headers.get("Sec-Fetch-Site"),
                headers.get("Sec-Fetch-Mode"),
                headers.get("Sec-Fetch-Dest"),
                headers.get("Content-Type"),
                next((name for name in GUARDED if len(headers.getall(name, ())) > 1), ""),
                _target_host(request.raw_path),
                takes_form=self._has_logins and request.method == "POST" and _path_of(request) in FORMS,
            ),
            self._names,
        )
        if refused is None:
            return self._unauthorized(request)
        self.stats.foreign += 1
        self._deny(request, "ForeignPage")
        return self._closing(InvalidRequest(f"{request.method} {request.path}: {refused.message}"), refused.status)

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        access, needs = self.access, _needs_of(request)
        sender: Shown = request.get(_SHOWN, NOBODY)
        if sender.trouble:
            self._note_unauthorized(request, Forbidden.__name__)
            return self._closing(Forbidden(f"{request.method} {request.path}: {sender.trouble}. Nothing was done"), 403)
        if access is None or needs.is_for_anyone:
            return None
        shown = request.headers.getall("Authorization", ())
        connection = self._connections.get(request.protocol)
        has_shown_token = connection is not None and connection.has_shown_token
        if shown and sender.member is None and not has_shown_token and not self._may_guess(request):
            return self._too_many_guesses(request)
        if sender.member is not None:
            caller = caller_of_part(sender.member.principal)
        else:
            caller = access.caller(shown) if shown or not self._has_logins else self._person(request, access)
        if caller is None and self._has_logins and not shown and is_page_asked(request):
            return web.Response(status=303, headers={"Location": login_address(request.path_qs), **_NOT_KEPT})
        if caller is None:
            return self._without_token(request, is_wrong=bool(shown))
        if connection is not None:
            connection.has_shown_token = True
        request[_CALLER] = caller
        if caller.may(needs):
            return None
        self.stats.forbidden += 1
        self._deny(request, Forbidden.__name__)
        error = Forbidden(f"{why_forbidden(caller, needs)}. Nothing was done")
        if self._error_page is not None and is_page_asked(request):
            return self._error_page(error, 403, person_of(request))
        return self._closing(error, 403)

    def _without_token(self, request: web.Request, *, is_wrong: bool) -> web.Response:
        self._note_unauthorized(request, Unauthorized.__name__)
        if is_wrong:
            request[_DELAY_MS] = self._guessed(request)
        answer = self._closing(Unauthorized(WRONG_TOKEN if is_wrong else WITHOUT_TOKEN), 401)
        for challenge in CHALLENGES[:1] if self._has_logins else CHALLENGES:  # a browser must not ask beside the form
            answer.headers.add("WWW-Authenticate", challenge)
        return answer

    def _note_unauthorized(self, request: web.Request, error: str) -> None:
        self.stats.unauthorized += 1
        self._deny(request, error)

    # Logins of people -----------------------------------------------------------------------------------------------
    def begin_logins(self, error_page: ErrorPage) -> None:
        """From now on people may log in."""
        self._has_logins, self._error_page = True, error_page

    @property
    def is_secure(self) -> bool:
        """It speaks TLS."""
        return self._tls is not None

    def _person(self, request: web.Request, access: HttpAccess) -> Caller | None:
        """The person of this browser, if the token still opens anything. A cookie reads: it changes nothing, and never
        stands for a part of a cluster, whatever its token is."""
        if request.method not in _READS:
            return None
        digest = self._logins.token_digest(request)
        caller = None if digest is None else access.caller_of(digest)
        if caller is None:
            return None
        request[_PERSON] = f"{caller.principal.removeprefix('Token:')} ({role_name(caller.role)})"
        return Caller(caller.principal, caller.role)

    async def log_in(self, request: web.Request, response: web.Response, token: bytes) -> StratalogError | None:
        """Begin a session with the response. Returns why it does not begin; that answer has waited."""
        if not self._may_guess(request):
            self._note_unauthorized(request, LimitExceeded.__name__)
            return Unavailable(TOO_MANY_GUESSES)
        digest = digest_of(token)
        caller = self.access.caller_of(digest) if self.access is not None and may_be_token(token) else None
        if caller is None:
            self._note_unauthorized(request, Unauthorized.__name__)
            await self._wait_for_guess(request, self._guessed(request))
            return Unauthorized("this is not a token of this cluster")
        self._logins.begin(request, response, digest)
        asker = Asker(caller.principal, request.remote or "")
        self._audit.change(asker, Change("Login", "HTTP", LOGIN), Outcome.DONE)
        return None

    def log_out(self, request: web.Request, response: web.Response) -> None:
        self._logins.end(request, response)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    # Guesses --------------------------------------------------------------------------------------------------------
    def _may_guess(self, request: web.Request) -> bool:
        """Whether a token from this address is compared now. It is on connections that have shown a right one."""
        guesses = self.access.guesses if self.access is not None else None
        return guesses is None or guesses.may_guess(request.remote or "")

    def _guessed(self, request: web.Request) -> int:
        """A token was wrong. Returns how long its answer waits, in ms: `_wait_for_guess` must follow."""
        guesses = self.access.guesses if self.access is not None else None
        return 0 if guesses is None else guesses.begin(request.remote or "", self._now_ms())

    async def _wait_for_guess(self, request: web.Request, delay_ms: int) -> None:
        try:
            await asyncio.sleep(delay_ms / 1_000)
        finally:
            if self.access is not None and self.access.guesses is not None:
                self.access.guesses.end(request.remote or "")

    def _too_many_guesses(self, request: web.Request) -> web.Response:
        self._note_unauthorized(request, LimitExceeded.__name__)
        answer = self._closing(Unavailable(TOO_MANY_GUESSES), 429)
        answer.headers["Retry-After"] = "1"
        return answer

    def _deny(self, request: web.Request, error: str) -> None:
        self._audit.denied(asker_of(request), _method_of(request), "HTTP", _path_of(request) or "(no route)", error)

    def _closing(self, problem: StratalogError, status: int) -> web.Response:
        """What is not read to its end cannot be followed by another request."""
        answer = self._answer(problem, status)
        answer.force_close()
        return answer

    async def _read_body(self, request: web.Request) -> bytes:
        """The whole body; what it takes of the room for all of them is given back by the caller."""
        limits = self.limits
        most_bytes = MOST_FORM_BYTES if _path_of(request) in FORMS else limits.max_body_bytes
        announced_bytes = request.content_length or 0
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                if max(announced_bytes, size) > most_bytes:
                    raise _NotTaken(
                        LimitExceeded(f"the request's body is larger than {most_bytes} bytes: send less at a time"),
                        413,
                    )
                piece = await request.content.readany()
                if not piece:
                    return b"".join(pieces)
                if self._bodies_bytes + len(piece) > limits.max_bodies_bytes:
                    raise _NotTaken(Unavailable("too many requests are being sent at once: try again"), 503)
                self._bodies_bytes += len(piece)
                size += len(piece)
                pieces.append(piece)
        except BaseException as error:
            self._bodies_bytes -= size
            if isinstance(error, TimeoutError):
                self.stats.closed_for_fault += 1
                wait_s = limits.request_timeout_s
                raise _NotTaken(
                    Unavailable(f"the request's body did not come within {wait_s} s: send it again"), 408
                ) from error
            raise


class _NotTaken(Exception):
    """A body that is not taken: what to answer."""

    def __init__(self, problem: StratalogError, status: int) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.status = status


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
