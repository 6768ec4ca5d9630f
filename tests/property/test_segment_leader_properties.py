"""Whatever comes in whatever order: the leader's invariants hold, and what was acknowledged stays acknowledged.

The meta service of this test decides by compare-and-set. Proposals reach it late, or never, or after their sender gave
them up; answers, reads and the watch are late as well, and old records are repeated. Followers begin new lives, and
lose what they had or keep it; what the leader has heard of a record's version tells it of the lives begun before that.
"""

from __future__ import annotations

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey

REPLICAS = (1, 2, 3)
FOLLOWERS = st.sampled_from([2, 3])
LAG_MS = 100


class LivingLeader(RuleBasedStateMachine):
    """A shell that persists late, fails, and answers ISR proposals late or never."""

    is_quorum = False

    def __init__(self) -> None:
        super().__init__()
        self.leader = SegmentLeader(
            SegmentKey(uuid.UUID(int=1), 0, 0, 0),
            1,
            leader_events.RollPolicy(5_000, 10**9, lag_ms=LAG_MS, is_quorum=self.is_quorum),
            ProducerTable(),
            isr=REPLICAS,
            is_confirmed=False,
        )
        self.meta_isr: tuple[int, ...] = REPLICAS
        self.meta_version = 0
        self.lives = {2: 0, 3: 0}
        self.history = [(self.meta_isr, self.meta_version, dict(self.lives))]
        self.held = {1: 0, 2: 0, 3: 0}
        self.ends = [0]
        """Where batches end, below what is written."""
        self.written = 0
        self.persisted = 0
        self.promised = 0
        self.asked: list[leader_events.ProposeIsr] = []
        """Their senders still wait for an answer."""
        self.on_their_way: list[leader_events.ProposeIsr] = []
        self.refused: list[leader_events.ProposeIsr] = []
        self.reads: list[tuple[leader_events.ProposalReadBack, dict[int, int]]] = []
        self.fetches: list[leader_events.FollowerFetched] = []
        self.steady_ms = 0
        self.has_ended = False
        self.is_over = False
        """Fenced, or a flush failed."""

    @initialize(isr=st.sampled_from([(1,), (1, 2), REPLICAS]), is_confirmed=st.booleans())
    def opens(self, isr: tuple[int, ...], is_confirmed: bool) -> None:
        """Perhaps with fewer in sync than were prepared."""
        self.meta_isr = isr
        self.history = [(isr, 0, dict(self.lives))]
        if is_confirmed:
            self.confirm()

    def perform(self, effects: list[leader_events.LeaderEffect], *, fails: bool = False) -> None:
        for effect in effects:
            match effect:
                case leader_events.PersistBatches(batches, _, _, end_offset):
                    if fails:
                        self.perform(self.leader.step(leader_events.PersistFailed(), 0))
                        return
                    assert batches[0].base_offset == self.written
                    self.written = end_offset
                    self.ends += [batch.end_offset for batch in batches]
                    self.perform(self.leader.step(leader_events.BatchesWritten(), 0))
                case leader_events.Acknowledge(leader_mark, high_watermark):
                    assert not self.is_over, "acknowledged after a fence or a failed flush"
                    assert high_watermark >= self.promised, "the high watermark fell"
                    assert leader_mark <= self.persisted
                    assert high_watermark in self.ends, "inside a batch"
                    if self.is_quorum and high_watermark > self.promised:
                        holders = [node for node, held in self.held.items() if held >= high_watermark]
                        assert len(holders) >= 2, "most of the replicas do not hold it"
                    self.promised = high_watermark
                case leader_events.ProposeIsr():
                    assert all(effect.version > other.version for other in self.asked), "a proposal at a time"
                    assert 1 in effect.isr
                    self.asked.append(effect)
                    self.on_their_way.append(effect)
                case leader_events.RollSegment(end_offset):
                    assert end_offset == self.written
                    self.has_ended = True
                case _:
                    pass

    # Batches ------------------------------------------------------------------------------------------------------
    @precondition(lambda self: not self.has_ended)
    @rule(
        counts=st.lists(st.integers(1, 9), min_size=1, max_size=5), came=st.sampled_from(["fails", "waits", "flushed"])
    )
    def receive(self, counts: list[int], came: str) -> None:
        self.perform(self.leader.step(leader_events.BatchesReceived(batches_of(counts)), 0), fails=came == "fails")
        if came == "flushed":
            self.flush()

    @rule()
    def flush(self) -> None:
        self.persisted = self.held[1] = self.written
        self.perform(self.leader.step(leader_events.BatchesPersisted(self.written), 0))

    @precondition(lambda self: self.has_ended and not self.is_over)
    @rule(came=st.sampled_from(["opened", "failed", "put off"]))
    def answer_roll(self, came: str) -> None:
        if came == "opened":
            self.perform(self.leader.step(leader_events.SuccessorOpened(self.leader.producers.snapshot()), 0))
            assert self.leader.producers_at_end is not None
        elif self.leader.producers_at_end is None:
            self.has_ended = False
            if came == "failed":
                self.perform(self.leader.step(leader_events.RollFailed(), 0))
            else:
                effects = self.leader.step(leader_events.RollPutOff(batches_of([1, 1])), 0)
                assert not any(isinstance(effect, leader_events.RollSegment) for effect in effects)
                assert self.leader.size_bytes <= 2 * self.leader.policy.segment_bytes
                assert sum(
                    isinstance(effect, leader_events.RefuseBatch | leader_events.PersistBatches) for effect in effects
                ) in (1, 2)
                self.perform(effects)

    # Followers ----------------------------------------------------------------------------------------------------
    @rule(member=FOLLOWERS, share=st.sampled_from([0.0, 0.5, 1.0, 1.0]), is_late=st.booleans())
    def fetch(self, member: int, share: float, is_late: bool) -> None:
        """A follower can only hold what the leader has written, by whole batches, and asks with what it holds."""
        wanted = self.held[member] + (self.written - self.held[member]) * share
        self.held[member] = max(end for end in self.ends if end <= max(wanted, self.held[member]))
        assert self.leader.step(leader_events.FollowerFetched(4, self.written), 0) == [], "a stranger"
        fetched = leader_events.FollowerFetched(member, self.held[member], self.lives[member])
        if is_late:
            self.fetches.append(fetched)
        else:
            self.perform(self.leader.step(fetched, 0))

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def fetch_late(self, data: st.DataObject) -> None:
        fetched = self.fetches.pop(data.draw(st.integers(0, len(self.fetches) - 1)))
        self.perform(self.leader.step(fetched, 0))

    @rule(member=FOLLOWERS, share=st.sampled_from([0.0, 0.5]), is_whole=st.booleans(), is_told=st.booleans())
    def restart(self, member: int, share: float, is_whole: bool, is_told: bool) -> None:
        """Whose tail is not whole leaves the ISR with its registration. (Of a quorum its leader must have heard.)"""
        self.lives[member] += 1
        if not is_whole:
            self.held[member] = max(end for end in self.ends if end <= self.held[member] * share)
            # The version grows even if the node was not a member: no proposal that rests on its old copy is accepted.
            self.decide(tuple(node for node in self.meta_isr if node != member))
        if is_told or self.is_quorum:
            self.hear_lives(self.lives)

    def hear_lives(self, lives: dict[int, int]) -> None:
        for node, life in lives.items():
            self.perform(self.leader.step(leader_events.NodeUpdated(node, life), 0))

    @rule(span_ms=st.sampled_from([1, LAG_MS // 2, LAG_MS]))
    def look_for_lag(self, span_ms: int) -> None:
        self.steady_ms += span_ms
        self.perform(self.leader.step(leader_events.LagChecked(self.steady_ms), 0))

    # The meta service ---------------------------------------------------------------------------------------------
    def decide(self, isr: tuple[int, ...]) -> None:
        self.meta_isr, self.meta_version = isr, self.meta_version + 1
        self.history.append((isr, self.meta_version, dict(self.lives)))

    @precondition(lambda self: self.on_their_way)
    @rule(data=st.data(), is_answered=st.booleans())
    def proposal_arrives(self, data: st.DataObject, is_answered: bool) -> None:
        proposal = self.on_their_way.pop(data.draw(st.integers(0, len(self.on_their_way) - 1)))
        is_taken = proposal.version == self.meta_version
        if is_taken:
            self.decide(proposal.isr)
        if not is_answered or proposal not in self.asked:
            return
        self.asked.remove(proposal)
        if is_taken:
            self.perform(self.leader.step(leader_events.IsrCommitted(self.meta_isr, self.meta_version), 0))
        else:
            self.refused.append(proposal)

    @precondition(lambda self: self.asked)
    @rule()
    def give_up_waiting(self) -> None:
        """The proposal may be on its way still."""
        self.begin_read(self.asked.pop(0), was_refused=False)

    def begin_read(self, proposal: leader_events.ProposeIsr, *, was_refused: bool) -> None:
        read = leader_events.ProposalReadBack(proposal, self.meta_isr, self.meta_version, was_refused)
        self.reads.append((read, dict(self.lives)))

    @precondition(lambda self: self.refused)
    @rule()
    def read(self) -> None:
        self.begin_read(self.refused.pop(), was_refused=True)

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def read_ends(self, data: st.DataObject) -> None:
        read, lives = self.reads.pop(data.draw(st.integers(0, len(self.reads) - 1)))
        self.hear_lives(lives)
        self.perform(self.leader.step(read, 0))

    @precondition(lambda self: self.leader.is_confirmed)
    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        """Tells of any record there was, in any order."""
        isr, version, lives = data.draw(st.sampled_from(self.history))
        self.hear_lives(lives)
        self.perform(self.leader.step(leader_events.IsrCommitted(isr, version), 0))

    @precondition(lambda self: not self.leader.is_confirmed)
    @rule()
    def confirm(self) -> None:
        isr, version, _ = self.history[0]
        self.perform(
            self.leader.step(leader_events.OpeningConfirmed(leader_events.SegmentRecord(1, REPLICAS, isr, version)), 0)
        )

    @precondition(lambda self: self.written > 150)
    @rule(is_fence=st.booleans())
    def end_it(self, is_fence: bool) -> None:
        self.is_over = True
        self.perform(self.leader.step(leader_events.FenceRaised(1) if is_fence else leader_events.FlushFailed(), 0))
        assert self.leader.life in (leader_events.LeaderLife.FENCED, leader_events.LeaderLife.FLUSH_FAILED)

    # What holds ---------------------------------------------------------------------------------------------------
    @invariant()
    def holds(self) -> None:
        self.leader.check_invariants()
        assert self.leader.end_offset == self.written
        assert self.leader.is_confirmed or self.promised == 0

    @invariant()
    def what_was_promised_is_held_by_whoever_is_in_sync(self) -> None:
        """The ISR of the meta service now, whatever the leader knows of it."""
        if not self.is_quorum:
            for member in self.meta_isr:
                assert self.held[member] >= self.promised, f"node {member} counts as in sync without the data"


class LivingQuorumLeader(LivingLeader):
    is_quorum = True


def batches_of(counts: list[int]) -> list[leader_events.OfferedBatch]:
    return [leader_events.OfferedBatch(b"", 100, count, 0, -1, -1, -1, -1, None, None) for count in counts]


LivingLeader.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestLivingLeader = LivingLeader.TestCase
LivingQuorumLeader.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLivingQuorumLeader = LivingQuorumLeader.TestCase
