"""Counts what is committed and not yet in the object store, segment by segment.

Lives on the event loop. A high watermark that moves is counted in the segments it moved through: what lies wholly below
where it stood before has not changed, however many wait there for their upload.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_node.shards.copies.shard_view import Shards, ShardView
from stratalog_node.tier.uploads.mounted_copies import MountedCopies
from stratalog_node.tier.uploads.segment_records import SegmentRecords


class UnsentCount:
    def __init__(self, shards: Shards, known: SegmentRecords, mounted: MountedCopies) -> None:
        self._shards = shards
        self._known = known
        self._mounted = mounted
        self._looked_to: dict[ShardKey, int] = {}
        """min(HW, LSO) of each shard when its growth was counted last."""

    def unsent_bytes(self, key: SegmentKey, offset: int) -> int:
        """Bytes of the local copy from `offset` on that may be uploaded; of what is mounted as many at most,
        above what is known to be committed."""
        view = self._shards.get(key.shard_key)
        if view is None or not view.has_local(key):
            return self._mounted.most_unsent_bytes(self._known.get(key))
        limit = view.upload_limit(key)
        if limit <= offset:
            return 0
        size = view.size_below_high_watermark(key, offset)
        segment = self._known.get(key)
        end_offset = segment.end_offset if segment is not None else None
        if limit < view.high_watermark and (end_offset is None or limit < end_offset):
            size -= view.size_below_high_watermark(key, limit)
        return max(0, size)

    def grown(self, view: ShardView) -> Iterator[SegmentKey]:
        """The segments in which min(HW, LSO) moved since this was asked before, newest first. Take all of them."""
        before = self._looked_to.get(view.key, -1)
        self._looked_to[view.key] = min(view.high_watermark, view.last_stable_offset)
        for key in reversed(self._known.of_shard(view.key)):
            segment = self._known.get(key)
            if segment is not None and segment.end_offset is not None and segment.end_offset <= before:
                return
            yield key

    def forget(self, key: ShardKey) -> None:
        """Nothing of the shard is unfinished, or all of it is to be counted again."""
        self._looked_to.pop(key, None)
