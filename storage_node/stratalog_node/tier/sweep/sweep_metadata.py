"""One reading of the metadata, for deletions from the object store: the record of a segment, living or deleted.

Cost of a reading: O(shards and deleted segments), not O(segments). Cost of a question: O(log segments of its shard).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from stratalog.machines.tiering.orphans import is_part_explained
from stratalog.meta_api.client import MetaClient
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.in_order import find
from stratalog.model.metadata import Snapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard


class SweepMetadata:
    def __init__(self, snapshot: Snapshot, deleted: list[Segment], purged_topics: frozenset[UUID]) -> None:
        self.snapshot = snapshot
        self._shards: dict[ShardKey, Shard] = {shard.key: shard for shard in snapshot.shards}
        self._deleted = {segment.key: segment for segment in deleted}
        self._purged_topics = purged_topics

    def living(self, key: SegmentKey) -> Segment | None:
        shard = self._shards.get(key.shard_key)
        return find(shard.segments, key) if shard is not None else None

    def is_deleted(self, key: SegmentKey) -> bool:
        return key in self._deleted

    def log_start_offset(self, key: SegmentKey) -> int | None:
        shard = self._shards.get(key.shard_key)
        return shard.log_start_offset if shard is not None else None

    def is_purged(self, key: SegmentKey) -> bool:
        return key.topic_id in self._purged_topics

    def is_part_explained(self, key: SegmentKey, end_offset: int) -> bool:
        segment = self.living(key) or self._deleted.get(key)
        return is_part_explained(key, end_offset, segment, self.log_start_offset(key), self.is_purged(key))


async def read_sweep_metadata(meta: MetaClient, timeout_s: float) -> SweepMetadata:
    """Reads the live ones first, then the deleted, then the purged. A segment that moves on meanwhile is then listed
    twice, never missing; a missing one would look as if its deletion were long past."""
    async with asyncio.timeout(timeout_s):
        snapshot = await meta.snapshot()
        deleted = await meta.deleted_segments()
        return SweepMetadata(snapshot, deleted, await meta.purged_topics())
