"""TLS of ports whose connections are transports of asyncio or uvloop. Each accepted socket does its handshake in
`TlsHandshakes`, whose thread and bounds all ports have alike, and becomes a transport after it.

asyncio and uvloop would shake hands on the loop, and give each connection 256 KiB for it. So they get an object of TLS
whose handshake is done, from the context that they ask for one, and continue with it (docs/security-spec.md, "TLS").
Lives on the event loop; one timer while handshakes are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final, Self

from stratalog.event_loop.bounded_tls import AcceptedTls
from stratalog.event_loop.patience import TimedChecks
from stratalog.event_loop.task_set import TaskSet
from stratalog.event_loop.tls_channel import TlsChannel
from stratalog.event_loop.tls_handshakes import MOST_AT_ONCE, TIMEOUT_MS, HandshakeStats, PortWords, TlsHandshakes
from stratalog.event_loop.tls_sessions import ServerContext

_CHECK_S: Final = 1.0


class Arrival:
    """A connection before its protocol has a transport: `connection_made` of the protocol ends it, or `failed`."""

    def __init__(
        self, port: TlsTransports, channel: TlsChannel, protocol: asyncio.BaseProtocol, failed: Callable[[str], None]
    ) -> None:
        self.protocol = protocol
        self.is_closed = False
        self._port = port
        self._channel = channel
        self._failed = failed
        self._is_in_handshake = True

    def close(self, reason: str, *, is_fault: bool = False) -> None:
        """Says why to `failed`, now or as soon as the loop lets go of the socket."""
        if self.is_closed:
            return
        if not self._is_in_handshake:
            self.is_closed = True
            with contextlib.suppress(OSError):  # its transport, which is being made, meets the end
                self._channel.sock.shutdown(socket.SHUT_RDWR)
            return
        self._port.let_go(self, self._channel)
        self._channel.close()
        self.fail(reason)

    @property
    def waited_ms(self) -> int | None:
        """For how long its client's next step is waited for; None: the next step is the port's."""
        return self._port.waited_ms(self)

    def turn_failed(self, error: Exception) -> None:
        context = {"message": "a handshake of TLS met a fault", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        self.close(f"a fault of this process: {error}")

    def handshake_done(self) -> None:
        self._is_in_handshake = False

    def fail(self, reason: str) -> None:
        self.is_closed = True
        self._failed(reason)


class TlsTransports:
    """Of one port."""

    def __init__(
        self,
        stats: HandshakeStats,
        words: PortWords,
        *,
        shutdown_timeout_s: float,
        most_at_once: int = MOST_AT_ONCE,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """`shutdown_timeout_s`: how long the end of a connection waits for the other side's."""
        self._loop = asyncio.get_running_loop()
        self._shutdown_timeout_s = shutdown_timeout_s
        self._handshakes: TlsHandshakes[Arrival] = TlsHandshakes(
            self._loop,
            stats,
            self._shaken,
            words,
            self._now_ms,
            most_at_once=most_at_once,
            timeout_ms=timeout_ms,
        )
        self._opening = TaskSet()
        self._spare: list[_Opened] = []
        """As many as have been used at once; making one takes 120 us and 14 KiB."""
        self._timer: asyncio.TimerHandle | None = None
        self._checks = TimedChecks(self._loop.time, _CHECK_S)

    def begin(
        self,
        sock: socket.socket,
        context: ServerContext,
        address: str,
        protocol: asyncio.BaseProtocol,
        failed: Callable[[str], None],
    ) -> Arrival:
        """The socket, which does not block, belongs to this object from now on. `context` makes `AcceptedTls`. Either
        `protocol` gets its transport, or `failed` the reason why not."""
        channel = TlsChannel(sock, context)
        arrival = Arrival(self, channel, protocol, failed)
        self._handshakes.begin(arrival, channel, address)
        if self._timer is None:
            self._checks = TimedChecks(self._loop.time, _CHECK_S)
            self._timer = self._loop.call_later(_CHECK_S, self._end_overdue)
        return arrival

    async def close(self) -> None:
        """Its owner has closed all arrivals."""
        if self._timer is not None:
            self._timer.cancel()
        await self._handshakes.close()
        await self._opening.ended()

    def let_go(self, arrival: Arrival, channel: TlsChannel) -> None:
        """The handshake of an arrival has ended without success."""
        self._loop.remove_reader(channel.fileno())
        self._loop.remove_writer(channel.fileno())
        self._handshakes.forget(arrival)

    def waited_ms(self, arrival: Arrival) -> int | None:
        return self._handshakes.waited_ms(arrival)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    def _end_overdue(self) -> None:
        if not self._checks.is_late():
            self._handshakes.end_overdue()
        self._timer = self._loop.call_later(_CHECK_S, self._end_overdue) if self._handshakes else None

    def _shaken(self, arrival: Arrival, channel: TlsChannel) -> None:
        arrival.handshake_done()
        self._opening.start(self._open(arrival, channel))

    async def _open(self, arrival: Arrival, channel: TlsChannel) -> None:
        opened = self._spare.pop() if self._spare else _Opened()
        opened.tls = channel.tls
        try:
            await self._loop.connect_accepted_socket(
                lambda: arrival.protocol, channel.sock, ssl=opened, ssl_shutdown_timeout=self._shutdown_timeout_s
            )
        except OSError as error:
            channel.sock.close()
            arrival.fail(f"it ended right after the TLS handshake: {error}")
        opened.tls = None
        self._spare.append(opened)


class _Opened(ssl.SSLContext):
    """Gives a transport, which asks it for one, the object of TLS of a connection whose handshake is done."""

    tls: ssl.SSLObject | None = None

    def __new__(cls) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        assert isinstance(self.tls, AcceptedTls), "the context of the port makes these"
        self.tls.continue_with(incoming, outgoing)
        return self.tls
