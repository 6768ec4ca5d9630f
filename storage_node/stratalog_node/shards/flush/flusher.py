"""Makes appended bytes durable: grouped flushes for topics that wait for them, background flushes and checkpoints for
the rest.

Group commit: while one flush runs in its thread, requests gather; the next flush takes them all. A group of few files
is flushed file by file; a group of many copies their new bytes into the disk's one journal and flushes only that,
because a flush per file collapses with the number of files (docs/decisions/0004).
A flush that failed is final for its segment: the kernel reports an error once and forgets the pages, so that a later
success proves nothing. The shard stops, and nothing more of the segment is acknowledged.
Lives on the event loop; the flushes run on the flush thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from stratalog.event_loop.task_set import TaskSet
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.machines.leading.chain_events import ChainEvent, SegmentEventReceived, SegmentFlushFailed
from stratalog.machines.leading.leader_events import BatchesPersisted, PersistBatches
from stratalog.model.errors import NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.topic import Topic
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.files import FlushLost
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.catalog.rules import ShardRules
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.flush.shared_journal import FullJournal, SharedJournal, sync_segment

log = logger(__name__)

DIRECT_FILES = 2
"""Up to this many files of a group are flushed directly: with the journal the disk would write their bytes twice."""
JOURNAL_SPAN_BYTES = 1 << 20
"""A file with more new bytes than this is flushed itself: the flush then costs less than the copy."""
KEPT_APPEND_BYTES = 16 << 10
"""Appends up to this size are kept in memory for the journal. More is read back: that costs less than a copy on the
event loop."""
KEPT_BYTES = 4 << 20
"""For all shards together, for one group."""
CHECKPOINT_BYTES = 32 << 20
CHECKPOINT_MS = 30_000
AHEAD_BYTES = 64 << 20
"""A file with more unflushed bytes is flushed before its time: a roll is confirmed, and what follows it acknowledged,
only once the ended segment is on the disk."""
NODE_AHEAD_BYTES = 512 << 20
"""When all files together have more unflushed bytes than this, the largest are flushed. Above a tenth of the memory the
kernel blocks every writer until the disk has caught up, and here the writer is the event loop."""
_AHEAD_POLL_S = 0.25
_RETRY_S = 0.2
_FLUSHES_AT_STOP = 64
"""Side by side when the node stops, so that the file system's journal commits them together."""


@dataclass(slots=True)
class FlushStats:
    groups: int = counter("Groups of acknowledged-after-flush appends made durable.")
    group_files: int = counter("Files in those groups.")
    journal_groups: int = counter("Groups that went through the shared journal.")
    journal_bytes: int = counter("Bytes copied into the journal.")
    background_flushes: int = counter("Files flushed in the background.")
    checkpoints: int = counter("Checkpoints of active segments written.")
    failures: int = counter("Flushes that failed.")
    busy_us: int = counter("Time spent in grouped flushes.")


LEAST_AHEAD_BYTES = 1 << 20
"""What a roll may find unflushed of a replicated segment: its flush takes little longer than one of nothing."""


