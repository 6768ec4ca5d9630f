"""A leader and its followers over a wire that loses, repeats and reorders, with restarts, a fence and a recovery:
copies are prefixes, and nothing that was acknowledged is missing from the end that the recovery names."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.machines.following import follower_events
from stratalog.machines.following.segment_follower import _INNOCENT_STRAYS, SegmentFollower
from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey
from support.replicated_segment import replicated_segment

KEY = SegmentKey(uuid.UUID(int=1), 0, 0, 0)
LEADER, FOLLOWERS = 1, (2, 3, 4)
REPLICAS = (LEADER, *FOLLOWERS)
FENCE = 1
FOLLOWER = st.sampled_from(FOLLOWERS)
PICK = st.integers(0, 1_000)

Batch: TypeAlias = tuple[int, int, int]
"""Base offset, end offset, and what only this batch has."""


@dataclass(frozen=True)
class Fetch:
    to: int
    node_id: int
    offset: int
    life: int


@dataclass(frozen=True)
class Answer:
    sender: int
    node_id: int
    found: tuple[Batch, ...]
    high_watermark: int
    life: int


@dataclass
class Replica:
    """A node's disk, and the machine of its present life."""

    follower: SegmentFollower
    copy: list[Batch] = field(default_factory=list)
    durable_end: int = 0
    promise_on_disk: int = 0
    asks: follower_events.Ask | None = None
    promise: follower_events.WritePromise | None = None
    proof: follower_events.ProveCopy | None = None
    words: list[follower_events.SubmitPromise | follower_events.SubmitReport] = field(default_factory=list)
    voted_end: int | None = None
    life: int = 0
    stale: int = 0
    """Answers that began elsewhere than where the copy ended by then."""

    @property
    def end_offset(self) -> int:
        return self.copy[-1][1] if self.copy else 0


