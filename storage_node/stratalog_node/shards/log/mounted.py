"""A shard of a topic that a user mounted: a sealed range of another shard, under another name, for readers alone.

It reads through the shard whose range it is, from the same sources and under the same limits: its copies, other nodes,
the object store. The range of a snapshot may end inside a segment, between two batches: reads and lookups by time stop
there. It accepts no batches and does not move the log start. Lives on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NoReturn

from stratalog.model.errors import Reserved
from stratalog.model.segment import Segment
from stratalog_node.shards.catalog.catalog import MountedShard
from stratalog_node.shards.log.shard_log import ShardLog

_base_of = attrgetter("base_offset")


class MountedLog(ShardLog):
    """The part of a shard that readers use; call `refresh` before each read."""

    __slots__ = ("_base_offset", "_end_offset", "_named")

    def __init__(self, real: ShardLog, mounted: MountedShard) -> None:
        self._named = real
        self._base_offset, self._end_offset = mounted.base_offset, mounted.end_offset
        self.context, self.workers, self.key, self.rules, self.chain = (
            real.context,
            real.workers,
            real.key,
            real.rules,
            real.chain,
        )
        self.topic = mounted.topic
        self.work = real.work
        self.active = None
        self.ended = []
        self.inherited = None
        self.waiters = {}
        self._pending = []
        self._is_dirty = False
        self.high_watermark = mounted.end_offset
        self.refresh()

    def refresh(self) -> None:
        """As the shard that it reads is now."""
        real = self._named
        self.copies, self.missing, self.rules = real.copies, real.missing, real.rules
        self.is_leader = real.is_leader
        self.log_start_offset = min(max(self._base_offset, real.log_start_offset), self._end_offset)

    def is_range_of(self, real: ShardLog, mounted: MountedShard) -> bool:
        return self._named is real and self.topic is mounted.topic

    @property
    def is_end_known(self) -> bool:
        """It was sealed."""
        return True

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def segments(self) -> Sequence[Segment]:
        return [one for one in self._listed() if one.seal is not None]

    @property
    def cut_offset(self) -> int | None:
        seal = next((one.seal for one in reversed(self._listed()) if one.seal is not None), None)
        return self._end_offset if seal is not None and seal.end_offset > self._end_offset else None

    def last_tiered_offset(self) -> int:
        return min(super().last_tiered_offset(), self._end_offset - 1)

    def _listed(self) -> Sequence[Segment]:
        """From the segment that the range begins in: the log start may have moved into it before it was mounted. Each
        fetch asks, several times: nothing here looks at all segments of a long shard one by one."""
        segments = self.context.catalog.segments(self.key)
        first = max(bisect_right(segments, self._base_offset, key=_base_of) - 1, 0)
        return segments[first : bisect_left(segments, self._end_offset, key=_base_of)]

    async def delete_records_before(self, offset: int) -> NoReturn:
        raise Reserved(f"{self.topic.name} is mounted: it is read only, its records go with those of the topic itself")
