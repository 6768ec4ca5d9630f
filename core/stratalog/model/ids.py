"""Names of things: which shard, which segment.

A name is plain data. It is compared and hashed, never computed here.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from stratalog.model.bounds import Count, Int32

MAX_OFFSET: Final = 2**63 - 1


class ShardKey(NamedTuple):
    """One shard (a Kafka partition) of one topic. A recreated topic has a new id, so it never meets old data."""

    topic_id: UUID
    shard: Int32


class SegmentKey(NamedTuple):
    """One segment: a contiguous offset range of one shard, written under one epoch."""

    topic_id: UUID
    shard: Int32
    epoch: Int32
    base_offset: Count

    @property
    def shard_key(self) -> ShardKey:
        return ShardKey(self.topic_id, self.shard)
