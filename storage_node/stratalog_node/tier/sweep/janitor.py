"""Takes away what is over: deleted segments' files and objects, bundles without references, orphans.

Order (design section 11): a segment is DELETED in the metadata first; after `delete_delay_ms`, longer than the longest
read, its local file goes, then its folder in the object store, manifest first, so that no manifest ever names an object
that is gone (F32); then the metadata is purged. Each step may be repeated after a crash, and an error of one shard does
not stop the others. Works without an object store, too: then only local files go. Nothing is deleted from the store
without the write lock and its claim, seen to be ours a moment ago.
Cost: a listing and two deletions in the store per hundred segments of a shard, and a listing of the cuts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from stratalog.formats.bucket.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.machines.tiering.bundles import BundleLimits
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import ForgetLocal, PurgeSegments
from stratalog.model.errors import NotFound
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Change, SegmentChanged, TopicDeleted
from stratalog.model.segment import Segment, SegmentState
from stratalog.objects.store import ObjectInfo, ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.shard_view import LocalCopies, Shards
from stratalog_node.tier.store.periodic_task import PeriodicTask
from stratalog_node.tier.store.side_by_side import side_by_side
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.sweep.bundle_keeper import BundleKeeper
from stratalog_node.tier.sweep.expired_writers import ExpiredWriters
from stratalog_node.tier.sweep.orphan_sweep import OrphanSweep, SweepReport
from stratalog_node.tier.sweep.pins import Pins
from stratalog_node.tier.uploads.uploader import NodeUploader

log = logger(__name__)

_SEGMENTS_AT_A_TIME = 100
_SHARDS_SIDE_BY_SIDE = 4
"""One whose listing or deletion hangs holds up no other."""
_OTHER_OBJECTS = 1_000
_OBJECTS_PER_SEGMENT = 16
"""A listing of a shard is given up where it shows more than these two allow."""
_RINGS_PER_GRACE: Final = 16


class DeletionAlarm:
    """Rings when the grace period of deletions is over, with one timer for any number of deletions.

    Deletions that follow each other closely share one ring, at most a sixteenth of the grace period after the first of
    them is due, and never before the last of them is. `ring` is called on the event loop, once per group of deletions.
    Lives on the event loop. Cost: O(1) per deletion; memory for 16 rings.
    """

    def __init__(self, grace_s: float, ring: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._ring = ring
        self._begun: deque[float] = deque()
        """When the first deletion of each coming ring happened; at most `_RINGS_PER_GRACE` + 1 entries."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def deleted(self) -> None:
        """Something was deleted now."""
        if self._is_closed:
            return
        now = asyncio.get_running_loop().time()
        if not self._begun or now - self._begun[-1] >= self._grain_s:
            self._begun.append(now)
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        self._is_closed = True
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _grain_s(self) -> float:
        return self._grace_s / _RINGS_PER_GRACE

    def _arm(self) -> None:
        due = self._begun[0] + self._grain_s + self._grace_s
        self._timer = asyncio.get_running_loop().call_at(due, self._rung)

    def _rung(self) -> None:
        self._timer = None
        self._begun.popleft()
        if self._begun:
            self._arm()
        self._ring()


@dataclass(frozen=True, slots=True)
class JanitorSchedule:
    interval_ms: int = 30_000
    """Time between two searches for deleted segments."""
    delete_delay_ms: int = 60_000
    orphan_grace_ms: int = 3_600_000
    sweep_interval_ms: int = 3_600_000
    bundle_max_age_ms: int = 86_400_000
    call_timeout_ms: int = 30_000


