"""A queue of the sealed segments that this node is to copy, a few at a time. A node that lost its disk, or replaces
another, has ten thousand of them. Segments with a live source come first. A copy that makes no progress gives its place
to the next in the queue, so that segments without a source do not block the others.

Plain data. Memory: a key for each queued segment.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from stratalog.model.ids import SegmentKey

MOST_AT_ONCE = 8
PATIENCE_MS = 10_000
"""How long a copy may come no further while others wait."""
_LOOKED_AT = 64
"""Queued segments that are examined each time one may begin: ten thousand may wait for nodes that are away."""


class CopyQueue:
    """Invariant: a copy in progress is not in the queue."""

    def __init__(self, most_at_once: int = MOST_AT_ONCE, patience_ms: int = PATIENCE_MS) -> None:
        self._most = most_at_once
        self._patience_ms = patience_ms
        self._waiting: dict[SegmentKey, None] = {}
        self._under_way: set[SegmentKey] = set()
        self._seen: dict[SegmentKey, tuple[int, int]] = {}
        """How far those under way were, and since when."""

    def __len__(self) -> int:
        """All that are to be copied."""
        return len(self._waiting) + len(self._under_way)

    def add(self, key: SegmentKey) -> None:
        if key not in self._under_way:
            self._waiting[key] = None

    def drop(self, key: SegmentKey) -> None:
        """The segment need not be copied, or is no longer being copied."""
        self._waiting.pop(key, None)
        self._under_way.discard(key)

    @property
    def under_way(self) -> frozenset[SegmentKey]:
        return frozenset(self._under_way)

    def begin_next(
        self,
        is_there: Callable[[SegmentKey], bool] = lambda key: True,
        fits: Callable[[SegmentKey], bool] = lambda key: True,
    ) -> list[SegmentKey]:
        """The copies to begin next. `is_there`: whether a live node or the object store has it; those come first.
        `fits`: whether there is room for it beside those that it was true of before."""
        room = self._most - len(self._under_way)
        if room <= 0 or not self._waiting:
            return []
        there: list[SegmentKey] = []
        away: list[SegmentKey] = []
        for key in list(islice(self._waiting, _LOOKED_AT)):
            (there if is_there(key) else away).append(key)
        taken = list(islice(filter(fits, [*there, *away]), room))
        for key in {*taken, *away}:
            del self._waiting[key]
        self._under_way.update(taken)
        self._waiting |= dict.fromkeys(key for key in away if key not in self._under_way)  # behind all others
        return taken

    def stuck(self, end_of: Callable[[SegmentKey], int | None], now_ms: int) -> list[SegmentKey]:
        """Copies in progress that made no progress for a while, if others wait for their place. `end_of`: the end of a
        copy, None while it has no node to ask for more."""
        seen: dict[SegmentKey, tuple[int, int]] = {}
        for key in self._under_way:
            end = end_of(key)
            if end is not None:
                before = self._seen.get(key)
                seen[key] = before if before is not None and before[0] == end else (end, now_ms)
        self._seen = seen
        if not self._waiting:
            return []
        return [key for key, (_, since_ms) in seen.items() if now_ms - since_ms >= self._patience_ms]

    def excuse(self) -> None:
        """None of them could come further: what copies may take is spent, or there is no room."""
        self._seen.clear()
