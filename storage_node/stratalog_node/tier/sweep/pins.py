"""What snapshots in the bucket need, and must not be taken away: a cut pins by lying there.

Whoever makes one puts it first, and looks then that none of its segments is DELETED yet; who deletes looks for cuts
once the segment is DELETED. So one of the two sees the other, in whatever order they come.
A listing proves nothing by what it lacks: a proxy may answer it with a page of its own, which reads as a list of
nothing. A cut that was there is gone once the store says so of its key; that there are none at all is believed of a
store that lists other objects of the cluster.
Cost: one listing, and one more where there are no cuts; each cut is read once.
"""

from __future__ import annotations

from collections import defaultdict

from stratalog.formats.bucket.cut import decode_cut
from stratalog.formats.bucket.object_names import CutName, ObjectNames
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog_node.tier.store import wrong_store


class Pins:
    def __init__(self, store: ObjectStore, names: ObjectNames) -> None:
        self._store = store
        self._names = names
        self._read: dict[tuple[str, int], Cut] = {}
        self._pinned: dict[ShardKey, list[CutShard]] = {}

    async def refresh(self) -> None:
        """See which cuts there are now. Raises: Corrupt for one that cannot be read, Unavailable where the listing
        cannot be believed, what the store raises: then nothing may be deleted."""
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
        for key in {key for key, _ in self._read} - {key for key, _ in read}:
            await self._require_gone(key)
        if not read and await wrong_store.has_nothing(self._store, self._names):
            raise Unavailable(wrong_store.words(self._store, self._names))
        if read.keys() != self._read.keys():
            pinned: dict[ShardKey, list[CutShard]] = defaultdict(list)
            for cut in read.values():
                for shard in cut.shards:
                    pinned[shard.key].append(shard)
            self._read, self._pinned = read, dict(pinned)

    async def _require_gone(self, key: str) -> None:
        """Raises: Unavailable when it is there, or the store does not say."""
        try:
            await self._store.head(key)
        except NotFound:
            return
        raise Unavailable(f"{self._store.url} does not list the snapshot {key}, which is there: nothing is deleted now")

    def has(self, segment: Segment) -> bool:
        """Whether a cut needs it, as of the last listing."""
        end_offset = segment.end_offset if segment.end_offset is not None else segment.base_offset
        return any(shard.needs(segment.key, end_offset) for shard in self._pinned.get(segment.key.shard_key, ()))
