"""Whatever comes in whatever order: the leader's invariants hold, and what was acknowledged stays acknowledged."""

from __future__ import annotations

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.leader_events import (
    Acknowledge,
    BatchesPersisted,
    BatchesReceived,
    BatchesWritten,
    FenceRaised,
    FlushFailed,
    FollowerFetched,
    FollowerLagged,
    IsrCommitted,
    LeaderEffect,
    LeaderLife,
    OfferedBatch,
    OpeningConfirmed,
    PersistBatches,
    PersistFailed,
    ProposeIsr,
    RollFailed,
    RollPolicy,
    RollSegment,
    SuccessorOpened,
)
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey

MEMBERS = st.sampled_from([2, 3])


class LivingLeader(RuleBasedStateMachine):
    """A shell that persists late, fails, and answers ISR proposals late or never."""

    def __init__(self) -> None:
        super().__init__()
        key = SegmentKey(uuid.UUID(int=1), 0, 0, 0)
        self.leader = SegmentLeader(key, 1, RollPolicy(5_000, 10**9), ProducerTable(), isr=(1, 2), is_confirmed=False)
        self.meta_isr: tuple[int, ...] = (1, 2)
        self.meta_version = 0
        self.held = {1: 0, 2: 0, 3: 0}
        self.written = 0
        self.persisted = 0
        self.promised = 0
        self.proposal: ProposeIsr | None = None
        self.has_ended = False
        self.is_over = False
        """Fenced, or a flush failed."""

    def perform(self, effects: list[LeaderEffect], *, fails: bool = False) -> None:
        for effect in effects:
            match effect:
                case PersistBatches():
                    if fails:
                        self.perform(self.leader.step(PersistFailed(), 0))
                        return
                    assert effect.batches[0].base_offset == self.written
                    self.written = effect.end_offset
                    self.perform(self.leader.step(BatchesWritten(), 0))
                case Acknowledge(leader_mark, high_watermark):
                    assert not self.is_over, "acknowledged after a fence or a failed flush"
                    assert high_watermark >= self.promised, "the high watermark fell"
                    assert leader_mark <= self.persisted
                    for member in self.meta_isr:
                        assert self.held[member] >= high_watermark, f"node {member} counts as in sync without the data"
                    self.promised = high_watermark
                case ProposeIsr():
                    self.proposal = effect
                case RollSegment(end_offset):
                    assert end_offset == self.written
                    self.has_ended = True
                case _:
                    pass

    @precondition(lambda self: not self.has_ended)
    @rule(counts=st.lists(st.integers(1, 9), min_size=1, max_size=5), fails=st.booleans())
    def receive(self, counts: list[int], fails: bool) -> None:
        batches = [OfferedBatch(b"", 100, count, 0, -1, -1, -1, -1, None, None) for count in counts]
        self.perform(self.leader.step(BatchesReceived(batches), 0), fails=fails)

    @rule()
    def flush(self) -> None:
        self.persisted = self.held[1] = self.written
        self.perform(self.leader.step(BatchesPersisted(self.written), 0))

    @rule(member=MEMBERS, share=st.floats(0, 1))
    def fetch(self, member: int, share: float) -> None:
        # A follower can only hold what the leader has written, and asks with what it holds.
        self.held[member] += int((self.written - self.held[member]) * share)
        self.perform(self.leader.step(FollowerFetched(member, self.held[member]), 0))

    @rule(member=MEMBERS)
    def lag(self, member: int) -> None:
        if member in self.meta_isr:
            self.perform(self.leader.step(FollowerLagged(member), 0))

    @precondition(lambda self: self.proposal is not None)
    @rule(is_accepted=st.booleans())
    def answer_proposal(self, is_accepted: bool) -> None:
        assert self.proposal is not None
        if is_accepted and self.proposal.version == self.meta_version:
            self.meta_isr, self.meta_version = self.proposal.isr, self.meta_version + 1
        self.proposal = None
        self.perform(self.leader.step(IsrCommitted(self.meta_isr, self.meta_version), 0))

    @precondition(lambda self: self.has_ended and not self.is_over)
    @rule(is_opened=st.booleans())
    def answer_roll(self, is_opened: bool) -> None:
        if is_opened:
            self.perform(self.leader.step(SuccessorOpened(self.leader.producers.snapshot()), 0))
            assert self.leader.producers_at_end is not None
        elif self.leader.producers_at_end is None:
            self.perform(self.leader.step(RollFailed(), 0))
            self.has_ended = False

    @precondition(lambda self: self.written > 50)
    @rule(is_fence=st.booleans())
    def end_it(self, is_fence: bool) -> None:
        self.is_over = True
        self.perform(self.leader.step(FenceRaised(1) if is_fence else FlushFailed(), 0))
        assert self.leader.life in (LeaderLife.FENCED, LeaderLife.FLUSH_FAILED)

    @rule()
    def confirm(self) -> None:
        self.perform(self.leader.step(OpeningConfirmed(), 0))

    @invariant()
    def holds(self) -> None:
        self.leader.check_invariants()
        assert self.leader.end_offset == self.written
        assert self.leader.is_confirmed or self.promised == 0


LivingLeader.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLivingLeader = LivingLeader.TestCase
