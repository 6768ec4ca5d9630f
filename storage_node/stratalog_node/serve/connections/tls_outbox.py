"""An outbox of a connection with TLS. Lives on the event loop. Memory: one piece of `_PIECE_BYTES` on its way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from stratalog.event_loop.tls_channel import TlsChannel
from stratalog_node.disk.file_slice import FileSlice
from stratalog_node.serve.connections.outbox import Outbox

_PIECE_BYTES: Final = 256 << 10
"""What is encrypted at a time; all of it is sent before more is."""
_SMALL_BYTES: Final = 16 << 10
"""Buffers below it are joined into one record."""


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
