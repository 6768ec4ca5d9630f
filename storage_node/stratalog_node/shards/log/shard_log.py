"""One shard on this node: accepts batches, writes them once per loop turn, notifies waiting fetches, serves ranges.

The shell around `machines.leading.shard_chain`: it performs effects and holds no decision about offsets,
acknowledgement, rolling, the order of confirmations, epochs or when to stop.
Lives on the event loop; `shards/seal/sealing.py` confirms rolls and seals, `shards/read/reading.py` reads off the loop.

Invariant: a batch's payload is used before `flush_pending` returns (it is a view of a receive buffer).
Memory: an idle shard without data is this object and an empty chain, under 1 KB; its first append makes its file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stratalog.machines.leading.chain_events import (
    AcknowledgeBatches,
    AppendFailed,
    BatchesTurnedAway,
    ChainEvent,
    CheckLeadership,
    DoubtCopy,
    HandOver,
    LeaveSegment,
    NameActive,
    NameSuccessor,
    NotifyReaders,
    OpeningFailed,
    OpenSegment,
    RareEffect,
    RefuseBatches,
    SegmentEventReceived,
    SegmentLeft,
    SegmentOpened,
    ServiceBegun,
    ShardRecovered,
    ShardStopped,
)
from stratalog.machines.leading.leader_events import (
    BatchesPersisted,
    BatchesReceived,
    BatchesWritten,
    LeaderLife,
    NodeUpdated,
    OfferedBatch,
    PersistBatches,
    PolicyChanged,
    RecordReceived,
    RefuseBatch,
    RollRequested,
    SegmentRecord,
    TimePassed,
)
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.append import AppendFailure
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import DiskFull, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.in_order import find
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.rules import ShardRules
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.file_creations import take_out_of_buffers
from stratalog_node.shards.copies.local_copy import LocalCopy, doubt_copy
from stratalog_node.shards.flush.shard_lookup import FoundOffset
from stratalog_node.shards.log.append import AppendRefusal, failure_of
from stratalog_node.shards.log.handing_over import hand_over, leave_ended
from stratalog_node.shards.log.internal_append import append_internally
from stratalog_node.shards.log.new_segment import InheritedProducers, name_active, open_new
from stratalog_node.shards.log.workers import ShardWorkers
from stratalog_node.shards.read.ranges import Ranged

log = logger(__name__)


def report_lost_nodes(shard: ShardLog) -> None:
    """Tell the leader of a segment that was just opened which nodes are dead or cannot write, so that the shard's first
    batch does not wait for them.

    Called on the event loop, after the step that opened the segment.
    """
    for node in shard.context.catalog.nodes():
        if not node.is_alive or not node.can_write:
            shard.handle(NodeUpdated(node.node_id, node.epoch, node.is_alive, node.can_write))


class FetchWaiter(Protocol):
    """Is notified when the readable end or the log start of this shard moves, or when the shard stops, until it removes
    itself from `ShardLog.waiters`. Requires: `wake` does not change any shard's `waiters`."""

    def wake(self, shard: ShardLog) -> None: ...


