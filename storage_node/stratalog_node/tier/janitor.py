"""Takes away what is over: deleted segments' files and objects, bundles without references, orphans.

Order (design section 11): a segment is DELETED in the metadata first; after `delete_delay_ms`, longer than the longest
read, its local file goes, then its folder in the object store, manifest first, so that no manifest ever names an object
that is gone (F32); when the folder lists empty the metadata is purged. Each step may be repeated after a crash, and an
error of one segment does not stop the others. Works without an object store, too: then only local files go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from stratalog.formats.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.machines.bundles import BundleLimits
from stratalog.meta_api.client import MetaClient
from stratalog.meta_api.commands import Change, SegmentChanged, TopicDeleted
from stratalog.model.errors import NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog import Catalog
from stratalog_node.shards.seam import Shards
from stratalog_node.tier.bundle_keeper import BundleKeeper
from stratalog_node.tier.deletion_alarm import DeletionAlarm
from stratalog_node.tier.orphan_sweep import OrphanSweep, SweepReport
from stratalog_node.tier.rounds import Rounds
from stratalog_node.tier.stats import TierStats
from stratalog_node.tier.uploader import TierWriter

log = logger(__name__)

_SEGMENTS_AT_A_TIME = 8
_PURGE_AT_A_TIME = 500
_DELETION_ORDER = {SegmentObject.MANIFEST: 0, SegmentObject.INDEX: 1, SegmentObject.CHUNK: 2}


@dataclass(frozen=True, slots=True)
class JanitorSchedule:
    interval_ms: int = 30_000
    """Between two looks for deleted segments."""
    delete_delay_ms: int = 60_000
    orphan_grace_ms: int = 3_600_000
    sweep_interval_ms: int = 3_600_000
    bundle_max_age_ms: int = 86_400_000
    call_timeout_ms: int = 30_000


class Janitor:
    """`free_deleted` frees the local copy of a deleted segment; without it `shards.free_local` does."""

    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        shards: Shards,
        catalog: Catalog,
        store: ObjectStore | None,
        writer: TierWriter | None,
        names: ObjectNames,
        schedule: JanitorSchedule,
        clock_ms: Callable[[], int],
        stats: TierStats,
        free_deleted: Callable[[SegmentKey], Awaitable[None]] | None = None,
    ) -> None:
        assert (store is None) == (writer is None), "store and writer: both or neither"
        self._node_id = node_id
        self._meta = meta
        self._shards = shards
        self._catalog = catalog
        self._store = store
        self._writer = writer
        self._names = names
        self._schedule = schedule
        self._clock_ms = clock_ms
        self._stats = stats
        self._free_deleted = free_deleted or self._free_local
        self._rounds = Rounds("tier-janitor", schedule.interval_ms, self.delete_once, stats)
        self._alarm = DeletionAlarm((schedule.delete_delay_ms + 1) / 1_000, self._rounds.poke)
        self._sweep_rounds = Rounds("tier-sweep", schedule.sweep_interval_ms, self.sweep_now, stats)
        self._bundles: BundleKeeper | None = None
        self._orphans: OrphanSweep | None = None
        if store is not None and writer is not None:
            limits = BundleLimits(
                delete_delay_ms=schedule.delete_delay_ms,
                orphan_grace_ms=schedule.orphan_grace_ms,
                max_age_ms=schedule.bundle_max_age_ms,
            )
            self._bundles = BundleKeeper(
                node_id=node_id,
                meta=meta,
                store=store,
                writer=writer,
                limits=limits,
                clock_ms=clock_ms,
                call_timeout_ms=schedule.call_timeout_ms,
            )
            self._orphans = OrphanSweep(
                node_id=node_id,
                meta=meta,
                store=store,
                writer=writer,
                grace_ms=schedule.orphan_grace_ms,
                clock_ms=clock_ms,
                call_timeout_ms=schedule.call_timeout_ms,
            )

    async def start(self) -> None:
        self._catalog.on_change(self._on_change)
        self._rounds.start()
        if self._store is not None:
            self._sweep_rounds.start()
        self._rounds.poke()

    async def close(self) -> None:
        self._alarm.close()
        await self._rounds.close()
        await self._sweep_rounds.close()

    def poke(self) -> None:
        self._rounds.poke()

    def _on_change(self, change: Change) -> None:
        """Something was deleted: look when its grace is over, not an interval later."""
        is_deletion = isinstance(change, TopicDeleted) or (
            isinstance(change, SegmentChanged) and change.segment.state is SegmentState.DELETED
        )
        if is_deletion:
            self._alarm.deleted()

    # Deleted segments -------------------------------------------------------------------------------------------------
    async def delete_once(self) -> int:
        """Take away what is past its grace. Returns how many segments were purged."""
        now_ms = self._clock_ms()
        due = [
            segment
            for segment in await self._deleted_segments()
            if now_ms - (segment.deleted_ms or 0) >= self._schedule.delete_delay_ms
        ]
        purged: list[SegmentKey] = []
        count = 0
        for start in range(0, len(due), _SEGMENTS_AT_A_TIME):
            some = due[start : start + _SEGMENTS_AT_A_TIME]
            gone: list[bool] = await asyncio.gather(*(self._take_away(segment) for segment in some))
            purged += [segment.key for segment, is_gone in zip(some, gone, strict=True) if is_gone]
            if len(purged) >= _PURGE_AT_A_TIME or start + _SEGMENTS_AT_A_TIME >= len(due):
                await self._purge(purged)
                count += len(purged)
                purged.clear()
        if due and self._bundles is not None:
            await self._rounds.guard(self._bundles.run_once)
        return count

    async def _deleted_segments(self) -> list[Segment]:
        async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
            return await self._meta.deleted_segments()

    async def _purge(self, keys: Sequence[SegmentKey]) -> None:
        if not keys:
            return
        if self._orphans is not None:
            self._orphans.purged_segments.update(keys)
            self._orphans.purged_topics.update(
                key.topic_id for key in keys if self._catalog.topic_by_id(key.topic_id) is None
            )
        async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
            await self._meta.purge_segments(list(keys))
        self._stats.segments_purged += len(keys)

    async def _take_away(self, segment: Segment) -> bool:
        """Returns whether nothing of the segment is left, and this node is the one to say so."""
        try:
            async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
                await self._forget_local(segment)
                if not _is_keeper(segment, self._node_id):
                    return False
                return self._store is None or await self._empty_folder(self._store, segment.key)
        except Exception as error:
            self._rounds.complain(error)
            return False

    async def _forget_local(self, segment: Segment) -> None:
        try:
            await self._meta.forget_local([segment.key], self._node_id)
        except NotFound:
            return  # purged meanwhile
        await self._free_deleted(segment.key)

    async def _free_local(self, key: SegmentKey) -> None:
        view = self._shards.get(key.shard_key)
        if view is not None and view.has_local(key):
            await self._shards.free_local(view, key)

    async def _empty_folder(self, store: ObjectStore, key: SegmentKey) -> bool:
        """Delete all objects of a segment, doubtful attempts too. Returns whether the folder lists empty."""
        folder = self._names.segment_prefix(key)
        writer = self._writer
        if writer is not None and (writer.is_in_flight(key) or writer.attempts.has_any_below(folder)):
            return False  # F38, F85: an upload on its way would land after the folder was emptied
        found = [info.key async for info in store.list(folder)]
        if found:
            for keys in self._in_deletion_order(found):
                await store.delete(keys)
            found = [info.key async for info in store.list(folder)]
        return not found

    def _in_deletion_order(self, object_keys: Sequence[str]) -> list[list[str]]:
        groups: list[list[str]] = [[], [], []]
        for object_key in object_keys:
            name = self._names.parse(object_key)
            kind = name.kind if isinstance(name, SegmentObjectName) else SegmentObject.CHUNK
            groups[_DELETION_ORDER[kind]].append(object_key)
        return [group for group in groups if group]

    # Orphans ----------------------------------------------------------------------------------------------------
    async def sweep_now(self) -> SweepReport:
        """Look for orphans and at bundles now. Raises whatever store and meta service raise while they are away."""
        if self._orphans is None or self._bundles is None:
            return SweepReport()
        report = await self._orphans.run_once()
        await self._bundles.run_once()
        report.foreign += self._bundles.foreign
        return report


def _is_keeper(segment: Segment, node_id: int) -> bool:
    """Whether it is this node that takes away the shared rest of a deleted segment: objects and metadata."""
    if segment.leader is not None:
        return segment.leader == node_id
    return not segment.replicas or min(segment.replicas) == node_id
