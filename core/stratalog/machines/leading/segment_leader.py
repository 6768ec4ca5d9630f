"""The leader of one active segment: gives offsets, decides what is acknowledged, when to roll, which replicas are in
sync. Plain data in, plain data out (`machines/leading/leader_events.py`). `machines/leading/shard_chain.py` has a
shard's consecutive segments, and steps this machine once per loop turn with everything that came; the simulator is
another shell of both. Cost: about 2 us a step and 0.5 us a batch.
Source: docs/design.md section 3, rules 1-6.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from stratalog.machines.leading.followers import Followers
from stratalog.machines.leading.in_sync import InSync
from stratalog.machines.leading.leader_events import (
    Acknowledge,
    AnswerDuplicate,
    BatchesPersisted,
    BatchesReceived,
    BatchesWritten,
    FenceRaised,
    FlushFailed,
    FollowerFetched,
    IsrCommitted,
    LagChecked,
    LeaderEffect,
    LeaderEvent,
    LeaderLife,
    LeaderStatus,
    NodeUpdated,
    OfferedBatch,
    OpeningConfirmed,
    PersistBatches,
    PersistFailed,
    PolicyChanged,
    PrepareSuccessor,
    ProposalReadBack,
    ProposeIsr,
    RecordReceived,
    RefuseBatch,
    RollFailed,
    RollPolicy,
    RollPutOff,
    RollRequested,
    RollSegment,
    SegmentRecord,
    StopLeading,
    SuccessorOpened,
    TimePassed,
)
from stratalog.machines.leading.producer_table import Duplicate, ProducerTable
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot

_TAKES_BATCHES = (LeaderLife.OPEN, LeaderLife.DOUBTED)
_ACKNOWLEDGES_NOTHING = (LeaderLife.FENCED, LeaderLife.FLUSH_FAILED)
_PREPARE_AT = 0.5
"""How full a segment is when its leader asks for the next segment's leader."""
_FIRST_OWED_MS = 30_000
"""How long clients wait for an answer by default before they send a batch again (Kafka's `request.timeout.ms`)."""
_PUT_OFF_FACTOR = 2
"""How large a segment gets, in multiples of its usual size, while no node can continue after it."""


