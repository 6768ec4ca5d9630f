"""Buffers for reads of megabytes, used again and again.

A fresh buffer of megabytes costs a page fault for each of its pages: twice what filling it costs, and more where the
machine is a virtual one. A buffer is free again once no view of it exists. Users do not give buffers back, because a
put that was given up may read for a while longer, and an answer may wait for a slow client.
Taken on any thread. Memory: at most the limit, and none some seconds after the last `keep`. It is mapped, and not a
bytearray, which would be filled with zeros while the interpreter waits.
"""

from __future__ import annotations

import asyncio
import mmap
import sys
import threading

LEAST_BYTES = 1 << 19
"""Smaller buffers are made again: the allocator has them at hand."""
_STEP_BYTES = 1 << 19
_KEPT_S = 10.0
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""A shared mapping would be a file in memory, whose pages cost more."""
_UNUSED_REFERENCES = 2
"""The list's, and that of the argument of `getrefcount`."""


class ReusedBuffers:
    """`limit_bytes`: more than that is made for one use and not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: list[mmap.mmap] = []
        self._idle: asyncio.TimerHandle | None = None

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._kept))

    def allocate(self, size_bytes: int) -> memoryview:
        """So many bytes, of any content. They are the taker's as long as a view of them is held."""
        if size_bytes < LEAST_BYTES:
            return memoryview(bytearray(size_bytes))
        with self._lock:
            kept = self._kept
            for place in range(len(kept)):
                if len(kept[place]) >= size_bytes and self._is_unused(place):
                    return memoryview(kept[place])[:size_bytes]
            fresh = mmap.mmap(-1, -(-size_bytes // _STEP_BYTES) * _STEP_BYTES, flags=_PRIVATE)
            if self.kept_bytes + len(fresh) > self._limit_bytes:
                self._kept = [kept[place] for place in range(len(kept)) if not self._is_unused(place)]
            if self.kept_bytes + len(fresh) <= self._limit_bytes:
                self._kept.append(fresh)
            return memoryview(fresh)[:size_bytes]

    def _is_unused(self, place: int) -> bool:
        return sys.getrefcount(self._kept[place]) == _UNUSED_REFERENCES

    def keep(self) -> None:
        """On the event loop: some of it is taken now and then, so give nothing back for a while."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_KEPT_S, self.drop)

    def drop(self) -> None:
        """Free the memory; a buffer that is still being read goes with its last view."""
        with self._lock:
            self._kept.clear()
