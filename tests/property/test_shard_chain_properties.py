"""Whatever befalls a shard in whatever order: what was acknowledged stays in the log, and no later than the rules of
docs/design.md section 3 and 10 allow.

The shell of this test writes, flushes, confirms, seals and loses power when hypothesis says so, and never early.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.leading import chain_events, leader_events
from stratalog.machines.leading.chain_invariants import check_chain
from stratalog.machines.leading.next_check import next_check_ms
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import Life, Stop, StopCause
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey, ShardKey

pytestmark = pytest.mark.fault("node-thousands-idle-shards")

SHARD = ShardKey(uuid.UUID(int=1), 0)
NODE, FOLLOWER = 1, 2
PRODUCERS = 3


class ChainLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.chain = ShardChain(SHARD, NODE, leader_events.RollPolicy(100, 10**9))
        self.now_ms = 0
        self.listed = SegmentKey(SHARD.topic_id, SHARD.shard, 0, 0)
        self.disk_fails = self.is_fsync = False
        self.log: list[str] = []
        """The name of each record, by offset."""
        self.begun: dict[int, int] = {0: 0}
        """Epoch -> where it begins."""
        self.flushed: dict[int, int] = {}
        self.durable_by_meta: dict[int, int] = {}
        """Epoch -> its end, as the meta service knows it."""
        self.held = {FOLLOWER: 0}
        self.isr: dict[int, tuple[int, ...]] = {0: (NODE, FOLLOWER)}
        """As the meta service has it. Of a segment that it does not know: as it will open it."""
        self.next: tuple[int, ...] | None = (NODE,)
        """Prepared as replicas, the leader first."""
        self.moved = False
        """Another node continues: this one will not lead again."""
        self.fenced: set[int] = set()
        self.lost: set[int] = set()
        self.sealed: list[int] = []
        self.due: list[chain_events.ChainEffect] = []
        self.answers: dict[str, str] = {}
        self.offered: dict[str, leader_events.OfferedBatch] = {}
        self.sequences = [0] * PRODUCERS
        self.number = 0

    # The shell ----------------------------------------------------------------------------------------------------
    def step(self, event: chain_events.ChainEvent) -> None:
        answer: chain_events.ChainEvent | None = event
        while answer is not None:
            effects, answer = self.chain.step(answer, self.now_ms), None
            for effect in effects:
                assert answer is None, f"{effect} behind an effect that is answered at once"
                answer = self.perform(effect)
        check_chain(self.chain)

    def perform(self, effect: chain_events.ChainEffect) -> chain_events.ChainEvent | None:
        match effect:
            case leader_events.PersistBatches(batches, _, _, end_offset):
                if self.disk_fails:
                    return chain_events.AppendFailed(AppendFailure.NO_ROOM, "full")
                for batch in batches:
                    assert batch.base_offset == len(self.log), "offsets have a gap, or are given twice"
                    self.log += [batch.slot] * batch.record_count
                assert end_offset == len(self.log)
                return leader_events.BatchesWritten() if self.is_fsync else leader_events.BatchesPersisted(end_offset)
            case chain_events.AcknowledgeBatches(epoch, high_watermark, batches):
                self.acknowledged(epoch, high_watermark, batches)
            case leader_events.RefuseBatch(batch, why):
                self.answer(batch, why.name)
            case chain_events.RefuseBatches(batches, why):
                for batch in batches:
                    self.answer(batch, why.name)
            case chain_events.NameActive():
                if self.moved:
                    return chain_events.ActiveNamed(
                        self.listed, leader_events.SegmentRecord(FOLLOWER, (FOLLOWER,), (FOLLOWER,), 0), None
                    )
                record = leader_events.SegmentRecord(NODE, (NODE, FOLLOWER), self.isr[0], 0)
                return chain_events.ActiveNamed(self.listed, record, ProducerTable())
            case chain_events.NameSuccessor(epoch):
                assert self.chain.active is not None and self.chain.active.key.epoch == epoch
                return (
                    chain_events.SuccessorNamed(self.next[0], self.next)
                    if self.next
                    else chain_events.SuccessorUnknown()
                )
            case chain_events.HandOver(epoch):
                self.begun[epoch + 1] = len(self.log)
                self.moved = True
            case chain_events.OpenSegment(leader):
                if self.disk_fails:
                    return chain_events.OpeningFailed(AppendFailure.NO_ROOM, "full")
                assert leader.key.base_offset == len(self.log)
                self.begun[leader.key.epoch] = leader.key.base_offset
                if leader.key.epoch not in self.isr:
                    # Not all that were prepared need be there when it is opened.
                    self.isr[leader.key.epoch] = leader.isr if self.number % 2 else (NODE,)
                return chain_events.SegmentOpened()
            case (
                chain_events.FlushSegment()
                | chain_events.ConfirmRoll()
                | chain_events.SealSegment()
                | chain_events.DropEmptySegment()
            ):
                known = [leader.key.epoch for leader in self.chain.ended]
                assert effect.epoch in known, f"{effect} is about a segment that is gone"
                self.due.append(effect)
            case chain_events.CheckLeadership():
                self.due.append(effect)
            case (
                chain_events.ProposeIsrOf()
                | chain_events.PrepareSuccessorOf()
                | chain_events.DoubtCopy()
                | chain_events.LeaveSegment()
                | chain_events.NotifyReaders()
            ):
                pass
        return None

    @property
    def led(self) -> list[SegmentLeader]:
        return [*self.chain.ended, *filter(None, [self.chain.active])]

    def answer(self, batch: leader_events.OfferedBatch, said: str) -> None:
        assert batch.slot not in self.answers, f"{batch.slot}: {self.answers[batch.slot]}, and now {said}"
        self.answers[batch.slot] = said

    def acknowledged(self, epoch: int, high_watermark: int, batches: list[leader_events.OfferedBatch]) -> None:
        assert epoch not in self.lost | self.fenced or not high_watermark > self.begun[epoch]
        is_shown = any(batch.acks and batch.end_offset > self.begun[epoch] for batch in batches)
        for earlier in range(epoch):
            if is_shown or high_watermark > self.begun[epoch]:
                assert earlier in self.durable_by_meta, f"{epoch} is shown, and meta does not know the end of {earlier}"
        if FOLLOWER in self.isr[epoch]:
            assert high_watermark <= max(self.held[FOLLOWER], self.begun[epoch]), "beyond what the ISR holds"
        for batch in batches:
            original = self.log[batch.base_offset]
            assert batch.slot == original or batch.producer_id >= 0, "another batch is there"
            if batch.acks == -1:
                assert batch.end_offset <= self.chain.high_watermark
            self.answer(batch, "OK")

    # What happens -------------------------------------------------------------------------------------------------
    @rule(
        shapes=st.lists(
            st.tuples(
                st.integers(1, 4), st.integers(10, 70), st.sampled_from([-1, -1, 1, 0]), st.integers(-1, PRODUCERS - 1)
            ),
            min_size=1,
            max_size=4,
        ),
        repeats=st.booleans(),
    )
    def offer(self, shapes: list[tuple[int, int, int, int]], repeats: bool) -> None:
        batches = []
        for count, size, acks, producer in shapes:
            self.number += 1
            sequence = -1
            if producer >= 0:
                sequence = self.sequences[producer]
                self.sequences[producer] += count
            batches.append(self.make(count, size, acks, producer, sequence))
            if repeats and producer >= 0:
                self.number += 1
                batches.append(self.make(count, size, acks, producer, sequence))
        self.step(leader_events.BatchesReceived(batches))
        for producer in {batch.producer_id for batch in batches} - {-1}:
            known = self.producers_next(producer)
            if known is not None:
                self.sequences[producer] = known

    def make(self, count: int, size: int, acks: int, producer: int, sequence: int) -> leader_events.OfferedBatch:
        name = f"b{self.number}"
        batch = leader_events.OfferedBatch(
            None, size, count, 0, producer, 0 if producer >= 0 else -1, sequence, acks, None, name
        )
        self.offered[name] = batch
        return batch

    def producers_next(self, producer: int) -> int | None:
        table = self.chain.active.producers if self.chain.active is not None else None
        entry = table.get(producer) if table is not None else None
        return entry.batches[-1].last_sequence + 1 if entry is not None else None

    @rule()
    def roll(self) -> None:
        self.step(leader_events.RollRequested())

    @rule(replicas=st.sampled_from([(NODE,), (NODE, FOLLOWER), None]))
    def prepare(self, replicas: tuple[int, ...] | None) -> None:
        self.next = replicas

    @precondition(lambda self: self.number > 20)
    @rule()
    def prepare_elsewhere(self) -> None:
        self.next = (FOLLOWER, NODE)

    @precondition(lambda self: self.led)
    @rule()
    def look_for_lag(self) -> None:
        """Nothing comes of what is proposed."""
        self.now_ms += 20_000
        for leader in self.led:
            self.step(chain_events.SegmentEventReceived(leader.key.epoch, leader_events.LagChecked(self.now_ms)))

    @rule(passed_ms=st.sampled_from([0, 1_000, 40_000, 2 * 10**9]))
    def time_does_nothing_where_it_need_not_be_told(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        at_ms = next_check_ms(self.chain, self.now_ms)
        if at_ms is None or at_ms > self.now_ms:
            assert self.chain.step(leader_events.TimePassed(self.now_ms), self.now_ms) == []
        else:
            self.step(leader_events.TimePassed(self.now_ms))

    @rule(fails=st.booleans())
    def disk(self, fails: bool) -> None:
        self.disk_fails = fails

    @rule(is_fsync=st.booleans())
    def policy(self, is_fsync: bool) -> None:
        self.is_fsync = is_fsync

    @precondition(lambda self: self.led)
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        leader = data.draw(st.sampled_from(self.led))
        if leader.key.epoch not in self.lost:
            self.step(
                chain_events.SegmentEventReceived(leader.key.epoch, leader_events.BatchesPersisted(leader.end_offset))
            )

    @precondition(lambda self: self.led)
    @rule(share=st.floats(0, 1))
    def follow(self, share: float) -> None:
        self.held[FOLLOWER] += int((len(self.log) - self.held[FOLLOWER]) * share)
        for leader in self.led:
            at = min(self.held[FOLLOWER], leader.end_offset)
            if at >= leader.key.base_offset:
                self.step(
                    chain_events.SegmentEventReceived(leader.key.epoch, leader_events.FollowerFetched(FOLLOWER, at))
                )

    @precondition(lambda self: self.led and self.isr[0] != (NODE,))
    @rule()
    def shrink(self) -> None:
        self.isr[0] = (NODE,)
        self.step(chain_events.SegmentEventReceived(0, leader_events.IsrCommitted((NODE,), 1)))

    @precondition(lambda self: self.due)
    @rule(data=st.data(), goes_well=st.booleans())
    def do_what_is_due(self, data: st.DataObject, goes_well: bool) -> None:
        match self.due.pop(data.draw(st.integers(0, len(self.due) - 1))):
            case chain_events.FlushSegment(epoch):
                if goes_well:
                    self.flushed[epoch] = len(self.log)
                    self.step(chain_events.SegmentFlushed(epoch))
                else:
                    self.lost.add(epoch)
                    self.step(chain_events.SegmentFlushFailed(epoch, "lost"))
            case chain_events.ConfirmRoll(epoch, end_offset):
                assert epoch in self.flushed and epoch not in self.lost, "told before it was on the disk"
                assert sorted(self.durable_by_meta) == list(range(epoch)), "told out of order"
                assert end_offset == self.begun[epoch + 1]
                self.durable_by_meta[epoch] = end_offset
                self.listed = SegmentKey(SHARD.topic_id, SHARD.shard, epoch + 1, end_offset)
                opened = None
                if epoch + 1 in self.isr:
                    isr = self.isr[epoch + 1]
                    opened = leader_events.SegmentRecord(NODE, (NODE, FOLLOWER), isr, 0)
                self.step(chain_events.RollConfirmed(epoch, 0 if goes_well else end_offset, opened))
            case chain_events.SealSegment(epoch):
                assert epoch in self.durable_by_meta and epoch not in self.lost
                self.sealed.append(epoch)
                self.step(chain_events.SegmentLeft(epoch))
            case chain_events.DropEmptySegment(epoch):
                assert self.begun[epoch] == self.durable_by_meta[epoch], "it has records"
                self.step(chain_events.SegmentLeft(epoch) if goes_well else chain_events.EmptySegmentKept(epoch))
            case chain_events.CheckLeadership(question):
                self.step(chain_events.LeadershipChecked(question, is_known=goes_well))
            case _:
                raise AssertionError("nothing else is done later")

    @precondition(lambda self: self.chain.active is not None and self.number > 25)
    @rule(cause=st.sampled_from([StopCause.FAULT, StopCause.DEPOSED, StopCause.DELETED]), is_fence=st.booleans())
    def stop(self, cause: StopCause, is_fence: bool) -> None:
        assert self.chain.active is not None
        if is_fence:
            epoch = self.chain.active.key.epoch
            self.fenced.add(epoch)
            self.step(chain_events.SegmentEventReceived(epoch, leader_events.FenceRaised(epoch)))
        else:
            self.step(chain_events.ShardStopped(Stop("because", cause)))

    # What holds ---------------------------------------------------------------------------------------------------
    @invariant()
    def every_batch_is_answered_or_waits(self) -> None:
        waiting = len(self.offered) - len(self.answers)
        assert waiting == self.chain.waiting_count, "somebody waits for nothing, or was forgotten"

    @invariant()
    def what_is_acknowledged_to_all_is_below_the_high_watermark(self) -> None:
        mark = self.chain.high_watermark
        assert mark >= getattr(self, "highest", 0), "the high watermark fell"
        self.highest = mark
        assert mark <= len(self.log)

    @invariant()
    def a_segment_that_is_lost_is_never_acknowledged_again(self) -> None:
        for leader in self.led:
            if leader.key.epoch in self.lost:
                assert leader.life in (leader_events.LeaderLife.FLUSH_FAILED, leader_events.LeaderLife.FENCED)
        if self.lost:
            assert self.chain.life is Life.STOPPED


ChainLife.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestChainLife = ChainLife.TestCase