class FlushedShard(Protocol):
    """A shard as its flushes see it."""

    topic: Topic

    @property
    def rules(self) -> ShardRules: ...

    @property
    def active(self) -> ActiveSegment | None: ...

    @property
    def ended(self) -> Sequence[ActiveSegment]:
        """Segments that ended and are not sealed yet, oldest first."""
        ...

    def handle(self, event: ChainEvent) -> None:
        """How flushes of its segments end: see `SegmentEventReceived`, `SegmentFlushFailed`."""
        ...

    def stop_after_fault(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Ask:
    """What one shard waits for, and small batches of it for the journal."""

    shard: FlushedShard
    active: ActiveSegment
    end_offset: int
    size_bytes: int
    kept_from: int
    kept: list[bytes] = field(default_factory=list)
    kept_bytes: int = 0

    @property
    def is_contested(self) -> bool:
        """Another node may turn out to lead it, or this node may create it again: the replay of a journal would write
        into that new file."""
        return self.active.file.is_name_withheld or not self.active.leader.is_confirmed

    def keep(self, effect: PersistBatches) -> None:
        self.kept += [bytes(batch.payload) for batch in effect.batches]
        self.kept_bytes += effect.size_bytes

    def keep_nothing(self) -> None:
        self.kept_from, self.kept, self.kept_bytes = -1, [], 0


class Flusher:
    def __init__(
        self,
        layout: NodeLayout,
        threads: DiskThreads,
        checkpoints: Checkpoints,
        *,
        cluster_id: str,
        node_id: int,
        first_journal: int,
        interval_ms: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.stats = FlushStats()
        self._threads = threads
        self._checkpoints = checkpoints
        self._journal = SharedJournal(layout, cluster_id, node_id, first_journal, clock_ms)
        self._journaled: dict[ActiveSegment, FlushedShard] = {}
        self._retiring: asyncio.Task[None] | None = None
        self._interval_s = interval_ms / 1000
        self._clock_ms = clock_ms
        self._asked: dict[ActiveSegment, _Ask] = {}
        self._kept_bytes = 0
        """Bytes of the queued requests; the group under way has at most as many again."""
        self._group_task: asyncio.Task[None] | None = None
        self._background_task: asyncio.Task[None] | None = None
        self._dirty: dict[ActiveSegment, FlushedShard] = {}
        self._is_wanted = asyncio.Event()
        self._checkpointed: dict[ActiveSegment, tuple[int, int]] = {}
        self._forgetting = TaskSet()
        self._is_closing = False
        self._is_doubted = False

    def doubt_stop(self) -> None:
        """Something that this node confirmed to others may not be on the disk: its stop is none in order."""
        self._is_doubted = True

    def start(self) -> None:
        self._background_task = asyncio.get_running_loop().create_task(self._run_background())

    async def close(self) -> bool:
        """Flush and checkpoint everything, so that the next start scans nothing. Returns: whether all that was ever
        appended is on the disk; one failed flush, healed or not, makes that doubtful."""
        self._is_closing = True
        if self._background_task is not None:
            self._background_task.cancel()
            await asyncio.gather(self._background_task, return_exceptions=True)
        await self._forgetting.cancel()
        if self._group_task is not None:
            await asyncio.gather(self._group_task, return_exceptions=True)
        await self._flush_dirty(checkpoint_all=True)
        await self._retire_journal()
        if self._retiring is not None:
            await self._retiring
        return not self._dirty and not self._asked and not self.stats.failures and not self._is_doubted

    # Grouped flushes ----------------------------------------------------------------------------------------------
    def ask(self, shard: FlushedShard, active: ActiveSegment, effect: PersistBatches) -> None:
        """Tell `shard.persisted` once everything below the end of what was just appended is on the disk.

        Requires: the payloads are still there.
        """
        size_bytes = active.file.size_bytes
        begin = size_bytes - effect.size_bytes
        ask = self._asked.get(active)
        if ask is None:
            ask = self._asked[active] = _Ask(shard, active, effect.end_offset, begin, begin)
        kept_bytes = ask.kept_bytes
        if (
            ask.kept_from >= 0
            and ask.size_bytes == begin
            and effect.size_bytes <= KEPT_APPEND_BYTES
            and kept_bytes + effect.size_bytes <= JOURNAL_SPAN_BYTES
            and self._kept_bytes < KEPT_BYTES
        ):
            ask.keep(effect)
        else:
            ask.keep_nothing()
        self._kept_bytes += ask.kept_bytes - kept_bytes
        ask.size_bytes, ask.end_offset = size_bytes, effect.end_offset
        if self._group_task is None:
            self._group_task = asyncio.get_running_loop().create_task(self._run_groups())

    async def _run_groups(self) -> None:
        try:
            while self._asked:
                group = list(self._asked.values())
                self._asked = {}
                self._kept_bytes = 0
                try:
                    is_whole = await self._run_group(group)
                except Exception as fault:  # the shards that wait for this group must get an answer
                    self.stats.failures += len(group)
                    log.error("flushes stopped by a fault", files=len(group), exc_info=True)
                    reason = f"a fault in the node, see its log: {fault}"
                    for ask in group:
                        _send_event(ask, SegmentFlushFailed(ask.active.key.epoch, reason))
                    continue
                if not is_whole:
                    if self._is_closing:
                        return  # nothing of it was acknowledged; `close` says that not all is flushed
                    await asyncio.sleep(_RETRY_S)
                if self._journal.is_full:
                    await self._retire_journal()
        finally:
            self._group_task = None

    async def _run_group(self, group: list[_Ask]) -> bool:
        """False: some of it could not be tried, and is asked again."""
        for ask in group:
            ask.active.file.pin()
        begin = time.perf_counter()
        try:
            outcomes = await self._threads.flush(partial(self._make_durable, group))
        finally:
            for ask in group:
                ask.active.file.unpin()
        self.stats.groups += 1
        self.stats.group_files += len(group)
        self.stats.busy_us += int((time.perf_counter() - begin) * 1e6)
        is_whole = True
        for ask, error in zip(group, outcomes, strict=True):
            if error is None:
                _send_event(ask, SegmentEventReceived(ask.active.key.epoch, BatchesPersisted(ask.end_offset)))
                continue
            self.stats.failures += 1
            if isinstance(error, FlushLost | NotFound) or not isinstance(error, StratalogError):
                log.error("flush failed; its appends stay unacknowledged", error=str(error))
                _send_event(ask, SegmentFlushFailed(ask.active.key.epoch, str(error)))
            else:
                log.warning("flush not possible now, trying again", error=str(error))
                self._asked.setdefault(ask.active, ask)
                is_whole = False
        return is_whole

    def _make_durable(self, group: list[_Ask]) -> list[Exception | None]:
        """Blocking. Returns, for each one asked, why it is not on the disk, or None."""
        outcomes: list[Exception | None] = [None] * len(group)
        spans = [ask.size_bytes - self._journal.durable_bytes(ask.active) for ask in group]
        small = [n for n, ask in enumerate(group) if spans[n] <= JOURNAL_SPAN_BYTES and not ask.is_contested]
        direct = [n for n, ask in enumerate(group) if spans[n] > JOURNAL_SPAN_BYTES or ask.is_contested]
        if len(small) <= DIRECT_FILES or not self._write_journal([group[index] for index in small]):
            direct += small
        for index in direct:
            try:
                sync_segment(group[index].active, group[index].size_bytes)
            except Exception as error:
                outcomes[index] = error
        return outcomes

    def _write_journal(self, asks: list[_Ask]) -> bool:
        """False: the journal is of no use now, flush the files themselves."""
        try:
            self.stats.journal_bytes += self._journal.write(asks)
        except Exception as error:  # what it could not take is flushed without it
            log.warning("journal not written, flushing file by file", files=len(asks), error=str(error))
            return False
        self.stats.journal_groups += 1
        self._journaled.update((ask.active, ask.shard) for ask in asks)
        return True

    async def _retire_journal(self) -> None:
        """Begin a new journal; the full one goes once its files are flushed, beside the traffic. At most one is under
        way, so that journals cannot pile up."""
        if self._retiring is not None:
            await self._retiring
        full = self._journal.put_away()
        if full is not None:
            shards, self._journaled = self._journaled, {}
            self._retiring = asyncio.get_running_loop().create_task(self._retire(full, shards))

    async def _retire(self, full: FullJournal, shards: dict[ActiveSegment, FlushedShard]) -> None:
        """Never fails: the next retirement waits for it."""
        try:
            failed = await self._threads.background(full.retire)
        except Exception:
            self.stats.failures += 1
            log.error("a full journal stays: its retirement met a fault", exc_info=True)
            return
        for active, error in failed:
            self.stats.failures += 1
            # What was acknowledged is in the journal; what comes now would be read back from a file in doubt.
            shards[active].handle(SegmentFlushFailed(active.key.epoch, str(error)))

    # Background flushes and checkpoints ---------------------------------------------------------------------------
    def note_written(self, shard: FlushedShard, active: ActiveSegment) -> None:
        self._dirty[active] = shard

    def forget(self, active: ActiveSegment, *, keeps_checkpoint: bool = False) -> None:
        """The segment is sealed or gone and needs no checkpoint, unless this node continues as its replica
        (`keeps_checkpoint`): the checkpoint then says what was on the disk. If a stop interrupts the deletion, the next
        start repeats it."""
        self._dirty.pop(active, None)
        self._checkpointed.pop(active, None)
        if not keeps_checkpoint and not self._is_closing:
            active.forget_end()
            self._forgetting.start(self._delete_checkpoint(active.key))

    async def _delete_checkpoint(self, key: SegmentKey) -> None:
        try:
            await self._threads.background(partial(self._checkpoints.delete, [key]))
        except StratalogError as error:
            log.warning(
                "the checkpoint of an ended segment stays until the next start", segment=str(key), error=str(error)
            )

    def flush_soon(self) -> None:
        """Do not wait for the interval: too many files keep their descriptors for a flush."""
        self._is_wanted.set()

    async def make_durable(self, active: ActiveSegment) -> None:
        """Returns once all of an ended segment is on the disk, in its file or in the journal.

        Raises: FlushLost, NotFound, Unavailable.
        """
        size_bytes = active.file.size_bytes
        if self._journal.durable_bytes(active) >= size_bytes and active.flushed_bytes:
            return
        await self._threads.flush_ended(active.file, partial(sync_segment, active, size_bytes))

    async def make_all_durable(self, shard: FlushedShard) -> None:
        """Returns once all that is in the shard's log now is on the disk. Raises: FlushLost, NotFound, Unavailable."""
        for active in [*shard.ended, *filter(None, [shard.active])]:
            try:
                await self.make_durable(active)
            except FlushLost as error:
                self.stats.failures += 1
                shard.handle(SegmentFlushFailed(active.key.epoch, str(error)))
                raise

    async def _run_background(self) -> None:
        while True:
            end = time.monotonic() + self._interval_s
            while not self._is_wanted.is_set() and (left_s := end - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _AHEAD_POLL_S)):
                        await self._is_wanted.wait()
                await self._flush_ahead()
            self._is_wanted.clear()
            await self._flush_dirty(checkpoint_all=False)

    async def _flush_ahead(self) -> None:
        """Cost: a subtraction for each file written to since its last flush; more for those with much unflushed."""
        unflushed: dict[ActiveSegment, int] = {}
        excess_bytes = -NODE_AHEAD_BYTES
        for active in self._dirty:
            size_bytes = active.file.size_bytes - active.flushed_bytes
            excess_bytes += size_bytes
            if size_bytes > LEAST_AHEAD_BYTES:
                unflushed[active] = size_bytes
        if excess_bytes > 0:
            unflushed = {active: active.file.size_bytes - active.flushed_bytes for active in self._dirty}
        limits = {active: _most_ahead_bytes(active, self._dirty[active]) for active in unflushed}
        due = [active for active, size_bytes in unflushed.items() if size_bytes > limits[active]]
        if excess_bytes > 0:
            due = sorted(unflushed, key=unflushed.__getitem__, reverse=True)
        for active in due:
            if unflushed[active] <= limits[active] and excess_bytes <= 0:
                break
            shard = self._dirty.get(active)
            if shard is not None and not shard.rules.is_fsync:
                await self._flush_in_background(active, shard, force=False)
                excess_bytes -= unflushed[active]

    async def _flush_dirty(self, *, checkpoint_all: bool) -> None:
        """What a stop cuts short is still dirty."""
        # Ended segments too: while their roll cannot be confirmed they are not sealed, and keep their descriptors.
        waiting = list(self._dirty)
        at_once = _FLUSHES_AT_STOP if checkpoint_all else 1
        for start in range(0, len(waiting), at_once):
            group = [(a, s) for a in waiting[start : start + at_once] if (s := self._dirty.pop(a, None)) is not None]
            await asyncio.gather(*(self._flush_in_background(a, s, force=checkpoint_all) for a, s in group))

    async def _flush_in_background(self, active: ActiveSegment, shard: FlushedShard, *, force: bool) -> None:
        size_bytes = active.file.size_bytes
        checkpoint = self._due_checkpoint(active, force=force)
        active.file.pin()
        try:
            await self._threads.background(partial(self._flush_one, active, size_bytes, checkpoint))
        except NotFound:
            return  # deleted meanwhile, by retention or with its topic
        except asyncio.CancelledError:
            self._checkpointed.pop(active, None)
            self._dirty.setdefault(active, shard)
            raise
        except FlushLost as lost:
            self.stats.failures += 1
            log.error("background flush failed", error=str(lost))
            shard.handle(SegmentFlushFailed(active.key.epoch, str(lost)))
            return
        except Exception as error:  # tried again, and the files that follow are flushed now
            self.stats.failures += 1
            is_foreseen = isinstance(error, StratalogError)
            log.error("background flush failed", file=str(active.file.path), error=str(error), exc_info=not is_foreseen)
            self._checkpointed.pop(active, None)
            self._dirty.setdefault(active, shard)
            return
        finally:
            active.file.unpin()
        if active.file.size_bytes > size_bytes or (checkpoint is None and active is shard.active):
            self._dirty.setdefault(active, shard)

    def _flush_one(self, active: ActiveSegment, size_bytes: int, checkpoint: Checkpoint | None) -> None:
        if active.flushed_bytes < size_bytes:
            sync_segment(active, size_bytes)
            self.stats.background_flushes += 1
        # A follower may cut a segment that this node led before. With the old checkpoint it would then look as if it
        # had lost data.
        if checkpoint is not None and not active.file.closes_when_unused:
            self._checkpoints.put([checkpoint])
            self.stats.checkpoints += 1

    def _due_checkpoint(self, active: ActiveSegment, *, force: bool) -> Checkpoint | None:
        position = active.size_bytes
        if position != active.leader.size_bytes:
            return None  # a fault came between the two: the file alone says which batches it has
        if active.file.is_name_withheld:
            return None  # the next start does not find the file, and would miss what a checkpoint says of it
        now_ms = self._clock_ms()
        last_position, last_ms = self._checkpointed.setdefault(active, (-1, now_ms))
        if position == last_position or (not position and not len(active.leader.producers)):
            return None
        if position and not force and position - last_position < CHECKPOINT_BYTES and now_ms - last_ms < CHECKPOINT_MS:
            return None
        self._checkpointed[active] = (position, now_ms)
        leader = active.leader
        return Checkpoint(
            key=active.key,
            position=position,
            next_offset=leader.end_offset,
            first_timestamp_ms=active.index.first_timestamp_ms,
            max_timestamp_ms=active.index.max_timestamp_ms,
            points=active.index.freeze(),
            # An ended segment shares its table with the next one, which has gone on.
            producers=leader.producers.snapshot() if leader.producers_at_end is None else leader.producers_at_end,
        )


def _send_event(ask: _Ask, event: ChainEvent) -> None:
    """One shard's fault must not leave the others unanswered (F48)."""
    try:
        ask.shard.handle(event)
    except Exception as fault:
        log.error("shard stopped by a fault", topic=ask.shard.topic.name, exc_info=True)
        ask.shard.stop_after_fault(f"a fault in the node, see its log: {fault}")


def _most_ahead_bytes(active: ActiveSegment, shard: FlushedShard) -> int:
    """Producers behind a roll that others take part in wait for the flush of what ended: so no more is unflushed near
    a segment's end than is still to come."""
    if len(active.leader.replicas) < 2:
        return AHEAD_BYTES
    left_bytes = shard.rules.roll.segment_bytes - active.leader.size_bytes
    return min(AHEAD_BYTES, max(left_bytes, LEAST_AHEAD_BYTES))
