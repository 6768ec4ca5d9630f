"""TLS handshakes at every kind of port: clients that do not finish theirs, or send something else, hold up no other."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from stratalog.event_loop import tls_handshakes, tls_transports
from stratalog.event_loop.tls_handshakes import TlsHandshakes
from stratalog.kafka.replica_fetch import FINAL_EPOCH, NO_SESSION, ReplicaFetch, encode_replica_fetch
from stratalog.model.errors import StratalogError
from stratalog.model.listeners import Listener, SecurityProtocol
from stratalog.settings.choices import ClientAuth
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from stratalog.tls.subjects import member_of
from stratalog_node.volume.listener import VolumeListener
from stratalog_node.volume.sealed_files import VolumeStats
from support.certificates import Authority
from support.serve_rig import ServeRig
from support.stream_client import client_side
from support.tls_in_memory import shaken
from support.waiting import eventually

HEAD_OF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"
HELLO_WITHOUT_END = b"\x16\x03\x01\x10\x00\x01\x00\xff\xff" + bytes(4_092)
"""A record of a hello that is announced as large as can be."""


async def until_closed(reader: asyncio.StreamReader) -> None:
    """A port that closes before it has read everything resets the connection."""
    async with asyncio.timeout(20):
        with suppress(ConnectionResetError):
            await reader.read()


@dataclass
class Port:
    authority: Authority
    address: tuple[str, int]
    stats: Any
    handshakes: TlsHandshakes[Any]
    serve: Callable[[ssl.SSLContext], Awaitable[None]]
    """One client connects, and is answered."""
    pass_time: Callable[[], None]
    """Until no handshake that is under way may continue."""
    words: str
    """What the log says about a client that speaks no TLS."""
    _opened: list[asyncio.StreamWriter] = field(default_factory=list)

    def client(self) -> ssl.SSLContext:
        return client_side(self.authority)

    async def answers(self) -> None:
        await self.serve(self.client())

    async def begin(self, data: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*self.address)
        self._opened.append(writer)
        writer.write(data)
        return reader

    def hello(self) -> bytes:
        outgoing = ssl.MemoryBIO()
        tls = self.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        return outgoing.read()

    def close(self) -> None:
        for writer in self._opened:
            writer.close()


async def _exchange(address: tuple[str, int], context: ssl.SSLContext, request: bytes, answer: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="127.0.0.1")
    writer.write(request)
    async with asyncio.timeout(20):
        await reader.readuntil(answer)
    writer.transport.abort()


API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
"""Its answer begins with its size, the number of the request, and no error."""


def _late(transports: Any) -> Callable[[], None]:
    def pass_time() -> None:
        real = transports._now_ms
        transports._now_ms = lambda: real() + tls_handshakes.TIMEOUT_MS + 1

    return pass_time


async def _kafka(stack: AsyncExitStack, tmp_path: Path, authority: Authority, identity: TlsIdentity) -> Port:
    rig = await stack.enter_async_context(ServeRig(tmp_path / "node"))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    rig.server.open(listener, Listener("secure", *address[:2]), SecurityProtocol.SSL, lambda: identity.server)

    async def serve(context: ssl.SSLContext) -> None:
        await _exchange(address, context, API_VERSIONS, b"\0\0\0\x07\0\0")

    def pass_time() -> None:
        rig.steady.now_ms += tls_handshakes.TIMEOUT_MS + 1

    words = "set security.protocol=SSL or SASL_SSL there"
    return Port(authority, address, rig.server.stats, rig.server._handshakes, serve, pass_time, words)


async def _http(stack: AsyncExitStack, tmp_path: Path, authority: Authority, identity: TlsIdentity) -> Port:
    tls = PortTls(lambda: identity.streaming(TlsRules()), lambda: None, member_of)
    limits = HttpLimits(max_connections_per_ip=256)
    server = TelemetryServer(MetricRegistry(), limits=limits, tls=tls, is_for_all=True)
    await server.start("127.0.0.1:0")
    stack.push_async_callback(server.stop)
    await eventually(lambda: server._http_port is not None and server._http_port._listener is not None)
    http_port: Any = server._http_port
    address = ("127.0.0.1", int(server.address.rpartition(":")[2]))

    async def serve(context: ssl.SSLContext) -> None:
        await _exchange(address, context, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"ok\n")

    arrivals = http_port._arrivals
    return Port(authority, address, server.stats, arrivals._handshakes, serve, _late(arrivals), "ask by https://")


async def _volume(stack: AsyncExitStack, tmp_path: Path, authority: Authority, identity: TlsIdentity) -> Port:
    def never(*_: Any) -> Any:
        raise StratalogError("nothing is asked for")

    listener = VolumeListener(never, lambda node_id, token: True, VolumeStats())
    listening = socket.create_server(("127.0.0.1", 0))
    stack.callback(listening.close)
    stack.push_async_callback(listener.close)
    await listener.open(listening, lambda: identity.streaming(TlsRules()))
    address = listening.getsockname()
    ask = encode_replica_fetch(1, "node-1", ReplicaFetch(1, 77, 0, 0, NO_SESSION, FINAL_EPOCH, []))

    async def serve(context: ssl.SSLContext) -> None:
        await _exchange(address, context, ask, b"\0\0\0\x01")

    transports: Any = listener._transports
    words = "set security.inter.broker.protocol=SSL there"
    return Port(authority, address, listener._stats, transports._handshakes, serve, _late(transports), words)


@pytest.fixture(params=["kafka", "http", "volume"])
async def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Port]:
    monkeypatch.setattr(tls_transports, "_CHECK_S", 0.05)
    authority = Authority()
    folder = authority.issue("server").write_folder(tmp_path / "tls", authority.certificate)
    identity = TlsIdentity(TlsFiles(str(folder)), TlsRules(ClientAuth.NONE))
    make = {"kafka": _kafka, "http": _http, "volume": _volume}[request.param]
    async with AsyncExitStack() as stack:
        made = await make(stack, tmp_path, authority, identity)
        await made.answers()
        yield made
        made.close()


@pytest.mark.fault("handshakes-not-finished")
async def test_handshakes_that_are_not_finished_end_and_hold_up_no_other_client(port: Port) -> None:
    begun = [await port.begin(HEAD_OF_A_HELLO if number % 2 else b"") for number in range(50)]
    await eventually(lambda: port.stats.handshakes == 50)
    await port.answers()
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (50, 0)
    port.pass_time()
    await eventually(lambda: port.stats.handshakes == 0)
    assert port.stats.handshakes_failed == 50
    for reader in begun:
        assert await reader.read() == b""


@pytest.mark.fault("handshakes-not-finished")
async def test_one_address_with_too_many_handshakes_ends_its_own(port: Port) -> None:
    port.handshakes._most_at_once = 5
    begun = [await port.begin() for _ in range(8)]
    await eventually(lambda: port.stats.handshakes_failed == 3)
    assert port.stats.handshakes == 5
    for reader in begun[:3]:  # the oldest ones
        assert await reader.read() == b""
    await port.answers()


@pytest.mark.fault("handshakes-not-finished")
async def test_a_hello_that_comes_byte_by_byte_is_answered_and_holds_up_no_other_client(port: Port) -> None:
    hello = port.hello()
    reader = await port.begin()
    writer = port._opened[-1]
    for number, byte in enumerate(hello):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
        if number == len(hello) // 2:
            await port.answers()
    async with asyncio.timeout(20):
        assert await reader.readexactly(3) == b"\x16\x03\x03", "the server's hello"
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (1, 0)


@pytest.mark.fault("handshakes-not-finished")
async def test_a_hello_that_is_cut_off_anywhere_ends_its_connection_alone(port: Port) -> None:
    hello = port.hello()
    cuts = [*range(12), *range(12, len(hello), 40), len(hello)]
    for cut in cuts:
        await port.begin(hello[:cut])
        port._opened[-1].close()
    await eventually(lambda: port.stats.handshakes_failed == len(cuts))
    assert port.stats.handshakes == 0
    await port.answers()


@pytest.mark.fault("handshakes-not-finished")
async def test_a_handshake_of_too_many_bytes_ends(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_handshakes, "_MOST_BYTES", 3_000)
    structlog.reset_defaults()  # an earlier test or command in this process may have set a level above this line's
    with capture_logs() as logged:
        reader = await port.begin(HELLO_WITHOUT_END)
        await until_closed(reader)
        await eventually(lambda: any("more than 3000 bytes came" in str(one) for one in logged))
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    await port.answers()


@pytest.mark.parametrize("size", [0x4801, 0xFFFF], ids=["just", "far"])
async def test_a_record_that_is_longer_than_any_may_be_ends_its_connection_alone(port: Port, size: int) -> None:
    reader = await port.begin(b"\x16\x03\x01" + size.to_bytes(2, "big") + bytes(2_000))
    await until_closed(reader)
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    await port.answers()


@pytest.mark.parametrize("data", [API_VERSIONS, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff" * 4_096])
async def test_a_client_that_speaks_no_tls_is_closed_and_the_log_says_what_to_do(port: Port, data: bytes) -> None:
    with capture_logs() as logged:
        reader = await port.begin(data)
        await until_closed(reader)
        await eventually(lambda: any(port.words in str(one) for one in logged))
    assert (port.stats.handshakes, port.stats.handshakes_failed) == (0, 1)
    await port.answers()


async def test_many_handshakes_at_once_are_all_finished(port: Port) -> None:
    contexts = [port.client() for _ in range(4)]
    done = await asyncio.gather(*(shaken(port.address, contexts[number % 4]) for number in range(60)))
    await eventually(lambda: port.stats.handshakes == 0)
    assert port.stats.handshakes_failed == 0
    for sock, _ in done:
        sock.close()


async def test_a_port_with_handshakes_under_way_closes(port: Port) -> None:
    """The fixture closes it; a connection that it left open would hang here."""
    await port.begin(HEAD_OF_A_HELLO)
    await eventually(lambda: port.stats.handshakes == 1)
