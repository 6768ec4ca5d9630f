"""What clients are no longer owed: served records that no disk and no object has any more, after faults of disks that
the topic's settings do not cover.

With `flush.policy=replicated` a power cut may take what was not flushed. A record is owed as long as one disk that the
metadata count on has it, or the bucket. A loss is looked for when a disk loses something, and at no other moment: what
a node loses by itself is never excused. With `flush.policy=fsync` a power cut excuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment, SegmentState

_ANSWERS_ARRIVE_S: Final = 2.0
"""How long what was served before a loss may still reach clients."""

Place = tuple[str, int]
EndOn = Callable[[int, SegmentKey], int]


class Losses:
    """Of all shards of a world."""

    def __init__(self, now_s: Callable[[], float], end_on: EndOn) -> None:
        """`end_on`: where a node's copy of a segment ends, as far as the flush policy counts it."""
        self._now_s = now_s
        self._end_on = end_on
        self._ranges: dict[Place, list[tuple[int, int, float]]] = {}
        """What was lost, and when: `[begin, end)`."""
        self.values: dict[Place, dict[bytes, None]] = {}
        """Lost records that clients had seen, or had acknowledged."""
        self.count = 0
        """How often something was lost."""

    def in_shard(self, place: Place) -> int:
        """How often."""
        return len(self._ranges.get(place, ()))

    def is_late(self, place: Place, offset: int) -> bool:
        """Whether an answer that shows this offset now may be from before the loss of it."""
        for begin, end, at_s in self._ranges.get(place, ()):
            if begin <= offset < end and self._now_s() < at_s + _ANSWERS_ARRIVE_S:
                return True
        return False

    def lose(self, place: Place, begin: int, end: int, decided: dict[int, bytes]) -> None:
        self.count += 1
        self._ranges.setdefault(place, []).append((begin, end, self._now_s()))
        for offset in [one for one in decided if begin <= one < end]:
            self.note(place, decided.pop(offset))

    def note(self, place: Place, value: bytes) -> None:
        self.values.setdefault(place, {})[value] = None

    def held_up_to(self, segment: Segment, *, is_quorum: bool) -> int:
        """Where the longest copy ends that the cluster counts on."""
        holders = segment.replicas if is_quorum or segment.fence else segment.isr
        if segment.state is SegmentState.SEALED:
            holders = segment.local_nodes or segment.replicas
        ends = [self._end_on(one, segment.key) for one in holders]
        return max([segment.base_offset, segment.remote.commit_offset, *ends])


def segments_of(table: ShardTable) -> dict[ShardKey, list[Segment]]:
    """Those that are not deleted, oldest first."""
    return {
        key: [one for one in entry.segments.values() if one.state is not SegmentState.DELETED]
        for key, entry in table.state.shards.items()
    }
