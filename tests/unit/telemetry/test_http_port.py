"""The limits of an HTTP port, with real sockets: connections, heads, bodies, readers without progress."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from stratalog.telemetry import http_port
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.http_port import HttpPort, body_of
from stratalog.telemetry.logs import configure_logs
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


async def _length(request: web.Request) -> web.Response:
    return web.Response(text=str(len(body_of(request))))


@asynccontextmanager
async def port(
    limits: HttpLimits,
    add_routes: Callable[[web.Application], None] = lambda _: None,
    access: HttpAccess | None = None,
) -> AsyncIterator[Rig]:
    def add(application: web.Application) -> None:
        application.router.add_post("/length", _length)
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


# Connections ----------------------------------------------------------------------------------------------------
@pytest.mark.fault("http-port-incomplete-requests", "idle-half-sent-http")
async def test_half_requests_take_no_more_connections_than_the_port_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    async with port(replace(PATIENT, max_connections=10, max_connections_per_ip=1_000)) as rig:
        half = [await rig.send(HALF_HEAD) for _ in range(10)]
        await eventually(lambda: rig.stats.connections == 10)
        for _ in range(100):
            await rig.send(HALF_HEAD)
        await eventually(lambda: rig.stats.turned_away["made_room"] == 100)
        assert rig.stats.connections == 10 and rig.stats.turned_away["full"] == 0
        for sock in half:
            assert await rig.answer(sock) == b"", "those that stood still longest make room"
        assert (await rig.ask())[0] == 200, "whoever comes gets in"


@pytest.mark.fault("idle-half-sent-http")
async def test_idle_connections_keep_no_one_out_and_those_that_showed_the_token_stay_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    access = HttpAccess(lambda: (TOKEN,))
    async with port(replace(PATIENT, max_connections=10, max_connections_per_ip=1_000), access=access) as rig:
        node = await rig.send(
            f"GET /nothing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode(), "127.0.0.2"
        )
        await eventually(lambda: [one for one in rig.http_port._connections.values() if one.has_shown_token])
        for _ in range(100):
            await rig.send(b"", "127.0.0.3")
        await eventually(lambda: rig.stats.turned_away["made_room"] == 91)
        assert [one.peer_ip for one in rig.http_port._connections.values() if one.has_shown_token] == ["127.0.0.2"]
        assert node.fileno() >= 0
        assert (await rig.ask())[0] == 200


@pytest.mark.fault("connections-beyond-http-places")
async def test_clients_that_come_at_once_and_find_no_place_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them ended the connection of another one: most got no answer."""
    monkeypatch.setattr(http_port, "_GRACE_S", 3_600.0)
    async with port(replace(PATIENT, max_connections=6, max_connections_per_ip=500)) as rig:
        socks = [await rig.send(b"") for _ in range(20)]
        await eventually(lambda: rig.stats.connections == 6)
        for _ in range(100):  # the port has looked at those that wait
            await asyncio.sleep(0)
        for sock in socks:
            request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(sock, request)
        answers = [await rig.answer(sock) for sock in socks]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        assert rig.stats.turned_away["full"] == 0


@pytest.mark.fault("connections-beyond-http-places")
async def test_a_place_that_no_request_uses_is_given_to_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    async with port(replace(PATIENT, max_connections=3, max_connections_per_ip=500)) as rig:
        silent = [await rig.send(b"") for _ in range(3)]
        await eventually(lambda: rig.stats.connections == 3)
        assert (await rig.ask())[0] == 200
        assert rig.stats.turned_away["made_room"] >= 1 and silent


