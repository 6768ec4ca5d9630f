"""One TLS connection over a non-blocking socket: plain bytes in and out, one receive call and few send calls a turn.

OpenSSL works on memory, not on the socket: an `SSLSocket` reads record by record, with two system calls for each 16
KiB. What one call receives lies in a buffer that all connections share. Lives on the event loop; only the steps of a
handshake run in a thread, and the loop leaves the connection alone meanwhile.

Memory of a connection: at most one unfinished record that was received, and one piece of `_PIECE_BYTES` on its way out.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from stratalog.event_loop.tls_records import TlsRecords
from stratalog_node.disk.file_slice import FileSlice
from stratalog_node.serve.connections.outbox import Outbox

_RECEIVED_AT_ONCE: Final = 256 << 10
_OVERHEAD_BYTES: Final = 1 << 10
"""More encrypted bytes than plain ones are received at a time."""
_PIECE_BYTES: Final = 256 << 10
"""What is encrypted at a time; all of it is sent before more is."""
_SMALL_BYTES: Final = 16 << 10
"""Buffers below it are joined into one record."""

_FED_AT_ONCE: Final = 32 << 10
"""Decrypted in one step. OpenSSL's memory never shrinks, and two records fit: one of them is whole."""
_MOST_OWN_BYTES: Final = 64 << 10
"""Answers to key updates that the other side does not read."""

_received = memoryview(bytearray(_RECEIVED_AT_ONCE))


class TlsChannel:
    """Takes the place of the socket in a connection: it receives, and it is closed."""

    __slots__ = (
        "_incoming",
        "_is_ended",
        "_outgoing",
        "_reads",
        "_records",
        "_sock",
        "_unsent",
        "has_more",
        "is_in_thread",
        "tls",
    )

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        """Encrypted, and taken out of `_outgoing`."""
        self._records = TlsRecords()
        self._reads = 0
        """Calls of the last `_decrypt` that had data."""
        self._is_ended = False
        """The other side sends nothing more."""
        self.has_more = False
        """Whether plain bytes may be left for which there was no room: no event of the socket says so."""
        self.is_in_thread = False
        """A step of the handshake runs: `tls` is not touched."""

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

    def receive(self, at_most: int) -> int:
        """Take what has arrived, still encrypted. 0: the other side is gone. Raises: BlockingIOError, OSError."""
        view = _received[:at_most]
        count = self._sock.recv_into(view)
        if count:
            at = 0
            while at < count:  # to know where the next record begins
                at = self._records.piece(view[:count], at)
            self._incoming.write(view[:count])
        else:
            self._is_ended = True
        return count

    def recv_into(self, view: memoryview) -> int:
        """As of a socket, decrypted. 0: the other side has closed. Raises: BlockingIOError, OSError (of TLS, too)."""
        total = self._decrypt(view, 0)
        self._records.decrypted(self._reads, total)
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
        if not total and not self._is_ended:
            raise BlockingIOError  # a part of a record
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


class TlsOutbox(Outbox):
    """An outbox whose bytes are encrypted on their way. `size_bytes` counts encrypted ones once they are."""

    __slots__ = ("_channel", "_counted_bytes")

    def __init__(self, channel: TlsChannel) -> None:
        super().__init__()
        self._channel = channel
        self._counted_bytes = 0
        """Of the channel's unsent bytes, those in `size_bytes`: TLS adds its own, and `recv_into` sends them."""

    def __bool__(self) -> bool:
        return self.size_bytes > 0

    def send(self, sock: Any, at_most: int) -> int:
        channel = self._channel
        self.size_bytes += channel.unsent_bytes - self._counted_bytes
        try:
            return self._send_encrypted(channel, at_most)
        finally:
            self._counted_bytes = channel.unsent_bytes

    def _send_encrypted(self, channel: TlsChannel, at_most: int) -> int:
        total = 0
        while total < at_most:
            if not channel.unsent_bytes:
                if not self._entries:
                    break
                plain_bytes = self._encrypt(min(_PIECE_BYTES, at_most - total))
                self.size_bytes += channel.unsent_bytes - plain_bytes
            unsent = channel.unsent_bytes
            try:
                sent = channel.flush()
            except (BlockingIOError, InterruptedError):
                break
            total += sent
            self.size_bytes -= sent
            if sent < unsent:
                break
        return total

    def _encrypt(self, at_most: int) -> int:
        """Encrypt bytes at the head. Returns how many."""
        entries, write = self._entries, self._channel.tls.write
        total = small_bytes = 0
        small: list[Any] = []
        released: list[Callable[[], None]] = []
        try:
            while entries and total < at_most:
                buffer, release = entries[0]
                taken = self._taken(buffer, at_most - total)
                size = len(taken)
                total += size
                if isinstance(buffer, FileSlice):
                    is_done = not len(buffer)
                else:
                    is_done = size == len(buffer)
                    if not is_done:
                        entries[0] = (memoryview(buffer)[size:], release)
                if is_done:
                    entries.popleft()
                    if release is not None:
                        released.append(release)
                if size < _SMALL_BYTES:
                    small.append(taken)
                    small_bytes += size
                if small and (size >= _SMALL_BYTES or small_bytes >= _SMALL_BYTES):
                    write(b"".join(small))
                    small, small_bytes = [], 0
                if size >= _SMALL_BYTES:
                    write(taken)
            if small_bytes:
                write(b"".join(small))
        finally:
            for release in released:
                release()
        return total

    @staticmethod
    def _taken(buffer: Any, at_most: int) -> Any:
        if isinstance(buffer, FileSlice):
            return buffer.read(at_most)
        return buffer if len(buffer) <= at_most else memoryview(buffer)[:at_most]
