"""What snapshots in the bucket need, and must not be taken away: a cut pins by lying there.

Whoever makes one puts it first, and looks then that none of its segments is DELETED yet; who deletes looks for cuts
once the segment is DELETED. So one of the two sees the other, in whatever order they come.
Cost: one listing; each cut is read once.
"""

from __future__ import annotations

from collections import defaultdict

from stratalog.formats.bucket.cut import decode_cut
from stratalog.formats.bucket.object_names import CutName, ObjectNames
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import NotFound
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore


class Pins:
    def __init__(self, store: ObjectStore, names: ObjectNames) -> None:
        self._store = store
        self._names = names
        self._read: dict[tuple[str, int], Cut] = {}
        self._pinned: dict[ShardKey, list[CutShard]] = {}

    async def refresh(self) -> None:
        """See which cuts there are now. Raises: Corrupt for one that cannot be read: then nothing may be deleted; what
        the store raises."""
        read: dict[tuple[str, int], Cut] = {}
        async for info in self._store.list(self._names.cuts_prefix):
            if not isinstance(self._names.parse(info.key), CutName):
                continue
            seen = (info.key, info.modified_ms)
            known = self._read.get(seen)
            try:
                read[seen] = known or decode_cut(await self._store.get(info.key), source=info.key)
            except NotFound:
                continue  # deleted meanwhile
        if read.keys() != self._read.keys():
            pinned: dict[ShardKey, list[CutShard]] = defaultdict(list)
            for cut in read.values():
                for shard in cut.shards:
                    pinned[shard.key].append(shard)
            self._read, self._pinned = read, dict(pinned)

    def has(self, segment: Segment) -> bool:
        """Whether a cut needs it, as of the last listing."""
        end_offset = segment.end_offset if segment.end_offset is not None else segment.base_offset
        return any(shard.needs(segment.key, end_offset) for shard in self._pinned.get(segment.key.shard_key, ()))
