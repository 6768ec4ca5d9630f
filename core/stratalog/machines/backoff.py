"""How long to wait before the next attempt at something that failed.

The longest pause doubles with each failure in a row, up to a bound. Each is shortened at random to between half of that
and all of it, so that thousands who wait for the same service do not come back in step.
"""

from __future__ import annotations

_MOST_DOUBLINGS = 30
"""Far above every bound in use, and no float overflows."""


def longest_pause(failures: int, first: float, longest: float) -> float:
    """The pause after `failures` failures in a row (at least 1), before it is shortened; in the unit of the bounds."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


def pause_after(failures: int, first: float, longest: float, jitter: float) -> float:
    """`longest_pause`, shortened. `jitter`: a random number in [0, 1)."""
    return longest_pause(failures, first, longest) * (0.5 + jitter / 2)
