"""Retention of a node: ends old data, frees local copies, and refuses writes before the disk is full of unsent data.

A round looks at each shard once. What goes is decided in `stratalog.machines.tiering.retention`; here it is carried out
in the order that loses nothing: for total retention the log start first, files and objects after the grace (the
janitor, F29); for a local copy check the remote one, let meta agree, then free the file (F37). Each step may be
repeated after a crash.
Ending data asks the object store nothing, and has rounds of its own; freeing does, for some shards side by side: what
the store does not answer is left alone for a while and holds up no other shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.reading.bucket_reads import is_readable_without_nodes
from stratalog.machines.tiering.retention import (
    DiskPressure,
    LocalFreeing,
    LogStartMove,
    RetentionLimits,
    active_before_ms,
    active_expired,
    disk_pressure,
    expired,
    is_active_next,
    local_copies_to_free,
)
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import AdvanceLogStart, ForgetLocal
from stratalog.model.errors import Conflict, Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.settings.choices import ReadPolicy
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.shard_view import LocalCopies, Shards, ShardView
from stratalog_node.tier.store.periodic_task import PeriodicTask
from stratalog_node.tier.store.remote_copy import check_remote_copy
from stratalog_node.tier.store.side_by_side import side_by_side
from stratalog_node.tier.store.stats import TierStats

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionSchedule:
    interval_ms: int = 300_000
    pressure_interval_ms: int = 2_000
    hard_limit_bytes: int = -1
    """`local.hard.limit.bytes`; -1 is none."""
    call_timeout_ms: int = 30_000


class _Unanswered(NamedTuple):
    again_at_s: float
    pause_s: float


_SIDE_BY_SIDE = 8
"""Shards that are checked at a time. After this many consecutive checks without an answer the store counts as away, and
the round ends."""
_LONGEST_PAUSE_S = 3_600.0


class RetentionWorker:
    """Calls `on_pressure` with the numbers when writes must be refused, and with None when they may continue. While
    `may_free` is false, no local copy is removed: another node may delete what is in the object store."""

    def __init__(
        self,
        *,
        node_id: int,
        meta: MetaClient,
        shards: Shards,
        copies: LocalCopies,
        catalog: Catalog,
        store: ObjectStore | None,
        names: ObjectNames,
        schedule: RetentionSchedule,
        clock_ms: Callable[[], int],
        stats: TierStats,
        on_pressure: Callable[[DiskPressure | None], None] = lambda _: None,
        local_bytes: Callable[[], Awaitable[int]],
        unsent_bytes: Callable[[], int] = lambda: 0,
        may_free: Callable[[], bool] = lambda: True,
    ) -> None:
        self._node_id = node_id
        self._meta = meta
        self._shards = shards
        self._copies = copies
        self._catalog = catalog
        self._store = store
        self._names = names
        self._schedule = schedule
        self._clock_ms = clock_ms
        self._stats = stats
        self._on_pressure = on_pressure
        self._local_bytes = local_bytes
        self._unsent_bytes = unsent_bytes
        self._may_free = may_free
        self._unhealthy: dict[SegmentKey, str] = {}
        self.pressure: DiskPressure | None = None
        self._unanswered: dict[SegmentKey, _Unanswered] = {}
        self._silences = 0
        """Checks of this round that the store did not answer, in a row."""
        self._periodic = PeriodicTask("tier-retention", schedule.interval_ms, self._end_all, stats)
        self._freeing_rounds = PeriodicTask("tier-freeing", schedule.interval_ms, self._free_all, stats)
        self._pressure_rounds = PeriodicTask(
            "tier-pressure", schedule.pressure_interval_ms, self._check_pressure, stats
        )

    async def start(self) -> None:
        self._periodic.start()
        self._freeing_rounds.start()
        self._pressure_rounds.start()

    async def close(self) -> None:
        await self._periodic.close()
        await self._freeing_rounds.close()
        await self._pressure_rounds.close()

    def poke(self) -> None:
        """Do a round soon: a segment became complete, a setting changed."""
        self._periodic.poke()
        self._freeing_rounds.poke()

    async def run_once(self) -> None:
        """One round over all shards of this node. An error of one shard does not stop the others."""
        await self._end_all()
        await self._free_all()
        await self._check_pressure()

    async def _end_all(self) -> None:
        works = (partial(self._periodic.guard, partial(self._end_old, view)) for view in self._with_old())
        await side_by_side(works, _SIDE_BY_SIDE)
        self._stats.local_bytes = await self._local_bytes()

    async def _free_all(self) -> None:
        self._silences = 0
        works = (partial(self._freeing_rounds.guard, partial(self._free_old, view)) for view in self._with_sealed())
        await side_by_side(works, _SIDE_BY_SIDE)

    def _with_sealed(self) -> Iterator[ShardView]:
        for view in list(self._shards.all()):
            segments = view.segments
            if len(segments) > 1 or any(segment.state is SegmentState.SEALED for segment in segments):
                yield view

    def _with_old(self) -> Iterator[ShardView]:
        """Shards that may have due segments: checks each shard once, and the settings of each topic once."""
        now_ms = self._clock_ms()
        before_ms: dict[UUID, int | None] = {}
        for view in list(self._shards.all()):
            segments = view.segments
            if len(segments) > 1 or any(segment.state is SegmentState.SEALED for segment in segments):
                yield view
                continue
            topic_id = view.key.topic_id
            if topic_id not in before_ms:
                limits = self._limits_of(view)
                before_ms[topic_id] = None if limits is None else active_before_ms(limits, now_ms)
            due_ms = before_ms[topic_id]
            if due_ms is not None and view.may_active_be_before(due_ms):
                yield view

    # One shard ------------------------------------------------------------------------------------------------------
    def _limits_of(self, view: ShardView) -> RetentionLimits | None:
        if self._catalog.topic_by_id(view.key.topic_id) is None:
            return None
        return _limits(self._catalog.topic_settings(view.key.topic_id))

    @staticmethod
    def _active_bytes(view: ShardView) -> int:
        return sum(
            view.size_below_high_watermark(segment.key, segment.base_offset)
            for segment in view.segments
            if segment.seal is None and view.has_local(segment.key)
        )

    async def _end_old(self, view: ShardView) -> None:
        limits = self._limits_of(view)
        if limits is not None and view.segments and view.segments[-1].leader == self._node_id:
            now_ms = self._clock_ms()
            move = expired(view.segments, self._active_bytes(view), limits, now_ms)
            if is_active_next(view.segments, view.log_start_offset, move):
                move = await self._end_active(view, limits, now_ms) or move
            if move is not None and move.offset > view.log_start_offset:
                async with self._deadline():
                    await self._meta.perform(AdvanceLogStart(view.key, move.offset))
                self._stats.log_starts_moved += 1
                log.info(
                    "retention moves the log start",
                    topic=view.topic.name,
                    shard=view.key.shard,
                    offset=move.offset,
                    reason=move.reason,
                )

    async def _end_active(self, view: ShardView, limits: RetentionLimits, now_ms: int) -> LogStartMove | None:
        """Roll the active segment where all of it is due. The log start need not wait for the roll to be confirmed:
        what lies below it is deleted once it is sealed."""
        before_ms = active_before_ms(limits, now_ms)
        if before_ms is None or not view.may_active_be_before(before_ms):
            return None
        newest = await view.newest_in_active(before_ms)
        if newest is None:
            return None
        view.ask_roll(now_ms)
        return active_expired(newest.end_offset, newest.timestamp_ms, limits, now_ms)

    async def _free_old(self, view: ShardView) -> None:
        limits = self._limits_of(view)
        if limits is None:
            return
        if view.missing:
            await self._copies.look_for_missing(view.key)
        await self._finish_freeing(view)
        active_bytes = self._active_bytes(view)
        for freeing in local_copies_to_free(view.segments, view.has_local, active_bytes, limits, self._clock_ms()):
            await self._free(view, freeing)

    async def _finish_freeing(self, view: ShardView) -> None:
        """Copies that meta agreed to forget, but that a crash or a lost answer left here (F38)."""
        for segment in list(view.segments):
            if (
                segment.remote.state is RemoteState.COMPLETE
                and self._node_id not in segment.local_nodes
                and view.has_local(segment.key)
                and self._is_elsewhere(segment)
                and await self._is_readable_cold(segment)
            ):
                await self._copies.free_local(view, segment.key)
                self._stats.local_copies_freed += 1

    def _is_elsewhere(self, segment: Segment) -> bool:
        """Whether readers are served without this node's copy."""
        may_read = self._catalog.reads_bucket(segment.key.topic_id)
        is_stored = is_readable_without_nodes(segment, may_read_bucket=may_read)
        return is_stored or any(map(self._catalog.is_alive, segment.local_nodes))

    async def _free(self, view: ShardView, freeing: LocalFreeing) -> None:
        segment = self._catalog.segment(freeing.key)
        if segment is None or not view.has_local(freeing.key) or not await self._is_readable_cold(segment):
            return
        try:
            async with self._deadline():
                await self._meta.perform(ForgetLocal((freeing.key,), self._node_id))
        except (Conflict, NotFound):
            return  # metadata moved on: the next round sees it
        await self._copies.free_local(view, freeing.key)
        self._stats.local_copies_freed += 1
        log.debug("local copy freed", segment=str(freeing.key), reason=freeing.reason)

    async def _is_readable_cold(self, segment: Segment) -> bool:
        """Look at the remote copy once more before the local one goes: it may be the last (F37)."""
        remote = segment.remote
        if self._store is None or segment.seal is None or remote.manifest_key is None or not self._may_free():
            return False
        if self._is_left_alone(segment.key):
            return False
        try:
            async with self._deadline():
                await check_remote_copy(self._store, self._names, segment)
        except (TimeoutError, Unavailable):
            self._leave_alone(segment.key)
            raise
        except (Corrupt, NotFound) as error:
            if self._unhealthy.get(segment.key) != str(error):
                self._unhealthy[segment.key] = str(error)
                log.error(
                    "remote copy is not whole, the local one stays; run `stratalog verify`",
                    segment=str(segment.key),
                    error=str(error),
                )
            return False
        self._unhealthy.pop(segment.key, None)
        self._unanswered.pop(segment.key, None)
        self._silences = 0
        return True

    def _is_left_alone(self, key: SegmentKey) -> bool:
        unanswered = self._unanswered.get(key)
        is_too_soon = unanswered is not None and asyncio.get_running_loop().time() < unanswered.again_at_s
        return is_too_soon or self._silences >= _SIDE_BY_SIDE

    def _leave_alone(self, key: SegmentKey) -> None:
        """Ever longer, so that segments whose objects are not answered leave the places of a round to others."""
        self._silences += 1
        before = self._unanswered.get(key)
        pause_s = min(2 * before.pause_s, _LONGEST_PAUSE_S) if before else 2 * self._schedule.call_timeout_ms / 1_000
        self._unanswered[key] = _Unanswered(asyncio.get_running_loop().time() + pause_s, pause_s)
        for gone in [key for key in self._unanswered if self._catalog.segment(key) is None]:
            del self._unanswered[gone]

    def _deadline(self) -> asyncio.Timeout:
        return asyncio.timeout(self._schedule.call_timeout_ms / 1_000)

    # The node ---------------------------------------------------------------------------------------------------------
    async def _check_pressure(self) -> None:
        self._clock_ms()  # the clock by which data ages sees time pass, and is kept for the next start
        before, limit_bytes = self.pressure, self._schedule.hard_limit_bytes
        if limit_bytes < 0 and before is None:
            return  # nothing waits for it, and to add up the files of thousands of shards costs a percent of a core
        self._stats.local_bytes = local_bytes = await self._local_bytes()
        unsent_bytes = self._unsent_bytes() if 0 <= limit_bytes < local_bytes else 0
        self.pressure = disk_pressure(local_bytes, limit_bytes, unsent_bytes, before)
        if (self.pressure is None) == (before is None):
            return
        self._on_pressure(self.pressure)
        if self.pressure is not None:
            log.error("writes are refused", reason=self.pressure.message)
        else:
            log.info("writes continue, local data is below the hard limit", local_bytes=local_bytes)


def _limits(settings: TopicSettings) -> RetentionLimits:
    return RetentionLimits(
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        local_retention_ms=settings.effective_local_retention_ms,
        local_retention_bytes=settings.effective_local_retention_bytes,
        may_read_cold=settings.remote_read_policy is not ReadPolicy.DISABLE,
    )
