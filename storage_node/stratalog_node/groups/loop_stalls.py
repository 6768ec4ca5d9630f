"""Measures the time in which this node did not serve its clients, because its own event loop was blocked.

Members are not to blame for that: their heartbeats wait in the sockets. So that time does not count for sessions, and
after it no member expires before the sockets have been read.
Thread: the event loop. Cost: ten lookups of the clock a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TICK_S = 0.1
_STALL_S = 0.5
"""A loop that comes round this much later than it wanted to has stood still."""
_CATCH_UP_TICKS = 10
"""Ticks after a stall before a member may expire: at least as many turns, and each turn reads what is ready."""
_MOST_STALLS = 60
"""Consecutive stalls that do not count for sessions. Further ones do count: a loop that is permanently slow must still
detect dead members."""


class LoopStalls:
    """`clock_s` is a monotonic clock in seconds."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._unattended_s = 0.0
        self._ticks_left = 0
        self._stalls = 0
        """Since the loop was well."""
        self._calm_ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._looked_s = self._clock_s()
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stalled_ms(self) -> int:
        """All time so far that does not count."""
        self._measure_gap()
        return int(self._unattended_s * 1000)

    @property
    def is_catching_up(self) -> bool:
        """The loop stood still a moment ago, and its sockets may not all have been read since."""
        self._measure_gap()
        return self._ticks_left > 0

    def _measure_gap(self) -> None:
        now_s = self._clock_s()
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        if gap_s > _TICK_S + _STALL_S:
            self._calm_ticks = 0
            self._stalls += 1
            if self._stalls <= _MOST_STALLS:
                self._unattended_s += gap_s
                self._ticks_left = _CATCH_UP_TICKS

    def _tick(self) -> None:
        self._measure_gap()
        self._ticks_left = max(self._ticks_left - 1, 0)
        self._calm_ticks += 1
        if self._calm_ticks > _CATCH_UP_TICKS:
            self._stalls = 0
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
