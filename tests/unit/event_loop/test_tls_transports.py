"""Transports whose TLS handshake was done before them, on both kinds of event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from stratalog.event_loop import tls_handshakes
from stratalog.event_loop.bounded_tls import AcceptedTls
from stratalog.event_loop.tls_handshakes import PortWords
from stratalog.event_loop.tls_transports import Arrival, TlsTransports
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.settings.choices import ClientAuth
from stratalog.tls.contexts import TlsRules
from stratalog.tls.identity import TlsIdentity
from stratalog.tls.material import TlsFiles
from support.certificates import Authority
from support.stream_client import client_side
from support.tls_in_memory import End, shaken
from support.waiting import eventually

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def in_loop(test: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(test, 60))

    return in_loop


@dataclass
class Stats:
    handshakes: int = 0
    handshakes_failed: int = 0
    turned_away: dict[TurnedAway, int] = field(default_factory=lambda: dict.fromkeys(TurnedAway, 0))


class Served(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.got = bytearray()
        self.is_ended = self.is_lost = self.is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> None:
        self.is_ended = True

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@dataclass
class Port:
    """A listener that hands each connection over as it comes."""

    authority: Authority
    address: tuple[str, int]
    transports: TlsTransports
    stats: Stats
    served: list[Served] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def client(self) -> ssl.SSLContext:
        return client_side(self.authority)


@asynccontextmanager
async def port(folder: Path, auth: ClientAuth = ClientAuth.NONE) -> AsyncIterator[Port]:
    authority = Authority()
    rules = TlsRules(auth)
    files = TlsFiles(str(authority.issue("server").write_folder(folder / "server", authority.certificate)))
    identity = TlsIdentity(files, rules)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    stats = Stats()
    transports = TlsTransports(stats, PortWords("speak it", "the.setting"), shutdown_timeout_s=2.0)
    made = Port(authority, listener.getsockname(), transports, stats)
    loop = asyncio.get_running_loop()

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            protocol = Served()
            made.served.append(protocol)
            context = identity.streaming(rules)
            made.arrivals.append(transports.begin(sock, context, "127.0.0.1", protocol, made.failures.append))

    accepting = loop.create_task(accept())
    yield made
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)
    for arrival in made.arrivals:
        arrival.close("the test ends")
    await transports.close()
    for one in made.served:
        if one.transport is not None:
            one.transport.abort()
    listener.close()


async def _receive(sock: socket.socket, end: End) -> bytes:
    """What comes next, decrypted; empty at the end of the connection."""
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            return end.tls.read(1 << 16)
        received = await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
        end.incoming.write(received) if received else end.incoming.write_eof()


def test_bytes_of_both_sides_come_through_and_so_does_the_end(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with port(tmp_path) as one:
            sock, end = await shaken(one.address, one.client())
            sent = bytes(range(251)) * 4_000
            end.tls.write(sent)
            await asyncio.get_running_loop().sock_sendall(sock, end.outgoing.read())
            await eventually(lambda: len(one.served[0].got) == len(sent))
            assert one.served[0].got == sent
            one.served[0].transport.write(sent)
            one.served[0].transport.close()
            answered = b""
            while piece := await _receive(sock, end):  # an end without a farewell would raise
                answered += piece
            assert answered == sent
            with contextlib.suppress(ssl.SSLError):
                end.tls.unwrap()
            await asyncio.get_running_loop().sock_sendall(sock, end.outgoing.read())
            sock.close()
            await eventually(lambda: one.served[0].is_lost)
            assert (one.failures, one.stats) == ([], Stats())

    run(test())


def test_what_comes_together_with_the_end_of_a_handshake_is_received(run: Run, tmp_path: Path) -> None:
    """No event of the socket follows then."""

    async def test() -> None:
        async with port(tmp_path) as one:
            loop = asyncio.get_running_loop()
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, one.address)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = one.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            await loop.sock_sendall(sock, outgoing.read())
            while True:
                incoming.write(await loop.sock_recv(sock, 1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
            tls.write(b"a request")
            await loop.sock_sendall(sock, outgoing.read())
            await eventually(lambda: bool(one.served) and one.served[0].got == b"a request")
            sock.close()

    run(test())


def test_the_costly_steps_of_a_handshake_never_run_on_the_loop(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    real = AcceptedTls.do_handshake

    def noted(tls: AcceptedTls) -> None:
        if tls.version() is None:  # not done yet
            steps.append(threading.get_ident())
        real(tls)

    monkeypatch.setattr(AcceptedTls, "do_handshake", noted)

    async def test() -> None:
        async with port(tmp_path) as one:
            sock, _ = await shaken(one.address, one.client())
            await eventually(lambda: one.served[0].transport is not None)
            assert len(steps) >= 2 and threading.get_ident() not in steps
            sock.close()

    run(test())


def test_the_certificate_of_a_client_is_known_to_its_protocol(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with port(tmp_path, ClientAuth.REQUIRED) as one:
            own = one.authority.issue("alice")
            sock, _ = await shaken(one.address, client_side(one.authority, own, tmp_path / "alice"))
            await eventually(lambda: one.served[0].transport is not None)
            shown = one.served[0].transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            assert ssl.DER_cert_to_PEM_cert(shown).strip().encode() == own.certificate.strip()
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await _receive(*await shaken(one.address, one.client()))
            await eventually(lambda: len(one.failures) == 1)
            assert "the.setting, and the client shows no certificate" in one.failures[0]
            assert one.served[1].transport is None
            sock.close()

    run(test())


def test_what_a_slow_reader_leaves_is_bounded_and_comes_when_it_reads_on(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with port(tmp_path) as one:
            sock, end = await shaken(one.address, one.client())
            await eventually(lambda: bool(one.served) and one.served[0].transport is not None)
            served, piece, written = one.served[0], bytes(range(250)) * 256, 0
            for _ in range(1_000):
                while not served.is_paused:
                    served.transport.write(piece)
                    written += len(piece)
                await asyncio.sleep(0)
            tls = served.transport.get_extra_info("ssl_object")
            assert tls._own.pending == 0 and served.transport.get_write_buffer_size() < 2 << 20
            # Above the kernel's buffers, which may hold some MiB.
            assert written < 32 << 20
            got = 0
            while got < written:
                part = await _receive(sock, end)
                assert part == (piece * 3)[got % len(piece) :][: len(part)]
                got += len(part)
            await eventually(lambda: not served.is_paused)
            sock.close()

    run(test())


def test_a_protocol_that_pauses_reading_gets_the_rest_when_it_resumes(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with port(tmp_path) as one:
            sock, end = await shaken(one.address, one.client())
            await eventually(lambda: bool(one.served) and one.served[0].transport is not None)
            served = one.served[0]
            served.transport.pause_reading()
            sent = bytes(range(251)) * 8_000
            end.tls.write(sent)
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(sock, end.outgoing.read()))
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(served.got) == 0
            served.transport.resume_reading()
            await sending
            await eventually(lambda: len(served.got) == len(sent))
            assert served.got == sent
            sock.close()

    run(test())


def test_a_connection_that_is_closed_while_its_step_runs_gets_no_transport(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tls_handshakes._take_steps

    async def test() -> None:
        async with port(tmp_path) as one:
            loop = asyncio.get_running_loop()

            async def close() -> None:
                one.arrivals[0].close("a test")

            def closing(channels: list[Any]) -> list[str | None]:
                asyncio.run_coroutine_threadsafe(close(), loop).result(10)
                return real(channels)

            monkeypatch.setattr(tls_handshakes, "_take_steps", closing)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(*one.address, ssl=one.client(), server_hostname="127.0.0.1")
            monkeypatch.setattr(tls_handshakes, "_take_steps", real)
            assert (one.failures, one.served[0].transport, one.stats.handshakes) == (["a test"], None, 0)
            sock, _ = await shaken(one.address, one.client())
            await eventually(lambda: one.served[1].transport is not None)
            sock.close()

    run(test())


def test_a_connection_that_is_closed_as_its_handshake_ends_is_lost(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two, its transport is being made."""

    async def test() -> None:
        async with port(tmp_path) as one:
            real = one.transports._handshakes._on_open

            def closing(arrival: Arrival, channel: Any) -> None:
                real(arrival, channel)
                arrival.close("a test")

            monkeypatch.setattr(one.transports._handshakes, "_on_open", closing)
            sock, _ = await shaken(one.address, one.client())
            await eventually(lambda: one.served[0].is_lost or bool(one.failures))
            sock.close()

    run(test())


def test_a_fault_with_one_connection_holds_up_no_other_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with port(tmp_path) as one:
            told: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
            real, faults = one.transports._handshakes._on_open, iter([RuntimeError("a fault")])

            def fault(arrival: Arrival, channel: Any) -> None:
                for error in faults:
                    raise error
                real(arrival, channel)

            monkeypatch.setattr(one.transports._handshakes, "_on_open", fault)
            socks = [(await shaken(one.address, one.client()))[0] for _ in range(3)]
            await eventually(lambda: sum(served.transport is not None for served in one.served) == 2)
            assert [str(error) for error in told] == ["a fault"]
            assert one.failures == ["a fault of this process: a fault"]
            for sock in socks:
                sock.close()

    run(test())
