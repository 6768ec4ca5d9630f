"""Keeps bundles from piling up: deletes those that nothing refers to, and empties those that are half dead or old.

Decided in `stratalog.machines.tiering.bundles`. References are counted from metadata, never kept: only PARTIAL segments
refer to bundles, a complete copy lies wholly in its own folder. Live parts move through the uploader, in its next
bundles. Before a bundle is deleted its directory is read: one with a part that metadata cannot explain is kept, and
told. Cost of a pass: one listing of this node's bundles, one snapshot, one small GET per bundle older than its limit,
three per bundle that is due to be deleted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from stratalog.formats.bucket.object_names import BundleName
from stratalog.machines.tiering.bundles import (
    EMPTY_PLAN,
    BundleLimits,
    LivePart,
    StoredBundle,
    plan_bundles,
)
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock
from stratalog.model.segment import RemotePart, RemoteState, SegmentState
from stratalog.objects.store import ObjectInfo, ObjectStore
from stratalog.stored.remote.bundles import read_bundle_entries, read_bundle_trailer
from stratalog.telemetry.logs import logger
from stratalog_node.tier.store.claim import Forked
from stratalog_node.tier.sweep.expired_writers import ExpiredWriters
from stratalog_node.tier.sweep.sweep_metadata import SweepMetadata, read_sweep_metadata
from stratalog_node.tier.uploads.uploader import NodeUploader

log = logger(__name__)

_Unexplained = tuple[SegmentKey, int]
"""A part by its segment and its end offset."""
_SHARDS_PER_TURN = 200
_SEGMENTS_PER_TURN = 5_000
_DIRECTORIES_PER_PASS = 256
"""The most directories that a pass reads; the others wait for the next pass."""


class BundleKeeper:
    """One pass at a time; what it remembers between two is only a saving."""

    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        store: ObjectStore,
        uploader: NodeUploader,
        limits: BundleLimits,
        clock_ms: Callable[[], int],
        call_timeout_ms: int,
        expired_writers: ExpiredWriters | None = None,
    ) -> None:
        """With `left_behind` the bundles are of another node, whose leavings this one sweeps: what nothing refers to
        goes; what is half dead is left for its return."""
        self._expired_writers = expired_writers
        self._call_timeout_s = call_timeout_ms / 1_000
        self._node_id = node_id
        self._meta = meta
        self._store = store
        self._uploader = uploader
        self._limits = limits
        self._clock_ms = clock_ms
        self._plan = EMPTY_PLAN
        self._part_counts: dict[str, int] = {}
        self._unexplained: dict[str, _Unexplained | None] = {}
        """For each bundle that is kept: a part that nothing explains; None if the bundle cannot be read."""
        self._looks = asyncio.Lock()
        self.foreign: list[str] = []
        """Keys below the bundles' folder that are not ours to read; left alone."""

    @property
    def unexplained(self) -> list[str]:
        """Bundles that hold data which metadata do not know, and objects that could not be read; they are left
        alone."""
        return sorted(self._unexplained)

    async def run_once(self) -> None:
        """Does nothing without the write lock and its claim."""
        async with self._looks:
            lock = await self._uploader.hold_claim()
            if lock is None:
                return
            try:
                await self._pass(lock)
            except Forked:
                await self._uploader.hold_claim()  # says so, and stops the uploads

    async def _pass(self, lock: Lock) -> None:
        names = self._uploader.names
        listed = [info async for info in self._store.list(names.node_bundles_prefix(self._node_id))]
        if not listed and self._expired_writers is not None:
            self._unexplained, self.foreign = {}, []
            return
        last_epoch = await self._last_epoch(lock)
        if last_epoch is None:
            return
        # Before metadata is read: what is let go later may be committed later, and metadata would not tell of it.
        attempts = self._uploader.attempts
        protected = {info.key for info in listed if attempts.is_protected(info.key)}
        facts = await read_sweep_metadata(self._meta, self._call_timeout_s)
        live = await self._live_parts(facts)
        self._part_counts = {info.key: self._part_counts[info.key] for info in listed if info.key in self._part_counts}
        self._unexplained = {info.key: self._unexplained[info.key] for info in listed if info.key in self._unexplained}
        self.foreign = []
        stored: list[StoredBundle] = []
        sizes: dict[str, ObjectInfo] = {}
        now_ms = self._clock_ms()
        for info in listed:
            name = names.parse(info.key)
            if not isinstance(name, BundleName):
                self.foreign.append(info.key)
                continue
            if self._expired_writers is None:
                self._uploader.claim.witness(info.key, name.lock_epoch, lock.epoch, info.modified_ms)
            sizes[info.key] = info
            if live.get(info.key) and now_ms - info.modified_ms >= self._limits.max_age_ms:
                await self._count_parts(info)
            is_protected = name.lock_epoch > last_epoch or info.key in protected
            count = self._part_counts.get(info.key)
            stored.append(StoredBundle(info.key, info.size_bytes, info.modified_ms, count, is_protected))
        plan = self._plan = plan_bundles(stored, live, self._plan, now_ms, self._limits)
        await self._delete([sizes[deletion.key] for deletion in plan.deletions], facts)
        for rewrite in plan.rewrites if self._expired_writers is None else ():
            by_segment: dict[SegmentKey, list[RemotePart]] = defaultdict(list)
            for entry in rewrite.live:
                by_segment[entry.segment].append(entry.part)
            for key, parts in by_segment.items():
                self._uploader.rewrite(key, tuple(parts))
            self._uploader.stats.bundles_rewritten += 1
            log.debug("bundle is rewritten", bundle=rewrite.key, parts=len(rewrite.live), reason=rewrite.reason)

    async def _last_epoch(self, lock: Lock) -> int | None:
        """Under which they were written at the latest; None while another may still write them."""
        if self._expired_writers is None:
            return lock.epoch
        return await self._expired_writers.last_epoch(self._node_id)

    async def _live_parts(self, facts: SweepMetadata) -> dict[str, list[LivePart]]:
        """The parts that refer to each bundle. Read after the listing, so that a commit in between counts."""
        prefix = self._uploader.names.bundles_prefix
        live: dict[str, list[LivePart]] = defaultdict(list)
        shards = segments = 0
        for shard in facts.snapshot.shards:
            shards += 1
            segments += len(shard.segments)
            if shards >= _SHARDS_PER_TURN or segments >= _SEGMENTS_PER_TURN:
                shards = segments = 0
                await asyncio.sleep(0)
            for segment in shard.segments:
                if segment.remote.state is not RemoteState.PARTIAL or segment.state is SegmentState.DELETED:
                    continue
                for part in segment.remote.parts:
                    if part.object_key.startswith(prefix):
                        live[part.object_key].append(LivePart(segment.key, part))
        return live

    # Deleting -------------------------------------------------------------------------------------------------------
    async def _delete(self, due: list[ObjectInfo], facts: SweepMetadata) -> None:
        """Delete what metadata explains to the last part."""
        may_go: list[str] = []
        reads = 0
        for info in sorted(due, key=lambda info: info.key in self._unexplained):
            known = self._unexplained.get(info.key)
            if known is not None and not facts.is_part_explained(*known):
                continue
            if reads == _DIRECTORIES_PER_PASS:
                break
            reads += 1
            try:
                finding = await self._find_unexplained(info, facts)
            except (Corrupt, NotFound) as error:
                self._keep(info.key, None, str(error))
                continue
            if finding is None:
                self._unexplained.pop(info.key, None)
                may_go.append(info.key)
            else:
                self._keep(info.key, finding, f"metadata does not name offsets below {finding[1]} of {finding[0]}")
        if self._expired_writers is None:
            self._uploader.stats.bundles_unexplained = len(self._unexplained)
        if may_go:
            await self._store.delete(may_go)
            self._uploader.stats.bundles_deleted += len(may_go)

    def _keep(self, key: str, finding: _Unexplained | None, reason: str) -> None:
        if key not in self._unexplained:
            log.warning("bundle is left alone, run `stratalog doctor`", bundle=key, reason=reason)
        self._unexplained[key] = finding

    async def _find_unexplained(self, info: ObjectInfo, facts: SweepMetadata) -> _Unexplained | None:
        """The first part of a bundle that metadata does not explain; None when it explains them all. Raises: Corrupt,
        NotFound."""
        names = self._uploader.names
        name = names.parse(info.key)
        assert isinstance(name, BundleName), "foreign objects are not up for deletion"
        for entry in await read_bundle_entries(self._get, names.cluster_id, name, info.key, info.size_bytes):
            if not facts.is_part_explained(entry.identity.key, entry.end_offset):
                return entry.identity.key, entry.end_offset
        return None

    async def _count_parts(self, info: ObjectInfo) -> None:
        """Learn from a bundle's trailer how many parts it was made of."""
        if info.key in self._part_counts:
            return
        try:
            trailer = await read_bundle_trailer(self._get, info.key, info.size_bytes)
        except (Corrupt, NotFound) as error:
            log.error("bundle cannot be read", bundle=info.key, error=str(error))
            return
        self._part_counts[info.key] = trailer.part_count

    async def _get(self, key: str, start: int, end: int) -> bytes:
        async with asyncio.timeout(self._call_timeout_s):
            return await self._store.get_range(key, start, end)
