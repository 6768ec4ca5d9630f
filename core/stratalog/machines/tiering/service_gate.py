"""How hard a struggling service may be asked: a window of requests that shrinks on "no", and a pause with jitter.

One gate stands before the object store and one before the meta service, for the whole node: with the store away ten
thousand waiting shards cost one trial per pause, not ten thousand (F45, F51, F80).
Invariant: 1 <= window <= max_requests.
"""

from __future__ import annotations

from stratalog.machines.backoff import pause_after


class ServiceGate:
    """Counts failures in a row; says how many requests may run, and when the next may begin."""

    __slots__ = ("_backoff_ms", "_cap_ms", "_max", "away_since_ms", "failures", "open_at_ms", "window")

    def __init__(self, max_requests: int, backoff_ms: int, backoff_cap_ms: int) -> None:
        self._max = max_requests
        self._backoff_ms = backoff_ms
        self._cap_ms = backoff_cap_ms
        self.window = max_requests
        self.failures = 0
        self.open_at_ms = 0
        self.away_since_ms: int | None = None

    def may_begin(self, running: int, now_ms: int) -> bool:
        return running < self.window and now_ms >= self.open_at_ms

    def answered(self) -> int | None:
        """A request went well. Returns since when the service was held to be away, if it was."""
        away_since, self.away_since_ms = self.away_since_ms, None
        self.failures = 0
        self.open_at_ms = 0
        self.window = min(self._max, self.window + 1)
        return away_since

    def refused(self, now_ms: int, jitter: float) -> bool:
        """The service said no. Returns whether it is held to be away from now on.

        Of requests that run together only the first "no" counts: they all met the same trouble.
        """
        if now_ms < self.open_at_ms:
            return False
        self.failures += 1
        self.window = max(1, self.window // 2)
        self.open_at_ms = now_ms + int(pause_after(self.failures, self._backoff_ms, self._cap_ms, jitter))
        return self._is_newly_away(now_ms)

    def doubted(self, now_ms: int, jitter: float, tolerated: int) -> bool:
        """A request's outcome is unknown: no pause, until `tolerated` of them came in a row."""
        if self.failures + 1 >= tolerated:
            return self.refused(now_ms, jitter)
        self.failures += 1
        return False

    def _is_newly_away(self, now_ms: int) -> bool:
        if self.away_since_ms is None:
            self.away_since_ms = now_ms
            return True
        return False
