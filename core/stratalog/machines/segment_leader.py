"""The leader of one active segment: gives offsets, decides what is acknowledged, when to roll, who is in sync.

Plain data in, plain data out (`machines/leader_events.py`). A shard's segments in a row are `machines/shard_chain.py`,
which steps this once per loop tick with everything that came; the simulator is another shell of both.
Cost: about 2 us a step and 0.5 us a batch.
Source: docs/design.md section 3, rules 1-6.
"""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.leader_events import (
    Acknowledge,
    AnswerDuplicate,
    BatchesPersisted,
    BatchesReceived,
    BatchesWritten,
    FenceRaised,
    FlushFailed,
    FollowerFetched,
    FollowerLagged,
    IsrCommitted,
    LeaderEffect,
    LeaderEvent,
    LeaderLife,
    LeaderStatus,
    OfferedBatch,
    OpeningConfirmed,
    PersistBatches,
    PersistFailed,
    PolicyChanged,
    ProposeIsr,
    RefuseBatch,
    RollAsked,
    RollFailed,
    RollPolicy,
    RollSegment,
    StopLeading,
    SuccessorOpened,
    TimePassed,
)
from stratalog.machines.producer_table import Duplicate, ProducerTable
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot

_TAKES_BATCHES = (LeaderLife.OPEN, LeaderLife.DOUBTED)
_ACKNOWLEDGES_NOTHING = (LeaderLife.FENCED, LeaderLife.FLUSH_FAILED)


