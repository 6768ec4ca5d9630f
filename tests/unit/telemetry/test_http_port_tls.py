"""An HTTP port with TLS: which requests it answers, what half-finished handshakes cost others, changed certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from stratalog.machines.rights.members import why_not_own
from stratalog.model.errors import InvalidRequest
from stratalog.model.members import Part
from stratalog.model.roles import FOR_ANYONE, FOR_OPERATORS
from stratalog.settings.choices import ClientAuth
from stratalog.telemetry import http_port
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.http_port import declare
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog.tls.subjects import member_of
from support.certificates import Authority, Issued
from support.stream_client import client_side
from support.tls_in_memory import flood, shaken
from support.waiting import eventually

PATIENT = HttpLimits(request_timeout_s=30.0, max_idle_s=30.0)
TOKEN = {"Authorization": "Bearer the-token-of-the-cluster"}
JSON = {"Content-Type": "application/json"}


async def _change(_request: web.Request) -> web.Response:
    return web.Response(text="changed")


MOST_OF_LARGE = 64 << 20


class Port:
    large_bytes = 0
    """What `/large` has sent, or has given to the connection."""

    async def large(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while self.large_bytes < MOST_OF_LARGE:
            await answer.write(bytes(64 << 10))
            self.large_bytes += 64 << 10
        return answer

    def __init__(self, folder: Path, auth: ClientAuth, part: str) -> None:
        self.authority = Authority()
        self._tmp = folder
        self.folder = self.member(part).write_folder(folder / "port", self.authority.certificate)
        self.rules = TlsRules(auth, asked_by="http.ssl.client.auth")
        self.identity = TlsIdentity(TlsFiles(str(self.folder)), self.rules)
        self._clients = 0

    def member(self, part: str, cluster: str = "prod") -> Issued:
        return self.authority.issue_member(part, cluster) if part else self.authority.issue("server")

    def tls(self) -> PortTls:
        is_asking = self.rules.client_auth is not ClientAuth.NONE
        return PortTls(
            lambda: self.identity.streaming(self.rules), lambda: self.identity.member if is_asking else None, member_of
        )

    def client(self, own: Issued | None = None) -> ssl.SSLContext:
        self._clients += 1
        return client_side(self.authority, own, self._tmp / f"client-{self._clients}")

    async def ask(
        self,
        path: str = "/metrics",
        own: Issued | None = None,
        method: str = "GET",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        url = f"https://{self.server.address}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, ssl=self.client(own), headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    server: TelemetryServer


@asynccontextmanager
async def port(
    folder: Path,
    auth: ClientAuth = ClientAuth.REQUESTED,
    *,
    part: str = "node/1",
    limits: HttpLimits = PATIENT,
    access: HttpAccess | None = None,
) -> AsyncIterator[Port]:
    made = Port(folder, auth, part)

    def add(application: web.Application) -> None:
        application.router.add_post("/change", _change)
        application.router.add_get("/large", made.large)
        declare(application, {("POST", "/change"): FOR_OPERATORS, ("GET", "/large"): FOR_ANYONE})

    made.server = TelemetryServer(MetricRegistry(), limits=limits, add_routes=add, access=access, tls=made.tls())
    await made.server.start("127.0.0.1:0")
    assert (await made.ask("/healthz", made.member("node/1")))[0] == 200
    yield made
    await made.server.stop()


LOCKED = HttpAccess(lambda: ("the-token-of-the-cluster",))


async def test_members_are_answered_without_the_token_and_others_with_it(tmp_path: Path) -> None:
    async with port(tmp_path, access=LOCKED) as one:
        for part in ("node/1", "node/2", "meta", "operator"):
            assert (await one.ask(own=one.member(part)))[0] == 200
        for stranger in (None, one.authority.issue("alice")):
            status, words = await one.ask(own=stranger)
            assert status == 401 and "the certificate of a member" in words
            assert (await one.ask(own=stranger, headers=TOKEN))[0] == 200
            assert (await one.ask("/healthz", own=stranger))[0] == 200


async def test_nodes_read_and_the_operator_changes(tmp_path: Path) -> None:
    async with port(tmp_path, access=LOCKED) as one:
        for part, expected in (("node/2", 403), ("meta", 403), ("operator", 200)):
            status, words = await one.ask("/change", one.member(part), "POST", JSON)
            assert status == expected, words
        status, words = await one.ask("/change", one.member("node/2"), "POST", JSON | TOKEN)
        assert status == 403 and "Node:2 has the role viewer" in words, "a token adds nothing to a node"


@pytest.mark.parametrize("uris", [["stratalog://test/operator"], ["stratalog://prod/node/1", "stratalog://prod/meta"]])
async def test_certificates_of_another_cluster_and_of_several_members_are_refused_in_words(
    tmp_path: Path, uris: list[str]
) -> None:
    async with port(tmp_path, access=LOCKED) as one:
        status, words = await one.ask(own=one.authority.issue("x", uris=uris), headers=TOKEN)
        assert status == 403 and "certificate names" in words


async def test_a_port_that_requires_certificates_answers_no_one_without(tmp_path: Path) -> None:
    async with port(tmp_path, ClientAuth.REQUIRED) as one:
        with pytest.raises(aiohttp.ClientError):
            await one.ask("/healthz")
        with pytest.raises(aiohttp.ClientError):
            await one.ask("/healthz", Authority().issue_member("operator"))
        assert (await one.ask("/healthz", one.authority.issue("alice")))[0] == 200


async def test_a_port_that_asks_for_no_certificates_knows_no_members(tmp_path: Path) -> None:
    async with port(tmp_path, ClientAuth.NONE, access=LOCKED) as one:
        assert (await one.ask(own=one.member("operator")))[0] == 401
        assert (await one.ask(own=one.member("node/2"), headers=TOKEN))[0] == 200


async def test_a_port_whose_own_certificate_names_no_member_knows_none(tmp_path: Path) -> None:
    async with port(tmp_path, part="", access=LOCKED) as one:
        assert (await one.ask(own=one.member("operator")))[0] == 401


async def test_plain_http_gets_no_answer(tmp_path: Path) -> None:
    async with port(tmp_path) as one, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://{one.server.address}/healthz")
        assert (await one.ask("/healthz"))[0] == 200


async def test_a_renewed_certificate_is_shown_to_the_next_connection_and_the_present_ones_stay(tmp_path: Path) -> None:
    async with port(tmp_path) as one:
        host, _, number = one.server.address.rpartition(":")

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
            reader, writer = await asyncio.open_connection(
                host, int(number), ssl=one.client(), server_hostname="127.0.0.1"
            )
            return reader, writer, writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")

        reader, writer, before = await connect()
        await ask(reader, writer)
        one.member("node/1").write_folder(one.folder)
        one.identity.refresh()
        await ask(reader, writer)
        other, its_writer, after = await connect()
        await ask(other, its_writer)
        assert before != after
        for each in (writer, its_writer):
            each.transport.abort()


@pytest.mark.fault("certificate-replaced-cluster-runs")
def test_a_renewed_certificate_that_names_another_member_is_refused(tmp_path: Path) -> None:
    authority = Authority()
    folder = authority.issue_member("node/1").write_folder(tmp_path, authority.certificate)
    identity = TlsIdentity(TlsFiles(str(folder)), TlsRules(), why_not=lambda own: why_not_own(own, Part.NODE, 1))
    for other in (
        authority.issue_member("node/2"),
        authority.issue_member("node/1", "test"),
        authority.issue("server"),
    ):
        other.write_folder(folder)
        identity.refresh()
        assert identity.stats.is_rejected == 1 and str(identity.member) == "stratalog://prod/node/1"
    with pytest.raises(InvalidRequest, match="this process needs stratalog://CLUSTER/meta"):
        authority.issue_member("node/1").write_folder(folder)
        TlsIdentity(TlsFiles(str(folder)), TlsRules(), why_not=lambda own: why_not_own(own, Part.META))


async def test_a_flood_of_key_updates_ends_the_connection_as_a_fault(tmp_path: Path) -> None:
    """One connection kept the event loop busy for 9 s."""
    async with port(tmp_path) as one:
        host, _, number = one.server.address.rpartition(":")
        assert await flood((host, int(number)), one.client()) < 200
        await eventually(lambda: one.server.stats.closed_for_fault == 1)
        await eventually(lambda: one.server.stats.connections == 0)
        assert (await one.ask("/healthz"))[0] == 200


async def test_an_answer_that_its_client_does_not_read_takes_little_memory_and_ends(tmp_path: Path) -> None:
    limits = replace(PATIENT, request_timeout_s=1.0)
    async with port(tmp_path, limits=limits) as one:
        host, _, number = one.server.address.rpartition(":")
        sock, end = await shaken((host, int(number)), one.client())
        end.tls.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.get_running_loop().sock_sendall(sock, end.outgoing.read())
        await eventually(lambda: one.server.stats.closed_for_fault == 1 and one.server.stats.connections == 0)
        # The kernel's buffers hold some MiB.
        assert 0 < one.large_bytes < MOST_OF_LARGE // 2
        assert (one.server.stats.handshakes, one.server.stats.handshakes_failed) == (0, 0)
        sock.close()


# Half-finished handshakes -------------------------------------------------------------------------------------------
async def _half(one: Port, data: bytes = b"") -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    host, _, number = one.server.address.rpartition(":")
    await loop.sock_connect(sock, (host, int(number)))
    await loop.sock_sendall(sock, data)
    return sock


@pytest.mark.fault("half-handshakes-http")
@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "cut off"])
async def test_half_finished_handshakes_keep_no_one_out(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    limits = replace(PATIENT, max_connections=8, max_connections_per_ip=1_000)
    async with port(tmp_path, limits=limits) as one:
        await eventually(lambda: one.server.stats.connections == 0)
        opened = [await _half(one, data) for _ in range(8)]
        await eventually(lambda: one.server.stats.connections == 8)
        for _ in range(20):
            opened.append(await _half(one, data))
        await eventually(lambda: one.server.stats.turned_away["made_room"] >= 20)
        assert one.server.stats.connections <= 8
        assert (await one.ask("/healthz"))[0] == 200, "whoever finishes its handshake gets in"
        for sock in opened:
            sock.close()
        await eventually(lambda: one.server.stats.connections == 0)


@pytest.mark.fault("places-held-by-clients")
async def test_clients_that_do_not_say_farewell_keep_no_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each held its place until the port had waited for that."""
    monkeypatch.setattr(http_port, "_GRACE_S", 0.02)
    monkeypatch.setattr(http_port, "_FAREWELL_S", 3_600.0)
    limits = replace(PATIENT, max_connections=3, max_connections_per_ip=1_000, max_head_bytes=4_096)
    async with port(tmp_path, limits=limits) as one:
        await eventually(lambda: one.server.stats.connections == 0)
        host, _, number = one.server.address.rpartition(":")
        socks = []
        for _ in range(9):
            sock, end = await shaken((host, int(number)), one.client())
            end.tls.write(b"GET / HTTP/1.1\r\nHost: " + b"a" * 5_000)
            await asyncio.get_running_loop().sock_sendall(sock, end.outgoing.read())
            socks.append(sock)
        await eventually(lambda: one.server.stats.turned_away["made_room"] == 6)
        assert (await one.ask("/healthz"))[0] == 200
        for sock in socks:
            sock.close()


