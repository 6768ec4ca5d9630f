"""Reused memory for frames and answers.

A fresh large buffer per request costs more than the request (first touch of pages), so buffers come from a pool of size
classes and are reused. Lives on the event loop; nothing here blocks. The turn decides when a buffer may go back
(`turn.py`), and the byte budget how much is lent to frames (`serve/connections/byte_budget.py`).
"""

from __future__ import annotations

SIZE_CLASSES = (
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
    128 << 20,
)


class Buffer:
    """A pooled piece of memory. `view` is writable and covers all of it."""

    __slots__ = ("capacity", "data", "view")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray(capacity)
        self.view = memoryview(self.data)


class BufferPool:
    """Warm buffers by size class. `kept_bytes` bounds what lies unused; larger ones are simply freed."""

    def __init__(self, kept_bytes: int = 16 << 20) -> None:
        self._free: dict[int, list[Buffer]] = {size: [] for size in SIZE_CLASSES}
        self._kept_limit = kept_bytes
        self._kept = 0
        self.lent_bytes = 0

    @staticmethod
    def capacity_for(size_bytes: int) -> int:
        for capacity in SIZE_CLASSES:
            if capacity >= size_bytes:
                return capacity
        return size_bytes

    def lend(self, size_bytes: int) -> Buffer:
        capacity = self.capacity_for(size_bytes)
        self.lent_bytes += capacity
        free = self._free.get(capacity)
        if free:
            self._kept -= capacity
            return free.pop()
        return Buffer(capacity)

    def give_back(self, buffer: Buffer) -> None:
        """Requires: no view of the buffer is read any more."""
        self.lent_bytes -= buffer.capacity
        free = self._free.get(buffer.capacity)
        if free is not None and self._kept + buffer.capacity <= self._kept_limit:
            self._kept += buffer.capacity
            free.append(buffer)
