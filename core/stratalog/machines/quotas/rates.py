"""How much was used within the last windows of time, and how long to wait until that is within the limit again.

It is Kafka's `Rate` with `QuotaUtils.throttleTime`: samples of one window each, and a rate over all of them, which
assumes that the windows before the first sample were empty. What was used is counted in any case; who uses too much
pays by waiting. A rate that nothing was added to for all windows is zero, however much was owed.
Pure. Requires: `now_ms` is of a monotonic clock (a step back is taken as no time passed).
Cost: 3 us; 200 bytes, and 100 more for each window that has something.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LONGEST_WAIT_MS: Final = 2**31 - 1
"""What an answer can say."""


class Windows(NamedTuple):
    """Kafka's `quota.window.num` and `quota.window.size.seconds`."""

    number: int
    size_ms: int

    @property
    def longest_ms(self) -> int:
        return self.number * self.size_ms


class _Sample:
    __slots__ = ("amount", "begin_ms", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.begin_ms = self.last_ms = now_ms
        self.amount = 0.0


class UsageRate:
    """Invariant: at most one sample more than there are windows, oldest first."""

    __slots__ = ("__weakref__", "_samples", "_windows", "limit", "longest_wait_ms")

    def __init__(self, limit: float, windows: Windows, longest_wait_ms: int = LONGEST_WAIT_MS) -> None:
        """`limit` may be set to another one at any time: it counts from the next use on."""
        self.limit = limit
        self.longest_wait_ms = longest_wait_ms
        self._windows = windows
        self._samples: list[_Sample] = []

    @property
    def most_at_once(self) -> int:
        """What fits into the windows; a larger amount is never within the limit."""
        number, size_ms = self._windows
        return max(1, int(min(self.limit * max(1, number - 1) * size_ms / 1_000, LONGEST_WAIT_MS)))

    @property
    def used(self) -> float:
        """In all windows, as of the last use."""
        return sum(sample.amount for sample in self._samples)

    def use(self, amount: float, now_ms: int) -> int:
        """Count it. Returns: how many milliseconds to wait; 0 within the limit."""
        now_ms = self._add(amount, now_ms)
        passed_ms = self._passed_ms(now_ms)
        rate = self.used * 1_000 / passed_ms
        if rate <= self.limit:
            return 0
        return int(min((rate - self.limit) / self.limit * passed_ms + 0.5, self.longest_wait_ms))

    def give_back(self, amount: float, now_ms: int) -> None:
        """It was counted, and is not used."""
        self._add(-amount, now_ms)

    def rate(self, now_ms: int) -> float:
        """A second."""
        now_ms = self._forget_old(now_ms)
        return self.used * 1_000 / self._passed_ms(now_ms)

    def _add(self, amount: float, now_ms: int) -> int:
        now_ms = self._forget_old(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1].begin_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms))
            if len(samples) > self._windows.number + 1:
                del samples[0]
        samples[-1].amount += amount
        samples[-1].last_ms = now_ms
        return now_ms

    def _forget_old(self, now_ms: int) -> int:
        samples = self._samples
        if samples:
            now_ms = max(now_ms, samples[-1].last_ms)
            oldest_ms = now_ms - self._windows.longest_ms
            while samples and samples[0].last_ms <= oldest_ms:
                del samples[0]
        return now_ms

    def _passed_ms(self, now_ms: int) -> int:
        """Since the oldest sample began, with the windows before it that had nothing."""
        number, size_ms = self._windows
        passed_ms = now_ms - self._samples[0].begin_ms if self._samples else 0
        passed_ms += max(0, number - 1 - passed_ms // size_ms) * size_ms
        return max(passed_ms, size_ms)
