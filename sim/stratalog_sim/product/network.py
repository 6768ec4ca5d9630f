"""TCP between simulated machines: streams that arrive late, in order and whole, or are held while a link is cut.

A process that dies resets its connections, one whose machine loses its power does so only once that runs again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from stratalog_sim.product.kernel import Kernel
from stratalog_sim.product.machine import PROCESS, Machine, Process

_LINK_S = 0.000_2
_CONNECT_S = 30.0


class End:
    """One end of a connection, as its owner's kernel has it."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process
        self.peer: End
        self.is_closed = False
        self.arrives_s = 0.0
        """When the last piece that was sent to this end arrives."""
        self.take: Callable[[bytes | None], None] = lambda _: None
        """Given what arrives: bytes, nothing (the other end is closed), or None (the connection is reset)."""

    def send(self, piece: bytes | None) -> None:
        if self.peer.is_closed and piece is not None:
            return
        self.network.carry(self, self.peer, piece)

    def close(self, *, is_reset: bool = False) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.send(None if is_reset else b"")


class Network:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.loop = kernel.loop
        self.loop.network = self
        self.cut: dict[tuple[str, str], None] = {}
        self.slow_s = 0.0
        self.late_s: dict[tuple[str, str], float] = {}
        """By link, of those on which all takes longer."""
        self.ends: dict[End, None] = {}
        self._held: list[tuple[End, End, bytes | None]] = []
        self._listening: dict[tuple[str, int], Socket] = {}
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...], Context]] = {}
        self._last_port = 9_000

    # Links ----------------------------------------------------------------------------------------------------------
    def is_cut(self, one: Machine, other: Machine) -> bool:
        return bool(self.cut) and ((one.name, other.name) in self.cut)

    def latency_s(self) -> float:
        return _LINK_S * (0.5 + self.loop.rng.random()) + self.slow_s * self.loop.rng.random()

    def carry(self, sender: End, to: End, piece: bytes | None) -> None:
        link = sender.process.machine.name, to.process.machine.name
        takes_s = self.latency_s() + self.late_s.get(link, 0.0)
        to.arrives_s = max(to.arrives_s, self.loop.now_s + takes_s)
        self.loop.call_at(to.arrives_s, self._arrive, sender, to, piece, context=Context())

    def _arrive(self, sender: End, to: End, piece: bytes | None) -> None:
        if self.is_cut(sender.process.machine, to.process.machine) or (
            self._held and any(one is sender for one, *_ in self._held)
        ):
            self._held.append((sender, to, piece))
        elif not to.is_closed and not to.process.is_dead:
            to.take(piece)

    def join(self) -> None:
        """What was held and need not be held any more arrives, in its order."""
        held, self._held = self._held, []
        for sender, to, piece in held:
            self._arrive(sender, to, piece)

    def process_died(self, process: Process, *, says_so: bool) -> None:
        for end in [end for end in self.ends if end.process is process]:
            del self.ends[end]
            if says_so:
                end.close(is_reset=True)
            elif not end.is_closed:
                end.is_closed = True
                self.loop.call_at(self.loop.now_s + 1.0, self.carry, end, end.peer, None, context=Context())
        for place in [place for place, sock in self._listening.items() if sock.process is process]:
            del self._listening[place]

    def forget(self) -> None:
        """Forget all connections and their readers."""
        self.ends.clear()
        self._held.clear()
        self._listening.clear()
        self._readers.clear()

    # Clients --------------------------------------------------------------------------------------------------------
    async def open(self, host: str, port: int, take: Callable[[bytes | None], None]) -> End:
        """Raises: ConnectionRefusedError, and OSError while nothing is heard of the other machine."""
        process = PROCESS.get()
        assert process is not None
        await asyncio.sleep(self.latency_s())
        target = next((one for one in self.kernel.machines.values() if one.host == host), None)
        waited_s = 0.0
        while target is None or self.is_cut(process.machine, target) or self.is_cut(target, process.machine):
            await asyncio.sleep(0.05)
            waited_s += 0.05
            if waited_s > _CONNECT_S:
                raise TimeoutError(errno.ETIMEDOUT, "connection timed out")
        listening = self._listening.get((host, port))
        if listening is None or listening.process.is_dead:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        own, other = End(self, process), End(self, listening.process)
        own.peer, other.peer = other, own
        own.take = take
        self.ends[own] = self.ends[other] = None
        listening.offer(other, process.machine.host)
        return own

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        transport = Transport()
        transport.end = await self.open(host, port, transport.arrived)
        transport.begin(factory())
        return transport, transport.protocol

    # Sockets of listeners -------------------------------------------------------------------------------------------
    def listen(self, sock: Socket, host: str, port: int) -> int:
        if not port:
            self._last_port += 1
            port = self._last_port
        if (host, port) in self._listening:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self._listening[(host, port)] = sock
        return port

    async def serve(self, factory: Callable[[], asyncio.BaseProtocol], sock: Socket) -> Listening:
        """In place of `create_server`: each connection gets a protocol of its own."""
        self.add_reader(sock.fileno(), self._accept, factory, sock)
        return Listening(self, sock)

    def _accept(self, factory: Callable[[], asyncio.BaseProtocol], sock: Socket) -> None:
        for end, host, early in sock.take_line():
            transport = Transport()
            transport.end, transport.peer = end, (host, 0)
            end.take = transport.arrived
            self.ends[end] = None
            transport.begin(factory())
            for piece in early:
                transport.arrived(piece)

    def unlisten(self, sock: Socket) -> None:
        for place in [place for place, one in self._listening.items() if one is sock]:
            del self._listening[place]

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        self._readers[fd] = (callback, args, copy_context())
        self.readable(fd)

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """Data may have arrived there: call the reader for as long as there is data."""
        sock, reader = self.kernel.sockets.get(fd), self._readers.get(fd)
        if sock is not None and reader is not None and sock.has_news and not sock.is_noted:
            sock.is_noted = True
            self.loop.call_soon(self._read, fd, context=reader[2])

    def _read(self, fd: int) -> None:
        sock, reader = self.kernel.sockets.get(fd), self._readers.get(fd)
        if sock is None:
            return
        sock.is_noted = False
        if reader is not None and sock.has_news:
            reader[0](*reader[1])
            self.readable(fd)


