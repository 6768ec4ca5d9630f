"""An HTTP port with real sockets, for the tests of its limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import web

from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.http_port import HttpPort, body_of
from stratalog.telemetry.metrics import MetricRegistry
from support.open_routes import for_viewers
from support.waiting import eventually

JSON = {"Content-Type": "application/json"}
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: local"
PATIENT = HttpLimits(request_timeout_s=30.0, max_idle_s=30.0)


class Rig:
    """A port whose `POST /length` tells how long the body was, and whatever routes a test adds."""

    def __init__(self, server: TelemetryServer) -> None:
        self.server = server
        self.stats = server.stats
        self.host, _, port = server.address.rpartition(":")
        self.port = int(port)
        self._opened: list[socket.socket] = []

    async def send(self, data: bytes, source: str = "127.0.0.1") -> socket.socket:
        """A connection that has sent so much."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        self._opened.append(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((source, 0))
        await loop.sock_connect(sock, (self.host, self.port))
        await loop.sock_sendall(sock, data)
        return sock

    @property
    def http_port(self) -> HttpPort:
        assert self.server._http_port is not None
        return self.server._http_port

    async def answer(self, sock: socket.socket) -> bytes:
        """Everything that comes until the port closes the connection."""
        told = b""
        with suppress(ConnectionError):
            while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 16), 10):
                told += piece
        return told

    async def ask(self, method: str = "GET", path: str = "/healthz", **options: Any) -> tuple[int, str]:
        url = f"http://{self.server.address}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
            return answer.status, await answer.text()

    def close(self) -> None:
        for sock in self._opened:
            sock.close()


async def length_of_body(request: web.Request) -> web.Response:
    return web.Response(text=str(len(body_of(request))))


@asynccontextmanager
async def port(
    limits: HttpLimits,
    add_routes: Callable[[web.Application], None] = lambda _: None,
    access: HttpAccess | None = None,
) -> AsyncIterator[Rig]:
    def add(application: web.Application) -> None:
        application.router.add_post("/length", length_of_body)
        add_routes(application)

    server = TelemetryServer(MetricRegistry(), limits=limits, add_routes=for_viewers(add), access=access)
    await server.start("127.0.0.1:0")
    rig = Rig(server)
    assert (await rig.ask())[0] == 200
    await eventually(lambda: rig.stats.connections == 0)
    try:
        yield rig
    finally:
        rig.close()
        await server.stop()
