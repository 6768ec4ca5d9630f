"""How fast and how many at once: limits that one kind of traffic keeps to (cold reads, uploads).

Lives on the event loop. A cancelled waiter gives back what it took.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from stratalog.machines.reading.fair_queue import NOBODY, Taker
from stratalog.machines.token_bucket import TokenBucket
from stratalog.objects.fair_slots import FairSlots

_BURST_S = 0.25
"""What may go at once after a pause: a quarter second's worth."""
_MIN_BURST_BYTES = 1 << 20


class Transfer:
    """One transfer under limits. (A generator's context manager would cost four times as much, for every block.)"""

    __slots__ = ("_has_slot", "_lapse", "_limits", "_size_bytes", "_taker")

    def __init__(self, limits: TransferLimits, size_bytes: int, taker: Taker) -> None:
        self._limits = limits
        self._size_bytes = size_bytes
        self._taker = taker
        self._has_slot = True
        self._lapse: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._limits.begin(self._size_bytes, self._taker)
        if self._limits.slot_s is not None:
            self._lapse = asyncio.get_running_loop().call_later(self._limits.slot_s, self._wait_on)

    async def __aexit__(self, *_: object) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
        if self._has_slot:
            self._limits.end()
        else:
            self._limits.overdue -= 1

    def _wait_on(self) -> None:
        limits = self._limits
        if limits.overdue < limits.most_overdue:
            limits.overdue += 1
            self._has_slot = False
            limits.end()


class TransferLimits:
    """Bytes per second and transfers at a time. `bytes_per_s=None` means no limit on bytes. With `slot_ms` a transfer
    that lasts longer gives its slot to the next one and waits without a slot, so that a few transfers without an answer
    do not hold up all. There may be up to twice `concurrency` of these.
    """

    def __init__(self, *, bytes_per_s: float | None, concurrency: int, slot_ms: int | None = None) -> None:
        assert concurrency > 0, "concurrency: at least one transfer must be allowed"
        self.slot_s = None if slot_ms is None else slot_ms / 1_000
        self.most_overdue = 2 * concurrency
        self.overdue = 0
        self._slots = FairSlots(concurrency)
        self._bucket: TokenBucket | None = None
        self.waited_ms = 0.0
        """Time spent waiting for tokens, all transfers together."""
        self.set_rate(bytes_per_s)

    def set_rate(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is None:
            self._bucket = None
            return
        burst = max(bytes_per_s * _BURST_S, _MIN_BURST_BYTES)
        now_ms = monotonic() * 1_000
        if self._bucket is None:
            self._bucket = TokenBucket(bytes_per_s, burst, now_ms)
        else:
            self._bucket.change_rate(bytes_per_s, burst, now_ms)

    def transfer(self, size_bytes: int, taker: Taker = NOBODY) -> Transfer:
        """`async with` it: holds a slot for one transfer, entered when its bytes may move."""
        return Transfer(self, size_bytes, taker)

    async def begin(self, size_bytes: int, taker: Taker) -> None:
        await self._slots.acquire(taker, size_bytes)
        try:
            await self._pay(size_bytes)
        except BaseException:
            self._slots.release()
            raise

    def end(self) -> None:
        self._slots.release()

    async def _pay(self, size_bytes: int) -> None:
        bucket = self._bucket
        if bucket is None:
            return
        wait_ms = bucket.consume(size_bytes, monotonic() * 1_000)
        if wait_ms <= 0:
            return
        self.waited_ms += wait_ms
        try:
            await asyncio.sleep(wait_ms / 1_000)
        except asyncio.CancelledError:
            bucket.give_back(size_bytes, monotonic() * 1_000)
            raise
