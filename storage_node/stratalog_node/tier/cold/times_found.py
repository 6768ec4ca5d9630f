"""What look-ups by time found of sealed segments whose index has only the times that clients claimed.

Such a segment, sealed by an older release, is read whole by a look-up that finds nothing in it. Its records never
change, so what was found once holds for good: no record of it before an offset is as late as a time.
Invariant: of a segment, later times have later offsets. Bounded: the segments looked into last, some facts of each.
Memory: some 100 bytes per fact. Lives on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from stratalog.model.ids import SegmentKey

_MOST_SEGMENTS = 4_096
_MOST_FACTS = 32


@dataclass(slots=True)
class _Facts:
    times_ms: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    newest: tuple[int, int] | None = None


class TimesFound:
    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: dict[SegmentKey, _Facts] = {}
        """Those looked into last stand last."""

    def none_before(self, key: SegmentKey, timestamp_ms: int) -> int:
        """The offset before which no record is that late; -1 if nothing is known."""
        facts = self._segments.get(key)
        at = bisect_right(facts.times_ms, timestamp_ms) - 1 if facts is not None else -1
        return facts.offsets[at] if facts is not None and at >= 0 else -1

    def newest(self, key: SegmentKey) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the highest time."""
        facts = self._segments.get(key)
        return None if facts is None else facts.newest

    def note(self, key: SegmentKey, timestamp_ms: int, offset: int) -> None:
        """No record before `offset` has that time or a later one."""
        facts = self._used(key)
        if offset <= self.none_before(key, timestamp_ms):
            return
        first = bisect_left(facts.times_ms, timestamp_ms)
        last = bisect_right(facts.offsets, offset)
        # Those of later times that reach no further say nothing any more.
        facts.times_ms[first : max(first, last)] = [timestamp_ms]
        facts.offsets[first : max(first, last)] = [offset]
        if len(facts.times_ms) > _MOST_FACTS:
            del facts.times_ms[0], facts.offsets[0]

    def note_newest(self, key: SegmentKey, offset: int, timestamp_ms: int, end_offset: int) -> None:
        """The first record with the highest time; the segment ends at `end_offset`."""
        self._used(key).newest = offset, timestamp_ms
        self.note(key, timestamp_ms + 1, end_offset)

    def _used(self, key: SegmentKey) -> _Facts:
        facts = self._segments.pop(key, None) or _Facts()
        self._segments[key] = facts
        if len(self._segments) > _MOST_SEGMENTS:
            del self._segments[next(iter(self._segments))]
        return facts
