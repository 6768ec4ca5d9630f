"""A token bucket that lends: a taker of more tokens than there are waits until the debt is paid.

Takers are served in the order in which they take, whatever their size, so a large taker is never starved by small
ones and a request larger than the whole bucket still passes. In the t seconds after a taker was served, at most
`burst + t * rate_per_s` tokens are handed out.

Requires: `now_ms` never goes back by more than rounding (a step back is taken as no time passed).
"""

from __future__ import annotations


class TokenBucket:
    """Invariant: level <= burst."""

    __slots__ = ("_burst", "_level", "_rate_per_ms", "_updated_ms")

    def __init__(self, rate_per_s: float, burst: float, now_ms: float) -> None:
        assert rate_per_s > 0 and burst > 0, "rate_per_s, burst: must be positive"
        self._rate_per_ms = rate_per_s / 1_000
        self._burst = burst
        self._level = burst
        self._updated_ms = now_ms

    def consume(self, tokens: float, now_ms: float) -> float:
        """Take tokens. Returns: how many milliseconds the taker must wait before it uses them."""
        self._refill(now_ms)
        self._level -= tokens
        return max(0.0, -self._level / self._rate_per_ms)

    def give_back(self, tokens: float, now_ms: float) -> None:
        """Tokens that were taken and not used: a cancelled taker's."""
        self._refill(now_ms)
        self._level = min(self._burst, self._level + tokens)

    def level(self, now_ms: float) -> float:
        """Tokens there now; below zero is debt."""
        self._refill(now_ms)
        return self._level

    def change_rate(self, rate_per_s: float, burst: float, now_ms: float) -> None:
        """Settings changed while running: what is owed stays owed, and is paid at the new rate."""
        assert rate_per_s > 0 and burst > 0, "rate_per_s, burst: must be positive"
        self._refill(now_ms)
        self._rate_per_ms = rate_per_s / 1_000
        self._burst = burst
        self._level = min(self._level, burst)

    def _refill(self, now_ms: float) -> None:
        passed_ms = now_ms - self._updated_ms
        if passed_ms > 0:
            self._level = min(self._burst, self._level + passed_ms * self._rate_per_ms)
            self._updated_ms = now_ms
