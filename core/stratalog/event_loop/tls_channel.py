"""One TLS connection over a non-blocking socket: plain bytes in and out, one receive call and few send calls a turn.

OpenSSL works on memory, not on the socket: an `SSLSocket` reads record by record, with two system calls for each 16
KiB. What one call receives lies in a buffer that all connections share. Lives on the event loop; only the steps of a
handshake run in a thread, and the loop leaves the connection alone meanwhile.

Memory of a connection: at most one unfinished record that was received, a hello before its handshake, and what its
owner has encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from typing import Any, Final

from stratalog.event_loop.tls_hello import ClientHello
from stratalog.event_loop.tls_records import TlsRecords
from stratalog.event_loop.tls_sessions import ServerContext

_RECEIVED_AT_ONCE: Final = 256 << 10
_OVERHEAD_BYTES: Final = 1 << 10
"""More encrypted bytes than plain ones are received at a time."""
_FED_AT_ONCE: Final = 32 << 10
"""Decrypted in one step. OpenSSL's memory never shrinks, and two records fit: one of them is whole."""
_MOST_OWN_BYTES: Final = 64 << 10
"""Answers to key updates that the other side does not read."""
_NO_HANDSHAKE: Final = bytes((21, 3, 3, 0, 2, 2, 40))
"""The alert "handshake failure"."""
_NOTHING: Final = memoryview(b"")

_received = memoryview(bytearray(_RECEIVED_AT_ONCE))


class TlsChannel:
    """Takes the place of the socket in a connection: it receives, and it is closed."""

    __slots__ = (
        "_context",
        "_hello",
        "_incoming",
        "_is_ended",
        "_left",
        "_outgoing",
        "_reads",
        "_records",
        "_sock",
        "_unsent",
        "has_more",
        "has_step",
        "is_in_thread",
        "tls",
    )

    def __init__(self, sock: socket.socket, context: ServerContext) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._context: ServerContext | None = context
        """None once OpenSSL has a hello."""
        self._unsent = memoryview(b"")
        """Encrypted, and taken out of `_outgoing`."""
        self._records = TlsRecords()
        self._hello: ClientHello | None = ClientHello()
        """None once the handshake is done."""
        self._left: memoryview | None = None
        """What came with the handshake, and is not decrypted yet; None before the first read."""
        self._reads = 0
        """Calls of the last `_decrypt` that had data."""
        self._is_ended = False
        """The other side sends nothing more."""
        self.has_more = False
        """Whether plain bytes may be left for which there was no room: no event of the socket says so."""
        self.is_in_thread = False
        """A step of the handshake runs: `tls` is not touched."""
        self.has_step = False
        """Whether what came last reached OpenSSL: a part of a hello does not."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """With a farewell, which tells the other side that nothing was cut off, if the socket takes it now."""
        with contextlib.suppress(OSError):
            if not self._unsent and not self.is_in_thread:
                with contextlib.suppress(ssl.SSLError):  # not open yet, or broken: there may be an alert to send
                    self.tls.unwrap()
                self.flush()
        self._sock.close()

    def refuse(self) -> None:
        """Tell the other side that there will be no handshake, in a step of which nothing was sent yet."""
        with contextlib.suppress(OSError):
            if not self.unsent_bytes:
                self._sock.send(_NO_HANDSHAKE)

    @property
    def sock(self) -> socket.socket:
        """Of whoever continues without this object, once the handshake is done."""
        return self._sock

    def receive(self, at_most: int) -> int:
        """Take what has arrived of the handshake, still encrypted. 0: the other side is gone. `has_step` says whether
        OpenSSL can do something with it. Raises: BlockingIOError, OSError, HelloRefused."""
        arrived = self._sock.recv(at_most)
        self._is_ended = not arrived
        assert self._hello is not None, "the handshake is under way"
        released = self._hello.receive(arrived)
        if released and self._context is not None:
            if not self._context.is_safe_for(offers_1_3=self._hello.offers_1_3):
                self.tls = self._context.wrap_alone(self._incoming, self._outgoing)
            self._context = None
        self.has_step = bool(released)
        self._incoming.write(released)
        return len(arrived)

    def handshake_done(self) -> None:
        """From now on there is data."""
        assert self._hello is not None, "the handshake is under way"
        self._incoming.write(self._hello.rest())
        self._hello = None
        self.has_more = True  # what the client sent together with its last step

    def recv_into(self, view: memoryview) -> int:
        """As of a socket, decrypted. 0: the other side has closed. Raises: BlockingIOError, OSError (of TLS, too)."""
        if self._left is None:  # the first call
            self._left = memoryview(self._incoming.read())
        total = self._decrypt(view, 0)
        self._records.decrypted(self._reads, total)
        if self._left and total < len(view):
            total = self._decrypt_left(self._left, view, total)
        if total < len(view) and not self._is_ended:
            try:
                total = self._receive_decrypted(view, total)
            except (BlockingIOError, InterruptedError):
                if not total:
                    raise
                return total
            if self._outgoing.pending and not self._unsent:
                with contextlib.suppress(BlockingIOError):  # an answer to a key update; or later, with the next bytes
                    self.flush()
            if self._outgoing.pending > _MOST_OWN_BYTES:
                raise OSError(errno.EPROTO, "the client asks for new keys of TLS, and does not read the answers")
        if self._is_ended:
            if total:
                self.has_more = True  # its end, for which no event may follow
        elif not total:
            raise BlockingIOError  # a part of a record
        return total

    def _decrypt_left(self, left: memoryview, view: memoryview, total: int) -> int:
        """What came with the handshake, in pieces as what comes later."""
        at = 0
        while at < len(left) and total < len(view):
            end = self._records.piece(left, at)
            self._incoming.write(left[at:end])
            at, before = end, total
            total = self._decrypt(view, total)
            self._records.decrypted(self._reads, total - before)
        self._left = left[at:] if at < len(left) else _NOTHING
        return total

    def _receive_decrypted(self, view: memoryview, total: int) -> int:
        received = _received[: len(view) - total + _OVERHEAD_BYTES]
        count = self._sock.recv_into(received)
        self._is_ended = not count
        start, records = 0, self._records
        while start < count:
            end = records.piece(received[: min(count, start + _FED_AT_ONCE)], start)
            self._incoming.write(received[start:end])
            start, before = end, total
            total = self._decrypt(view, total)
            records.decrypted(self._reads, total - before)
        return total

    def _decrypt(self, view: memoryview, total: int) -> int:
        read: Any = self.tls.read  # typed for a bytearray, and takes any buffer
        size = len(view)
        self.has_more = False
        self._reads = 0
        try:
            while total < size:
                count = read(size - total, view[total:])
                if not count:
                    self._is_ended = True
                    return total
                total += count
                self._reads += 1
        except ssl.SSLWantReadError:
            return total
        self.has_more = True
        return total

    def flush(self) -> int:
        """Send what is encrypted, as far as the socket takes it. Raises: BlockingIOError, OSError."""
        if not self._unsent:
            self._unsent = memoryview(self._outgoing.read())
        if not self._unsent:
            return 0
        sent = self._sock.send(self._unsent)
        self._unsent = self._unsent[sent:]
        return sent

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent) + self._outgoing.pending
