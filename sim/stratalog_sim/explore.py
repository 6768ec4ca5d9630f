"""Every history of a small world: instead of drawing what happens next, each choice is tried, breadth first.

The world is one segment that two or three nodes share, with the real leader, followers and shard table. What may
happen, in any order, each within a budget: a batch is written, a follower asks and its answer arrives or is lost, a
record is seen late, the ISR shrinks and grows with an answer lost on the way, the leader's lease ends, it rolls, one
machine loses its power (its tail whole or cut) and comes back in a new life, promises and proofs are told or lost.
A state that was seen before, byte for byte, is not looked at again. After each step the promises of
docs/replication.md section 9 that concern one segment must hold.
Cost: about 0.5 ms a step.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any, TypeAlias
from uuid import UUID

from stratalog.machines import follower_events as told
from stratalog.machines.leader_events import (
    Acknowledge,
    BatchesPersisted,
    BatchesReceived,
    FollowerFetched,
    IsrCommitted,
    LagChecked,
    LeaderEffect,
    LeaderEvent,
    OfferedBatch,
    PersistBatches,
    ProposalReadBack,
    ProposeIsr,
    RecordHeard,
    RollPolicy,
    SegmentRecord,
    StopLeading,
)
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_follower import SegmentFollower
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.machines.shard_table import ShardTable
from stratalog.machines.table_records import TableHeader
from stratalog.model import commands
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.segment import SealRecord, Segment, SegmentState
from stratalog_sim.disk import Batch, digest_of
from stratalog_sim.judge import Broken
from stratalog_sim.replica import named

Choice: TypeAlias = tuple[str, int]
POLICY = RollPolicy(1 << 40, 1 << 40, lag_ms=10)


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each may happen in one history."""

    writes: int = 2
    losses: int = 1
    deaths: int = 1
    crashes: int = 1
    lags: int = 1
    rolls: int = 1
    waits: int = 2


@dataclass
class SmallNode:
    life: int = 1
    copy: list[Batch] = field(default_factory=list)
    flushed: int = 0
    fence: int = 0
    leader: SegmentLeader | None = None
    follower: SegmentFollower | None = None
    seen: Segment | None = None
    asks: told.Ask | None = None
    inbox: told.RangeArrived | None = None
    words: list[told.TellPromise | told.TellReplica] = field(default_factory=list)
    is_cut: bool = False
    """It lost some of what it had confirmed, and was not heard of since."""

    @property
    def end_offset(self) -> int:
        return self.copy[-1].end_offset if self.copy else 0