async def test_many_that_connect_at_once_are_all_answered(tmp_path: Path) -> None:
    limits = replace(PATIENT, max_connections=500, max_connections_per_ip=500)
    async with port(tmp_path, limits=limits) as one:
        answers = await asyncio.gather(*(one.ask("/healthz") for _ in range(200)))
        assert [status for status, _ in answers] == [200] * 200


@pytest.mark.fault("connections-beyond-http-places")
async def test_clients_that_come_at_once_and_find_no_place_wait_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them ended the handshake of another one: most got no answer."""
    monkeypatch.setattr(http_port, "_GRACE_S", 3_600.0)
    limits = replace(PATIENT, max_connections=6, max_connections_per_ip=500)
    async with port(tmp_path, limits=limits) as one:
        answers = await asyncio.gather(*(one.ask("/healthz") for _ in range(40)))
        assert [status for status, _ in answers] == [200] * 40
        assert one.server.stats.turned_away["full"] == 0


async def test_a_port_closes_although_handshakes_are_half_finished(tmp_path: Path) -> None:
    async with port(tmp_path) as one:
        sock = await _half(one)
        await eventually(lambda: one.server.stats.connections >= 1)
        await one.server.stop()
        assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""
        sock.close()


async def test_noise_in_place_of_a_handshake_ends_its_connection_alone(tmp_path: Path) -> None:
    async with port(tmp_path) as one:
        noise = await _half(one, b"\xff" * 4_096)
        await eventually(lambda: one.server.stats.closed_for_fault == 1)
        assert (await one.ask("/healthz"))[0] == 200
        noise.close()
