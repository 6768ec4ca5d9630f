"""The limits of an HTTP port, with real sockets: heads, bodies, readers without progress, the token."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.logs import configure_logs
from stratalog.telemetry.metrics import MetricRegistry
from support.http_rig import HALF_HEAD, PATIENT, Rig, length_of_body, port
from support.open_routes import for_viewers
from support.waiting import eventually

JSON = {"Content-Type": "application/json"}


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
        MetricRegistry(),
        add_routes=for_viewers(lambda app: app.router.add_post("/length", length_of_body)),
        access=access,
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
