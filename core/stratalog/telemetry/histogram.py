"""A histogram that costs one bisect and three integer additions per observation.

Not thread-safe: one owner observes. A reader may look at any time; what it sees is at most one observation torn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCY_BOUNDS_US = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
)
SIZE_BOUNDS_BYTES = tuple(4**power for power in range(4, 14))


class Histogram:
    """Counts of integers by upper bound; `scale` turns the unit observed into the unit exported (us -> s: 1e-6)."""

    __slots__ = ("bounds", "buckets", "count", "scale", "total")

    def __init__(self, bounds: Sequence[int] = LATENCY_BOUNDS_US, scale: float = 1e-6) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0
        self.scale = scale

    def observe(self, value: int) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's buckets: (upper bound in the exported unit, observations at or below it)."""
        rows: list[tuple[str, float]] = []
        seen = 0
        for bound, hits in zip(self.bounds, self.buckets, strict=False):
            seen += hits
            rows.append((f"{bound * self.scale:g}", seen))
        rows.append(("+Inf", seen + self.buckets[-1]))
        return rows


def size_histogram() -> Histogram:
    return Histogram(SIZE_BOUNDS_BYTES, 1.0)