class Socket:
    """In place of `socket.socket`, for listeners and what they accept."""

    network: Network

    def __init__(self, *_: Any, end: End | None = None) -> None:
        process = PROCESS.get() if end is None else end.process
        assert process is not None
        self.process = process
        self.is_noted = False
        self._fd = self.network.kernel.new_fd()
        self.network.kernel.sockets[self._fd] = self
        self._name = ("", 0)
        self._end = end
        self._line: list[tuple[End, str]] = []
        self._came = bytearray()
        self._is_ended = False
        self._is_reset = False
        if end is not None:
            end.take = self.arrived

    def fileno(self) -> int:
        return self._fd

    def setsockopt(self, *_: Any) -> None:
        pass

    def setblocking(self, _: bool) -> None:
        pass

    def bind(self, place: tuple[str, int]) -> None:
        self._name = (place[0], self.network.listen(self, *place))

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def listen(self, _: int) -> None:
        pass

    @property
    def has_news(self) -> bool:
        return bool(self._line or self._came or self._is_ended or self._is_reset)

    def offer(self, end: End, host: str) -> None:
        self._line.append((end, host))
        early: list[bytes | None] = []
        end.take = early.append
        end.early = early  # type: ignore[attr-defined]
        self.network.readable(self._fd)

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self._line:
            raise BlockingIOError(errno.EAGAIN, "nothing to accept")
        end, host = self._line.pop(0)
        sock = Socket(end=end)
        for piece in end.early:  # type: ignore[attr-defined]
            sock.arrived(piece)
        return sock, (host, sock.fileno())

    def take_line(self) -> list[tuple[End, str, list[bytes | None]]]:
        """The connections that are not accepted yet, with what arrived on them."""
        line, self._line = self._line, []
        return [(end, host, end.early) for end, host in line]  # type: ignore[attr-defined]

    def arrived(self, piece: bytes | None) -> None:
        if piece is None:
            self._is_reset = True
        elif piece:
            self._came += piece
        else:
            self._is_ended = True
        self.network.readable(self._fd)

    def recv_into(self, buffer: Any) -> int:
        if self._is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        if not self._came:
            if self._is_ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, "nothing came")
        count = min(len(buffer), len(self._came))
        buffer[:count] = self._came[:count]
        del self._came[:count]
        return count

    def sendmsg(self, buffers: Any, *_: Any) -> int:
        if self._is_reset or self._end is None:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        whole = b"".join(buffers)
        self._end.send(whole)
        return len(whole)

    def close(self) -> None:
        self.network.kernel.sockets.pop(self._fd, None)
        self.network.unlisten(self)
        if self._end is not None:
            self._end.close()
            self.network.ends.pop(self._end, None)


class Transport(asyncio.Transport):
    """Of a connection that a process made."""

    def __init__(self) -> None:
        super().__init__()
        self.end: End
        self.peer = ("", 0)
        self.protocol: Any = None
        self._early: list[bytes | None] = []
        self._context = copy_context()
        self._is_closing = False

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        early, self._early = self._early, []
        for piece in early:
            self.arrived(piece)

    def arrived(self, piece: bytes | None) -> None:
        if self.protocol is None:
            self._early.append(piece)
        else:
            self.end.network.loop.call_soon(self._deliver, piece, context=self._context)

    def _deliver(self, piece: bytes | None) -> None:
        if self._is_closing:
            return
        if not piece:
            self._is_closing = True
            self._leave()
            self.protocol.connection_lost(ConnectionResetError("reset by peer") if piece is None else None)
            return
        if isinstance(self.protocol, asyncio.Protocol):
            self.protocol.data_received(piece)
            return
        rest = memoryview(piece)
        while rest and not self._is_closing:
            buffer = self.protocol.get_buffer(len(rest))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.protocol.buffer_updated(count)
            rest = rest[count:]

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.end.send(bytes(data))

    def _leave(self) -> None:
        self.end.close()
        self.end.network.ends.pop(self.end, None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._leave()
            self.end.network.loop.call_soon(self.protocol.connection_lost, None, context=self._context)

    def close(self) -> None:
        self.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer if name == "peername" else default


class Listening:
    """In place of `asyncio.Server`."""

    def __init__(self, network: Network, sock: Socket) -> None:
        self._network = network
        self._sock = sock

    def close(self) -> None:
        self._network.remove_reader(self._sock.fileno())


SOCKETS = {name: getattr(socket, name) for name in dir(socket) if name.isupper()}
"""The constants of the real module."""
