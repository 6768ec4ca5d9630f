"""The newest record that this node has of each segment that it uploads.

A record is never replaced by an older one, which may arrive late from the watch.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from stratalog.formats.bucket.object_names import BundleName, ObjectNames
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment, SegmentIdentity, SegmentState
from stratalog.settings.choices import RemoteCompression
from stratalog_node.shards.catalog.catalog import Catalog

_AGES = {state: age for age, state in enumerate(SegmentState)}


class SegmentRecords:
    """Unfinished segments by key, and by shard for what a moved high watermark concerns."""

    def __init__(self, cluster_id: str, catalog: Catalog, names: ObjectNames) -> None:
        self._cluster_id = cluster_id
        self._catalog = catalog
        self._names = names
        self._segments: dict[SegmentKey, Segment] = {}
        self._by_shard: dict[ShardKey, list[SegmentKey]] = {}

    def __iter__(self) -> Iterator[SegmentKey]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, key: SegmentKey) -> Segment | None:
        return self._segments.get(key)

    def of_shard(self, key: ShardKey) -> Sequence[SegmentKey]:
        """Oldest first."""
        return self._by_shard.get(key, ())

    def put(self, segment: Segment) -> Segment:
        """Take in a record unless a newer one is known. Returns: the newer of the two."""
        known = self._segments.get(segment.key)
        if known is None:
            insort(self._by_shard.setdefault(segment.key.shard_key, []), segment.key)
        elif _is_older(segment, known):
            return known
        self._segments[segment.key] = segment
        return segment

    def drop(self, key: SegmentKey) -> bool:
        if self._segments.pop(key, None) is None:
            return False
        siblings = self._by_shard[key.shard_key]
        siblings.pop(bisect_left(siblings, key))
        if not siblings:
            del self._by_shard[key.shard_key]
        return True

    def identity(self, key: SegmentKey) -> SegmentIdentity | None:
        """What its objects say of themselves; None when segment or topic are gone."""
        segment = self._segments.get(key)
        topic = self._catalog.topic_by_id(key.topic_id)
        if segment is None or topic is None:
            return None
        return SegmentIdentity(
            self._cluster_id, key.topic_id, topic.name, key.shard, key.epoch, key.base_offset, segment.opened_ms
        )

    def storage_class(self, key: SegmentKey) -> str:
        """In which its chunks are put now; empty for the bucket's default."""
        if self._catalog.topic_by_id(key.topic_id) is None:
            return ""
        return self._catalog.topic_settings(key.topic_id).remote_storage_class.asked_for

    def is_packing(self, key: SegmentKey) -> bool:
        """Whether its chunks are compressed now, before they are put."""
        if self._catalog.topic_by_id(key.topic_id) is None:
            return False
        return self._catalog.topic_settings(key.topic_id).remote_compression is RemoteCompression.ZSTD

    def is_bundle_key(self, object_key: str) -> bool:
        return object_key.startswith(self._names.bundles_prefix)

    def parse_bundle(self, object_key: str) -> BundleName | None:
        name = self._names.parse(object_key)
        return name if isinstance(name, BundleName) else None


def _is_older(segment: Segment, known: Segment) -> bool:
    if _AGES[segment.state] != _AGES[known.state]:
        return _AGES[segment.state] < _AGES[known.state]
    return segment.remote.commit_offset < known.remote.commit_offset
