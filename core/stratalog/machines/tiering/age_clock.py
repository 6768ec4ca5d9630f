"""The clock by which data ages: follows the wall clock, but no jump of it makes all data old at once.

Retention deletes data permanently, and a wall clock may be wrong: set by a person, by a bad time server, by a battery
that died. So the age clock is limited: it runs at most `RATE` times as fast as the time that really passes (by a
monotonic clock), and at most `CREDIT_MS` ahead of that. However far the clock jumps, and however often the process is
started again (its state is kept over restarts; the time that it was not up counts as a jump), t ms later at most
`CREDIT_MS + RATE * t` of age were added. A clock that steps back is followed at once: what is kept too long can still
be deleted.

Requires: `monotonic_ms` never goes back within one object's life.
Invariant: age time <= wall clock at the last reading; 0 <= credit <= CREDIT_MS.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE = 2
"""A weekend with a wrong clock costs a weekend of history; a machine that was off for a day is right a day later."""
CREDIT_MS = 3_600_000
"""What is believed at once: restarts, corrections of a clock, a pause of the machine."""


@dataclass(frozen=True, slots=True)
class AgeState:
    """What is kept over restarts."""

    now_ms: int
    credit_ms: int


class AgeClock:
    """See the module."""

    __slots__ = ("_credit_ms", "_monotonic_ms", "_now_ms", "behind_ms")

    def __init__(self, kept: AgeState | None, wall_ms: int, monotonic_ms: int) -> None:
        """`kept` is None where nothing was kept: then the wall clock is believed."""
        self._now_ms = wall_ms if kept is None else kept.now_ms
        self._credit_ms = CREDIT_MS if kept is None else min(max(kept.credit_ms, 0), CREDIT_MS)
        self._monotonic_ms = monotonic_ms
        self.behind_ms = 0
        """How far the age time is behind the wall clock, at the last reading."""
        self.advance(wall_ms, monotonic_ms)

    def advance(self, wall_ms: int, monotonic_ms: int) -> int:
        """The age time now, in ms since the epoch."""
        passed_ms = max(0, monotonic_ms - self._monotonic_ms)
        self._monotonic_ms = max(monotonic_ms, self._monotonic_ms)
        credit_ms = self._credit_ms + (RATE - 1) * passed_ms
        # Negative when the wall clock is behind: it is followed.
        step_ms = min(wall_ms - self._now_ms - passed_ms, credit_ms)
        self._credit_ms = min(CREDIT_MS, credit_ms - max(0, step_ms))
        self._now_ms += passed_ms + step_ms
        self.behind_ms = wall_ms - self._now_ms
        return self._now_ms

    @property
    def state(self) -> AgeState:
        return AgeState(self._now_ms, self._credit_ms)
