"""Each kind of port of a node that speaks TLS, in this process, and clients of it that know no manners."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratalog.event_loop import tls_handshakes
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
from support.client_hellos import real_hello
from support.serve_rig import ServeRig
from support.stream_client import client_side
from support.waiting import eventually

PORTS = ("kafka", "http", "volume")


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What comes until then. A port that closes before it has read everything resets the connection."""
    got = b""
    async with asyncio.timeout(20):
        with suppress(ConnectionResetError):
            while piece := await reader.read(1 << 16):
                got += piece
    return got


@dataclass
class Port:
    authority: Authority
    identity: TlsIdentity
    address: tuple[str, int]
    stats: Any
    handshakes: TlsHandshakes[Any]
    request: bytes
    answer: bytes
    """A part of it."""
    pass_time: Callable[[], None]
    """Until no handshake that is under way may continue."""
    words: str
    """What the log says about a client that speaks no TLS."""
    _opened: list[asyncio.StreamWriter] = field(default_factory=list)

    def client(self) -> ssl.SSLContext:
        return client_side(self.authority)

    async def serve(self, context: ssl.SSLContext) -> None:
        """One client connects, and is answered."""
        reader, writer = await asyncio.open_connection(*self.address, ssl=context, server_hostname="127.0.0.1")
        writer.write(self.request)
        async with asyncio.timeout(20):
            await reader.readuntil(self.answer)
        writer.transport.abort()

    async def answers(self) -> None:
        await self.serve(self.client())

    async def begin(self, data: bytes = b"", source: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*self.address, local_addr=(source, 0))
        self._opened.append(writer)
        writer.write(data)
        return reader

    def hello(self) -> bytes:
        return real_hello(self.client())

    async def send(self, data: bytes) -> None:
        """By the connection that was begun last."""
        self._opened[-1].write(data)
        await self._opened[-1].drain()

    def close(self) -> None:
        for writer in self._opened:
            writer.close()


API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
"""Its answer begins with its size, the number of the request, and no error."""
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _late(handshakes: TlsHandshakes[Any]) -> Callable[[], None]:
    def pass_time() -> None:
        real = handshakes._now_ms
        handshakes._now_ms = lambda: real() + tls_handshakes.TIMEOUT_MS + 1

    return pass_time


async def _kafka(
    stack: AsyncExitStack, tmp_path: Path, authority: Authority, identity: TlsIdentity, rules: TlsRules
) -> Port:
    rig = await stack.enter_async_context(ServeRig(tmp_path / "node"))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    rig.server.open(listener, Listener("secure", *address[:2]), SecurityProtocol.SSL, lambda: identity.server)

    def pass_time() -> None:
        rig.steady.now_ms += tls_handshakes.TIMEOUT_MS + 1

    words = "set security.protocol=SSL or SASL_SSL there"
    return Port(
        authority,
        identity,
        address,
        rig.server.stats,
        rig.server._handshakes,
        API_VERSIONS,
        b"\0\0\0\x07\0\0",
        pass_time,
        words,
    )


async def _http(
    stack: AsyncExitStack, tmp_path: Path, authority: Authority, identity: TlsIdentity, rules: TlsRules
) -> Port:
    tls = PortTls(lambda: identity.streaming(rules), lambda: None, member_of)
    limits = HttpLimits(max_connections_per_ip=256)
    server = TelemetryServer(MetricRegistry(), limits=limits, tls=tls, is_for_all=True)
    await server.start("127.0.0.1:0")
    stack.push_async_callback(server.stop)
    await eventually(lambda: server._http_port is not None and server._http_port._listener is not None)
    http_port: Any = server._http_port
    address = ("127.0.0.1", int(server.address.rpartition(":")[2]))

    arrivals = http_port._arrivals
    return Port(
        authority,
        identity,
        address,
        server.stats,
        arrivals._handshakes,
        HEALTHZ,
        b"ok\n",
        _late(arrivals._handshakes),
        "ask by https://",
    )


async def _volume(
    stack: AsyncExitStack, tmp_path: Path, authority: Authority, identity: TlsIdentity, rules: TlsRules
) -> Port:
    def never(*_: Any) -> Any:
        raise StratalogError("nothing is asked for")

    listener = VolumeListener(never, lambda node_id, token: True, VolumeStats())
    listening = socket.create_server(("127.0.0.1", 0))
    stack.callback(listening.close)
    stack.push_async_callback(listener.close)
    await listener.open(listening, lambda: identity.streaming(rules))
    address = listening.getsockname()
    ask = encode_replica_fetch(1, "node-1", ReplicaFetch(1, 77, 0, 0, NO_SESSION, FINAL_EPOCH, []))

    transports: Any = listener._transports
    words = "set security.inter.broker.protocol=SSL there"
    return Port(
        authority,
        identity,
        address,
        listener._stats,
        transports._handshakes,
        ask,
        b"\0\0\0\x01",
        _late(transports._handshakes),
        words,
    )


@asynccontextmanager
async def tls_port(kind: str, folder: Path, auth: ClientAuth = ClientAuth.NONE) -> AsyncIterator[Port]:
    """`kind`: one of `PORTS`."""
    authority = Authority()
    files = authority.issue("server").write_folder(folder / "tls", authority.certificate)
    rules = TlsRules(auth)
    identity = TlsIdentity(TlsFiles(str(files)), rules)
    make = {"kafka": _kafka, "http": _http, "volume": _volume}[kind]
    async with AsyncExitStack() as stack:
        made = await make(stack, folder, authority, identity, rules)
        yield made
        made.close()