class SegmentLeader:
    """Leads one active segment: appends, acknowledges, rolls.

    Invariant: base_offset <= high_watermark <= durable_offset <= end_offset, and the high watermark never falls.
    Invariant: the high watermark is at the end of a batch.
    Invariant: the high watermark of a Direct segment is never above what the object store has.
    Invariant: nothing moves the high watermark before the segment's opening is confirmed, or after a fence.
    Invariant: an offset is given once in an epoch: a leader whose tail is doubted takes no batch, the first rolls it.
    Nothing is set from outside: events change it, and the results of a start are arguments when it is made.
    Source: docs/design.md section 3, rules 1-6.
    """

    __slots__ = (
        "_ends",
        "_first_owed_ms",
        "_in_flight",
        "_in_sync",
        "_limit_bytes",
        "_rolled_from",
        "_undo",
        "durable_offset",
        "end_offset",
        "first_append_ms",
        "followers",
        "high_watermark",
        "is_confirmed",
        "is_direct",
        "key",
        "life",
        "max_timestamp_ms",
        "node_id",
        "policy",
        "producers",
        "producers_at_end",
        "replicas",
        "size_bytes",
        "stored_end",
    )

    def __init__(
        self,
        key: SegmentKey,
        node_id: int,
        policy: RollPolicy,
        producers: ProducerTable,
        *,
        isr: tuple[int, ...],
        isr_version: int = 0,
        replicas: tuple[int, ...] | None = None,
        end_offset: int | None = None,
        high_watermark: int | None = None,
        size_bytes: int = 0,
        max_timestamp_ms: int = -1,
        first_append_ms: int | None = None,
        is_confirmed: bool = True,
        is_tail_doubted: bool = False,
        is_ended: bool = False,
        is_direct: bool = False,
    ) -> None:
        """`isr`: as the record says, or before there is one, all that may come to be in sync. `replicas`: the record's;
        None: the ISR. `high_watermark`: what is known to be committed, at a batch's end; None: all of it where this
        node alone is in sync, else nothing. `is_ended`: found at a start, as one that takes no batches any more."""
        self.key = key
        self.node_id = node_id
        self.policy = policy
        self.producers = producers
        self._limit_bytes = int(policy.segment_bytes * _PREPARE_AT)
        """At first where the next one is to be prepared, then where this one is full: one comparison for both."""
        self._in_sync = InSync(node_id, isr, isr_version)
        self.end_offset = key.base_offset if end_offset is None else end_offset
        self.durable_offset = self.end_offset
        self.is_confirmed = is_confirmed
        self.is_direct = is_direct
        self.stored_end = key.base_offset
        """Of a Direct segment: what the object store has, as far as was heard."""
        is_whole = is_confirmed and isr == (node_id,) and not is_direct
        known = self.end_offset if is_whole else key.base_offset
        self.high_watermark = known if high_watermark is None else high_watermark
        self.size_bytes = size_bytes
        self.max_timestamp_ms = max_timestamp_ms
        self.first_append_ms = first_append_ms
        self.life = LeaderLife.DOUBTED if is_tail_doubted else LeaderLife.OPEN
        self.producers_at_end: tuple[ProducerSnapshot, ...] | None = None
        """Once it has ended: what its seal record carries."""
        if is_ended:
            self.life = LeaderLife.ENDED
            self.producers_at_end = producers.snapshot()
        self._rolled_from = self.life
        self.replicas: tuple[int, ...] = (node_id,)
        self.followers: Followers | None = None
        """None: this node is the only replica, and the high watermark never lies within what one turn wrote."""
        self._ends: deque[int] | None = None
        """Of batches above the high watermark, where there are followers: they hold whole batches, not whole turns."""
        self._note_replicas(replicas or (), isr)
        if is_direct:
            self._note_ends()
        self._undo: list[tuple[int, ProducerSnapshot | None]] = []
        self._first_owed_ms: int | None = None
        """Since when a producer's first batch is waited for, in a log that never held a record."""
        self._in_flight: tuple[int, int, int, int | None] | None = None

    def step(self, event: LeaderEvent, now_ms: int) -> list[LeaderEffect]:
        match event:
            case BatchesReceived(batches):
                return self._append(batches, now_ms)
            case BatchesWritten():
                self._in_flight = None
                return []
            case BatchesPersisted(end_offset):
                self._in_flight = None
                if end_offset > self.durable_offset:
                    self.durable_offset = end_offset
                return self._advance()
            case PersistFailed():
                self._undo_append()
                return []
            case OpeningConfirmed(opened):
                return self._on_confirmed(opened)
            case FollowerFetched(node_id, offset, life_epoch):
                return self._on_fetch(node_id, offset, life_epoch)
            case NodeUpdated():
                return self._on_node(event)
            case LagChecked(steady_ms):
                return self._check_lag(steady_ms)
            case IsrCommitted(isr, version):
                if not self._in_sync.isr_committed(isr, version):
                    return []
                self._note_replicas(self.replicas, isr)
                return self._advance()
            case ProposalReadBack(proposal, isr, version, was_refused):
                self._note_replicas(self.replicas, isr)
                self._forget_removed(isr, version)
                is_news = self._in_sync.read_back(proposal, isr, version, was_refused=was_refused)
                return self._advance() if is_news else []
            case RecordReceived(record):
                return self._on_record(record)
            case FenceRaised():
                return self._end_leading()
            case FlushFailed():
                if self.life is not LeaderLife.FENCED:
                    self.life = LeaderLife.FLUSH_FAILED
                return []
            case SuccessorOpened(producers):
                assert self.life not in _TAKES_BATCHES, "a segment continues behind one that has not ended"
                self.producers_at_end = producers
                return []
            case RollFailed():
                self._undo_roll()
                return []
            case RollPutOff(batches):
                self._undo_roll()
                return self._append(batches, now_ms, may_roll=False) if batches else []
            case PolicyChanged(policy):
                if self._limit_bytes == self.policy.segment_bytes:
                    self._limit_bytes = policy.segment_bytes
                else:
                    self._limit_bytes = int(policy.segment_bytes * _PREPARE_AT)
                self.policy = policy
                return []
            case RollRequested(is_empty_too):
                return self._roll([]) if is_empty_too or self.end_offset > self.key.base_offset else []
            case TimePassed():
                born = self.first_append_ms
                is_old = born is not None and now_ms - born >= self.policy.segment_ms
                return self._roll([]) if is_old and self.end_offset > self.key.base_offset else []
            case _:
                assert_never(event)

    def _lacks_first(self, now_ms: int) -> bool:
        """Whether a log that never held a record refuses a producer's later batch for now. The first batch was sent
        before it, and was refused by a node that does not remember it, or was lost with the last leader. If the later
        batch were taken first, it would be the producer's beginning, and the first could never be appended. A producer
        that continues in a topic that was created again under its name has no first batch to send, so its batch is
        taken after a while.
        """
        if self._first_owed_ms is None:
            self._first_owed_ms = now_ms
        return 0 <= now_ms - self._first_owed_ms < _FIRST_OWED_MS

    def _append(self, offered: list[OfferedBatch], now_ms: int, *, may_roll: bool = True) -> list[LeaderEffect]:
        if self.life is not LeaderLife.OPEN:
            if self.life is LeaderLife.DOUBTED:
                return self._roll(offered) if may_roll else _refuse_full(offered)
            why = AppendFailure.STOPPED if self.life is LeaderLife.FLUSH_FAILED else AppendFailure.NOT_LEADER
            return [RefuseBatch(batch, why) for batch in offered]
        assert self._in_flight is None, "the last PersistBatches was not answered"
        effects: list[LeaderEffect] = []
        accepted: list[OfferedBatch] = []
        before = (self.end_offset, self.size_bytes, self.max_timestamp_ms, self.first_append_ms)
        offset, size, newest = self.end_offset, self.size_bytes, self.max_timestamp_ms
        limit = self._limit_bytes
        is_degraded = self.lacks_replicas
        self._undo.clear()
        self.producers.trim()
        remaining: list[OfferedBatch] | None = None
        for index, batch in enumerate(offered):
            if is_degraded and batch.acks == -1:
                effects.append(RefuseBatch(batch, AppendFailure.NOT_ENOUGH_REPLICAS))
                continue
            producer_id = batch.producer_id
            if producer_id >= 0:
                verdict = self.producers.check_sequence(
                    producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count
                )
                if verdict is None and not offset and batch.base_sequence and self._lacks_first(now_ms):
                    effects.append(RefuseBatch(batch, AppendFailure.BEHIND_REFUSED))
                    continue
                if isinstance(verdict, Duplicate):
                    effects.append(AnswerDuplicate(batch, verdict))
                    continue
                if verdict is not None:
                    effects.append(RefuseBatch(batch, verdict))
                    continue
            if size + batch.size_bytes > limit and size > 0:
                limit = self.policy.segment_bytes if may_roll else _PUT_OFF_FACTOR * self.policy.segment_bytes
                if size + batch.size_bytes > limit:
                    remaining = offered[index:]
                    break
                if self._limit_bytes < self.policy.segment_bytes:
                    self._limit_bytes = self.policy.segment_bytes
                    effects.append(PrepareSuccessor(self.key.epoch))
            batch.base_offset = offset
            if producer_id >= 0:
                old = self.producers.record(
                    producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.record_count,
                    offset,
                    # Not the batch's time: a client that sends old data is active, too.
                    now_ms,
                )
                self._undo.append((producer_id, old))
            offset += batch.record_count
            size += batch.size_bytes
            if batch.max_timestamp_ms > newest:
                newest = batch.max_timestamp_ms
            accepted.append(batch)
        if accepted:
            self._in_flight = before
            grown = size - self.size_bytes
            self.end_offset, self.size_bytes, self.max_timestamp_ms = offset, size, newest
            if self._ends is not None:
                self._ends += [batch.end_offset for batch in accepted]
            if self.first_append_ms is None:
                self.first_append_ms = now_ms
            effects.append(PersistBatches(accepted, grown, newest, offset))
        if remaining is not None:
            effects += self._roll(remaining) if may_roll else _refuse_full(remaining)
        return effects

    def _roll(self, remaining: list[OfferedBatch]) -> list[LeaderEffect]:
        if self.life not in _TAKES_BATCHES:
            return []
        self._rolled_from, self.life = self.life, LeaderLife.ENDED
        return [RollSegment(self.end_offset, remaining)]

    def _undo_roll(self) -> None:
        if self.life is LeaderLife.ENDED:
            self.life = self._rolled_from

    def _undo_append(self) -> None:
        if self._in_flight is None:
            return
        for producer_id, entry in reversed(self._undo):
            self.producers.restore(producer_id, entry)
        self._undo.clear()
        self.end_offset, self.size_bytes, self.max_timestamp_ms, self.first_append_ms = self._in_flight
        self._in_flight = None
        ends = self._ends
        while ends and ends[-1] > self.end_offset:
            ends.pop()
        if self.life is LeaderLife.ENDED:
            self.life = LeaderLife.OPEN

    def _advance(self) -> list[LeaderEffect]:
        if not self.is_confirmed or self.life in _ACKNOWLEDGES_NOTHING:
            return []
        mark = self.durable_offset
        if self.is_direct:
            mark = self._below(min(mark, self.stored_end))
        elif self.followers is not None:
            mark = self._below(self._held_by_replicas(self.followers, mark))
        if mark > self.high_watermark:
            self.high_watermark = mark
        # Of a Direct segment acks=1 is acks=all: what this node alone has, no other would find.
        return [Acknowledge(self.high_watermark if self.is_direct else self.durable_offset, self.high_watermark)]

    # Replicas -----------------------------------------------------------------------------------------------------
    def _held_by_replicas(self, followers: Followers, own_offset: int) -> int:
        """Up to where enough of them hold it."""
        if self.policy.is_quorum:
            return followers.majority(own_offset)
        # Rule 5: whoever meta counts as in sync, or may count, holds the mark back.
        return followers.lowest_of(self._in_sync.holders, own_offset)

    def _below(self, offset: int) -> int:
        """The end of the last batch that lies wholly below: the mark stops at the end of a batch."""
        ends, mark = self._ends, self.high_watermark
        while ends and ends[0] <= offset:
            mark = ends.popleft()
        return mark

    def _note_replicas(self, replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
        """A member of the ISR is a replica, even if its record has not arrived yet."""
        replicas = (*replicas, *(node_id for node_id in isr if node_id not in replicas))
        if replicas == self.replicas:
            return
        self.replicas = replicas
        others = [node_id for node_id in replicas if node_id != self.node_id]
        if self.followers is not None:
            self.followers.replace(others)
        elif others:
            self.followers = Followers(self.key.base_offset, others)
            self._note_ends()

    def _note_ends(self) -> None:
        """From now on. Which batches lie above the mark was not noted: they are committed together."""
        if self._ends is None:
            self._ends = deque([self.end_offset] if self.end_offset > self.high_watermark else [])

    def _forget_removed(self, isr: tuple[int, ...], version: int) -> None:
        """Of replicas that a quorum counts with none is let go of."""
        if self.followers is not None and version > self._in_sync.version and not self.policy.is_quorum:
            self.followers.forget_others(isr)

    def _on_fetch(self, node_id: int, offset: int, life_epoch: int) -> list[LeaderEffect]:
        followers = self.followers
        if followers is None:
            return []
        before = followers.credit(node_id)
        if not followers.fetched(node_id, life_epoch, offset, self.end_offset):
            return []
        effects: list[LeaderEffect] = []
        members = self._in_sync.members
        if node_id not in members and offset >= self.high_watermark and followers.may_join(node_id):
            effects += self._propose(tuple(sorted({*members, node_id})))
        return effects if followers.credit(node_id) == before else effects + self._advance()

    def _on_node(self, node: NodeUpdated) -> list[LeaderEffect]:
        followers, members = self.followers, self._in_sync.members
        if followers is None or node.node_id == self.node_id:
            return []
        followers.node_updated(node.node_id, node.life_epoch, is_alive=node.is_alive, can_write=node.can_write)
        if node.is_alive or node.node_id not in members:
            return []
        return self._propose(tuple(member for member in members if member != node.node_id))

    def _check_lag(self, steady_ms: int) -> list[LeaderEffect]:
        if self.followers is None or not self.is_confirmed:
            return []
        members = self._in_sync.members
        others = [node_id for node_id in members if node_id != self.node_id]
        late = self.followers.lagging(others, self.end_offset, steady_ms, self.policy.lag_ms)
        if not late and not self._in_sync.has_unknown:
            return []
        # Without a late follower this re-proposes the committed ISR: the outcome settles proposals whose outcome is
        # unknown.
        return self._propose(tuple(node_id for node_id in members if node_id not in late))

    def _propose(self, isr: tuple[int, ...]) -> list[LeaderEffect]:
        if not self.is_confirmed or self.life in _ACKNOWLEDGES_NOTHING or self.followers is None:
            return []
        proposal = ProposeIsr(isr, self._in_sync.version)
        return [proposal] if self._in_sync.propose(proposal) else []

    # The record ---------------------------------------------------------------------------------------------------
    def _on_confirmed(self, record: SegmentRecord | None) -> list[LeaderEffect]:
        self.is_confirmed = True
        if record is None:
            return self._advance()
        if self._in_sync.begin(record.isr, record.isr_version):
            self._note_replicas(record.replicas, record.isr)
        return self._on_record(record) or self._advance()

    def _on_record(self, record: SegmentRecord) -> list[LeaderEffect]:
        if self.life is LeaderLife.FENCED:
            return []
        is_other = record.leader is not None and record.leader != self.node_id
        was_ended = not record.is_open and self.life in _TAKES_BATCHES
        if record.fence > 0 or is_other or was_ended:
            return self._end_leading()
        if record.leader is None:
            return []
        self._forget_removed(record.isr, record.isr_version)
        is_news = self._in_sync.isr_committed(record.isr, record.isr_version)
        self._note_replicas(record.replicas, record.isr)
        return self._advance() if self._hear_of_store(record) or is_news else []

    def _hear_of_store(self, record: SegmentRecord) -> bool:
        """How it was opened, and what the object store has of it. Returns whether that is news."""
        if record.is_direct is not self.is_direct:
            self.is_direct = record.is_direct
            if self.is_direct:
                self._note_ends()
            elif self.followers is None:
                self._ends = None
        if not record.is_direct or record.stored_end <= self.stored_end:
            return False
        self.stored_end = record.stored_end
        return True

    def _end_leading(self) -> list[LeaderEffect]:
        self.life = LeaderLife.FENCED
        return [StopLeading()]

    # What others ask ----------------------------------------------------------------------------------------------
    @property
    def stops_at_batches(self) -> bool:
        """Whether the high watermark may stop at the end of any batch, not only where a turn's writes end."""
        return self._ends is not None

    @property
    def isr(self) -> tuple[int, ...]:
        """As the meta service committed it, as far as was heard."""
        return self._in_sync.members

    @property
    def isr_version(self) -> int:
        return self._in_sync.version

    @property
    def lacks_replicas(self) -> bool:
        """Whether what acks=all asks for is not there now, whatever is held."""
        if self.is_direct:
            return False
        least = self.policy.min_insync_replicas
        if self.policy.spares_one:
            least = min(least, max(len(self.replicas) - 1, 1))
        return len(self._in_sync.members) < least

    @property
    def needs_check(self) -> bool:
        """Whether `LagChecked` may do something while nothing else happens to the segment."""
        if self.followers is None or not self.is_confirmed or self.life in _ACKNOWLEDGES_NOTHING:
            return False
        others = [node_id for node_id in self._in_sync.members if node_id != self.node_id]
        return self._in_sync.has_unknown or self.followers.needs_check(others, self.end_offset)

    @property
    def rolls_at_ms(self) -> int | None:
        """From when on `TimePassed` ends the segment, by the wall clock; None: nothing in it grows old."""
        born = self.first_append_ms
        if born is None or self.life not in _TAKES_BATCHES or self.end_offset == self.key.base_offset:
            return None
        return born + self.policy.segment_ms

    @property
    def is_wholly_committed(self) -> bool:
        return self.high_watermark == self.end_offset

    def check_invariants(self) -> None:
        assert self.key.base_offset <= self.high_watermark <= self.durable_offset <= self.end_offset
        assert self.size_bytes >= 0
        assert self.node_id in self.isr or self.life is LeaderLife.FENCED
        if self._ends is not None:
            above = [*self._ends]
            assert above == sorted(set(above)) and all(self.high_watermark < end <= self.end_offset for end in above)
            assert self.high_watermark == self.end_offset or above[-1] == self.end_offset
        assert self.producers_at_end is None or self.life not in _TAKES_BATCHES

    def describe(self) -> LeaderStatus:
        return LeaderStatus(
            self.key,
            self.end_offset,
            self.durable_offset,
            self.high_watermark,
            self.size_bytes,
            self.isr,
            self.is_confirmed,
            self.life,
        )


def _refuse_full(batches: list[OfferedBatch]) -> list[LeaderEffect]:
    return [RefuseBatch(batch, AppendFailure.NO_SUCCESSOR) for batch in batches]
