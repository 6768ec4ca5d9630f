"""One shard on this node: takes batches, writes them once per loop turn, tells who waits, serves ranges.

The shell around `SegmentLeader`: it performs effects and holds no decision about offsets, acknowledgement or rolling.
Lives on the event loop; `shards/sealing.py` confirms rolls and seals, `shards/reading.py` reads off the loop.

Invariant: a batch's payload is used before `flush_pending` returns (it is a view of a receive buffer).
Memory: an idle shard without data is this object and an empty leader; its file is made by its first append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, assert_never

from stratalog.machines.producer_table import ProducerTable, SequenceFault
from stratalog.machines.segment_leader import (
    Acknowledge,
    AnswerDuplicate,
    BatchesPersisted,
    BatchesReceived,
    BatchesWritten,
    FenceRaised,
    LeaderEffect,
    LeaderEvent,
    OfferedBatch,
    PersistBatches,
    PersistFailed,
    ProposeIsr,
    RefuseBatch,
    RollAsked,
    RollSegment,
    StopLeading,
    TimePassed,
)
from stratalog.model.append import AppendFailure
from stratalog.model.commands import AdvanceLogStart
from stratalog.model.errors import DiskFull, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.in_order import find
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.telemetry.logs import logger
from stratalog_node.shards import ranges
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.append import AppendRefusal, failure_of
from stratalog_node.shards.context import ShardContext
from stratalog_node.shards.internal_append import append_internally
from stratalog_node.shards.local_copy import LocalCopy
from stratalog_node.shards.new_segment import open_new
from stratalog_node.shards.owed import OwedBatches
from stratalog_node.shards.rules import ShardRules
from stratalog_node.shards.shard_lookup import FoundOffset
from stratalog_node.shards.shard_view import LogRange, TakeBuffer
from stratalog_node.shards.stopped import Stop, StopCause
from stratalog_node.shards.waiting import Waiting, WaitingLines
from stratalog_node.shards.workers import ShardWorkers

log = logger(__name__)


class FetchWaiter(Protocol):
    """Someone who wants to hear when this shard's readable end or log start moves, or it stops, until they take
    themselves out of `ShardLog.waiters`. Requires: `wake` changes nobody's `waiters`."""

    def wake(self, shard: ShardLog) -> None: ...


