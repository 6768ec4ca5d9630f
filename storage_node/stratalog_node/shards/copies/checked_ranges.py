"""Which bytes of a local copy were checked in this life of the node: these alone are served from the page cache as they
are. What else lies there may have come off the disk unseen: by readahead, by another process, in the life before.

Cost: a comparison where everything from a position on is checked, as of each segment that this life writes or seals;
else a search among at most `_MOST_RANGES` ranges, which grow into one as a reader goes on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MOST_RANGES = 64
"""Of one copy. Above that the shortest is forgotten, and checked again by whoever reads it next."""


class CheckedRanges:
    """Positions count from the first batch. Lives on the event loop."""

    __slots__ = ("_ends", "_starts", "all_from")

    def __init__(self, all_from: int) -> None:
        self.all_from = all_from
        """From here on everything is checked, also what is still to be written."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Of ranges below `all_from`, ascending, that neither overlap nor touch."""

    def covers(self, start: int, end: int) -> bool:
        if start >= self.all_from:
            return True
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and end <= self._ends[place]

    def add(self, start: int, end: int) -> None:
        if start >= self.all_from:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        if end >= self.all_from:
            self.all_from = start
            del self._starts[first:], self._ends[first:]
            return
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > _MOST_RANGES:
            shortest = min(range(len(self._starts)), key=lambda place: self._ends[place] - self._starts[place])
            del self._starts[shortest], self._ends[shortest]
