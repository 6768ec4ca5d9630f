"""The buffers and file slices on their way to one socket, in order; each is given back once it is sent."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from stratalog_node.disk.file_slice import FileSlice

_IOV = 256


class Outbox:
    """Bytes that a client has still to take. `size_bytes` counts them."""

    __slots__ = ("_entries", "size_bytes")

    def __init__(self) -> None:
        self._entries: deque[tuple[Any, Callable[[], None] | None]] = deque()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, buffers: list[Any], release: Callable[[], None] | None) -> None:
        """Put an answer at the end; `release` is called once all of it is sent, or abandoned."""
        last = len(buffers) - 1
        for index, buffer in enumerate(buffers):
            self.size_bytes += len(buffer)
            self._entries.append((buffer, release if index == last else None))

    def abandon(self) -> None:
        """The connection is gone."""
        for _, release in self._entries:
            if release:
                release()
        self._entries.clear()

    def send(self, sock: Any, at_most: int) -> int:
        """Send until the socket is full, `at_most` bytes are gone, or nothing is left. Returns how many were sent.
        `sock` is a `socket.socket`.

        Raises: OSError, StratalogError; then the connection is of no more use.
        """
        entries = self._entries
        total = 0
        while entries and total < at_most:
            head = entries[0][0]
            left = at_most - total
            try:
                if isinstance(head, FileSlice):
                    sent = head.send(sock.fileno(), left)
                    wanted = min(left, sent + len(head))
                else:
                    buffers = [head] if len(entries) == 1 and len(head) <= left else self._before_slice(left)
                    wanted = sum(map(len, buffers))
                    sent = sock.sendmsg(buffers, (), socket.MSG_MORE if wanted < self.size_bytes else 0)
            except (BlockingIOError, InterruptedError):
                break
            total += sent
            self.size_bytes -= sent
            self._drop_sent(sent, head)
            if sent < wanted:
                break
        return total

    def _before_slice(self, left: int) -> list[Any]:
        """At most `left` bytes of the buffers at the head, up to the next slice of a file, which goes its own way."""
        buffers: list[Any] = []
        for buffer, _ in islice(self._entries, _IOV):
            if isinstance(buffer, FileSlice) or left <= 0:
                break
            size = len(buffer)
            buffers.append(buffer if size <= left else memoryview(buffer)[:left])
            left -= size
        return buffers

    def _drop_sent(self, sent: int, head: Any) -> None:
        entries = self._entries
        if isinstance(head, FileSlice):
            if not len(head):
                _, release = entries.popleft()
                if release:
                    release()
            return
        if not self.size_bytes:  # nearly always: all that there was went in one call
            for _, release in entries:
                if release:
                    release()
            entries.clear()
            return
        while entries:
            buffer, release = entries[0]
            size = len(buffer)
            if sent < size:
                if sent:
                    entries[0] = (memoryview(buffer)[sent:], release)
                return
            sent -= size
            entries.popleft()
            if release:
                release()