class Replication(RuleBasedStateMachine):
    @initialize(is_fsync=st.booleans(), is_first_out=st.booleans())
    def begin(self, is_fsync: bool, is_first_out: bool) -> None:
        self.is_fsync = is_fsync
        isr = (1, 3, 4) if is_first_out else (1, 2, 3, 4)
        self.isr, self.isr_version = isr, 0
        self.proposal: leader_events.ProposeIsr | None = None
        self.leader = SegmentLeader(
            KEY,
            LEADER,
            leader_events.RollPolicy(1 << 40, 1 << 40, lag_ms=100),
            ProducerTable(),
            isr=isr,
            replicas=REPLICAS,
        )
        self.log: list[Batch] = []
        self.wire: list[Fetch | Answer] = []
        self.now_ms = 0
        self.acknowledged = 0
        self.fence = 0
        self.end_offset: int | None = None
        self.source: int | None = None
        self.votes: dict[int, int] = {}
        self.digests: dict[int, bytes] = {}
        self.replicas = {node: Replica(SegmentFollower(KEY, node, is_fsync=is_fsync)) for node in FOLLOWERS}
        for node in FOLLOWERS:
            self.see_record(node)
        self.produce([2, 3, 1])

    # The leader -----------------------------------------------------------------------------------------------------
    def perform(self, effects: list[leader_events.LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case leader_events.PersistBatches(batches):
                    self.log += [(b.base_offset, b.end_offset, len(self.log) + n) for n, b in enumerate(batches)]
                    self.perform(self.leader.step(leader_events.BatchesPersisted(effect.end_offset), self.now_ms))
                case leader_events.Acknowledge(_, high_watermark):
                    self.acknowledged = max(self.acknowledged, high_watermark)
                case leader_events.ProposeIsr():
                    self.proposal = effect
                case leader_events.StopLeading():
                    pass
                case _:
                    raise AssertionError(f"not expected: {effect}")

    @rule(counts=st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def produce(self, counts: list[int]) -> None:
        if len(self.log) < 60:
            batches = [leader_events.OfferedBatch(b"", 10, count, 0, -1, -1, -1, 1, None, None) for count in counts]
            if self.leader.life is not leader_events.LeaderLife.FENCED:
                self.perform(self.leader.step(leader_events.BatchesReceived(batches), self.now_ms))

    @precondition(lambda self: self.proposal is None)
    @rule()
    def look_for_lag(self) -> None:
        self.now_ms += 100
        self.perform(self.leader.step(leader_events.LagChecked(self.now_ms), self.now_ms))

    @precondition(lambda self: self.proposal is not None)
    @rule(is_lost=st.booleans())
    def answer_proposal(self, is_lost: bool) -> None:
        proposal, self.proposal = self.proposal, None
        assert proposal is not None
        is_accepted = proposal.version == self.isr_version and not self.fence
        if is_accepted:
            self.isr, self.isr_version = proposal.isr, self.isr_version + 1
        if is_accepted and not is_lost:
            self.hear_isr()
        else:
            news = leader_events.ProposalReadBack(proposal, self.isr, self.isr_version, was_refused=not is_accepted)
            self.perform(self.leader.step(news, self.now_ms))

    @rule()
    def hear_isr(self) -> None:
        self.perform(self.leader.step(leader_events.IsrCommitted(self.isr, self.isr_version), self.now_ms))

    # The wire -------------------------------------------------------------------------------------------------------
    @rule(node=FOLLOWER)
    def ask(self, node: int) -> None:
        asks = self.replicas[node].asks
        if asks is not None and len(self.wire) < 20:
            self.wire.append(Fetch(asks.node_id, node, asks.offset, self.replicas[node].life))

    @rule(node=FOLLOWER, batches=st.integers(0, 3), is_fetch_kept=st.booleans(), is_answer_kept=st.booleans())
    def round(self, node: int, batches: int, is_fetch_kept: bool, is_answer_kept: bool) -> None:
        """One that nothing befalls, unless it comes again."""
        self.ask(node)
        if self.wire and isinstance(self.wire[-1], Fetch):
            self.deliver(len(self.wire) - 1, is_fetch_kept, batches, False)
            if self.wire and isinstance(self.wire[-1], Answer):
                self.deliver(len(self.wire) - 1, is_answer_kept, 0, False)

    @rule(node=FOLLOWER)
    def promise(self, node: int) -> None:
        self.see_record(node)
        self.write_promise(node, is_written=True)
        self.tell_service(node, is_told=True, is_heard=True)

    @precondition(lambda self: self.wire)
    @rule(pick=PICK, is_kept=st.booleans(), batches=st.integers(0, 4), fails=st.booleans())
    def deliver(self, pick: int, is_kept: bool, batches: int, fails: bool) -> None:
        """Any of them, in any order; kept, it comes again."""
        place = pick % len(self.wire)
        message = self.wire[place] if is_kept else self.wire.pop(place)
        if isinstance(message, Fetch):
            self.answer(message, batches)
            return
        if message.life != self.replicas[message.node_id].life:
            return  # its connection went with that life
        found = None
        if message.found:
            base, end = message.found[0][0], message.found[-1][1]
            found = follower_events.CheckedRange(KEY.epoch, base, end, 10 * len(message.found), message.found)
            self.replicas[message.node_id].stale += base != self.replicas[message.node_id].follower.end_offset
        self.step_machine(
            message.node_id, follower_events.RangeArrived(message.sender, found, message.high_watermark), fails=fails
        )

    def answer(self, fetch: Fetch, batches: int) -> None:
        if fetch.to == LEADER:
            if fetch.life != self.replicas[fetch.node_id].life:
                return  # its token is an old one
            fetched = leader_events.FollowerFetched(fetch.node_id, fetch.offset, fetch.life)
            self.perform(self.leader.step(fetched, self.now_ms))
            log, high_watermark = self.log, self.leader.high_watermark
        else:
            source = self.replicas[fetch.to]
            log, high_watermark = source.copy, source.follower.high_watermark
        found = tuple(batch for batch in log if batch[0] >= fetch.offset)[:batches]
        self.wire.append(Answer(fetch.to, fetch.node_id, found, high_watermark, fetch.life))

    @precondition(lambda self: self.wire)
    @rule(pick=PICK)
    def lose(self, pick: int) -> None:
        lost = self.wire.pop(pick % len(self.wire))
        if isinstance(lost, Fetch) and lost.life == self.replicas[lost.node_id].life:
            self.step_machine(
                lost.node_id, follower_events.RangeRefused(lost.to, follower_events.RangeRefusal.UNREACHABLE)
            )

    # The followers --------------------------------------------------------------------------------------------------
    def step_machine(self, node: int, event: follower_events.FollowerEvent, *, fails: bool = False) -> None:
        replica = self.replicas[node]
        for effect in replica.follower.step(event, self.now_ms):
            self.do(node, replica, effect, fails=fails)
        replica.follower.check_invariants()

    def do(self, node: int, replica: Replica, effect: follower_events.FollowerEffect, *, fails: bool) -> None:
        match effect:
            case follower_events.Ask():
                replica.asks = effect
            case follower_events.StopAsking():
                replica.asks = None
            case follower_events.AppendRange(found) if fails:
                self.step_machine(node, follower_events.AppendFailed())
            case follower_events.AppendRange(found):
                assert replica.voted_end is None or self.end_offset is not None, "took data after its promise"
                replica.copy += found.payload
                self.step_machine(node, follower_events.RangeAppended())
            case follower_events.CutTail(end_offset):
                replica.copy = [batch for batch in replica.copy if batch[1] <= end_offset]
                assert replica.end_offset == end_offset, "cut inside a batch"
                replica.durable_end = min(replica.durable_end, end_offset)
                self.step_machine(node, follower_events.TailCut())
            case follower_events.WritePromise():
                replica.promise = effect
            case follower_events.ProveCopy():
                replica.proof = effect
            case follower_events.SubmitPromise() | follower_events.SubmitReport():
                replica.words.append(effect)
            case follower_events.MoveHighWatermark(mark):
                most = self.acknowledged if self.end_offset is None else max(self.acknowledged, self.end_offset)
                assert mark <= most, "serves what was never committed"
            case follower_events.ReportFault(reason):
                # This wire brings old answers again and again, as no connection does.
                is_told_of_old_ones = "does not follow" in reason and replica.stale > _INNOCENT_STRAYS
                assert is_told_of_old_ones, f"node {node}: {reason}"
            case _:
                pass  # a flush: whenever the disk comes to it

    @rule(node=FOLLOWER)
    def flush(self, node: int) -> None:
        replica = self.replicas[node]
        replica.durable_end = replica.end_offset
        self.step_machine(node, follower_events.DataFlushed(replica.durable_end))

    @rule(node=FOLLOWER)
    def see_record(self, node: int) -> None:
        sealed = self.end_offset is not None and set(self.digests) >= set(self.isr) - {LEADER}
        segment = replicated_segment(
            KEY,
            LEADER,
            REPLICAS,
            self.isr,
            fence=self.fence,
            end_offset=self.end_offset,
            source=self.source,
            holders=tuple(self.digests) if sealed else None,
        )
        self.step_machine(node, follower_events.SegmentNamed.of(segment, lambda _: True, has_store=False))

    @precondition(lambda self: self.end_offset is None)
    @rule(node=FOLLOWER, is_promise_kept=st.booleans(), is_whole=st.booleans())
    def restart(self, node: int, is_promise_kept: bool, is_whole: bool) -> None:
        """Whose tail is not whole leaves the ISR with its registration. What was promised has to be promised again."""
        replica = self.replicas[node]
        if replica.promise is not None and is_promise_kept:
            replica.promise_on_disk = replica.promise.fence
        if not is_whole:
            replica.copy = [batch for batch in replica.copy if batch[1] <= replica.durable_end]
            self.isr, self.isr_version = tuple(n for n in self.isr if n != node), self.isr_version + 1
        end = replica.end_offset
        replica.life += 1
        replica.follower = SegmentFollower(
            KEY,
            node,
            is_fsync=self.is_fsync,
            end_offset=end,
            is_tail_whole=is_whole or self.is_fsync,
            promised_fence=replica.promise_on_disk,
        )
        replica.durable_end = end  # a start flushes what it finds
        replica.asks = replica.promise = replica.proof = replica.voted_end = None
        replica.words.clear()
        self.votes.pop(node, None)
        self.see_record(node)

    @rule(node=FOLLOWER, is_written=st.booleans())
    def write_promise(self, node: int, is_written: bool) -> None:
        replica = self.replicas[node]
        promise, replica.promise = replica.promise, None
        if promise is not None:
            if is_written:
                replica.promise_on_disk = promise.fence
            self.step_machine(
                node, follower_events.PromiseWritten(promise.fence) if is_written else follower_events.PromiseFailed()
            )

    @rule(node=FOLLOWER)
    def prove(self, node: int) -> None:
        replica = self.replicas[node]
        proof, replica.proof = replica.proof, None
        if proof is not None:
            assert proof.end_offset == replica.end_offset == self.end_offset
            self.step_machine(node, follower_events.CopyProven(10 * len(replica.copy), repr(replica.copy).encode()))

    @rule(node=FOLLOWER, is_told=st.booleans(), is_heard=st.booleans())
    def tell_service(self, node: int, is_told: bool, is_heard: bool) -> None:
        replica = self.replicas[node]
        if not replica.words:
            return
        word = replica.words.pop(0)
        if is_told:
            if isinstance(word, follower_events.SubmitReport):
                self.digests[node] = word.digest
            else:
                assert replica.promise_on_disk >= word.fence, "told before it was on the disk"
                assert word.end_offset == replica.end_offset
                assert self.votes.get(node, word.end_offset) == word.end_offset, "another voice in the same life"
                self.votes[node] = replica.voted_end = word.end_offset
        self.step_machine(
            node, follower_events.ReportAccepted() if is_told and is_heard else follower_events.ReportFailed()
        )

    @rule(span_ms=st.sampled_from((1, 50, 2_000)))
    def wait(self, span_ms: int) -> None:
        self.now_ms += span_ms
        for node in FOLLOWERS:
            self.step_machine(node, follower_events.TimePassed())

    # The recovery -----------------------------------------------------------------------------------------------------
    @precondition(lambda self: len(self.log) > 4)
    @rule()
    def raise_fence(self) -> None:
        self.fence = FENCE

    @precondition(lambda self: self.fence)
    @rule()
    def tell_the_leader_of_the_fence(self) -> None:
        self.perform(self.leader.step(leader_events.FenceRaised(FENCE), self.now_ms))

    @precondition(lambda self: self.end_offset is None and not set(self.votes).isdisjoint(self.isr))
    @rule(is_one_enough=st.booleans())
    def name_the_end(self, is_one_enough: bool) -> None:
        """The leader is lost. Others of the ISR may be: with acks=all one voice is enough."""
        members = [node for node in self.votes if node in self.isr]
        voices = members[:1] if is_one_enough else members
        self.source = max(voices, key=lambda node: self.votes[node])
        self.end_offset = self.votes[self.source]

    # What must hold -------------------------------------------------------------------------------------------------
    @invariant()
    def copies_are_prefixes(self) -> None:
        for node, replica in getattr(self, "replicas", {}).items():
            assert replica.copy == self.log[: len(replica.copy)], f"node {node} has what its leader has not"
            assert replica.follower.end_offset == replica.end_offset

    @invariant()
    def the_isr_holds_what_was_acknowledged(self) -> None:
        if not hasattr(self, "replicas") or self.end_offset is not None:
            return
        proposed: tuple[int, ...] = ()
        if self.proposal is not None and self.proposal.version == self.isr_version:
            proposed = self.proposal.isr  # others are refused, whenever they come
        for node in {*self.isr, *proposed} - {LEADER}:
            replica = self.replicas[node]
            held = replica.durable_end if self.is_fsync else replica.end_offset
            assert held >= self.acknowledged, f"node {node} counts as in sync without the data"

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        if getattr(self, "end_offset", None) is not None:
            assert self.acknowledged <= self.end_offset, "acknowledged above the end of the recovery"

    @invariant()
    def sealed_copies_are_equal(self) -> None:
        assert len({*getattr(self, "digests", {}).values()}) < 2
        for replica in getattr(self, "replicas", {}).values():
            if replica.follower.life is follower_events.FollowerLife.SEALED:
                assert replica.end_offset == self.end_offset


Replication.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestReplication = Replication.TestCase
