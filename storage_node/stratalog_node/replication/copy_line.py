"""Sealed segments that this node is to copy: a few at a time, the others in line. A node that lost its disk, or takes
the place of another, has ten thousand of them.

Plain data. Memory: a key for each that waits.
"""

from __future__ import annotations

from stratalog.model.ids import SegmentKey

MOST_AT_ONCE = 8


class CopyLine:
    """Invariant: what is under way does not stand in line."""

    def __init__(self, most_at_once: int = MOST_AT_ONCE) -> None:
        self._most = most_at_once
        self._waiting: dict[SegmentKey, None] = {}
        self._under_way: set[SegmentKey] = set()

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

    def take(self) -> list[SegmentKey]:
        """The next to be begun."""
        room = max(0, self._most - len(self._under_way))
        taken = [key for _, key in zip(range(room), self._waiting, strict=False)]
        for key in taken:
            del self._waiting[key]
        self._under_way.update(taken)
        return taken