class ShardLog(Ranged):
    """One shard this node leads."""

    __slots__ = (
        "_is_dirty",
        "_pending",
        "active",
        "chain",
        "context",
        "copies",
        "ended",
        "high_watermark",
        "inherited",
        "is_changed",
        "is_leader",
        "key",
        "log_start_offset",
        "missing",
        "rules",
        "topic",
        "waiters",
        "work",
        "workers",
    )

    def __init__(
        self,
        context: ShardContext,
        workers: ShardWorkers,
        key: ShardKey,
        topic: Topic,
        rules: ShardRules,
        segments: Sequence[Segment] = (),
    ) -> None:
        """`segments`: those that the meta service lists now, oldest first."""
        self.context = context
        self.workers = workers
        self.key = key
        self.topic = topic
        self.rules = rules
        self.work = context.stats.of_topic(topic.topic_id)
        self.chain = ShardChain.begin(key, context.node_id, rules.roll, segments[-1] if segments else None)
        self.high_watermark = self.chain.high_watermark
        """The chain's, as a plain attribute: readers ask for it often."""
        self.active: ActiveSegment | None = None
        self.ended: list[ActiveSegment] = []
        """Segments that ended and are not sealed yet, oldest first."""
        self.copies: dict[int, LocalCopy] = {}
        """Epoch -> sealed segments with a local copy."""
        self.missing: set[SegmentKey] = set()
        """Sealed segments whose file should be here and is not."""
        self.log_start_offset = 0
        self.inherited: InheritedProducers | None = None
        """Producers that the first file opened in this life begins with, where recovery knows them."""
        self.waiters: dict[FetchWaiter, None] = {}
        self.is_leader = False
        """Whether this node leads the shard: as a plain attribute, for each fetch and each batch asks."""
        self.is_changed = False
        """Something happened since time was looked at (`shards/log/ages.py`)."""
        self._pending: list[OfferedBatch] = []
        self._is_dirty = False
        self._update_leader()

    # What others ask ------------------------------------------------------------------------------------------------
    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def stop(self) -> Stop | None:
        """Why this shard takes no writes, if so: until the next start, or until it is healed."""
        return self.chain.stop

    @property
    def is_end_known(self) -> bool:
        return self.chain.is_end_known

    @property
    def end_offset(self) -> int:
        return max(self.high_watermark, self.chain.end_offset)

    @property
    def epoch(self) -> int:
        """Epoch of the active segment as the meta service confirmed it."""
        return listed.epoch if (listed := self.context.catalog.active_segment(self.key)) else -1

    @property
    def leader(self) -> tuple[int, int] | None:
        """Which other node leads, and the epoch; None when none does, or this one."""
        named = self.context.catalog.leader_of(self.key)
        return None if named is None or named[0] == self.context.node_id else named

    def update_leadership(self) -> None:
        """The metadata changed, or the shard stopped. Waiting fetches learn that another node leads."""
        if (listed := self.segments) and self.chain.learn_committed(listed[-1]):
            self.high_watermark = self.chain.high_watermark
            self.context.turn.tell_moved(self)
        self._update_leader()

    def _update_leader(self) -> None:
        named, stop = self.context.catalog.leader_of(self.key), self.stop
        is_named = named is not None and named[0] == self.context.node_id
        if self.is_leader is not (is_leader := is_named and not (stop is not None and stop.ends_leading)):
            self.is_leader = is_leader
            self.wake_waiters()

    def compare_epoch(self, epoch: int) -> int:
        """-1: a client with this epoch has stale metadata; 1: it knows more than we do; 0: serve it."""
        # Each partition of each fetch asks: the metadata only where they are looked at.
        chain = self.chain
        return chain.compare_epoch(epoch, -1 if chain.active is not None else self.epoch)

    @property
    def segments(self) -> Sequence[Segment]:
        return self.context.catalog.segments(self.key)

    def copy_of(self, segment: SegmentKey) -> LocalCopy | None:
        if self.active is not None and self.active.key == segment:
            return self.active
        return find(self.ended, segment) or self.copies.get(segment.epoch)

    def has_local(self, segment: SegmentKey) -> bool:
        """An unwritten active segment counts: its first append creates its file."""
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
        chain = self.chain
        if chain.stop is None:
            if self.context.gate.no_room is not None:
                return self._step(BatchesTurnedAway(batches, self.context.gate.no_room), now_ms)
            if chain.active is not None and chain.active.is_direct and self.context.direct_room.is_full:
                return self._step(BatchesTurnedAway(batches, self.context.direct_room.why), now_ms)
            needs_file = chain.active is None or chain.active.life is LeaderLife.DOUBTED
            if needs_file and not self.context.file_creations.may_open(batches):
                return self._defer(batches)
        try:
            self._step(BatchesReceived(batches), now_ms)
        except Exception as fault:
            # Some of them may be in the log. A second answer to those already answered changes nothing.
            self._refuse(batches, AppendFailure.OUTCOME_UNKNOWN, f"a fault in the node, see its log: {fault}")
            raise

    def _defer(self, batches: list[OfferedBatch]) -> None:
        """Too many files to make in this turn: wait for the next."""
        take_out_of_buffers(batches)
        self._pending = batches
        self._is_dirty = True
        self.context.turn.flush_next(self)

    # What the machine asks for ------------------------------------------------------------------------------------
    def _step(self, event: ChainEvent, now_ms: int) -> None:
        if not self.is_changed:
            self.context.due_shards.mark_changed(self)
        answer: ChainEvent | None = event
        while answer is not None:
            effects, answer = self.chain.step(answer, now_ms), None
            for effect in effects:
                match effect:
                    case PersistBatches():
                        answer = self._persist(effect)
                    case AcknowledgeBatches():
                        self._acknowledge(effect)
                    case _:
                        answer = self._perform(effect)

    def _perform(self, effect: RareEffect) -> ChainEvent | None:
        """Returns: the answer to an effect that wants one at once, which is the last of its step."""
        match effect:
            case RefuseBatch(batch, why):
                self._refuse((batch,), why, why.value)
            case RefuseBatches(refused, why_all, message):
                self._refuse(refused, why_all, message)
            case NameActive():
                return name_active(self.context, self.key, self.inherited, self.ended)
            case NameSuccessor():
                assert self.chain.active is not None
                return self.workers.sealing.successors.name(self.chain.active)
            case OpenSegment():
                return self._open(effect)
            case HandOver(epoch):
                hand_over(self, epoch)
            case LeaveSegment(epoch):
                leave_ended(self, epoch)
            case DoubtCopy(epoch, reason):
                doubt_copy((self.active, *self.ended, *self.copies.values()), epoch, reason)
            case CheckLeadership(question):
                self.workers.sealing.leadership_check.ask(self, question)
            case NotifyReaders():
                self.context.stopped.note(self.key, self.stop)
                self.update_leadership()
                self.wake_waiters()
            case _:
                self.workers.sealing.perform(self, self._unsealed(effect.epoch), effect)
        return None

    def _unsealed(self, epoch: int) -> ActiveSegment:
        return next(copy for copy in (self.active, *self.ended) if copy is not None and copy.key.epoch == epoch)

    def _persist(self, effect: PersistBatches) -> ChainEvent:
        active = self.active
        assert active is not None
        try:
            active.write(effect)
        except (Unavailable, OutcomeUnknown) as error:
            self._write_failed(error)
            return AppendFailed(failure_of(error), str(error))
        stats = self.context.stats
        stats.appended_bytes += effect.size_bytes
        self.work.appended_bytes += effect.size_bytes
        stats.appended_batches += len(effect.batches)
        stats.append_groups += 1
        self.workers.flusher.note_written(self, active)
        if active.leader.is_direct:
            self.context.direct_room.wrote(active.leader, effect.size_bytes)
            self.context.events.committed(self)
        if self.rules.is_fsync:
            self.workers.flusher.ask(self, active, effect)  # before the answers release the payloads
            return BatchesWritten()
        return BatchesPersisted(effect.end_offset)

    def _acknowledge(self, effect: AcknowledgeBatches) -> None:
        epoch, high_watermark, active = effect.epoch, effect.high_watermark, self.active
        if active is None or active.key.epoch != epoch:
            active = self._unsealed(epoch)
        active.move_high_watermark(high_watermark)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.context.turn.tell_moved(self)
        log_start, is_append_time = self.log_start_offset, self.rules.is_append_time
        for batch in effect.batches:
            batch.request.appended(
                batch.slot, batch.base_offset, batch.max_timestamp_ms if is_append_time else -1, log_start
            )

    def _refuse(self, batches: Sequence[OfferedBatch], why: AppendRefusal, message: str) -> None:
        for batch in batches:
            batch.request.refused(batch.slot, why, message, self.log_start_offset)

    def _open(self, effect: OpenSegment) -> ChainEvent:
        old = self.active
        try:
            if old is not None:
                old.file.end()
            new = open_new(self.context, self.topic.name, effect.leader, behind=old)
        except (DiskFull, Unavailable) as error:
            if old is not None:
                self._write_failed(error)
            return OpeningFailed(failure_of(error), str(error))
        self.active, self.inherited = new, None
        if old is not None:
            self.ended.append(old)
            self.context.stats.rolls += 1
            self.workers.sealing.ended(old, new)
            if len(effect.leader.producers):  # a checkpoint: the segments before may be deleted before it is written to
                self.workers.flusher.note_written(self, new)
        self.wake_waiters()
        if effect.leader.followers is not None:
            asyncio.get_running_loop().call_soon(report_lost_nodes, self)
        return SegmentOpened()

    def _write_failed(self, error: StratalogError) -> None:
        self.context.gate.write_failed(self.topic.name, self.key.shard, error)

    def metadata_changed(self, segment: Segment) -> None:
        """What the meta service's watch tells of a segment. Most segments of a node are led by others: a shard that
        does not lead this one has nothing to do, and needs no check of its timers."""
        if self.chain.leads(segment.epoch):
            self.handle(SegmentEventReceived(segment.epoch, RecordReceived(SegmentRecord.of(segment))))

    # What it hears --------------------------------------------------------------------------------------------------
    def handle(self, event: ChainEvent) -> None:
        """Something happened to it outside of a turn."""
        self._step(event, self.context.clock_ms())

    def stop_after_fault(self, reason: str) -> None:
        """After an unexpected exception: waiting batches get an unknown outcome, queued ones are refused."""
        self.handle(ShardStopped(Stop(reason, StopCause.FAULT)))
        batches, self._pending, self._is_dirty = self._pending, [], False
        self._refuse(batches, AppendFailure.STOPPED, reason)

    def turn_failed(self, error: Exception) -> None:
        """Its part of the turn met a fault, which must not take the turn of all others (F48)."""
        log.error("shard stopped by a fault", topic=self.topic.name, shard=self.key.shard, exc_info=error)
        self.stop_after_fault(f"a fault in the node, see its log: {error}")

    def recovered(
        self,
        ended: list[ActiveSegment],
        active: ActiveSegment | None,
        *,
        high_watermark: int,
        inherited: tuple[ProducerSnapshot, ...] | None,
        doubted_epoch: int,
        stop: Stop | None,
    ) -> None:
        """Life begins, or is looked at again."""
        for copy in self.ended:
            copy.file.close_when_unused()  # of the pass before
        self.ended, self.active = ended, active
        self.inherited = InheritedProducers(self.epoch, inherited) if inherited is not None else None
        if active is not None and active.leader.followers is not None:
            high_watermark = min(high_watermark, active.leader.high_watermark)  # what is here others need not have
        leaders = tuple(copy.leader for copy in ended)
        self.handle(ShardRecovered(leaders, active.leader if active else None, high_watermark, doubted_epoch, stop))
        for copy in filter(None, (*ended, active)):
            if (listed := self.context.catalog.segment(copy.key)) is not None and listed.is_fenced:
                self.metadata_changed(listed)
        self.high_watermark = self.chain.high_watermark
        self.context.stopped.note(self.key, stop)
        self.update_leadership()

    def begin_service(self, owed_seals: Sequence[int]) -> None:
        """What the last life owes may be asked for. `owed_seals`: epochs that the meta service knows as ended."""
        for ended in self.ended:
            self.workers.sealing.ended(ended)
        self.handle(ServiceBegun(tuple(owed_seals)))

    def opens(self, segment: SegmentKey) -> bool:
        """Whether this segment is what this node writes to as the shard's leader. Opens an unwritten one."""
        if self.active is None and self.is_leader:
            self.handle(BatchesReceived([]))
        return self.active is not None and self.active.key == segment

    def ask_roll(self, now_ms: int) -> bool:
        """By command, soon or at once; False when the active segment is empty."""
        has_rolled = self._steps_to_new_segment(RollRequested(), now_ms)
        return has_rolled or (self.active is not None and self.workers.sealing.successors.is_due(self.active.key))

    def check_age(self, now_ms: int) -> bool:
        """Its segment's, and at followers that lag. Returns whether it has rolled."""
        return self._steps_to_new_segment(TimePassed(self.context.turn.steady_ms), now_ms)

    def _steps_to_new_segment(self, event: ChainEvent, now_ms: int) -> bool:
        before = self.active
        self._step(event, now_ms)
        return self.active is not before

    def sealed(self, ended: ActiveSegment, copy: LocalCopy) -> None:
        """Its seal record is written: from now on it is one of the sealed copies."""
        self.copies[ended.key.epoch] = copy
        self.ended.remove(ended)
        self.handle(SegmentLeft(ended.key.epoch))

    def let_go(self, ended: ActiveSegment) -> None:
        """Deleted before it was sealed: readers and the deletion still find the copy, but it is not sealed."""
        if ended in self.ended:
            self.sealed(ended, ended)

    def detach(self) -> None:
        """The topic was deleted: writers and readers learn it now, files go after the grace period."""
        unsealed = [*self.ended, *([self.active] if self.active else [])]
        self.handle(ShardStopped(Stop("the topic was deleted", StopCause.DELETED)))
        self.workers.sealing.detached(unsealed)
        for copy in (*self.copies.values(), *unsealed):
            copy.file.close_when_unused()
            self.context.sealed_points.forget(copy)
        # Current reads still find the bytes; no new read finds the file.
        self.copies.update((copy.key.epoch, copy) for copy in unsealed)
        self.active = None
        self.ended = []

    def take_out(self, segment: SegmentKey) -> LocalCopy | None:
        """Readers that come from now on do not find this copy here. Never the active one."""
        ended = find(self.ended, segment)
        if ended is not None:
            self.ended.remove(ended)
            self.workers.sealing.left(ended)
            self.handle(SegmentLeft(segment.epoch))
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
        self.topic, self.rules = topic, rules
        self.handle(PolicyChanged(rules.roll))
        listed = self.context.catalog.active_segment(self.key)
        if listed is not None and listed.is_direct is not rules.roll.is_direct and self.opens(listed.key):
            self.workers.sealing.successors.replace_successor(self, listed.key, listed.handed.prepared)

    # What others ask: the tier, the groups, the control requests ---------------------------------------------------
    async def append(self, batches: Sequence[bytes]) -> int:
        return await append_internally(self, batches)

    async def make_durable(self) -> None:
        await self.workers.flusher.make_all_durable(self)

    async def read(self, offset: int, max_bytes: int) -> list[bytes | memoryview]:
        return await self.workers.reader.read_to_keep(self, offset, max_bytes) if offset < self.high_watermark else []

    async def offset_for_time(self, timestamp_ms: int) -> FoundOffset | None:
        return await self.workers.times.offset_for_time(self, timestamp_ms)

    async def offset_of_max_timestamp(self) -> FoundOffset | None:
        return await self.workers.times.offset_of_max_timestamp(self)

    async def delete_records_before(self, offset: int) -> int:
        shard = await self.context.meta.perform(AdvanceLogStart(self.key, min(offset, self.high_watermark)))
        if shard.log_start_offset > self.log_start_offset:
            self.log_start_offset = shard.log_start_offset
            self.wake_waiters()
        return self.log_start_offset