class SmallWorld:
    def __init__(self, nodes: int, budget: Budget) -> None:
        self.table = ShardTable.empty(TableHeader("small", 0, 1))
        self.left = {name: getattr(budget, name) for name in Budget.__slots__}
        self.ids = 0
        for node_id in range(1, nodes + 1):
            self._apply(commands.RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 1), boot_id="1"))
        topic = self._apply(commands.CreateTopic("topic", 1, nodes, {}))
        self.key = SegmentKey(topic.topic_id, 0, 0, 0)
        self.nodes = {node_id: SmallNode() for node_id in range(1, nodes + 1)}
        self.decided = 0
        self.proposal: ProposeIsr | None = None
        self.unread: ProposeIsr | None = None
        self.now_ms = 0
        record = self.record
        assert record is not None and record.leader is not None
        self.first_leader = record.leader
        for node_id, node in self.nodes.items():
            if node_id == record.leader:
                node.leader = SegmentLeader(
                    self.key, node_id, POLICY, ProducerTable(), isr=record.isr, replicas=record.replicas
                )
            else:
                node.follower = SegmentFollower(self.key, node_id)
            self._see(node_id)

    @property
    def record(self) -> Segment | None:
        return self.table.state.find_segment(self.key)

    def _apply(self, command: commands.Command[Any]) -> Any:
        self.ids += 1
        return self.table.apply(command, 1_000, UUID(int=self.ids)).result

    # Choices --------------------------------------------------------------------------------------------------------
    def choices(self) -> list[Choice]:
        left, found = self.left, list[Choice]()
        leader = self.nodes[self.first_leader].leader
        is_led = leader is not None and leader.life.name == "OPEN"
        if is_led:
            found += [("write", 0)] * (left["writes"] > 0) + [("lag", 0)] * (left["lags"] > 0)
            if left["rolls"] and leader is not None and leader.end_offset and leader.is_wholly_committed:
                found.append(("roll", 0))
        if self.proposal is not None:
            found += [("propose", 0)] + [("propose, answer lost", 0)] * (left["losses"] > 0)
        if self.unread is not None:
            found.append(("read back", 0))
        record = self.record
        if left["deaths"] and record is not None and record.leader is not None:
            found.append(("lease ends", record.leader))
        for node_id, node in self.nodes.items():
            if node.seen != record:
                found.append(("see", node_id))
            if node.asks is not None and node.inbox is None:
                found.append(("fetch", node_id))
            if node.inbox is not None:
                found += [("take", node_id)] + [("drop", node_id)] * (left["losses"] > 0)
            if node.words:
                found += [("tell", node_id)] + [("word lost", node_id)] * (left["losses"] > 0)
            if left["crashes"]:
                found += [("power cut, tail kept", node_id), ("power cut, tail lost", node_id)]
            if left["waits"] and node.follower is not None and node.follower.wakes_at_ms is not None:
                found.append(("wait", node_id))
        return found

    def do(self, choice: Choice) -> None:
        match choice:
            case ("write", _):
                self._spend("writes")
                batch = OfferedBatch(None, 10, 1, 0, -1, -1, -1, -1, None, None)
                self._lead(BatchesReceived([batch]))
            case ("lag", _):
                self._spend("lags")
                for at_ms in (0, 1_000):
                    self._lead(LagChecked(at_ms))
            case ("roll", _):
                self._spend("rolls")
                self._roll()
            case ("propose", _):
                self._propose(is_told=True)
            case ("propose, answer lost", _):
                self._spend("losses")
                self._propose(is_told=False)
            case ("read back", _):
                proposal, self.unread, record = self.unread, None, self.record
                assert proposal is not None and record is not None
                self._lead(ProposalReadBack(proposal, record.isr, record.isr_version, was_refused=False))
            case ("lease ends", node_id):
                self._spend("deaths")
                self._apply(commands.NoteLives(lost=(Life(node_id, self.nodes[node_id].life),)))
                self._apply(commands.NoteLives(heard=(Life(node_id, self.nodes[node_id].life),)))
            case ("see", node_id):
                self._see(node_id)
            case ("fetch", node_id):
                self._fetch(node_id)
            case ("take", node_id):
                node = self.nodes[node_id]
                inbox, node.inbox = node.inbox, None
                assert inbox is not None
                self._follow(node_id, inbox)
            case ("drop", node_id):
                self._spend("losses")
                self.nodes[node_id].inbox = None
            case ("tell", node_id):
                self._tell(node_id)
            case ("word lost", node_id):
                self._spend("losses")
                self.nodes[node_id].words.pop(0)
                self._follow(node_id, told.ServiceNotTold())
            case ("wait", node_id):
                self._spend("waits")
                self.now_ms += 5_000
                self._follow(node_id, told.TimePassed())
            case ("power cut, tail kept" | "power cut, tail lost" as how, node_id):
                self._spend("crashes")
                self._crash(node_id, is_lost=how == "power cut, tail lost")
            case _:
                raise AssertionError(choice)
        self.check()

    def _spend(self, name: str) -> None:
        self.left[name] -= 1

    # What happens ---------------------------------------------------------------------------------------------------
    def _lead(self, event: LeaderEvent) -> None:
        node = self.nodes[self.first_leader]
        if node.leader is None:
            return
        effects: list[LeaderEffect] = node.leader.step(event, self.now_ms)
        node.leader.check_invariants()
        for effect in effects:
            match effect:
                case PersistBatches(batches):
                    for one in batches:
                        node.copy.append(Batch(one.base_offset, 1, 0, f"b{one.base_offset}", 10))
                    self._lead(BatchesPersisted(effect.end_offset))
                case Acknowledge(_, high_watermark):
                    self._decide(high_watermark)
                case ProposeIsr():
                    self.proposal = effect
                case StopLeading():
                    self._begin_following(self.first_leader, is_tail_whole=True)
                case _:
                    raise AssertionError(effect)

    def _decide(self, high_watermark: int) -> None:
        record = self.record
        if record is None or high_watermark <= self.decided:
            return
        for member in record.isr:
            if self.nodes[member].end_offset < high_watermark and not self.nodes[member].is_cut:
                raise Broken("HW is within the committed ISR", f"{high_watermark}, node {member} of {record.isr}")
        self.decided = high_watermark

    def _propose(self, *, is_told: bool) -> None:
        proposal, self.proposal = self.proposal, None
        assert proposal is not None
        caller = Life(self.first_leader, self.nodes[self.first_leader].life)
        try:
            taken = self._apply(commands.ProposeIsr(self.key, proposal.isr, proposal.version, caller=caller))
        except StratalogError:
            self.unread = proposal
            return
        if is_told:
            self._lead(IsrCommitted(taken.isr, taken.isr_version))
        else:
            self.unread = proposal

    def _roll(self) -> None:
        node = self.nodes[self.first_leader]
        assert node.leader is not None
        caller = Life(self.first_leader, node.life)
        try:
            self._apply(commands.RollSegment(self.key, node.leader.end_offset, caller=caller))
        except StratalogError:
            return
        # It takes no more, and proves its copy as the others do.
        self._begin_following(self.first_leader, is_tail_whole=True)

    def _see(self, node_id: int) -> None:
        node, record = self.nodes[node_id], self.record
        node.seen = record
        if record is None:
            return
        if node.leader is not None:
            self._lead(RecordHeard(SegmentRecord.of(record)))
        elif node.follower is not None:
            self._follow(node_id, named(record))

    def _begin_following(self, node_id: int, *, is_tail_whole: bool) -> None:
        node = self.nodes[node_id]
        node.leader = None
        node.follower = SegmentFollower(
            self.key, node_id, end_offset=node.end_offset, is_tail_whole=is_tail_whole, promised_fence=node.fence
        )
        node.asks = node.inbox = node.seen = None
        node.words = []

    def _follow(self, node_id: int, event: told.FollowerEvent) -> None:
        node = self.nodes[node_id]
        answer: told.FollowerEvent | None = event
        while answer is not None and node.follower is not None:
            effects, answer = node.follower.step(answer, self.now_ms), None
            node.follower.check_invariants()
            for effect in effects:
                answer = self._perform(node, effect) or answer

    def _perform(self, node: SmallNode, effect: told.FollowerEffect) -> told.FollowerEvent | None:
        match effect:
            case told.Ask():
                node.asks = effect
            case told.AskNobody():
                node.asks = None
            case told.AppendRange(found):
                node.copy += found.payload
                return told.RangeAppended()
            case told.CutTail(end_offset):
                node.copy = [one for one in node.copy if one.end_offset <= end_offset]
                node.flushed = min(node.flushed, len(node.copy))
                return told.TailCut()
            case told.FillCopy(end_offset):
                node.copy.append(Batch(node.end_offset, end_offset - node.end_offset, 0, "~", 10))
                return told.CopyFilled(end_offset)
            case told.WritePromise(fence):
                node.fence = fence
                return told.PromiseWritten(fence)
            case told.ProveCopy():
                node.flushed = len(node.copy)
                return told.CopyProven(10 * len(node.copy), digest_of(node.copy))
            case told.TellPromise() | told.TellReplica():
                node.words.append(effect)
            case told.MoveHighWatermark() | told.TellFault() | told.FlushData() | told.DropCopy():
                pass
        return None

    def _fetch(self, node_id: int) -> None:
        node = self.nodes[node_id]
        ask = node.asks
        assert ask is not None
        peer = self.nodes[ask.node_id]
        high = 0
        if peer.leader is not None:
            leader = peer.leader
            self._lead(FollowerFetched(node_id, ask.offset, node.life))
            high = leader.high_watermark
        batches = tuple(one for one in peer.copy if one.base_offset >= ask.offset)
        record = self.record
        if peer.leader is None and record is not None and record.end_offset is not None:
            batches = tuple(one for one in batches if one.end_offset <= record.end_offset)
        elif peer.leader is None:
            batches = ()
        found = None
        if batches:
            found = told.CheckedRange(0, ask.offset, batches[-1].end_offset, 10 * len(batches), batches)
        node.inbox = told.RangeArrived(ask.node_id, found, high)

    def _tell(self, node_id: int) -> None:
        node = self.nodes[node_id]
        word, caller = node.words.pop(0), Life(node_id, node.life)
        command: commands.Command[Any]
        if isinstance(word, told.TellPromise):
            command = commands.PromiseFence(
                self.key, word.fence, word.end_offset, word.high_watermark, word.is_tail_whole, caller=caller
            )
        else:
            proof = SealRecord(0, 0, word.end_offset, 0, 0, word.size_bytes, word.digest, (), (node_id,), 0)
            command = commands.ReportReplica(self.key, proof, caller=caller)
        try:
            self._apply(command)
        except StratalogError:
            self._follow(node_id, told.ServiceNotTold())
        else:
            self._follow(node_id, told.ServiceTold())

    def _crash(self, node_id: int, *, is_lost: bool) -> None:
        node = self.nodes[node_id]
        if is_lost:
            node.is_cut = len(node.copy) > node.flushed
            del node.copy[node.flushed :]
        node.flushed = len(node.copy)
        node.life += 1
        boot = f"{node.life}" if is_lost else "1"
        self._apply(commands.RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 1), boot_id=boot))
        node.is_cut = False
        if node_id == self.first_leader:
            self.proposal = self.unread = None
        self._begin_following(node_id, is_tail_whole=not is_lost)

    # What must hold -------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Raises Broken."""
        record = self.record
        if record is None:
            return
        self.table.check_invariants()
        values = [f"b{offset}" for offset in range(8)]
        for node_id, node in self.nodes.items():
            if [one.value for one in node.copy] != values[: len(node.copy)]:
                raise Broken("each replica is a prefix of its leader's log", f"node {node_id}: {node.copy}")
        longest = max(node.end_offset for node in self.nodes.values())
        if record.end_offset is not None and record.end_offset < min(self.decided, longest):
            holders = [node_id for node_id, node in self.nodes.items() if node.end_offset > record.end_offset]
            if any(holder in (*record.isr, *(vote.node_id for vote in record.handed.votes)) for holder in holders):
                raise Broken("no decided record is lost", f"{self.decided} decided, ends at {record.end_offset}")
        if record.state is SegmentState.SEALED and record.seal is not None and record.end_offset is not None:
            whole = [Batch(offset, 1, 0, f"b{offset}", 10) for offset in range(record.end_offset)]
            if record.seal.digest != digest_of(whole):
                raise Broken("seal records are true", f"at {record.end_offset}")

    def snapshot(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    def fingerprint(self) -> bytes:
        """Of all but what only counts."""
        kept = self.ids, self.table
        state = self.table.state
        self.ids, self.table = 0, (self.record, state.nodes, sorted(state.shards))  # type: ignore[assignment]
        try:
            return blake2b(repr(_plain(self)).encode(), digest_size=16).digest()
        finally:
            self.ids, self.table = kept


def _plain(value: Any) -> Any:
    """A value that is the same text for the same state, whatever objects it is made of."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return [(key, _plain(one)) for key, one in sorted(value.items(), key=repr)]
    if isinstance(value, list | tuple | deque):
        return [_plain(one) for one in value]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = slots or sorted(getattr(value, "__dict__", ()))
    if names and not isinstance(value, int | str | UUID | type(None)):
        return (type(value).__name__, [(name, _plain(getattr(value, name, None))) for name in names])
    return value


@dataclass(frozen=True, slots=True)
class Explored:
    states: int
    steps: int
    is_whole: bool
    """Every history within the budget was looked at."""


def explore(nodes: int, budget: Budget, most_states: int) -> Explored:
    """Raises Broken or AssertionError, its notes say which choices lead there."""
    first = SmallWorld(nodes, budget)
    seen = {first.fingerprint()}
    line: deque[tuple[bytes, tuple[Choice, ...]]] = deque([(first.snapshot(), ())])
    steps = 0
    while line and len(seen) < most_states:
        stored, path = line.popleft()
        for choice in pickle.loads(stored).choices():
            world: SmallWorld = pickle.loads(stored)
            steps += 1
            try:
                world.do(choice)
            except AssertionError as failure:
                failure.add_note(f"after {len(path)} steps: {', '.join(f'{w} {n}' for w, n in (*path, choice))}")
                raise
            mark = world.fingerprint()
            if mark not in seen:
                seen.add(mark)
                line.append((world.snapshot(), (*path, choice)))
    return Explored(len(seen), steps, not line)
