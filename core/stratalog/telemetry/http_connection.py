"""One connection of an HTTP port: sits between the socket and aiohttp, and knows since when there was no progress.

    WAITING ──(a byte)──> HEAD ──(aiohttp has a request)──> ASKED ──(it was answered)──> WAITING
       idle limit          deadline, size                     deadline of its body

In every state an answer that its reader does not take ends the connection after the request's time limit. Overdue
connections are aborted, never closed: closing would wait for the reader. One whose request lies unread in its socket
is not idle.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
from enum import Enum, auto
from typing import Final, Protocol, cast

from aiohttp import StreamReader

from stratalog.event_loop.patience import has_unread
from stratalog.event_loop.tls_transports import Arrival
from stratalog.event_loop.turned_away import TurnedAway
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.http_tls import NOBODY, Shown

_END_OF_HEAD: Final = b"\r\n\r\n"
_EMPTY_LINES: Final = b"\r\n"
"""A client may send some before its request (RFC 9112, 2.2)."""
_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of a client that speaks TLS."""
_NOT_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
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

    def at_fault(self, connection: HttpConnection, reason: str, why: TurnedAway | None = None) -> None:
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
        self._since = self._loop.time()
        self.has_asked = False
        """Whether a whole head has come."""
        self.has_shown_token = False
        self.answered_since: float | None = None
        """When its first request was answered."""
        self._head_bytes = 0
        self._head_tail = b""
        self._is_head_whole = False
        self._unread_since: float | None = None
        """Since when the client does not take what is sent to it."""
        self._body: StreamReader | None = None
        """Of its request, while it is waited for."""
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
            if data[:1] == _TLS_HANDSHAKE:
                self._refuse_tls()
                return
        if self._state is _State.HEAD and not self._is_head_whole and not self._is_head_small(data):
            self._refuse_head()
            return
        self.inner.data_received(data)

    def _is_head_small(self, data: bytes) -> bool:
        if self._head_bytes == 0:
            data = data.lstrip(_EMPTY_LINES)
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
        self._answer_and_close(self._transport, _HEAD_TOO_LARGE)

    def _refuse_tls(self) -> None:
        """With an answer in plain text: the client's library needs one to report that this port speaks no TLS."""
        if self._transport is None or self._transport.is_closing():
            return
        words = "the client speaks TLS, and this port does not: it is to ask by http://"
        self._port.at_fault(self, words, TurnedAway.OTHER_PROTOCOL)
        self._answer_and_close(self._transport, _NOT_HTTP)

    def _answer_and_close(self, transport: asyncio.Transport, answer: bytes) -> None:
        transport.write(answer)
        self._unread_since = self._loop.time()
        transport.close()

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

    def await_body(self, body: StreamReader) -> None:
        """Its request is not worked on before this is whole. Where it is overdue, its reader gets a TimeoutError."""
        self._body = body
        self._since = self._loop.time()

    def body_ended(self) -> None:
        """It is waited for no more."""
        self._body = None

    def request_ended(self, *, is_body_whole: bool) -> None:
        """Its handler is done; what it answered may still be on its way, and so may the rest of a body unread."""
        self._state = _State.WAITING if is_body_whole else _State.LEAVING
        self._since = self._loop.time()
        if self.answered_since is None:
            self.answered_since = self._since
        if self._is_lost:
            self._port.left(self)

    @property
    def is_idle(self) -> bool:
        """No whole request is being worked on or answered: closing it costs its client a connection, no answer."""
        if self.arrival is not None:
            return True
        is_still = self._state is _State.WAITING or (self._state is _State.HEAD and not self._is_head_whole)
        return is_still and self._is_read and self._transport is not None and not self._is_lost

    @property
    def _is_read(self) -> bool:
        """Its client has taken what it was answered, as far as this process can see."""
        transport = self._transport
        return self._unread_since is None and (transport is None or not transport.get_write_buffer_size())

    def idle_s(self, now: float) -> float | None:
        """How long an idle connection has waited for its client. None: its client waits for the port, which has bytes
        to read, or a step of TLS to take."""
        if self.arrival is not None:
            waited_ms = self.arrival.waited_ms
            return None if waited_ms is None else waited_ms / 1_000
        return None if self._has_unread else now - self._since

    @property
    def _has_unread(self) -> bool:
        """The first bytes of a request have come, and the loop has not read them yet."""
        if self._state is not _State.WAITING or self._transport is None or self._is_lost:
            return False
        sock = self._transport.get_extra_info("socket")
        return sock is not None and has_unread(sock.fileno())  # uvloop has none for a connection that is closing

    @property
    def stalled_since(self) -> float | None:
        """Since when its client alone has kept it open: it was answered and is being closed, or its head makes no
        request, or its client has shown no token and sends no body, or does not read its answer. None: it is idle, or
        its request is being worked on."""
        if self._transport is None or self._is_lost or self.is_idle:
            return None
        if self._unread_since is not None:
            return None if self.has_shown_token else self._unread_since
        if self._body is not None:
            return None if self.has_shown_token else self._since
        return None if self._state is _State.ASKED else self._since

    # Time -----------------------------------------------------------------------------------------------------------
    def end_if_overdue(self, now: float) -> None:
        reason = self._overdue(now)
        if reason is not None:
            if self._state is not _State.WAITING or self._unread_since is not None:
                self._port.at_fault(self, reason)
            self.abort()
        elif self._body is not None and now - self._since > self._port.limits.request_timeout_s:
            self._body.set_exception(TimeoutError())

    def _overdue(self, now: float) -> str | None:
        limits = self._port.limits
        if self._is_lost or self.arrival is not None:
            return None
        if self._unread_since is not None and now - self._unread_since > limits.request_timeout_s:
            return f"it did not read its answer for {limits.request_timeout_s} s"
        if self._state in (_State.HEAD, _State.LEAVING) and now - self._since > limits.request_timeout_s:
            return f"its request did not come whole within {limits.request_timeout_s} s"
        if self._state is _State.WAITING and now - self._since > limits.max_idle_s and not self._has_unread:
            return f"idle for {limits.max_idle_s} s"
        return None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.arrival is not None:
            self.arrival.close("the port ends it")
