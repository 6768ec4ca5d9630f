"""A heap of deadlines for all groups of the node, so that checking the time costs nothing while no deadline is due.

A group has at most one deadline in the heap: an earlier one replaces it, a later one is ignored until it has passed
(waking a group too early is harmless). A removed group is released at once; its entry in the heap is two numbers, which
are swept out when most entries are such. Cost: O(log n) per entry; heartbeats make none.
Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Scheduled(Protocol):
    timer: int | None
    """The number of its entry in force; only the heap writes it."""


_T = TypeVar("_T", bound=Scheduled)
_FEW = 64


class DeadlineHeap(Generic[_T]):
    __slots__ = ("_heap", "_items", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        """(deadline, number), also of entries that are in force no longer."""
        self._items: dict[int, tuple[int, _T]] = {}
        """Number -> (deadline, item) of the entries in force."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._items)

    def schedule(self, item: _T, deadline_ms: int | None) -> bool:
        """Wake the item at the deadline, or before. True when the heap's earliest deadline came nearer."""
        if deadline_ms is None or (item.timer is not None and self._items[item.timer][0] <= deadline_ms):
            return False
        self.forget(item)
        self._number += 1
        item.timer = self._number
        self._items[self._number] = (deadline_ms, item)
        heapq.heappush(self._heap, (deadline_ms, self._number))
        return self._heap[0][1] == self._number

    def forget(self, item: _T) -> None:
        if item.timer is None:
            return
        del self._items[item.timer]
        item.timer = None
        if len(self._heap) > 2 * len(self._items) + _FEW:
            self._heap = [(deadline_ms, number) for number, (deadline_ms, _) in self._items.items()]
            heapq.heapify(self._heap)

    def earliest_ms(self) -> int | None:
        """The earliest deadline in force."""
        while self._heap:
            deadline_ms, number = self._heap[0]
            if number in self._items:
                return deadline_ms
            heapq.heappop(self._heap)
        return None

    def due(self, now_ms: int, most: int = 1 << 30) -> Iterator[_T]:
        """Remove and return due items, at most `most`; an item may be scheduled again meanwhile, for a later call."""
        ready: list[_T] = []
        while self._heap and self._heap[0][0] <= now_ms and len(ready) < most:
            _, number = heapq.heappop(self._heap)
            entry = self._items.pop(number, None)
            if entry is not None:
                entry[1].timer = None
                ready.append(entry[1])
        return iter(ready)