class SegmentLeader:
    """Leads one active segment: appends, acknowledges, rolls.

    Invariant: base_offset <= high_watermark <= durable_offset <= end_offset, and the high watermark never falls.
    Invariant: nothing moves the high watermark before the segment's opening is confirmed, or after a fence.
    Invariant: an offset is given once in an epoch: a leader whose tail is doubted takes no batch, the first rolls it.
    Nothing is set from outside: what happens to it are events, what a start found is told when it is made.
    Source: docs/design.md section 3, rules 1-6.
    """

    __slots__ = (
        "_follower_offsets",
        "_in_flight",
        "_rolled_from",
        "_undo",
        "durable_offset",
        "end_offset",
        "first_append_ms",
        "high_watermark",
        "is_confirmed",
        "isr",
        "isr_version",
        "key",
        "life",
        "max_timestamp_ms",
        "node_id",
        "policy",
        "producers",
        "producers_at_end",
        "proposed_isr",
        "size_bytes",
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
        end_offset: int | None = None,
        size_bytes: int = 0,
        max_timestamp_ms: int = -1,
        first_append_ms: int | None = None,
        is_confirmed: bool = True,
        is_tail_doubted: bool = False,
        is_ended: bool = False,
    ) -> None:
        """`is_ended`: found at a start, and known to the meta service to have ended where it ends."""
        self.key = key
        self.node_id = node_id
        self.policy = policy
        self.producers = producers
        self.isr = isr
        self.isr_version = isr_version
        self.proposed_isr: tuple[int, ...] | None = None
        self.end_offset = key.base_offset if end_offset is None else end_offset
        self.durable_offset = self.end_offset
        self.is_confirmed = is_confirmed
        self.high_watermark = self.end_offset if is_confirmed and isr == (node_id,) else key.base_offset
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
        self._follower_offsets: dict[int, int] = {}
        self._undo: list[tuple[int, ProducerSnapshot | None]] = []
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
            case OpeningConfirmed():
                self.is_confirmed = True
                return self._advance()
            case FollowerFetched(node_id, offset):
                return self._on_fetch(node_id, offset)
            case IsrCommitted(isr, version):
                return self._on_isr(isr, version)
            case FollowerLagged(node_id):
                return self._propose(tuple(n for n in self.isr if n != node_id)) if node_id != self.node_id else []
            case FenceRaised():
                self.life = LeaderLife.FENCED
                return [StopLeading()]
            case FlushFailed():
                if self.life is not LeaderLife.FENCED:
                    self.life = LeaderLife.FLUSH_FAILED
                return []
            case SuccessorOpened(producers):
                assert self.life not in _TAKES_BATCHES, "a segment goes on behind one that has not ended"
                self.producers_at_end = producers
                return []
            case RollFailed():
                if self.life is LeaderLife.ENDED:
                    self.life = self._rolled_from
                return []
            case PolicyChanged(policy):
                self.policy = policy
                return []
            case RollAsked():
                return self._roll([]) if self.end_offset > self.key.base_offset else []
            case TimePassed():
                born = self.first_append_ms
                is_old = born is not None and now_ms - born >= self.policy.segment_ms
                return self._roll([]) if is_old and self.end_offset > self.key.base_offset else []
            case _:
                assert_never(event)

    def _append(self, offered: list[OfferedBatch], now_ms: int) -> list[LeaderEffect]:
        if self.life is not LeaderLife.OPEN:
            if self.life is LeaderLife.DOUBTED:
                return self._roll(offered)
            why = AppendFailure.STOPPED if self.life is LeaderLife.FLUSH_FAILED else AppendFailure.NOT_LEADER
            return [RefuseBatch(batch, why) for batch in offered]
        assert self._in_flight is None, "the last PersistBatches was not answered"
        effects: list[LeaderEffect] = []
        accepted: list[OfferedBatch] = []
        before = (self.end_offset, self.size_bytes, self.max_timestamp_ms, self.first_append_ms)
        offset, size, newest = self.end_offset, self.size_bytes, self.max_timestamp_ms
        limit = self.policy.segment_bytes
        is_degraded = len(self.isr) < self.policy.min_insync_replicas
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
                if verdict is not None:
                    effects.append(
                        AnswerDuplicate(batch, verdict)
                        if isinstance(verdict, Duplicate)
                        else RefuseBatch(batch, verdict)
                    )
                    continue
            if size + batch.size_bytes > limit and size > 0:
                remaining = offered[index:]
                break
            batch.base_offset = offset
            if producer_id >= 0:
                old = self.producers.record(
                    producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.record_count,
                    offset,
                    # Not the batch's time: a client may send old data, and is there all the same.
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
            if self.first_append_ms is None:
                self.first_append_ms = now_ms
            effects.append(PersistBatches(accepted, grown, newest, offset))
        if remaining is not None:
            effects += self._roll(remaining)
        return effects

    def _roll(self, remaining: list[OfferedBatch]) -> list[LeaderEffect]:
        if self.life not in _TAKES_BATCHES:
            return []
        self._rolled_from, self.life = self.life, LeaderLife.ENDED
        return [RollSegment(self.end_offset, remaining)]

    def _undo_append(self) -> None:
        if self._in_flight is None:
            return
        for producer_id, entry in reversed(self._undo):
            self.producers.restore(producer_id, entry)
        self._undo.clear()
        self.end_offset, self.size_bytes, self.max_timestamp_ms, self.first_append_ms = self._in_flight
        self._in_flight = None
        if self.life is LeaderLife.ENDED:
            self.life = LeaderLife.OPEN

    def _advance(self) -> list[LeaderEffect]:
        if not self.is_confirmed or self.life in _ACKNOWLEDGES_NOTHING:
            return []
        mark = self.durable_offset
        # Rule 5: whoever meta counts as in sync holds the mark back, also while a smaller ISR is only proposed.
        for node_id in self.isr:
            if node_id != self.node_id:
                mark = min(mark, self._follower_offsets.get(node_id, self.key.base_offset))
        if self.proposed_isr is not None:
            for node_id in self.proposed_isr:
                if node_id != self.node_id:
                    mark = min(mark, self._follower_offsets.get(node_id, self.key.base_offset))
        if mark > self.high_watermark:
            self.high_watermark = mark
        return [Acknowledge(self.durable_offset, self.high_watermark)]

    def _on_fetch(self, node_id: int, offset: int) -> list[LeaderEffect]:
        known = self._follower_offsets.get(node_id, -1)
        if offset <= known or offset > self.end_offset:
            return []
        self._follower_offsets[node_id] = offset
        effects: list[LeaderEffect] = []
        if node_id not in self.isr and offset >= self.high_watermark:
            effects += self._propose(tuple(sorted({*self.isr, node_id})))
        return effects + self._advance()

    def _propose(self, isr: tuple[int, ...]) -> list[LeaderEffect]:
        if isr == self.isr or self.proposed_isr is not None:
            return []
        self.proposed_isr = isr
        return [ProposeIsr(isr, self.isr_version)]

    def _on_isr(self, isr: tuple[int, ...], version: int) -> list[LeaderEffect]:
        self.proposed_isr = None
        if version <= self.isr_version and isr != self.isr:
            return []
        self.isr, self.isr_version = isr, version
        return self._advance()

    @property
    def is_wholly_committed(self) -> bool:
        return self.high_watermark == self.end_offset

    def check_invariants(self) -> None:
        assert self.key.base_offset <= self.high_watermark <= self.durable_offset <= self.end_offset
        assert self.size_bytes >= 0
        assert self.node_id in self.isr or self.life is LeaderLife.FENCED
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
