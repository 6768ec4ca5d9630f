"""A few nodes as small as can be around the real shard table: they append, follow, crash, promise, copy and report as
docs/replication.md says, and what they say to the service may come late, twice, or never be answered.

Logs are lists of numbers that were never appended before, so that what two nodes have can be compared; `FILLER` stands
for a batch without records. `check` says what must hold after each step, `settle` that nothing is stuck forever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.machines.copies.recovery_rule import Waiting, decide, majority
from stratalog.machines.table.records import TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands import table_commands
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import GapReason, SealRecord, Segment, SegmentState
from support.table_stories import state_of

FILLER = -1
TOPIC = UUID(int=1)
Answered = Callable[[Any], None]


@dataclass
class Leading:
    """What a leader knows of one segment, in one life."""

    isr: tuple[int, ...]
    version: int
    replicas: tuple[int, ...]
    pending: tuple[tuple[int, ...], int] | None = None
    """A proposed ISR of unknown outcome, and the version that it named."""
    credit: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of followers: life epoch and confirmed end."""
    high_watermark: int = 0
    has_ended: bool = False

    @property
    def union(self) -> set[int]:
        return {*self.isr, *(self.pending[0] if self.pending else ())}


@dataclass
class SmallNode:
    node_id: int
    storage: int = 0
    boot: int = 0
    life: Life | None = None
    """None while its process does not run."""
    stopped_epoch: int = 0
    """Of the life that ended in order on this disk."""
    logs: dict[SegmentKey, list[int]] = field(default_factory=dict)
    flushed: dict[SegmentKey, int] = field(default_factory=dict)
    promised: set[SegmentKey] = field(default_factory=set)
    known_hw: dict[SegmentKey, int] = field(default_factory=dict)
    leads: dict[SegmentKey, Leading] = field(default_factory=dict)

    def end(self, key: SegmentKey) -> int:
        return key.base_offset + len(self.logs.get(key, ()))


