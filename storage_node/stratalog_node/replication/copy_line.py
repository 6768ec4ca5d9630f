"""Sealed segments that this node is to copy: a few at a time, the others in line. A node that lost its disk, or takes
the place of another, has ten thousand of them. Those that somebody has who lives come first, and one that comes no
further gives its place to those that wait: what nobody can give now must not keep the others from being copied.

Plain data. Memory: a key for each that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from stratalog.model.ids import SegmentKey

MOST_AT_ONCE = 8
PATIENCE_MS = 10_000
"""How long a copy may come no further while others wait."""
_LOOKED_AT = 64
"""Of those that wait, each time that one may begin: ten thousand may wait for nodes that are away."""


class CopyLine:
    """Invariant: what is under way does not stand in line."""

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
        """It is not to be copied, or is not being copied, any more."""
        self._waiting.pop(key, None)
        self._under_way.discard(key)

    def take(self, is_there: Callable[[SegmentKey], bool] = lambda key: True) -> list[SegmentKey]:
        """The next to be begun. `is_there`: whether somebody who lives has it; those come first."""
        room = self._most - len(self._under_way)
        if room <= 0 or not self._waiting:
            return []
        there: list[SegmentKey] = []
        away: list[SegmentKey] = []
        for key in list(islice(self._waiting, _LOOKED_AT)):
            (there if is_there(key) else away).append(key)
        taken = [*there, *away][:room]
        for key in {*taken, *away}:
            del self._waiting[key]
        self._under_way.update(taken)
        self._waiting |= dict.fromkeys(key for key in away if key not in self._under_way)  # behind all others
        return taken

    def stuck(self, end_of: Callable[[SegmentKey], int | None], now_ms: int) -> list[SegmentKey]:
        """Those under way that came no further for a while, and others wait for their place. `end_of`: how far one is,
        None while it asks nobody for more."""
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
