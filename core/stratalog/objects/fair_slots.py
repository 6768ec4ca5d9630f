"""Places for transfers that run at a time; those that wait are let in by turns of the clients that they are for.

Lives on the event loop. A cancelled waiter gives back what it was given.
"""

from __future__ import annotations

import asyncio

from stratalog.machines.reading.fair_queue import FairQueue, Taker


class FairSlots:
    def __init__(self, slots: int) -> None:
        assert slots > 0, "slots: at least one transfer must be allowed"
        self._free = slots
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    async def acquire(self, taker: Taker, size_bytes: int) -> None:
        if self._free:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.push(taker, size_bytes, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while len(self._queue):
            waiter = self._queue.first()[1]
            is_served = not waiter.done()
            self._queue.pop(is_served=is_served)
            if is_served:
                waiter.set_result(None)
                return
        self._free += 1
