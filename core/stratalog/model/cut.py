"""A consistent cut: where each shard of some topics ended at one moment. Plain immutable data."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.bounds import Count
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.topic import Topic


@dataclass(frozen=True, slots=True)
class CutShard:
    """Records `[log_start_offset, end_offset)` of a shard; `epoch` is that of its last segment with any of them."""

    key: ShardKey
    log_start_offset: Count
    end_offset: Count
    epoch: Count

    def needs(self, segment: SegmentKey, end_offset: int) -> bool:
        """Whether records of the cut lie in that segment."""
        is_within = segment.base_offset < self.end_offset and end_offset > self.log_start_offset
        return segment.shard_key == self.key and is_within and segment.epoch <= self.epoch


@dataclass(frozen=True, slots=True)
class Cut:
    """A snapshot of topics under a name."""

    cluster_id: str
    name: str
    created_ms: int
    topics: tuple[Topic, ...]
    shards: tuple[CutShard, ...]