class Janitor:
    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        shards: Shards,
        copies: LocalCopies,
        catalog: Catalog,
        store: ObjectStore | None,
        uploader: NodeUploader | None,
        names: ObjectNames,
        schedule: JanitorSchedule,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        stats: TierStats,
    ) -> None:
        assert (store is None) == (uploader is None), "store and uploader: both or neither"
        self._node_id = node_id
        self._meta = meta
        self._shards = shards
        self._copies = copies
        self._catalog = catalog
        self._store = store
        self._uploader = uploader
        self._names = names
        self._schedule = schedule
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._ahead: dict[SegmentKey, int] = {}
        """Segments deleted at a time that is yet to come, by a clock that has been set back: since when they are seen,
        in monotonic time."""
        self._stats = stats
        self._periodic = PeriodicTask("tier-janitor", schedule.interval_ms, self.delete_once, stats)
        self._alarm = DeletionAlarm((schedule.delete_delay_ms + 1) / 1_000, self._periodic.poke)
        self._sweep_rounds = PeriodicTask("tier-sweep", schedule.sweep_interval_ms, self.sweep_now, stats)
        self._bundles: BundleKeeper | None = None
        self._others_bundles: dict[int, BundleKeeper] = {}
        """Keepers for nodes without a lease, whose bundles this node sweeps."""
        self._orphans: OrphanSweep | None = None
        self._pins = None if store is None else Pins(store, names)
        if store is not None and uploader is not None:
            limits = BundleLimits(
                delete_delay_ms=schedule.delete_delay_ms,
                orphan_grace_ms=schedule.orphan_grace_ms,
                max_age_ms=schedule.bundle_max_age_ms,
            )
            self._expired_writers = ExpiredWriters(node_id, meta, catalog, schedule.call_timeout_ms)
            self._keeper_of = partial(
                BundleKeeper,
                meta=meta,
                store=store,
                uploader=uploader,
                limits=limits,
                clock_ms=clock_ms,
                call_timeout_ms=schedule.call_timeout_ms,
            )
            self._bundles = self._keeper_of(node_id=node_id)
            self._orphans = OrphanSweep(
                node_id=node_id,
                meta=meta,
                catalog=catalog,
                store=store,
                uploader=uploader,
                grace_ms=schedule.orphan_grace_ms,
                clock_ms=clock_ms,
                call_timeout_ms=schedule.call_timeout_ms,
                expired_writers=self._expired_writers,
            )

    async def start(self) -> None:
        self._catalog.on_change(self._on_change)
        self._periodic.start()
        if self._store is not None:
            self._sweep_rounds.start()
        self._periodic.poke()

    async def close(self) -> None:
        self._alarm.close()
        await self._periodic.close()
        await self._sweep_rounds.close()

    def poke(self) -> None:
        self._periodic.poke()

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
        due: dict[ShardKey, list[Segment]] = defaultdict(list)
        for segment in self._past_grace(await self._deleted_segments()):
            due[segment.key.shard_key].append(segment)
        count = 0
        if due and self._pins is not None:
            async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
                await self._pins.refresh()  # once they are DELETED: see there

        async def delete_some(segments: list[Segment]) -> None:
            nonlocal count
            segments.sort(key=lambda segment: self._names.segment_prefix(segment.key))
            for start in range(0, len(segments), _SEGMENTS_AT_A_TIME):
                purged = await self._take_away(segments[start : start + _SEGMENTS_AT_A_TIME])
                count += purged

        await side_by_side((partial(delete_some, segments) for segments in due.values()), _SHARDS_SIDE_BY_SIDE)
        if due and self._bundles is not None:
            await self._periodic.guard(self._bundles.run_once)
        return count

    def _past_grace(self, deleted: Sequence[Segment]) -> list[Segment]:
        """The time of a deletion that is yet to come says nothing: then the grace begins when it is first seen."""
        now_ms, monotonic_ms = self._clock_ms(), self._monotonic_ms()
        seen, self._ahead = self._ahead, {}
        due: list[Segment] = []
        for segment in deleted:
            waited_ms = now_ms - (segment.deleted_ms or 0)
            if waited_ms < 0:
                since_ms = self._ahead[segment.key] = seen.get(segment.key, monotonic_ms)
                waited_ms = monotonic_ms - since_ms
            if waited_ms >= self._schedule.delete_delay_ms:
                due.append(segment)
        return due

    async def _deleted_segments(self) -> list[Segment]:
        async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
            return await self._meta.deleted_segments()

    async def _take_away(self, segments: Sequence[Segment]) -> int:
        """Segments of one shard, in the order of their folders. Returns how many are gone: no object of them is left,
        and this node is responsible for reporting that. An error is logged, and does not stop other shards."""
        try:
            async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
                known = await self._forget_local(segments)
                gone = [segment.key for segment in known if self._is_keeper(segment) and not self._is_pinned(segment)]
                if self._store is not None and self._uploader is not None and gone:
                    gone = await self._empty_folders(self._store, self._uploader, gone)
            if gone:
                async with asyncio.timeout(self._schedule.call_timeout_ms / 1_000):
                    await self._meta.perform(PurgeSegments(tuple(gone)))
        except Exception as error:
            self._periodic.complain(error)
            return 0
        self._stats.segments_purged += len(gone)
        return len(gone)

    def _is_pinned(self, segment: Segment) -> bool:
        return self._pins is not None and self._pins.has(segment)

    def _is_keeper(self, segment: Segment) -> bool:
        return not segment.replicas or self._catalog.keeper_of(segment) == self._node_id

    async def _forget_local(self, segments: Sequence[Segment]) -> list[Segment]:
        """Free the local copies. Returns those that metadata still knows."""
        known = list(segments)
        try:
            await self._meta.perform(ForgetLocal(tuple([segment.key for segment in segments]), self._node_id))
        except NotFound:
            known = []  # purged meanwhile, one or all of them
            for segment in segments:
                with suppress(NotFound):
                    await self._meta.perform(ForgetLocal((segment.key,), self._node_id))
                    known.append(segment)
        for segment in known:
            await self._copies.free_local(self._shards.get(segment.key.shard_key), segment.key)
        return known

    async def _empty_folders(
        self, store: ObjectStore, uploader: NodeUploader, keys: Sequence[SegmentKey]
    ) -> list[SegmentKey]:
        """Delete all objects of these segments, doubtful attempts too, manifests first. Foreign keys are left alone.
        Returns the segments without any object left. An object that lands later is an orphan of a purged segment."""
        lock = await uploader.hold_claim()
        if lock is None:
            return []
        # F38, F85: an upload on its way would land after the folder was emptied.
        quiet = [key for key in keys if not self._is_busy(uploader, key)]
        found: list[tuple[str, SegmentObjectName]] = []
        newer: set[SegmentKey] = set()
        async for info in self._listed(store, quiet):
            name = self._names.parse(info.key)
            if not isinstance(name, SegmentObjectName):
                continue
            if name.node_id == self._node_id and name.lock_epoch > lock.epoch:
                newer.add(name.segment)  # metadata gave no such epoch: it is not ours to delete
            else:
                found.append((info.key, name))
        if newer:
            log.error("deleted segments have objects of a later write lock, they stay", segments=len(newer))
        for is_first in (True, False):
            doomed = [key for key, name in found if (name.kind is SegmentObject.MANIFEST) is is_first]
            if doomed:
                await store.delete(doomed)
        return [key for key in quiet if key not in newer]

    def _is_busy(self, uploader: NodeUploader, key: SegmentKey) -> bool:
        return uploader.is_in_flight(key) or uploader.attempts.has_any_below(self._names.segment_prefix(key))

    async def _listed(self, store: ObjectStore, keys: Sequence[SegmentKey]) -> AsyncIterator[ObjectInfo]:
        """The objects of segments of one shard: by one listing of the shard, for those deleted are its oldest; one by
        one where much else lies between them."""
        folders = [self._names.segment_prefix(key) for key in keys]
        at = 0
        if len(folders) > 1:
            left = _OTHER_OBJECTS + _OBJECTS_PER_SEGMENT * len(folders)
            async for info in store.list(self._names.shard_prefix(keys[0].shard_key)):
                while at < len(folders) and info.key > folders[at] and not info.key.startswith(folders[at]):
                    at += 1
                if at == len(folders) or left == 0:
                    break
                left -= 1
                if info.key.startswith(folders[at]):
                    yield info
            else:
                return
        for folder in folders[at:]:
            async for info in store.list(folder):
                yield info

    # Orphans ----------------------------------------------------------------------------------------------------
    async def sweep_now(self) -> SweepReport:
        """Look for orphans and at bundles now. Raises whatever store and meta service raise while they are away."""
        if self._orphans is None or self._bundles is None:
            return SweepReport()
        report = await self._orphans.run_once()
        await self._bundles.run_once()
        keepers = [self._bundles]
        lost = self._expired_writers.owners()
        self._others_bundles = {node: kept for node, kept in self._others_bundles.items() if node in lost}
        for node_id in lost:
            if node_id not in self._others_bundles:
                self._others_bundles[node_id] = self._keeper_of(node_id=node_id, expired_writers=self._expired_writers)
            keepers.append(self._others_bundles[node_id])
            await keepers[-1].run_once()
        for keeper in keepers:
            report.foreign += keeper.foreign
            report.unexplained += keeper.unexplained
        return report
