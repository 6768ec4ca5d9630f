"""Which clients get a place of an HTTP port, with real sockets, and which lose it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from stratalog.model.roles import FOR_ANYONE
from stratalog.telemetry import http_port
from stratalog.telemetry.http_access import HttpAccess
from support.http_rig import HALF_HEAD, PATIENT, Rig, port
from support.waiting import eventually

JSON = {"Content-Type": "application/json"}
TOKEN = "a-token-of-the-cluster"


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
SLOW_FOR_ANYONE = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


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
async def test_clients_that_send_empty_lines_keep_no_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them passed for the end of a head, which was then waited for."""
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    async with port(replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)) as rig:
        for number in range(9):
            await rig.send(b"\r\n\r\n")
            await eventually(lambda number=number: rig.stats.accepted == 2 + number)
        assert (await rig.ask())[0] == 200
        assert rig.stats.turned_away["full"] == 0


@pytest.mark.parametrize(
    "parts", [(b"\r\n\r\n" + PROBE,), (b"\r\n", b"\r\n" + PROBE), (PROBE + PROBE[:-4], PROBE[-4:])]
)
async def test_empty_lines_before_a_request_and_at_its_end_are_what_they_are(parts: tuple[bytes, ...]) -> None:
    async with port(PATIENT) as rig:
        sock = await rig.send(b"")
        for part in parts:
            await asyncio.get_running_loop().sock_sendall(sock, part)
            for _ in range(20):  # the port reads each part by itself
                await asyncio.sleep(0)
        await asyncio.get_running_loop().sock_sendall(sock, ASK_AND_LEAVE)
        assert (await rig.answer(sock)).count(b"HTTP/1.1 200") == sum(part.count(b"GET") for part in parts) + 1


@pytest.mark.fault("places-held-by-clients")
async def test_clients_whose_heads_make_no_request_and_that_do_not_read_keep_no_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)
    async with port(limits) as rig:
        await rig.send(b"")
        await eventually(lambda: [one for one in rig.http_port._connections.values() if one._transport is not None])
        (connection,) = rig.http_port._connections.values()
        # As where answers that it has not read fill the kernel's room.
        monkeypatch.setattr(type(connection), "_is_read", False)
        monkeypatch.setattr(connection, "inner", asyncio.Protocol())
        connection.data_received(b"no request\r\n\r\n")
        assert connection.stalled_since is not None
        monkeypatch.undo()


@pytest.mark.fault("places-held-by-clients")
async def test_clients_without_the_token_that_ask_on_and_on_keep_no_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them, with probes that anyone may ask, had the port for themselves."""
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)
    began, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        began.release()
        await may_end.wait()
        return web.Response()

    def add(application: web.Application) -> None:
        application.router.add_get("/slow", slow)
        http_port.declare(application, {("GET", "/slow"): FOR_ANYONE})

    async with port(limits, add, HttpAccess(lambda: (TOKEN,))) as rig:
        greedy = [await rig.send(PROBE) for _ in range(3)]
        connections = rig.http_port._connections
        await eventually(lambda: sum(one.answered_since is not None for one in connections.values()) == 3)
        for connection in connections.values():
            connection.answered_since = 0.0  # a while ago
        for sock in greedy:
            await asyncio.get_running_loop().sock_sendall(sock, SLOW_FOR_ANYONE)
            await asyncio.wait_for(began.acquire(), 10)
        asking = asyncio.ensure_future(rig.ask(headers={"Authorization": f"Bearer {TOKEN}"}))
        await eventually(lambda: len(rig.http_port._leaving) == 1)
        for _ in range(100):  # it is not looked for another place meanwhile
            await asyncio.sleep(0)
        assert len(rig.http_port._leaving) == 1
        may_end.set()
        assert (await asking)[0] == 200
        assert (rig.stats.turned_away["made_room"], rig.stats.turned_away["full"]) == (1, 0)


async def test_a_request_of_a_client_that_has_shown_the_token_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000)
    async with port(limits, access=HttpAccess(lambda: (TOKEN,))) as rig:
        for _ in range(3):
            shown = f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
            await rig.send(PROBE.replace(b"/healthz", b"/metrics").replace(b"\r\n\r\n", shown))
        connections = rig.http_port._connections
        await eventually(lambda: sum(one.answered_since is not None for one in connections.values()) == 3)
        for connection in connections.values():
            connection.answered_since = 0.0
            connection.request_began()
        assert await rig.answer(await rig.send(b"")) == b""
        assert (rig.stats.turned_away["full"], rig.stats.turned_away["made_room"]) == (1, 0)


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
