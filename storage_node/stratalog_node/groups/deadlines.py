"""One heap of deadlines for all groups of the node, so that time costs nothing while nothing is due.

A group is in the heap at most once in force: an earlier deadline supersedes, a later one waits for the entry that is
there (waking a group too early is harmless). Cost: O(log n) per entry; heartbeats make none.
Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Scheduled(Protocol):
    scheduled_ms: int | None
    """The deadline in force in the heap; only the heap writes it."""


_T = TypeVar("_T", bound=Scheduled)


class DeadlineHeap(Generic[_T]):
    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _T]] = []
        self._number = 0

    def schedule(self, item: _T, deadline_ms: int | None) -> bool:
        """Wake the item at the deadline, or before. True when the heap's earliest deadline came nearer."""
        if deadline_ms is None or (item.scheduled_ms is not None and item.scheduled_ms <= deadline_ms):
            return False
        item.scheduled_ms = deadline_ms
        self._number += 1
        heapq.heappush(self._heap, (deadline_ms, self._number, item))
        return self._heap[0][1] == self._number

    def forget(self, item: _T) -> None:
        item.scheduled_ms = None

    def earliest_ms(self) -> int | None:
        """The earliest deadline in force."""
        while self._heap:
            deadline_ms, _, item = self._heap[0]
            if item.scheduled_ms == deadline_ms:
                return deadline_ms
            heapq.heappop(self._heap)
        return None

    def due(self, now_ms: int) -> Iterator[_T]:
        """Take out what is due; an item may be scheduled again meanwhile, for a later round."""
        ready: list[_T] = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, _, item = heapq.heappop(self._heap)
            if item.scheduled_ms == deadline_ms:
                item.scheduled_ms = None
                ready.append(item)
        return iter(ready)