class ReplicatedCluster:
    def __init__(self, nodes: int, shards: int, replicas: int, policy: str) -> None:
        self.by_quorum = policy == "quorum"
        self.table = ShardTable.empty(TableHeader("cluster", 0, 1))
        self.nodes = {number: SmallNode(number) for number in range(1, nodes + 1)}
        self.wire: list[tuple[table_commands.Command[Any], Answered]] = []
        self.truth: dict[SegmentKey, list[int]] = {}
        """What its only leader appended to each segment."""
        self.acked: dict[SegmentKey, int] = {}
        self.alone: set[SegmentKey] = set()
        """Segments that one node has alone."""
        self.excused: set[SegmentKey] = set()
        """Those of them that may have lost data, which only this node can know."""
        self._next = 0
        for number in self.nodes:
            self.start(number)
        self.apply(table_commands.CreateTopic("orders", shards, replicas, {"acks.policy": policy}))

    # The service ------------------------------------------------------------------------------------------------
    def apply(self, command: table_commands.Command[Any]) -> Any:
        """The result, or the refusal. Undone and done again, it comes to the same."""
        before = state_of(self.table)
        try:
            applied = self.table.apply(command, 1, TOPIC)
        except StratalogError as refusal:
            assert state_of(self.table) == before, f"refused, but not without a trace: {command}"
            return refusal
        after = state_of(self.table)
        self.table.undo(applied)
        assert state_of(self.table) == before, f"not undone: {command}"
        applied = self.table.apply(command, 1, TOPIC)
        assert state_of(self.table) == after, f"not the same again: {command}"
        return applied.result

    def ask(self, command: table_commands.Command[Any], answered: Answered = lambda _: None) -> None:
        self.wire.append((command, answered))

    def deliver(self, number: int, *, is_kept: bool = False, is_answered: bool = True) -> None:
        """One of the commands on their way, in any order; kept, it comes once more."""
        command, answered = self.wire[number] if is_kept else self.wire.pop(number)
        result = self.apply(command)
        if is_answered:
            answered(result)

    def records(self) -> list[Segment]:
        return [segment for shard in self.table.snapshot().shards for segment in shard.segments]

    # Nodes ------------------------------------------------------------------------------------------------------
    def start(self, number: int) -> None:
        node = self.nodes[number]
        if node.life is not None:
            return
        info = NodeInfo(number, f"storage-{number}-{node.storage}", "host", 9092)
        told = self.apply(
            table_commands.RegisterNode(info, boot_id=f"boot-{node.boot}", stopped_epoch=node.stopped_epoch)
        )
        node.life = Life(number, told.node_epoch)

    def stop(self, number: int, how: str, kept: int) -> None:
        """`how`: in order, killed, power cut (of what was not flushed `kept` records of each log stay), wiped."""
        node = self.nodes[number]
        life, node.life = node.life, None
        node.leads.clear()
        if how == "in order" and life is not None:
            node.stopped_epoch = life.epoch
            node.flushed = {key: len(log) for key, log in node.logs.items()}
        if how in ("power cut", "wiped"):
            self.excused |= self.alone & node.logs.keys()
        if how == "power cut":
            node.boot += 1
            for key, log in node.logs.items():
                del log[max(node.flushed.get(key, 0), min(len(log), kept)) :]
        if how == "wiped":
            node.storage += 1
            node.stopped_epoch = 0
            for state in (node.logs, node.flushed, node.known_hw):
                state.clear()
            node.promised.clear()

    def flush(self, number: int) -> None:
        node = self.nodes[number]
        node.flushed = {key: len(log) for key, log in node.logs.items()}

    def note(self, number: int, *, is_alive: bool) -> None:
        node = self.nodes[number]
        entry = self.table.state.nodes[number]
        if not is_alive:
            self.apply(table_commands.NoteLives(lost=(entry.life,)))
        elif node.life == entry.life:
            self.apply(table_commands.NoteLives(heard=(entry.life,)))

    # Leading and following --------------------------------------------------------------------------------------
    def watch(self, number: int) -> None:
        """The node reads all records, and begins or stops leading accordingly."""
        node = self.nodes[number]
        for segment in self.records():
            key = segment.key
            leading = node.leads.get(key)
            if node.life is None or node.life != self.table.state.nodes[number].life:
                continue
            if segment.seal is not None and number not in (*segment.replicas, *segment.local_nodes):
                node.logs.pop(key, None)  # it is released: no node may need this copy
            elif segment.state is SegmentState.ACTIVE and number not in segment.replicas:
                node.logs.pop(key, None)
            if segment.leader != number or segment.is_fenced or segment.state is SegmentState.SEALED:
                node.leads.pop(key, None)
            elif leading is None and segment.state is SegmentState.ACTIVE and key not in node.promised:
                own = segment.isr, segment.isr_version, segment.replicas
                node.leads[key] = Leading(*own, high_watermark=node.end(key))
                if len(segment.replicas) > 1:
                    assert not node.logs.get(key), "a leader of several replicas begins with nothing"
                else:
                    self.alone.add(key)
                    self.truth[key] = list(node.logs.get(key, ()))
            elif leading is not None:
                leading.replicas = segment.replicas
                if segment.isr_version > (leading.pending or (None, leading.version))[1]:
                    leading.isr, leading.version, leading.pending = segment.isr, segment.isr_version, None
                if key in self.alone and len(leading.isr) > 1:
                    # From now on others have what it has.
                    self.alone.discard(key)
                    self.excused.discard(key)
                    self.acked[key] = leading.high_watermark
                    self.truth[key] = list(node.logs.get(key, ()))

    def append(self, number: int, count: int) -> None:
        node = self.nodes[number]
        for key, leading in node.leads.items():
            if not leading.has_ended:
                for _ in range(count):
                    self._next += 1
                    node.logs.setdefault(key, []).append(self._next)
                    self.truth.setdefault(key, []).append(self._next)
                self._acknowledge(node, key, leading)

    def fetch(self, number: int, leader_id: int, count: int) -> None:
        """One round: the follower confirms what it has, and takes what comes after."""
        follower, leader = self.nodes[number], self.nodes[leader_id]
        for key, leading in leader.leads.items():
            segment = self.table.state.find_segment(key)
            if follower.life is None or number == leader_id or segment is None or number not in segment.replicas:
                continue
            if key in follower.promised:
                continue
            known_life, _ = leading.credit.get(number, (0, 0))
            if follower.life.epoch < known_life:
                continue
            leading.credit[number] = (follower.life.epoch, follower.end(key))
            log = follower.logs.setdefault(key, [])
            log.extend(leader.logs.get(key, [])[len(log) : len(log) + count])
            self._acknowledge(leader, key, leading)
            follower.known_hw[key] = max(follower.known_hw.get(key, 0), min(leading.high_watermark, follower.end(key)))

    def _acknowledge(self, leader: SmallNode, key: SegmentKey, leading: Leading) -> None:
        ends = {number: credit for number, (_, credit) in leading.credit.items()} | {leader.node_id: leader.end(key)}
        if self.by_quorum:
            held = sorted((ends.get(number, 0) for number in leading.replicas), reverse=True)
            mark = held[majority(replace(self.table.segment(key), replicas=leading.replicas)) - 1]
        else:
            mark = min(ends.get(number, 0) for number in leading.union)
        leading.high_watermark = max(leading.high_watermark, mark)
        leader.known_hw[key] = leading.high_watermark
        self.acked[key] = max(self.acked.get(key, 0), leading.high_watermark)

    def propose(self, number: int, wanted: set[int]) -> None:
        """Shrink to those wanted, or grow by such as have caught up."""
        node = self.nodes[number]
        for key, leading in node.leads.items():
            segment = self.table.state.find_segment(key)
            if leading.pending is not None or segment is None or node.life is None:
                continue
            able = {other for other, (_, end) in leading.credit.items() if end >= leading.high_watermark}
            isr = tuple(
                other
                for other in segment.replicas
                if other == number or (other in wanted and (other in leading.isr or other in able))
            )
            if isr != leading.isr:
                leading.pending = (isr, leading.version)
                self.ask(
                    table_commands.ProposeIsr(key, isr, leading.version, caller=node.life),
                    self._isr_answer(leading, isr),
                )

    def _isr_answer(self, leading: Leading, isr: tuple[int, ...]) -> Answered:
        def answered(result: Any) -> None:
            is_its_own = isinstance(result, Segment) and leading.pending is not None and leading.pending[0] == isr
            if is_its_own and result.isr_version > leading.version:
                leading.isr, leading.version, leading.pending = result.isr, result.isr_version, None

        return answered

    # The end ----------------------------------------------------------------------------------------------------
    def prepare(self, number: int) -> None:
        for key in self.nodes[number].leads:
            self.ask(table_commands.PrepareSegment(key, caller=self.nodes[number].life))

    def roll(self, number: int) -> None:
        node = self.nodes[number]
        for key, leading in node.leads.items():
            if not leading.has_ended:
                leading.has_ended = True
                self.ask(table_commands.RollSegment(key, node.end(key), caller=node.life))

    def promise(self, number: int) -> None:
        node = self.nodes[number]
        for segment in self.records():
            key = segment.key
            open_ = segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)
            if node.life is None or not open_ or not segment.is_fenced or number not in segment.replicas:
                continue
            node.leads.pop(key, None)
            node.promised.add(key)
            vote = table_commands.PromiseFence(
                key, segment.fence, node.end(key), node.known_hw.get(key, 0), is_tail_whole=True, caller=node.life
            )
            self.ask(vote)

    def copy(self, number: int) -> None:
        """Copies the missing data of ended segments from their source, which fills offsets that no node has."""
        node = self.nodes[number]
        for segment in self.records():
            source_id = segment.leader if len(segment.replicas) == 1 else segment.handed.source
            if node.life is None or segment.end_offset is None or source_id is None or number not in segment.replicas:
                continue
            source = self.nodes[source_id]
            if source.life is None or source.life != self.table.state.nodes[source_id].life:
                continue
            log = source.logs.setdefault(segment.key, [])
            length = segment.end_offset - segment.base_offset
            log.extend([FILLER] * (length - len(log)))
            if number != source_id:
                own = node.logs.setdefault(segment.key, [])
                own.extend(log[len(own) : length])

    def report(self, number: int) -> None:
        node = self.nodes[number]
        for segment in self.records():
            key, log = segment.key, node.logs.get(segment.key, [])
            if node.life is None or segment.end_offset is None or number not in segment.replicas:
                continue
            if segment.is_fenced:
                node.promised.add(key)
                del log[segment.end_offset - segment.base_offset :]
            if node.end(key) == segment.end_offset:
                node.flushed[key] = len(log)
                self.ask(
                    table_commands.ReportReplica(key, proof_of(segment, log), segment.isr_version, caller=node.life)
                )

    def move(self, away: set[int], steady: set[int]) -> None:
        """The service fills what has too few replicas, and lets go of what is too many."""
        steps = plan_moves(self.table.snapshot(), away, steady)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.apply(table_commands.MoveReplicas(tuple(done.value.moves)))
                return

    # What must hold ---------------------------------------------------------------------------------------------
    def check(self) -> None:
        self.table.check_invariants()
        for segment in self.records():
            acked = self.acked.get(segment.key, 0)
            may_lose = segment.key in self.excused or any(
                gap.reason is not GapReason.UNCONFIRMED for gap in segment.handed.given_up
            )
            if segment.end_offset is None or may_lose:
                continue
            assert acked <= segment.end_offset, f"{acked} was acknowledged, it ends at {segment.end_offset}: {segment}"
            for gap in segment.handed.given_up:
                assert acked <= gap.base_offset, f"{acked} was acknowledged, {gap} is given up: {segment}"
            if segment.seal is not None:
                for number in segment.local_nodes:
                    log = self.nodes[number].logs.get(segment.key)
                    if log is not None and digest_of(log) == segment.seal.digest:
                        count = max(0, acked - segment.base_offset)
                        assert log[:count] == self.truth.get(segment.key, [])[:count], f"other records: {segment}"

    def settle(self) -> None:
        """With all nodes there and every message heard nothing stays in between: a person is asked only for disks that
        are gone."""
        for number in self.nodes:
            self.start(number)
            self.note(number, is_alive=True)
        for _ in range(12):
            for number in self.nodes:
                self.watch(number)
            for number in self.nodes:
                for leader in self.nodes:
                    self.fetch(number, leader, 10**6)
                self.promise(number)
                self.copy(number)
                self.report(number)
            while self.wire:
                self.deliver(0)
                self.check()
            self._give_up_lost_disks()
        for segment in self.records():
            if segment.state is SegmentState.SEALING:
                raise AssertionError(f"stuck: {segment}")
            if segment.state is SegmentState.ACTIVE:
                assert segment.leader is not None, f"nobody leads: {segment}"

    def _give_up_lost_disks(self) -> None:
        for segment in self.records():
            if segment.is_fenced and segment.handed.source is None and segment.seal is None:
                told = {vote.node_id for vote in segment.handed.votes}
                decision = decide(segment, by_quorum=self.by_quorum, is_alive=self.table.state.is_alive)
                if isinstance(decision, Waiting) and decision.is_hopeless:
                    lost = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_lost}
                    assert set(decision.nodes) <= lost | told, (
                        f"waits for {decision.nodes}, who could answer: {segment}"
                    )
                    self.apply(table_commands.SealUnclean(segment.key))


def digest_of(log: list[int]) -> bytes:
    return hashlib.sha256(repr(log).encode()).digest()[:16]


def proof_of(segment: Segment, log: list[int]) -> SealRecord:
    assert segment.end_offset is not None
    base = segment.base_offset
    return SealRecord(
        segment.epoch, base, segment.end_offset, -1, -1, len(log) * 10, digest_of(log), NO_PRODUCERS, (), 0
    )