class ShardLog:
    """One shard this node leads."""

    __slots__ = (
        "_is_dirty",
        "_owed",
        "_pending",
        "_waiting",
        "active",
        "context",
        "copies",
        "doubted_epoch",
        "ended",
        "high_watermark",
        "inherited",
        "key",
        "led_since_epoch",
        "log_start_offset",
        "missing",
        "rules",
        "stop",
        "topic",
        "waiters",
        "workers",
    )

    def __init__(
        self, context: ShardContext, workers: ShardWorkers, key: ShardKey, topic: Topic, rules: ShardRules
    ) -> None:
        self.context = context
        self.workers = workers
        self.key = key
        self.topic = topic
        self.rules = rules
        self.active: ActiveSegment | None = None
        self.ended: list[ActiveSegment] = []
        """Segments that ended and are not sealed yet, oldest first."""
        self.copies: dict[int, LocalCopy] = {}
        """Epoch -> sealed segments with a local copy."""
        self.missing: set[SegmentKey] = set()
        """Sealed segments whose file should be here and is not."""
        self.high_watermark = 0
        self.log_start_offset = 0
        self.led_since_epoch = 0
        self.doubted_epoch = -1
        """The epoch that was active before an unclean start, and takes no batches: see `SegmentLeader`."""
        self.inherited: tuple[ProducerSnapshot, ...] | None = None
        """Producers that the first file opened in this life begins with, where recovery knows them."""
        self.stop: Stop | None = None
        """Why this shard takes no writes, if so: until the next start, or until it is healed."""
        self.waiters: set[FetchWaiter] = set()
        self._pending: list[OfferedBatch] = []
        self._is_dirty = False
        self._owed: OwedBatches | None = None
        self._waiting = WaitingLines()

    # What others ask ------------------------------------------------------------------------------------------------
    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def is_end_known(self) -> bool:
        """False when the log could not be opened: what is known of it, up to `high_watermark`, is served; whoever asks
        for the end, or beyond, must ask again (F40)."""
        return self.stop is None or not self.stop.hides_end

    @property
    def end_offset(self) -> int:
        return self.active.leader.end_offset if self.active else self.high_watermark

    @property
    def epoch(self) -> int:
        """Epoch of the active segment as the meta service confirmed it."""
        segment = self.context.catalog.active_segment(self.key)
        return segment.epoch if segment else -1

    @property
    def is_leader(self) -> bool:
        segment = self.context.catalog.active_segment(self.key)
        return segment is not None and segment.leader == self.context.node_id

    def compare_epoch(self, epoch: int) -> int:
        """-1: a client with this epoch has stale metadata; 1: it knows more than we do; 0: serve it.

        Every roll raises the epoch, so one that this node led too is good enough: its log was never truncated since.
        """
        newest = self.active.key.epoch if self.active is not None else self.epoch
        if epoch > newest:
            return 1
        return 0 if epoch >= self.led_since_epoch else -1

    @property
    def segments(self) -> Sequence[Segment]:
        return self.context.catalog.segments(self.key)

    def copy_of(self, segment: SegmentKey) -> LocalCopy | None:
        if self.active is not None and self.active.key == segment:
            return self.active
        return find(self.ended, segment) or self.copies.get(segment.epoch)

    def has_local(self, segment: SegmentKey) -> bool:
        """An active segment nobody has written to counts: its file is made by its first append."""
        return self.copy_of(segment) is not None or self.is_unwritten(segment)

    def is_unwritten(self, segment: SegmentKey) -> bool:
        active = self.context.catalog.active_segment(self.key)
        return self.active is None and active is not None and active.key == segment and self.is_leader

    # Appending --------------------------------------------------------------------------------------------------
    def offer(self, batch: OfferedBatch) -> None:
        """Put a checked batch in line for this turn."""
        self._pending.append(batch)
        if not self._is_dirty:
            self._is_dirty = True
            self.context.turn.flush(self)

    def flush_pending(self, now_ms: int) -> None:
        """Once per turn: step the machine with all that came, write once, answer."""
        self._is_dirty = False
        batches, self._pending = self._pending, []
        if self.stop is not None:
            return self._refuse_all(batches, self.stop.failure, self.stop.reason)
        if self.context.gate.no_room is not None:
            return self._refuse_all(batches, AppendFailure.NO_ROOM, self.context.gate.no_room)
        if self._owed:
            batches, early = self._owed.sort_out(batches, self.active.leader.producers if self.active else None, now_ms)
            self._refuse_all(early, SequenceFault.OUT_OF_ORDER, "the batch before it was refused")
            if not batches:
                return
        if (self.active is None or self.active.leader.is_tail_doubted) and not self.context.openings.may_open(batches):
            self._defer(batches)
            return
        if self.active is None:
            try:
                self.active = self._open_first()
            except (DiskFull, Unavailable) as error:
                return self._refuse_all(batches, failure_of(error), str(error))
        try:
            self._step(self.active, BatchesReceived(batches), now_ms)
        except Exception as fault:
            # Some may be in the log: nobody knows. A second answer to those that have one changes nothing.
            self._refuse_all(batches, AppendFailure.OUTCOME_UNKNOWN, f"a fault in the node, see its log: {fault}")
            raise

    def _defer(self, batches: list[OfferedBatch]) -> None:
        """Too many files to make in this turn: take the bytes out of the receive buffers and wait for the next."""
        for batch in batches:
            if not isinstance(batch.payload.obj, bytearray) or len(batch.payload.obj) != batch.size_bytes:
                batch.payload = memoryview(bytearray(batch.payload))
        self._pending = batches
        self._is_dirty = True
        self.context.turn.flush_next(self)

    def _step(self, active: ActiveSegment, event: LeaderEvent, now_ms: int) -> None:
        effects = active.leader.step(event, now_ms)
        for index, effect in enumerate(effects):
            if not self._perform(active, effect, now_ms):
                self._drop_after_failure(effects[index + 1 :])
                return

    def _drop_after_failure(self, effects: list[LeaderEffect]) -> None:
        """The write failed, and with it the roll that would have followed: its batches are refused too."""
        for effect in effects:
            if isinstance(effect, RollSegment):
                self._refuse_all(effect.remaining, AppendFailure.WRITE_FAILED, "the write before this one failed")

    def _perform(self, active: ActiveSegment, effect: LeaderEffect, now_ms: int) -> bool:
        match effect:
            case PersistBatches():
                return self._persist(active, effect, now_ms)
            case Acknowledge(leader_mark, high_watermark):
                self._acknowledge(active, leader_mark, high_watermark)
            case AnswerDuplicate(batch, duplicate):
                self._wait_for(Waiting(duplicate.end_offset, duplicate.base_offset, batch))
            case RefuseBatch(batch, why):
                self._refuse(batch, why, why.value)
            case RollSegment(end_offset, remaining):
                self._roll(active, end_offset, remaining, now_ms)
            case ProposeIsr():
                self.workers.sealing.propose_isr(self, active, effect)
            case StopLeading():
                self.stop_leading("fenced by the meta service")
            case _:
                assert_never(effect)
        return True

    def _persist(self, active: ActiveSegment, effect: PersistBatches, now_ms: int) -> bool:
        try:
            active.write(effect)
        except (Unavailable, OutcomeUnknown) as error:
            self._step(active, PersistFailed(), now_ms)
            self._write_failed(error)
            why = failure_of(error)
            self._refuse_all(effect.batches, why, str(error))
            self._fail_waiting_above(active.leader.end_offset, why, str(error))
            return False
        stats = self.context.stats
        stats.appended_bytes += effect.size_bytes
        stats.appended_batches += len(effect.batches)
        stats.append_groups += 1
        self.workers.flusher.note_written(self, active)
        if self.rules.is_fsync:
            self._queue_answers(effect.batches)
            self._step(active, BatchesWritten(), now_ms)
            self.workers.flusher.ask(self, active, effect.end_offset)
            return True
        (acknowledge,) = active.leader.step(BatchesPersisted(effect.end_offset), now_ms) or (None,)
        if (
            isinstance(acknowledge, Acknowledge)
            and acknowledge.high_watermark == effect.end_offset
            and not self.ended
            and not self._waiting
        ):
            # The common case: written is committed. Nobody waits, so these are answered without taking a place in line.
            active.move_high_watermark(effect.end_offset)
            self.high_watermark = effect.end_offset
            self.context.turn.tell_moved(self)
            log_start, is_append_time = self.log_start_offset, self.rules.is_append_time
            for batch in effect.batches:
                batch.request.appended(
                    batch.slot, batch.base_offset, batch.max_timestamp_ms if is_append_time else -1, log_start
                )
            return True
        self._queue_answers(effect.batches)
        if acknowledge is not None:
            self._perform(active, acknowledge, now_ms)
        return True

    def _queue_answers(self, batches: list[OfferedBatch]) -> None:
        for batch in batches:
            if batch.acks == 0:
                batch.request.appended(batch.slot, batch.base_offset, -1, self.log_start_offset)
            else:
                self._waiting.append(Waiting(batch.end_offset, batch.base_offset, batch))

    def persisted(self, active: ActiveSegment, end_offset: int, now_ms: int) -> None:
        """The flusher made everything below `end_offset` durable."""
        if active is self.active or active in self.ended:  # and its topic was not deleted meanwhile
            self._step(active, BatchesPersisted(end_offset), now_ms)

    def _acknowledge(self, active: ActiveSegment, leader_mark: int, high_watermark: int) -> None:
        active.move_high_watermark(high_watermark)
        if active is not self.active:
            self.workers.sealing.ended_advanced(self, active)
        # A later segment's mark counts only when every earlier one is wholly committed.
        if self.ended and active is not self.ended[0] and not self.ended[0].is_wholly_committed:
            return
        for waiting in self._waiting.take_reached(leader_mark, high_watermark):
            self._answer(waiting)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.context.turn.tell_moved(self)

    def _answer(self, waiting: Waiting) -> None:
        batch = waiting.batch
        append_time_ms = batch.max_timestamp_ms if self.rules.is_append_time else -1
        batch.request.appended(batch.slot, waiting.base_offset, append_time_ms, self.log_start_offset)

    def _wait_for(self, waiting: Waiting) -> None:
        if waiting.end_offset <= self.high_watermark or waiting.batch.acks == 0:
            self._answer(waiting)
        else:
            # In the log but not committed yet: a repetition is not acknowledged before its original (F54).
            self._waiting.insert(waiting)

    def _refuse(self, batch: OfferedBatch, why: AppendRefusal, message: str) -> None:
        if batch.producer_id >= 0 and not isinstance(why, SequenceFault):
            self._owed = self._owed or OwedBatches()
            self._owed.refused(batch, self.context.turn.now_ms)
        batch.request.refused(batch.slot, why, message, self.log_start_offset)

    def _refuse_all(self, batches: list[OfferedBatch], why: AppendRefusal, message: str) -> None:
        for batch in batches:
            self._refuse(batch, why, message)

    def _write_failed(self, error: StratalogError) -> None:
        self.context.gate.write_failed(self.topic.name, self.key.shard, error)

    def _fail_waiting_above(self, end_offset: int, why: AppendFailure, message: str) -> None:
        for waiting in self._waiting.take_above(end_offset):
            self._refuse(waiting.batch, why, message)

    def flush_failed(self, active: ActiveSegment, reason: str, now_ms: int) -> None:
        """What the disk holds of this segment is not known any more: acknowledge nothing more of it, seal it never."""
        active.leader.step(FenceRaised(active.key.epoch), now_ms)
        active.damage = reason  # the kernel may have dropped what it could not write
        self._stop(Stop(reason, StopCause.FLUSH_FAILED))

    def stop_after_fault(self, reason: str) -> None:
        """Something unforeseen: what waits learns that nobody knows its outcome, what is in line is refused."""
        self._stop(Stop(reason, StopCause.FAULT))
        self._is_dirty = False
        batches, self._pending = self._pending, []
        self._refuse_all(batches, AppendFailure.STOPPED, reason)

    def turn_failed(self, error: Exception) -> None:
        """Its part of the turn met a fault, which must not take the turn of all others (F48)."""
        log.error("shard stopped by a fault", topic=self.topic.name, shard=self.key.shard, exc_info=error)
        self.stop_after_fault(f"a fault in the node, see its log: {error}")

    def stop_leading(self, reason: str) -> None:
        """Another node leads, or the topic is gone."""
        self._stop(Stop(reason, StopCause.DEPOSED))

    def _stop(self, stop: Stop) -> None:
        """Whoever waits gets "outcome unknown": the batch may survive in the segment's seal."""
        if self.is_end_known:  # what else befalls a log that was not opened does not make its end known
            self.stop = stop
        for waiting in self._waiting.take_above(-1):
            self._refuse(waiting.batch, AppendFailure.OUTCOME_UNKNOWN, stop.reason)
        self.wake_waiters()

    # Opening and rolling ----------------------------------------------------------------------------------------
    def _open_first(self) -> ActiveSegment:
        segment = self.context.catalog.active_segment(self.key)
        if segment is None or segment.leader != self.context.node_id:
            raise Unavailable(f"{self.topic.name}-{self.key.shard}: this node leads no active segment of it yet")
        if self.inherited is not None:
            table, self.inherited = self.context.producer_table(self.inherited), None
        else:
            previous = self.segments[-2].seal if len(self.segments) > 1 else None
            table = self.context.producer_table(previous.producers if previous else ())
        return self._open_new(segment.key, table, isr=segment.isr, is_confirmed=True)

    def _open_new(
        self, key: SegmentKey, table: ProducerTable, *, isr: tuple[int, ...], is_confirmed: bool
    ) -> ActiveSegment:
        return open_new(
            self.context,
            key,
            self.topic.name,
            self.rules.roll,
            table,
            isr=isr,
            is_confirmed=is_confirmed,
            is_tail_doubted=key.epoch == self.doubted_epoch,
        )

    def _roll(self, old: ActiveSegment, end_offset: int, remaining: list[OfferedBatch], now_ms: int) -> None:
        """Go on in the next file at once; the meta service confirms in the background (docs/design.md section 10)."""
        key = SegmentKey(self.key.topic_id, self.key.shard, old.key.epoch + 1, end_offset)
        try:
            old.file.end()
            new = self._open_new(key, old.leader.producers, isr=(self.context.node_id,), is_confirmed=False)
        except (DiskFull, Unavailable) as error:
            old.leader.is_ended = False
            self._write_failed(error)
            self._refuse_all(remaining, failure_of(error), str(error))
            return
        old.producers_at_end = old.leader.producers.snapshot()
        if old.producers_at_end:  # a checkpoint: the segments before may be deleted before it is written to
            self.workers.flusher.note_written(self, new)
        self.ended.append(old)
        self.active = new
        self.context.stats.rolls += 1
        self.workers.sealing.rolled(self, old, new)
        if remaining:
            self._step(new, BatchesReceived(remaining), now_ms)

    def ask_roll(self, now_ms: int) -> bool:
        """By command; False when the active segment is empty."""
        before = self.active
        if before is not None and self.stop is None:
            self._step(before, RollAsked(), now_ms)
        return self.active is not before

    def look_at_age(self, now_ms: int) -> bool:
        """Returns whether it has rolled."""
        before = self.active
        if before is not None and self.stop is None:
            self._step(before, TimePassed(), now_ms)
        return self.active is not before

    def forget_silent_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Idempotent producers that have not written for so long; returns how many were forgotten."""
        if self.active is None:
            return 0
        table = self.active.leader.producers
        self.context.stats.producers_dropped += table.dropped
        table.dropped = 0
        return table.expire(now_ms, expiration_ms)

    def confirmed(self, active: ActiveSegment, event: Any, now_ms: int) -> None:
        """The meta service answered something about this segment: step its leader with it."""
        self._step(active, event, now_ms)

    def sealed(self, ended: ActiveSegment, copy: LocalCopy) -> None:
        """Its seal record is written: from now on it is one of the sealed copies."""
        self.copies[ended.key.epoch] = copy
        self.ended.remove(ended)

    def let_go(self, ended: ActiveSegment) -> None:
        """Deleted before it was sealed: readers and the deletion still find the copy, nobody seals it."""
        if ended in self.ended:
            self.ended.remove(ended)
            self.copies[ended.key.epoch] = ended

    def detach(self) -> None:
        """The topic was deleted: writers and readers learn it now, files go after the grace period."""
        self.stop_leading("the topic was deleted")
        self.stop = Stop("the topic was deleted", StopCause.DELETED)
        unsealed = [*self.ended, *([self.active] if self.active else [])]
        self.workers.sealing.detached(self, unsealed)
        for copy in (*self.copies.values(), *unsealed):
            copy.file.retire()
            self.context.sealed_points.forget(copy)
        # Whoever reads now still finds the bytes; nobody else comes.
        self.copies.update((copy.key.epoch, copy) for copy in unsealed)
        self.active = None
        self.ended = []

    def take_out(self, segment: SegmentKey) -> LocalCopy | None:
        """Readers that come from now on do not find this copy here. Never the active one."""
        for ended in self.ended:
            if ended.key == segment:
                self.ended.remove(ended)
                return ended
        copy = self.copies.get(segment.epoch)
        return self.copies.pop(segment.epoch) if copy is not None and copy.key == segment else None

    # Readers ----------------------------------------------------------------------------------------------------
    def tell_moved(self) -> None:
        """Called by the turn, once."""
        self.wake_waiters()
        self.context.events.committed(self)

    def wake_waiters(self) -> None:
        for waiter in self.waiters:
            waiter.wake(self)

    def apply_rules(self, topic: Topic, rules: ShardRules) -> None:
        self.topic = topic
        self.rules = rules
        if self.active is not None:
            self.active.leader.policy = rules.roll

    # The seams: for the tier, the groups, the control requests ---------------------------------------------------
    async def append(self, batches: Sequence[bytes]) -> int:
        return await append_internally(self, batches)

    async def make_durable(self) -> None:
        await self.workers.flusher.make_all_durable(self)

    async def read(self, offset: int, max_bytes: int) -> list[bytes | memoryview]:
        if offset >= self.high_watermark:
            return []
        read = await self.workers.reader.read(self, offset, max_bytes)
        try:
            # Copies, which the caller may keep: a view is of a pooled buffer, which goes back now.
            return [bytes(piece) if isinstance(piece, memoryview) else piece for piece in read.in_memory()]
        finally:
            if read.release is not None:
                read.release()

    def size_below_high_watermark(self, segment: SegmentKey, from_offset: int) -> int:
        return ranges.size_below_high_watermark(copy, from_offset) if (copy := self.copy_of(segment)) is not None else 0

    async def read_committed_range(
        self,
        segment: SegmentKey,
        from_offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        take_buffer: TakeBuffer | None = None,
    ) -> LogRange:
        return await ranges.read_committed_range(self, segment, from_offset, max_bytes, at_least_one, take_buffer)

    async def offset_for_time(self, timestamp_ms: int) -> FoundOffset | None:
        return await self.workers.times.offset_for_time(self, timestamp_ms)

    async def offset_of_max_timestamp(self) -> FoundOffset | None:
        return await self.workers.times.offset_of_max_timestamp(self)

    def earliest_local_offset(self) -> int:
        return ranges.earliest_local_offset(self)

    def last_tiered_offset(self) -> int:
        return ranges.last_tiered_offset(self)

    def local_size_bytes(self) -> int:
        return ranges.local_size_bytes(self)

    async def delete_records_before(self, offset: int) -> int:
        shard = await self.context.meta.perform(AdvanceLogStart(self.key, min(offset, self.high_watermark)))
        if shard.log_start_offset > self.log_start_offset:
            self.log_start_offset = shard.log_start_offset
            self.wake_waiters()
        return self.log_start_offset
