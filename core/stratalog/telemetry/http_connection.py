"""One connection of an HTTP port: sits between the socket and aiohttp, and knows since when there was no progress.

    WAITING ──(a byte)──> HEAD ──(aiohttp has a request)──> ASKED ──(it was answered)──> WAITING
       idle limit          deadline, size                     its body's deadline is the port's

In every state an answer that its reader does not take ends the connection after the request's time limit. Overdue
connections are aborted, never closed: closing would wait for the reader.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
from enum import Enum, auto
from typing import Final, Protocol, cast

from stratalog.event_loop.tls_transports import Arrival
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.http_tls import NOBODY, Shown

_END_OF_HEAD: Final = b"\r\n\r\n"
_HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)


class _State(Enum):
    WAITING = auto()
    HEAD = auto()
    ASKED = auto()
    LEAVING = auto()
    """It was answered before its body had come: aiohttp reads what follows for a moment, and closes."""


class ConnectionOwner(Protocol):
    """The port, as its connections see it."""

    limits: HttpLimits

    def shown(self, transport: asyncio.BaseTransport) -> Shown:
        """The identity that the other end has proven."""
        ...

    def left(self, connection: HttpConnection) -> None:
        """Its connection is closed and its request done: the place is free."""

    def at_fault(self, connection: HttpConnection, reason: str) -> None:
        """It is about to be closed because of what its client did or left undone."""


class HttpConnection(asyncio.Protocol):
    """`inner` is aiohttp's protocol, which sees all but what is refused here."""

    def __init__(self, port: ConnectionOwner, inner: asyncio.Protocol, peer_ip: str) -> None:
        self.inner = inner
        self.peer_ip = peer_ip
        self.shown: Shown = NOBODY
        self.arrival: Arrival | None = None
        """While its handshake of TLS is under way, which has a time limit of its own."""
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._state = _State.WAITING
        self.begun = self._since = self._loop.time()
        self.has_asked = False
        """Whether a whole head has come."""
        self.has_shown_token = False
        self._head_bytes = 0
        self._head_tail = b""
        self._is_head_whole = False
        self._unread_since: float | None = None
        """Since when the client does not take what is sent to it."""
        self._body_since: float | None = None
        """Since when the body of its request is waited for."""
        self._is_lost = False

    # The socket -----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being a subclass
        self.arrival = None
        self._since = self._loop.time()
        self.shown = self._port.shown(transport)
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._state is _State.WAITING:
            self._state = _State.HEAD
            self._since = self._loop.time()
            self._head_bytes, self._head_tail, self._is_head_whole = 0, b"", False
        if self._state is _State.HEAD and not self._is_head_whole and not self._is_head_small(data):
            self._refuse_head()
            return
        self.inner.data_received(data)

    def _is_head_small(self, data: bytes) -> bool:
        seen = self._head_tail + data
        end = seen.find(_END_OF_HEAD)
        self._is_head_whole = end >= 0
        size = self._head_bytes - len(self._head_tail) + (end if end >= 0 else len(seen))
        self._head_bytes += len(data)
        self._head_tail = seen[-len(_END_OF_HEAD) + 1 :]
        return size <= self._port.limits.max_head_bytes

    def _refuse_head(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._port.at_fault(self, f"its head is larger than {self._port.limits.max_head_bytes} bytes")
        self._transport.write(_HEAD_TOO_LARGE)
        self._unread_since = self._loop.time()
        self._transport.close()

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if isinstance(exc, OSError) and exc.errno == errno.EPROTO:
            self._port.at_fault(self, str(exc))
        self.inner.connection_lost(exc)
        if self._state is not _State.ASKED:
            self._port.left(self)

    # Requests -------------------------------------------------------------------------------------------------------
    def request_began(self) -> None:
        """aiohttp has read a head."""
        self._state = _State.ASKED
        self.has_asked = True

    def body_awaited(self, is_awaited: bool) -> None:
        """Its request is not worked on before its body is whole."""
        self._body_since = self._loop.time() if is_awaited else None

    def request_ended(self, *, is_body_whole: bool) -> None:
        """Its handler is done; what it answered may still be on its way, and so may the rest of a body unread."""
        self._state = _State.WAITING if is_body_whole else _State.LEAVING
        self._since = self._loop.time()
        if self._is_lost:
            self._port.left(self)

    @property
    def is_idle(self) -> bool:
        """No whole request is being worked on or answered: closing it costs its client a connection, no answer."""
        if self.arrival is not None:
            return True
        is_still = self._state is _State.WAITING or (self._state is _State.HEAD and not self._is_head_whole)
        return is_still and self._unread_since is None and self._transport is not None and not self._is_lost

    @property
    def stalled_since(self) -> float | None:
        """Since when its client alone has kept it open: it was answered and is being closed, or its client has shown no
        token and sends no body, or does not read its answer. None: it is idle, or its request is being worked on."""
        if self._transport is None or self._is_lost or self.is_idle:
            return None
        if self._unread_since is not None:
            return None if self.has_shown_token else self._unread_since
        if self._body_since is not None:
            return None if self.has_shown_token else self._body_since
        if self._state is _State.LEAVING:
            return self._since
        return None

    @property
    def since(self) -> float:
        """When it began to be in its state."""
        return self._since

    # Time -----------------------------------------------------------------------------------------------------------
    def close_when_overdue(self, now: float) -> None:
        reason = self._overdue(now)
        if reason is not None:
            if self._state is not _State.WAITING or self._unread_since is not None:
                self._port.at_fault(self, reason)
            self.abort()

    def _overdue(self, now: float) -> str | None:
        limits = self._port.limits
        if self._is_lost or self.arrival is not None:
            return None
        if self._unread_since is not None and now - self._unread_since > limits.request_timeout_s:
            return f"it did not read its answer for {limits.request_timeout_s} s"
        if self._state in (_State.HEAD, _State.LEAVING) and now - self._since > limits.request_timeout_s:
            return f"its request did not come whole within {limits.request_timeout_s} s"
        if self._state is _State.WAITING and now - self._since > limits.max_idle_s:
            return f"idle for {limits.max_idle_s} s"
        return None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.arrival is not None:
            self.arrival.close("the port ends it")
