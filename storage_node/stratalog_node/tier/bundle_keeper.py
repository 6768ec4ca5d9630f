"""Keeps bundles from piling up: deletes those that nothing refers to, and empties those that are half dead or old.

Decided in `stratalog.machines.bundles`. References are counted from metadata, never kept: only PARTIAL segments refer
to bundles, a complete copy lies wholly in its own folder. Live parts move through the uploader, in its next bundles.
Cost of a pass: one listing of this node's bundles, one snapshot, one small GET per bundle older than its limit.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from stratalog.formats.bundle import BUNDLE_TRAILER_BYTES, decode_bundle_trailer
from stratalog.formats.object_names import BundleName
from stratalog.machines.bundles import (
    EMPTY_PLAN,
    BundleLimits,
    LivePart,
    StoredBundle,
    plan_bundles,
)
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, SegmentState
from stratalog.objects.store import ObjectInfo, ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.tier.uploader import TierWriter

log = logger(__name__)


class BundleKeeper:
    """One pass at a time; what it remembers between two is only a saving."""

    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        store: ObjectStore,
        writer: TierWriter,
        limits: BundleLimits,
        clock_ms: Callable[[], int],
        call_timeout_ms: int,
    ) -> None:
        self._call_timeout_s = call_timeout_ms / 1_000
        self._node_id = node_id
        self._meta = meta
        self._store = store
        self._writer = writer
        self._limits = limits
        self._clock_ms = clock_ms
        self._plan = EMPTY_PLAN
        self._part_counts: dict[str, int] = {}
        self.foreign: list[str] = []
        """Keys below the bundles' folder that are not ours to read; left alone."""

    async def run_once(self) -> None:
        lock = self._writer.lock.current
        if lock is None:
            return
        names = self._writer.names
        listed = [info async for info in self._store.list(names.node_bundles_prefix(self._node_id))]
        # Before metadata is read: what is let go later may be committed later, and metadata would not tell of it.
        attempts = self._writer.attempts
        protected = {info.key for info in listed if attempts.is_protected(info.key)}
        live = await self._live_parts()
        self._part_counts = {info.key: self._part_counts[info.key] for info in listed if info.key in self._part_counts}
        self.foreign = []
        stored: list[StoredBundle] = []
        now_ms = self._clock_ms()
        for info in listed:
            name = names.parse(info.key)
            if not isinstance(name, BundleName):
                self.foreign.append(info.key)
                continue
            if live.get(info.key) and now_ms - info.modified_ms >= self._limits.max_age_ms:
                await self._count_parts(info)
            is_protected = name.lock_epoch > lock.epoch or info.key in protected
            count = self._part_counts.get(info.key)
            stored.append(StoredBundle(info.key, info.size_bytes, info.modified_ms, count, is_protected))
        plan = self._plan = plan_bundles(stored, live, self._plan, now_ms, self._limits)
        if plan.deletions:
            await self._store.delete([deletion.key for deletion in plan.deletions])
            self._writer.stats.bundles_deleted += len(plan.deletions)
        for rewrite in plan.rewrites:
            by_segment: dict[SegmentKey, list[RemotePart]] = defaultdict(list)
            for entry in rewrite.live:
                by_segment[entry.segment].append(entry.part)
            for key, parts in by_segment.items():
                self._writer.rewrite(key, tuple(parts))
            self._writer.stats.bundles_rewritten += 1
            log.debug("bundle is rewritten", bundle=rewrite.key, parts=len(rewrite.live), reason=rewrite.reason)

    async def _live_parts(self) -> dict[str, list[LivePart]]:
        """Who refers to each bundle. Read after the listing, so that a commit in between counts."""
        async with asyncio.timeout(self._call_timeout_s):
            snapshot = await self._meta.snapshot()
        prefix = self._writer.names.bundles_prefix
        live: dict[str, list[LivePart]] = defaultdict(list)
        for shard in snapshot.shards:
            for segment in shard.segments:
                if segment.state is SegmentState.DELETED:
                    continue
                for part in segment.remote.parts:
                    if part.object_key.startswith(prefix):
                        live[part.object_key].append(LivePart(segment.key, part))
        return live

    async def _count_parts(self, info: ObjectInfo) -> None:
        """Learn from a bundle's trailer how many parts it was made of."""
        if info.key in self._part_counts or info.size_bytes < BUNDLE_TRAILER_BYTES:
            return
        try:
            tail = await self._store.get_range(info.key, info.size_bytes - BUNDLE_TRAILER_BYTES, info.size_bytes)
            trailer = decode_bundle_trailer(tail, source=info.key, object_size=info.size_bytes)
        except (Corrupt, NotFound) as error:
            log.error("bundle cannot be read", bundle=info.key, error=str(error))
            return
        self._part_counts[info.key] = trailer.part_count
