"""Limits how many topics, shards and groups have metrics of their own, and how often they are measured.

A scrape must stay small and cheap whatever a node holds: of each kind at most `metrics.max.series` are shown, those
first that need attention, and the number left out is itself a metric. Measuring takes at most a hundredth of the time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from stratalog.telemetry.metrics import MetricRegistry

_SHARE: Final = 100
_FEW: Final = 2_000
_T = TypeVar("_T")


class Bounded:
    """The series of one node."""

    def __init__(self, most: int, metrics: MetricRegistry) -> None:
        self._most = most
        self._left_out: dict[tuple[str, ...], int] = {}
        metrics.register(
            "stratalog_metric_left_out",
            "gauge",
            "Topics, shards and groups without series of their own, because metrics.max.series have them.",
            lambda: self._left_out,
            label_names=("kind",),
        )

    async def cut(self, kind: str, rows: Iterable[_T], order: Callable[[_T], Any]) -> list[_T]:
        """The first ones by `order`, so that what needs attention comes first. Large lists are sorted on a thread: a
        hundred thousand rows would hold the loop for a tenth of a second. Requires: the rows do not change
        meanwhile."""
        found = list(rows)
        self._left_out[kind,] = max(0, len(found) - self._most)
        if len(found) <= self._most:
            return found
        if len(found) <= _FEW:
            return heapq.nsmallest(self._most, found, key=order)
        return await asyncio.to_thread(heapq.nsmallest, self._most, found, key=order)


class Throttled:
    """A look that is left out while it is too soon for another: what it found last is shown then."""

    def __init__(self, look: Callable[[], Awaitable[None]], steady_ns: Callable[[], int]) -> None:
        self._look = look
        self._steady_ns = steady_ns
        self._next_ns = 0

    async def __call__(self) -> None:
        began_ns = self._steady_ns()
        if began_ns < self._next_ns:
            return
        try:
            await self._look()
        finally:
            now_ns = self._steady_ns()
            self._next_ns = now_ns + _SHARE * (now_ns - began_ns)