@pytest.mark.fault("idle-half-sent-http")
async def test_connections_that_are_being_answered_make_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    began, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        began.release()
        await may_end.wait()
        return web.Response()

    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)
    async with port(limits, lambda app: app.router.add_get("/slow", slow)) as rig:
        for _ in range(3):
            await rig.send(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(began.acquire(), 10)
        assert await rig.answer(await rig.send(b"")) == b""
        assert (rig.stats.turned_away["full"], rig.stats.turned_away["made_room"]) == (1, 0)
        may_end.set()


def _stalled(rig: Rig) -> int:
    connections = rig.http_port._connections.values()
    return sum(one.stalled_since is not None and one not in rig.http_port._leaving for one in connections)


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(bytes(64 << 10))


JSON_AND_MORE = b"Content-Type: application/json\r\n\r\n{"
STALLED = {
    "half a body": b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + JSON_AND_MORE,
    "a body that is refused": b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n"
    + JSON_AND_MORE,
    "an answer that is not read": b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.fault("places-held-by-clients")
@pytest.mark.parametrize("sent", STALLED.values(), ids=STALLED.keys())
async def test_clients_that_neither_send_nor_read_on_keep_no_one_out(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of them took a port with three places for 30 s, and the next three after that."""
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    monkeypatch.setattr(http_port, "_LINGER_S", 3_600.0)
    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)
    async with port(limits, lambda app: app.router.add_get("/endless", _endless)) as rig:
        for number in range(9):
            await rig.send(sent)
            await eventually(
                lambda number=number: rig.stats.accepted == 2 + number and _stalled(rig) == min(number + 1, 3)
            )
        assert rig.stats.turned_away["made_room"] == 6
        assert (await rig.ask())[0] == 200
        assert rig.stats.turned_away["full"] == 0


@pytest.mark.fault("places-held-by-clients")
async def test_a_client_that_has_shown_the_token_has_time_for_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)
    async with port(limits, access=HttpAccess(lambda: (TOKEN,))) as rig:
        sent = STALLED["half a body"].replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        slow = [await rig.send(sent) for _ in range(3)]
        await eventually(lambda: all(one._body is not None for one in rig.http_port._connections.values()))
        assert await rig.answer(await rig.send(b"")) == b""
        assert (rig.stats.turned_away["full"], rig.stats.turned_away["made_room"]) == (1, 0)
        await asyncio.get_running_loop().sock_sendall(slow[0], b" " * 99)
        assert (await asyncio.get_running_loop().sock_recv(slow[0], 100)).startswith(b"HTTP/1.1 200")


async def test_one_address_does_not_take_what_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.0)
    async with port(replace(PATIENT, max_connections=100, max_connections_per_ip=5)) as rig:
        for _ in range(5):
            await rig.send(HALF_HEAD, "127.0.0.2")
        await eventually(lambda: rig.stats.connections == 5)
        await rig.send(b"", "127.0.0.2")
        await eventually(lambda: rig.stats.turned_away["made_room"] == 1)
        await eventually(lambda: rig.stats.connections == 5)  # it takes a place of its own address
        assert (await rig.ask())[0] == 200


async def test_a_client_beyond_the_places_of_its_address_ends_none_that_has_just_come() -> None:
    async with port(replace(PATIENT, max_connections=100, max_connections_per_ip=2)) as rig:
        first = [await rig.send(b"", "127.0.0.2") for _ in range(2)]
        await eventually(lambda: rig.stats.connections == 2)
        for sock in first:
            sock.send(ASK_AND_LEAVE)
        assert await rig.answer(await rig.send(b"", "127.0.0.2")) == b"" or rig.stats.connections == 0
        for sock in first:
            assert (await rig.answer(sock)).startswith(b"HTTP/1.1 200")
        assert rig.stats.turned_away["made_room"] == 0


@pytest.mark.fault("refused-clients-fill-log")
async def test_clients_that_speak_tls_to_a_plain_port_are_counted_and_cost_few_lines() -> None:
    with capture_logs() as logged:
        async with port(PATIENT) as rig:
            for _ in range(30):
                # In plain text: by it the client knows that the port speaks no TLS, and can say so.
                assert (await rig.answer(await rig.send(b"\x16\x03\x01\x02\x00\x01"))).startswith(b"HTTP/1.1 400 ")
            assert rig.stats.turned_away["other_protocol"] == 30
    assert sum("it is to ask by http://" in str(one) for one in logged) == 20


@pytest.mark.fault("refused-clients-fill-log")
async def test_a_request_that_is_no_http_is_counted() -> None:
    async with port(PATIENT) as rig:
        assert b" 400 " in await rig.answer(await rig.send(b"\0\0\0\x0a\0\x12\0\0\r\n\r\n"))
        assert rig.stats.turned_away["other_protocol"] == 1


async def test_a_connection_counts_until_its_request_is_done_though_its_client_has_gone() -> None:
    """Else clients that come and go could have any number of requests worked on at once."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        began.set()
        await may_end.wait()
        return web.Response()

    async with port(PATIENT, lambda app: app.router.add_get("/slow", slow)) as rig:
        sock = await rig.send(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(began.wait(), 10)
        sock.close()
        (connection,) = rig.http_port._connections.values()
        await eventually(lambda: connection._is_lost)
        assert rig.stats.connections == 1
        may_end.set()
        await eventually(lambda: rig.stats.connections == 0)


# The port's own lateness --------------------------------------------------------------------------------------------
ASK_AND_LEAVE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def _idle(rig: Rig) -> tuple[socket.socket, Any]:
    """A connection that has stood still for longer than any limit, as the port sees it."""
    sock = await rig.send(b"")
    await eventually(lambda: [one for one in rig.http_port._connections.values() if one._transport is not None])
    (connection,) = rig.http_port._connections.values()
    connection._since -= 1_000_000
    connection.has_asked = True
    return sock, connection


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_connection_whose_request_lies_unread_is_answered_and_not_ended_as_idle() -> None:
    async with port(PATIENT) as rig:
        sock, _ = await _idle(rig)
        sock.send(ASK_AND_LEAVE)
        rig.http_port._reap()  # before the loop has read it
        assert (await rig.answer(sock)).startswith(b"HTTP/1.1 200")


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_connection_whose_request_lies_unread_makes_no_room() -> None:
    async with port(replace(PATIENT, max_connections=1)) as rig:
        sock, _ = await _idle(rig)
        with socket.create_connection((rig.host, rig.port)) as second:
            sock.send(ASK_AND_LEAVE)
            rig.http_port._accept()
            second.setblocking(False)
            second.send(ASK_AND_LEAVE)
            for one in (sock, second):
                assert (await rig.answer(one)).startswith(b"HTTP/1.1 200")
        assert (rig.stats.turned_away["made_room"], rig.stats.turned_away["full"]) == (0, 0)


@pytest.mark.fault("requests-unread-by-a-late-port")
async def test_a_check_after_a_stall_ends_no_connection_and_the_next_one_does() -> None:
    async with port(PATIENT) as rig:
        sock, connection = await _idle(rig)
        rig.http_port._checks._due_s -= 10
        rig.http_port._reap()
        assert not connection._transport.is_closing()
        rig.http_port._reap()
        assert await rig.answer(sock) == b""


@pytest.mark.fault("connections-beyond-http-places")
async def test_clients_wait_while_requests_in_all_places_are_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever came in that moment was refused."""
    monkeypatch.setattr(http_port, "_GRACE_S", 3_600.0)
    began, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        began.release()
        await may_end.wait()
        return web.Response()

    async with port(replace(PATIENT, max_connections=3), lambda app: app.router.add_get("/slow", slow)) as rig:
        socks = [await rig.send(ASK_AND_LEAVE.replace(b"healthz", b"slow")) for _ in range(3)]
        for _ in socks:
            await asyncio.wait_for(began.acquire(), 10)
        socks += [await rig.send(ASK_AND_LEAVE) for _ in range(5)]
        await eventually(lambda: rig.http_port._line is not None)
        may_end.set()
        for sock in socks:
            assert (await rig.answer(sock)).startswith(b"HTTP/1.1 200")
        assert rig.stats.turned_away["full"] == 0


async def test_an_answer_that_is_not_sent_yet_keeps_its_connection_from_being_idle() -> None:
    """uvloop sends at the end of its turn, and each loop keeps what the kernel does not take."""
    async with port(PATIENT) as rig:
        _, connection = await _idle(rig)
        assert connection.is_idle
        connection._transport.get_write_buffer_size = lambda: 1
        assert not connection.is_idle and connection.stalled_since == connection._since


# Heads ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sent", [b"", HALF_HEAD])
async def test_a_request_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async with port(HttpLimits(request_timeout_s=0.05, max_idle_s=0.05)) as rig:
        assert await rig.answer(await rig.send(sent)) == b""
        await eventually(lambda: rig.stats.connections == 0)
        assert rig.stats.closed_for_fault == bool(sent), "to be idle is no fault"


async def test_a_head_that_trickles_has_the_same_deadline() -> None:
    async with port(HttpLimits(request_timeout_s=0.2)) as rig:
        sock = await rig.send(HALF_HEAD)
        with suppress(ConnectionError):
            while rig.stats.closed_for_fault == 0:
                await asyncio.get_running_loop().sock_sendall(sock, b"h")
                await asyncio.sleep(0.01)
        assert await rig.answer(sock) == b""


@pytest.mark.fault("http-port-incomplete-requests")
async def test_a_head_has_a_largest_size_however_it_comes() -> None:
    async with port(replace(PATIENT, max_head_bytes=2_000)) as rig:
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        for pieces in ([head + b"X: " + b"x" * 2_000], [head, *[b"A%d: x\r\n" % number for number in range(1_000)]]):
            sock = await rig.send(b"")
            with suppress(ConnectionError):
                for piece in pieces:
                    await asyncio.get_running_loop().sock_sendall(sock, piece)
            told = await rig.answer(sock)
            assert told == b"" or b" 431 " in told  # a client that still writes may miss the answer
        assert rig.stats.closed_for_fault == 2
        assert b" 200 " in (await rig.answer(await rig.send(head + b"Connection: close\r\n\r\n")))[:20]


async def test_a_second_request_over_a_connection_has_a_head_of_its_own() -> None:
    async with port(replace(PATIENT, max_head_bytes=400)) as rig:
        async with aiohttp.ClientSession(f"http://{rig.server.address}") as session:
            for _ in range(10):
                async with session.post("/length", data=b"x" * 1_000, headers=JSON) as answer:
                    assert await answer.text() == "1000"
        assert rig.stats.closed_for_fault == 0


# Bodies ---------------------------------------------------------------------------------------------------------
async def test_a_body_comes_whole_to_its_handler() -> None:
    async with port(replace(PATIENT, max_body_bytes=300_000)) as rig:
        assert await rig.ask("POST", "/length", data=b"x" * 300_000, headers=JSON) == (200, "300000")

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 10_000

        assert await rig.ask("POST", "/length", data=pieces(), headers=JSON) == (200, "300000")
        assert (await rig.ask("POST", "/length", data=b"x" * 300_001, headers=JSON))[0] == 413


async def test_a_body_without_a_length_is_cut_where_it_grows_too_large() -> None:
    async with port(replace(PATIENT, max_body_bytes=1_000)) as rig:
        head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock = await rig.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"200\r\n" + b"x" * 512 + b"\r\n")
        await asyncio.get_running_loop().sock_sendall(sock, b"200\r\n" + b"x" * 512 + b"\r\n")
        assert b" 413 " in await rig.answer(sock)


@pytest.mark.fault("http-port-incomplete-requests")
async def test_half_a_body_is_not_waited_for() -> None:
    async with port(HttpLimits(request_timeout_s=0.05)) as rig:
        head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        told = await rig.answer(await rig.send(head + b"Content-Length: 100\r\n\r\nhalf"))
        assert b" 408 " in told and b"did not come within" in told
        await eventually(lambda: rig.stats.connections == 0)


@pytest.mark.fault("http-port-incomplete-requests")
async def test_all_bodies_together_have_a_bound_and_room_comes_back() -> None:
    limits = replace(PATIENT, max_body_bytes=100_000, max_bodies_bytes=150_000)
    head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 100000\r\n\r\n"
    async with port(limits) as rig:
        half = await rig.send(head + b"x" * 99_999)
        await eventually(lambda: rig.http_port._bodies_bytes == 99_999)
        status, told = await rig.ask("POST", "/length", data=b"x" * 100_000, headers=JSON)
        assert (status, "Unavailable" in told) == (503, True)
        half.close()
        await eventually(lambda: rig.http_port._bodies_bytes == 0)
        assert (await rig.ask("POST", "/length", data=b"x" * 100_000, headers=JSON))[0] == 200


# Answers --------------------------------------------------------------------------------------------------------
@pytest.mark.fault("http-port-incomplete-requests")
async def test_a_reader_without_progress_loses_its_connection() -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 10_000)
        finally:
            ended.set()

    limits = HttpLimits(request_timeout_s=0.1)
    async with port(limits, lambda app: app.router.add_get("/endless", endless)) as rig:
        await rig.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(ended.wait(), 10)
        await eventually(lambda: rig.stats.connections == 0)
        assert rig.stats.closed_for_fault == 1


async def test_a_large_answer_that_is_never_read_is_not_kept_either() -> None:
    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * (8 << 20))

    limits = HttpLimits(request_timeout_s=0.1)
    async with port(limits, lambda app: app.router.add_get("/large", large)) as rig:
        await rig.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await eventually(lambda: rig.stats.closed_for_fault == 1 and rig.stats.connections == 0)


# Pages of others ------------------------------------------------------------------------------------------------
async def test_requests_of_foreign_pages_are_refused_and_counted() -> None:
    async with port(PATIENT) as rig:
        assert (await rig.ask(headers={"Host": "rebound.example:9644"}))[0] == 403
        assert (await rig.ask(headers={"Origin": "http://page.example"}))[0] == 403
        assert (await rig.ask("POST", "/length", data=b"{}", headers={"Content-Type": "text/plain"}))[0] == 415
        assert (await rig.ask("OPTIONS", "/length", headers={"Origin": "http://page.example"}))[0] == 403
        assert b" 400 " in await rig.answer(await rig.send(b"GET /healthz HTTP/1.0\r\n\r\n"))
        assert rig.stats.foreign == 5
        assert (await rig.ask(headers={"Host": f"localhost:{rig.port}"}))[0] == 200


async def test_names_that_are_allowed_are_served() -> None:
    server = TelemetryServer(MetricRegistry(), allowed_hosts="node-0.nodes.svc, .cluster.local")
    await server.start("127.0.0.1:0")
    rig = Rig(server)
    for host, status in (("node-0.nodes.svc:80", 200), ("a.cluster.local", 200), ("node-1.nodes.svc", 403)):
        assert (await rig.ask(headers={"Host": host}))[0] == status
    await server.stop()


# The token ------------------------------------------------------------------------------------------------------
TOKEN, OTHER_TOKEN = "a-token-of-the-cluster", "another-token-of-it"


@asynccontextmanager
async def locked(*, is_metrics_open: bool = False) -> AsyncIterator[Rig]:
    """A port that asks for the token."""
    access = HttpAccess(lambda: (TOKEN, OTHER_TOKEN), is_metrics_open)
    server = TelemetryServer(
        MetricRegistry(), add_routes=for_viewers(lambda app: app.router.add_post("/length", _length)), access=access
    )
    await server.start("127.0.0.1:0")
    rig = Rig(server)
    try:
        yield rig
    finally:
        rig.close()
        await server.stop()


def _basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"whoever:{password}".encode()).decode()


@pytest.mark.fault("http-ports-reachable-beyond")
async def test_without_the_token_only_probes_are_answered_and_the_rest_learns_what_to_do() -> None:
    async with locked() as rig:
        assert [(await rig.ask(path=path))[0] for path in ("/healthz", "/readyz")] == [200, 200]
        for path in ("/metrics", "/nowhere", "/", "/healthz/", "/healthz/..%2fmetrics", "//healthz"):
            status, text = await rig.ask(path=path)
            assert status == 401 and "Authorization: Bearer TOKEN" in text and "--token-file" in text, path
        assert (await rig.ask("POST", "/length", data=b"{}", headers=JSON))[0] == 401
        assert rig.stats.unauthorized == 7
        assert TOKEN not in text


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
TRICKS = {
    "a path that is to be shortened": b"GET /healthz/../metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an encoded path": b"GET /healthz%2f%2e%2e%2fmetrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "letters in hexadecimal": b"GET /%6d%65trics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a parameter of the path": b"GET /metrics;/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a query": b"GET /metrics?/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a byte zero": b"GET /metrics%00/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a backslash": b"GET /healthz\\..\\metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a whole address": b"GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "headers that name another path": b"GET /length HTTP/1.1\r\nHost: localhost\r\n"
    b"X-Original-URL: /healthz\r\nX-Rewrite-URL: /healthz\r\n\r\n",
    "headers that name another method": b"POST /length HTTP/1.1\r\nHost: localhost\r\n"
    b"X-HTTP-Method-Override: GET\r\nContent-Length: 0\r\n\r\n",
    "headers of a proxy": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    b"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nX-Forwarded-User: admin\r\n\r\n",
    "a request in the body of another": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n"
    + SMUGGLED,
    "an encoding that is spelled oddly": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an upgrade": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
}


@pytest.mark.parametrize("trick", TRICKS)
async def test_no_trick_with_paths_headers_or_lengths_opens_what_the_token_guards(trick: str) -> None:
    async with locked() as rig:
        end = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        told = await rig.answer(await rig.send(TRICKS[trick] + end))
        assert b"# HELP" not in told and TOKEN.encode() not in told
        statuses = {int(found) for found in re.findall(rb"HTTP/1\.[01] (\d+) ", told)}
        assert statuses <= {200, 400, 401, 403, 415} and statuses - {200}


@pytest.mark.parametrize("shown", [TOKEN, OTHER_TOKEN])
async def test_any_of_the_tokens_opens_as_a_bearer_token_and_as_a_password(shown: str) -> None:
    async with locked() as rig:
        for header in (f"Bearer {shown}", f"bearer  {shown}", _basic(shown)):
            assert (await rig.ask(path="/metrics", headers={"Authorization": header}))[0] == 200
            headers = {**JSON, "Authorization": header}
            assert await rig.ask("POST", "/length", data=b"12345", headers=headers) == (200, "5")
            assert (await rig.ask(path="/nowhere", headers={"Authorization": header}))[0] == 404


@pytest.mark.fault("http-ports-reachable-beyond")
@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Token {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer \u00ff\u00ff",
        f"Basic {TOKEN}",
        "Basic ====",
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
        "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode(),
        "Bearer " + "x" * 8_000,
    ],
)
async def test_what_is_not_the_token_opens_nothing_and_differs_from_no_token(header: str) -> None:
    async with locked() as rig:
        status, text = await rig.ask(path="/metrics", headers={"Authorization": header})
        assert status == 401
        assert "is not the token of this cluster" in text and TOKEN not in text


async def test_a_token_that_is_sent_twice_is_none() -> None:
    async with locked() as rig:
        lines = f"Authorization: Bearer {TOKEN}\r\n" * 2
        head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
        assert b" 401 " in await rig.answer(await rig.send(head))


async def test_who_shows_no_token_has_no_body_read() -> None:
    async with locked() as rig:
        head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        told = await rig.answer(await rig.send(head + b"Content-Length: 1000000\r\n\r\n{"))
        assert b" 401 " in told and b"Connection: close" in told
        assert b'WWW-Authenticate: Bearer realm="stratalog"' in told and b"WWW-Authenticate: Basic" in told


async def test_metrics_are_open_where_the_settings_say_so() -> None:
    async with locked(is_metrics_open=True) as rig:
        assert (await rig.ask(path="/metrics"))[0] == 200
        assert (await rig.ask(path="/nowhere"))[0] == 401


async def test_a_page_of_another_site_is_refused_though_its_browser_shows_the_token() -> None:
    async with locked() as rig:
        headers = {"Authorization": _basic(TOKEN), "Origin": "http://page.example"}
        assert (await rig.ask(path="/metrics", headers=headers))[0] == 403


@pytest.mark.fault("http-ports-reachable-beyond")
@pytest.mark.parametrize(
    ("host", "access", "is_warned"),
    [("0.0.0.0", None, True), ("127.0.0.1", None, False), ("0.0.0.0", HttpAccess(lambda: (TOKEN,)), False)],
)
async def test_an_open_port_that_others_reach_is_reported(
    host: str, access: HttpAccess | None, is_warned: bool
) -> None:
    log = io.StringIO()
    configure_logs("info", stream=log)
    server = TelemetryServer(MetricRegistry(), access=access)
    await server.start(f"{host}:0")
    await eventually(lambda: server._http_port is not None and server._http_port._listener is not None)
    await server.stop()
    assert ("set auth.token.file" in log.getvalue()) is is_warned
    assert TOKEN not in log.getvalue()


async def test_a_port_that_only_tells_numbers_may_be_open_on_purpose() -> None:
    log = io.StringIO()
    configure_logs("info", stream=log)
    server = TelemetryServer(MetricRegistry(), is_for_all=True)
    await server.start("0.0.0.0:0")
    await eventually(lambda: server._http_port is not None and server._http_port._listener is not None)
    await server.stop()
    assert log.getvalue() == ""


async def test_no_page_may_frame_or_read_an_answer() -> None:
    async with (
        port(PATIENT) as rig,
        aiohttp.ClientSession(f"http://{rig.server.address}") as session,
        session.get("/healthz") as answer,
    ):
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in answer.headers


# What the log says -----------------------------------------------------------------------------------------------
@pytest.mark.fault("http-client-disconnects-middle")
@pytest.mark.parametrize("what", ["answer", "body", "garbage"])
async def test_a_client_that_goes_away_or_sends_no_http_is_one_line_without_a_stack(what: str) -> None:
    reached = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        reached.set()
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 16))

    logged = io.StringIO()
    configure_logs("info", stream=logged)
    try:
        async with port(PATIENT, lambda application: application.router.add_get("/stream", stream)) as rig:
            host = f"Host: {rig.server.address}".encode()
            if what == "answer":
                sock = await rig.send(b"GET /stream HTTP/1.1\r\n" + host + b"\r\n\r\n")
                await reached.wait()
            elif what == "body":
                head = b"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
                sock = await rig.send(b"POST /length HTTP/1.1\r\n" + host + head)
                await eventually(lambda: rig.http_port._bodies_bytes > 0)
            else:
                sock = await rig.send(b"GET / HTTP/1.1\r\nno colon \x00\x1b[2J here\r\n\r\n")
                await rig.answer(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            await eventually(lambda: rig.stats.connections == 0)
            await eventually(lambda: logged.getvalue())
    finally:
        configure_logs("info")
    (line,) = logged.getvalue().splitlines()
    told = json.loads(line)
    assert told["event"] == "HTTP request ended by its client" and told["level"] == "info"
    assert told["peer"] == "127.0.0.1"
    assert "exception" not in told and "Traceback" not in line
