"""The readers of a node's object store: cold data for readers, and data for healing. Both are absent without a store.

Created before the shards, which use them; the tier that uploads comes after the shards (`tier/assembly.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.uploads.committed_ranges import CommittedRanges


@dataclass(frozen=True, slots=True)
class RemoteReads:
    cold: ColdReader | None
    committed: CommittedRanges | None

    @classmethod
    def over(cls, store: ObjectStore | None, *, cluster_id: str, settings: ProcessSettings, catalog: Catalog) -> Self:
        if store is None:
            return cls(None, None)
        names = ObjectNames("", cluster_id)

        async def reload(key: SegmentKey) -> Segment | None:
            return catalog.segment(key)

        return cls(
            ColdReader(store, names, cold_read_limits(settings), reload),
            CommittedRanges(store, names, settings.remote_upload_timeout_ms),
        )

    async def close(self) -> None:
        if self.cold is not None:
            await self.cold.close()


def cold_read_limits(settings: ProcessSettings) -> ColdReadLimits:
    rate = settings.remote_read_bytes_per_second
    return ColdReadLimits(
        cache_bytes=settings.remote_read_cache_bytes,
        window_min_bytes=settings.remote_read_window_min_bytes,
        window_max_bytes=settings.remote_read_window_max_bytes,
        bytes_per_s=None if rate < 0 else rate,
        max_concurrency=settings.remote_read_max_concurrency,
        unread_ttl_ms=settings.remote_read_unread_ttl_ms,
    )
