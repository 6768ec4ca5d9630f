"""Schedules work on the files of copies of other nodes' segments.

Work on one copy runs one thing at a time, in the order of the calls. Work that creates, removes or replaces files runs
one thing at a time for all copies, as do checkpoints; work that clients wait for goes first. Flushes, proofs and index
blocks run side by side: when a node was killed, its shards accept no writes until the segments that it led are sealed.
That takes thousands of small proofs, and the journal of the file system commits simultaneous flushes together. Proofs
that read more than a little run one at a time, beside one large one: each takes the interpreter, and several keep the
event loop waiting for it between any two of its system calls (p99 of rolls 68 ms with eight at a time, 47 with one).
A disk may take seconds for a flush. So work that clients wait for (flushes that a leader or a seal waits for) has
places of its own, many of them, and waits for no work behind: periodic flushes, and index blocks of sealed segments.
Lives on the event loop; the work runs on disk threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from stratalog.event_loop.two_lanes import TwoLanes
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.threads import COPY_THREADS, DiskThreads
from stratalog_node.replication.replica_copy import ReplicaCopy

_WAITED_FOR: Final = 64
"""Flushes and index blocks that clients wait for, side by side: they take the disk's time, not the processor's."""
_LARGE_BYTES: Final = 8 << 20
_READING: Final = 2
"""Proofs that read their copies, one of them large: they take the processor."""
_BEHIND: Final = 8
assert _WAITED_FOR + _READING + _BEHIND == COPY_THREADS, "none may wait for a thread that another kind has"


class CopyScheduler:
    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._lanes = TwoLanes()
        self._waited_for = asyncio.Semaphore(_WAITED_FOR)
        self._reading = asyncio.Semaphore(1)
        self._reading_large = asyncio.Semaphore(1)
        self._behind = asyncio.Semaphore(_BEHIND)
        self._locks: WeakValueDictionary[SegmentKey, asyncio.Lock] = WeakValueDictionary()

    async def in_turn(self, work: Callable[[], Any]) -> Any:
        """Work that names no single copy, in turns with all changes of files."""
        return await self._in_lane(lambda: self._threads.background(work), is_urgent=False)

    async def at_once(self, work: Callable[[], Any]) -> Any:
        """As `in_turn`, before what no client waits for."""
        return await self._in_lane(lambda: self._threads.background(work), is_urgent=True)

    async def change(self, copy: ReplicaCopy, work: Callable[[], Any], *, is_urgent: bool = False) -> Any:
        """The copy's file comes, goes, or becomes another."""
        async with self._lock_of(copy.key):
            return await self._in_lane(lambda: self._threads.change_file(copy.file, work), is_urgent=is_urgent)

    async def settle(self, copy: ReplicaCopy, work: Callable[[], Any], *, reads_all: bool = False) -> Any:
        """A flush, an index block or (`reads_all`) a proof that clients wait for. Requires: the copy's file stays what
        it is."""
        place = self._waited_for
        if reads_all:
            place = self._reading_large if copy.file.size_bytes > _LARGE_BYTES else self._reading
        async with self._lock_of(copy.key), place:
            return await self._threads.settle_copy(copy.file, work)

    async def settle_behind(self, copy: ReplicaCopy, work: Callable[[], Any]) -> Any:
        """As `settle`, for work that no client waits for. It takes the copy's turn only once it has a place: what
        clients wait for on the same copy waits for one piece of such work at most."""
        async with self._behind, self._lock_of(copy.key):
            return await self._threads.settle_copy(copy.file, work)

    async def _in_lane(self, begin: Callable[[], Awaitable[Any]], *, is_urgent: bool) -> Any:
        await self._lanes.acquire(is_urgent=is_urgent)
        try:
            return await begin()
        finally:
            self._lanes.release()

    def _lock_of(self, key: SegmentKey) -> asyncio.Lock:
        """Held during work on a copy of this segment, also of one that is followed no more."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
