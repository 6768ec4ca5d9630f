"""A queue of the reads that wait for room among the blocks in memory: clients by turns, whatever the size of what they
read (`machines.reading.fair_queue`).

What readers need soon makes room once they are late; the queue is checked again then.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog.machines.reading.fair_queue import FairQueue, Taker
from stratalog_node.tier.cold.block_cache import BlockCache
from stratalog_node.tier.cold.cold_limits import ColdReadStats


class RoomQueue:
    def __init__(
        self, cache: BlockCache, stats: ColdReadStats, now_ms: Callable[[], int], on_served: Callable[[], None]
    ) -> None:
        self._cache = cache
        self._stats = stats
        self._now_ms = now_ms
        self._on_served = on_served
        self._line: FairQueue[asyncio.Future[None]] = FairQueue()
        self._lapse: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def enqueue(self, taker: Taker, size_bytes: int) -> asyncio.Future[None]:
        """Returns a future that is done once there is room for `size_bytes`, which are then reserved for the caller."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.push(taker, size_bytes, waiter)
        self._stats.waits += 1
        self.serve()
        return waiter

    async def wait_for_room(self, taker: Taker, size_bytes: int, waiter: asyncio.Future[None] | None) -> None:
        """Returns when there is room for `size_bytes`, reserved for the caller. `waiter`: the caller's place in the
        queue, if it has one already."""
        waiter = waiter or self.enqueue(taker, size_bytes)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._cache.release(size_bytes)
            raise

    def serve(self) -> None:
        """Let those in whose turn it is; look again when a reader may be late."""
        while len(self._line):
            size_bytes, waiter = self._line.first()
            if waiter.done():
                self._line.pop(is_served=False)
                continue
            if not self._cache.try_reserve(size_bytes, now_ms := self._now_ms(), now_ms):
                break
            self._line.pop()
            waiter.set_result(None)
        self._on_served()
        if len(self._line) and self._lapse is None and (lapse_ms := self._cache.next_lapse_ms()) is not None:
            pause_s = max(1, lapse_ms - self._now_ms()) / 1_000
            self._lapse = asyncio.get_running_loop().call_later(pause_s, self._lapsed)

    def _lapsed(self) -> None:
        self._lapse = None
        self.serve()

    def close(self) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
