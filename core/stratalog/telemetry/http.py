"""The node's HTTP port: `/metrics`, `/healthz`, `/readyz`, and whatever routes the composition adds.

aiohttp costs 0.2 s to import, so the node does not wait for it: `start` binds the address and returns, aiohttp is
imported in a thread, and who connects meanwhile waits in the socket's backlog.
Nothing here is on the data path. Without `http_access` whoever reaches it may ask: bind it to loopback then, or to
a private network. Its limits, and what keeps foreign web pages out, are in `http_port` and `request_guard`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stratalog.model.addresses import parse_address, written
from stratalog.model.errors import InvalidRequest, StratalogError, Unavailable
from stratalog.model.roles import FOR_ANYONE, FOR_VIEWERS
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.http_access import METRICS, HttpAccess
from stratalog.telemetry.http_limits import HttpLimits, HttpStats
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.metrics import CONTENT_TYPE, MetricRegistry
from stratalog.telemetry.request_guard import ServedNames

if TYPE_CHECKING:
    from aiohttp import web

    from stratalog.telemetry.http_port import HttpPort

_BACKLOG = 128

AddRoutes = Callable[["web.Application"], None]
Readiness = Callable[[], Mapping[str, str]]
"""What the node is not ready for, as {what: why}; empty when it is ready."""


def split_address(address: str, named_by: str = "address") -> tuple[str, int]:
    """`HOST:PORT` -> (host, port); an IPv6 host may be in brackets. `named_by`: the option that it was given with.

    Raises: InvalidRequest."""
    try:
        return parse_address(address)
    except ValueError as error:
        raise InvalidRequest(f"{named_by} {address!r:.80}: {error}") from None


async def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; who connects waits in its backlog. Raises: OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, place = found[0]
    return socket.create_server(place[:2], family=family, backlog=_BACKLOG)


def _error_answer(error: StratalogError, status: int) -> web.Response:
    """As the admin API tells of errors (`admin_api.errors`)."""
    from aiohttp import web

    body = json.dumps({"error": type(error).__name__, "message": str(error)}) + "\n"
    return web.Response(text=body, status=status, content_type="application/json")


class TelemetryServer:
    """Serves one registry. `address` is known once started (port 0 takes a free one)."""

    def __init__(
        self,
        registry: MetricRegistry,
        *,
        readiness: Readiness = dict,
        add_routes: AddRoutes | None = None,
        imports: tuple[str, ...] = (),
        limits: HttpLimits | None = None,
        allowed_hosts: str = "",
        access: HttpAccess | None = None,
        is_for_all: bool = False,
        tls: PortTls | None = None,
        audit: AuditLog = NO_AUDIT,
    ) -> None:
        """`add_routes` is called once the modules `imports` have been imported, in a thread. `allowed_hosts` are names
        under which the port is served, beside the one of its address (see `request_guard`). `access`: the token that
        requests must show. `is_for_all`: everyone who reaches the port may ask, on purpose, because it only serves
        numbers."""
        self._is_for_all = is_for_all
        self._tls = tls
        self._audit = audit
        self._registry = registry
        self._readiness = readiness
        self._add_routes = add_routes
        self._imports = ("stratalog.telemetry.http_port", *imports)
        self._limits = limits or HttpLimits()
        self._allowed_hosts = allowed_hosts
        self._access = access
        self._http_port: HttpPort | None = None
        self._serving: asyncio.Task[None] | None = None
        self.stats = HttpStats()
        self.address = ""

    async def start(self, listen: str) -> str:
        """Take HOST:PORT and begin to serve there; returns the address in use. Raises Unavailable when it is taken."""
        host, port = split_address(listen)
        try:
            listener = await listen_on(host, port)
        except OSError as error:
            raise Unavailable(
                f"metrics.listen={listen}: cannot listen there ({error.strerror}); "
                f"choose another port, 0 for a free one, or an empty value for none"
            ) from None
        bound = listener.getsockname()[1]
        self.address = written(host, bound)
        self._serving = asyncio.create_task(self._serve(listener, host))
        return self.address

    async def _serve(self, listener: socket.socket, host: str) -> None:
        try:
            for name in self._imports:
                await asyncio.to_thread(importlib.import_module, name)
        except BaseException:
            listener.close()
            raise
        from stratalog.telemetry.http_port import HttpPort, declare

        names = ServedNames(host, self._allowed_hosts)
        http_port = HttpPort(
            "metrics.listen",
            self._limits,
            names,
            self.stats,
            _error_answer,
            self._access,
            is_for_all=self._is_for_all,
            tls=self._tls,
            audit=self._audit,
        )
        application = http_port.application()
        is_open = self._access is not None and self._access.is_metrics_open
        declare(application, {("GET", METRICS): FOR_ANYONE if is_open else FOR_VIEWERS})
        application.router.add_get(METRICS, self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        if self._add_routes is not None:
            self._add_routes(application)
        self._http_port = http_port
        await http_port.open(application, listener)

    async def stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await asyncio.wait([serving])
        http_port, self._http_port = self._http_port, None
        if http_port is not None:
            await http_port.close()

    async def _metrics(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=await self._registry.page(), headers={"Content-Type": CONTENT_TYPE})

    async def _healthz(self, _request: web.Request) -> web.Response:
        """Alive: the loop answers. Says nothing about readiness, so that a busy node is not killed."""
        from aiohttp import web

        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        missing = dict(self._readiness())
        body = json.dumps({"ready": not missing, "waiting_for": missing}) + "\n"
        return web.Response(text=body, status=503 if missing else 200, content_type="application/json")
