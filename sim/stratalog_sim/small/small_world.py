"""A world small enough to be tried in every order: one shard that two or three nodes share, from its first segment
over rolls and recoveries to its last, with the real leaders, followers and shard table.

A batch is one record, and its number identifies it. Each thing that may happen is a `Choice`, and each kind of choice
has a budget. After each choice the promises of docs/replication.md section 9 that concern a shard must hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from uuid import UUID

from stratalog.machines.following import follower_events as told
from stratalog.machines.following.segment_follower import SegmentFollower
from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.table.records import TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord, Segment, SegmentState
from stratalog_sim.broken import Broken

Choice: TypeAlias = tuple[str, int, int]
"""What, of which node, of which epoch."""
Heard: TypeAlias = tuple[told.SegmentNamed, leader_events.SegmentRecord]
"""All that a node hears of a record; what others promised and reported is not in it."""
_HEADER = TableHeader("small", 0, 1)
_WAIT_MS = 5_000
_NEVER_MS = 1 << 60
_NOTHING = 0
"""The number of a record that was given up."""


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
    delays: int = 1
    """Answers of a peer that arrive later than at once. One that is lost is asked for again."""


@dataclass(slots=True)
class SmallPart:
    """What one node has of one segment."""

    copy: tuple[int, ...] = ()
    flushed: int = 0
    fence: int = 0
    leader: SegmentLeader | None = None
    follower: SegmentFollower | None = None
    proposal: leader_events.ProposeIsr | None = None
    unread: leader_events.ProposeIsr | None = None
    asks: told.Ask | None = None
    inbox: told.RangeArrived | None = None
    words: tuple[told.SubmitPromise | told.SubmitReport, ...] = ()


@dataclass(slots=True)
class SmallNode:
    life: int = 1
    seen: dict[int, Heard] = field(default_factory=dict)
    """By epoch: what it heard of each record."""
    parts: dict[int, SmallPart] = field(default_factory=dict)
    """By epoch."""
    is_tail_whole: bool = True
    is_cut: bool = False
    """It lost some of what it had confirmed, and was not heard of since."""


class SmallWorld:
    def __init__(self, nodes: int, budget: Budget, *, is_quorum: bool = False) -> None:
        self.table = ShardTable.empty(_HEADER)
        self.left = {name: getattr(budget, name) for name in Budget.__slots__}
        self.policy = leader_events.RollPolicy(1 << 40, 1 << 40, lag_ms=10, is_quorum=is_quorum)
        self.nodes = {node_id: SmallNode() for node_id in range(1, nodes + 1)}
        for node_id in self.nodes:
            self._register(node_id)
        settings = {"acks.policy": "quorum"} if is_quorum else {}
        topic = self._apply(commands.CreateTopic("topic", 1, nodes, settings), UUID(int=1))
        self.shard = ShardKey(topic.topic_id, 0)
        self.given: dict[int, tuple[int, ...]] = {0: ()}
        """By epoch: what was written at its offsets, wherever."""
        self.decided: dict[int, int] = {}
        """By epoch: up to where readers were served."""
        self.written = 0
        self.now_ms = 0
        for node_id in self.nodes:
            self._see(node_id)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self.table.state.shards[self.shard].segments.values())

    def record(self, epoch: int) -> Segment | None:
        return self.table.state.shards[self.shard].segments.get(epoch)

    def _apply(self, command: commands.Command[Any], new_id: UUID | None = None) -> Any:
        """Two states are compared by their content, so nothing in the state counts the commands that led to it."""
        result = self.table.apply(command, 1_000, new_id or UUID(int=2)).result
        self.table.state.header = _HEADER
        return result

    def _register(self, node_id: int, boot: str = "1") -> None:
        info = NodeInfo(node_id, f"disk-{node_id}", "host", 1)
        life = UUID(int=100 * node_id + self.nodes[node_id].life)
        self._apply(commands.RegisterNode(info, boot_id=boot), life)

    # Choices --------------------------------------------------------------------------------------------------------
    def choices(self) -> list[Choice]:
        left, found, records = self.left, list[Choice](), self.segments
        leader_id = records[-1].leader
        if left["deaths"] and leader_id is not None and self.table.state.is_alive(leader_id):
            found.append(("lease ends", leader_id, 0))
        for node_id, node in self.nodes.items():
            if any(node.seen.get(one.epoch) != heard(one) for one in records):
                found.append(("see", node_id, 0))
            if left["crashes"]:
                found += [("power cut, tail kept", node_id, 0), ("power cut, tail lost", node_id, 0)]
            for epoch, part in node.parts.items():
                found += [(what, node_id, epoch) for what in self._choices_of(part)]
        return found

    def _choices_of(self, part: SmallPart) -> list[str]:
        left, leader, found = self.left, part.leader, list[str]()
        if leader is not None and leader.life is leader_events.LeaderLife.OPEN:
            found += ["write"] * (left["writes"] > 0) + ["lag"] * (left["lags"] > 0)
            if left["rolls"] and leader.is_wholly_committed and leader.end_offset > leader.key.base_offset:
                found += ["roll"] + ["roll, answer lost"] * (left["losses"] > 0)
        if part.proposal is not None:
            found += ["propose"] + ["propose, answer lost"] * (left["losses"] > 0)
        if part.unread is not None:
            found.append("read back")
        if part.asks is not None and part.inbox is None:
            found += ["fetch"] + ["fetch, under way"] * (left["delays"] > 0)
        if part.inbox is not None:
            found.append("take")
        if part.words:
            found += ["tell"] + ["word lost"] * (left["losses"] > 0)
        if left["waits"] and part.follower is not None and part.follower.wakes_at_ms is not None:
            found.append("wait")
        return found

    def do(self, choice: Choice) -> None:
        what, node_id, epoch = choice
        before = self.segments
        match what:
            case "see":
                self._see(node_id)
            case "lease ends":
                self.left["deaths"] -= 1
                life = (Life(node_id, self.nodes[node_id].life),)
                self._apply(commands.NoteLives(lost=life))
                self._apply(commands.NoteLives(heard=life))
            case "power cut, tail kept" | "power cut, tail lost":
                self.left["crashes"] -= 1
                self._crash(node_id, is_lost=what == "power cut, tail lost")
            case _:
                self._do_part(what, node_id, epoch)
        self._check(before)

    def _do_part(self, what: str, node_id: int, epoch: int) -> None:
        part = self.nodes[node_id].parts[epoch]
        if what in ("propose, answer lost", "word lost", "roll, answer lost"):
            self.left["losses"] -= 1
        match what:
            case "write":
                self.left["writes"] -= 1
                batch = leader_events.OfferedBatch(None, 10, 1, 0, -1, -1, -1, -1, None, None)
                self._lead(node_id, epoch, leader_events.BatchesReceived([batch]))
            case "lag":
                self.left["lags"] -= 1
                for at_ms in (0, 1_000):
                    self._lead(node_id, epoch, leader_events.LagChecked(at_ms))
            case "roll" | "roll, answer lost":
                self.left["rolls"] -= 1
                self._roll(node_id, epoch, is_told=what == "roll")
            case "propose" | "propose, answer lost":
                self._propose(node_id, epoch, is_told=what == "propose")
            case "read back":
                proposal, part.unread, record = part.unread, None, self.record(epoch)
                assert proposal is not None and record is not None
                event = leader_events.ProposalReadBack(proposal, record.isr, record.isr_version, was_refused=False)
                self._lead(node_id, epoch, event)
            case "fetch":
                self._fetch(node_id, epoch, part)
                self._take(node_id, epoch, part)
            case "fetch, under way":
                self.left["delays"] -= 1
                self._fetch(node_id, epoch, part)
            case "take":
                self._take(node_id, epoch, part)
            case "tell":
                self._tell(node_id, epoch, part)
            case "word lost":
                part.words = part.words[1:]
                self._follow(node_id, epoch, told.ReportFailed())
            case "wait":
                self.left["waits"] -= 1
                self.now_ms += _WAIT_MS
                self._follow(node_id, epoch, told.TimePassed())
            case _:
                raise AssertionError(what)

    # Metadata -------------------------------------------------------------------------------------------------------
    def _see(self, node_id: int) -> None:
        """A node hears of all that changed."""
        node = self.nodes[node_id]
        for segment in self.segments:
            before, node.seen[segment.epoch] = node.seen.get(segment.epoch), heard(segment)
            if before == heard(segment) and segment.epoch in node.parts:
                continue
            part = node.parts.get(segment.epoch)
            if part is None:
                if node_id in segment.replicas and segment.seal is None:
                    self._open(node_id, segment)
            elif part.leader is not None:
                if part.leader.life is leader_events.LeaderLife.ENDED and segment.end_offset is not None:
                    self._begin_following(node_id, segment.key)  # the answer to its roll was lost
                    self._follow(node_id, segment.epoch, heard(segment)[0])
                    continue
                self._lead(
                    node_id, segment.epoch, leader_events.RecordReceived(leader_events.SegmentRecord.of(segment))
                )
            elif part.follower is not None:
                self._follow(node_id, segment.epoch, heard(segment)[0])
                if segment.seal is not None and node_id in segment.local_nodes:
                    part.follower, part.asks, part.inbox, part.words = None, None, None, ()
        lives = [
            (entry.node.node_id, entry.node.epoch, entry.node.is_alive) for entry in self.table.state.nodes.values()
        ]
        for epoch, part in node.parts.items():
            for other, life_epoch, is_alive in lives if part.leader is not None else ():
                self._lead(node_id, epoch, leader_events.NodeUpdated(other, life_epoch, is_alive))

    def _open(self, node_id: int, segment: Segment) -> None:
        """It is listed as a replica, and has nothing of it."""
        node = self.nodes[node_id]
        part = node.parts[segment.epoch] = SmallPart()
        if segment.leader == node_id and segment.state is SegmentState.ACTIVE:
            part.leader = SegmentLeader(
                segment.key,
                node_id,
                self.policy,
                ProducerTable(),
                isr=segment.isr,
                isr_version=segment.isr_version,
                replicas=segment.replicas,
            )
        else:
            self._begin_following(node_id, segment.key)
            self._follow(node_id, segment.epoch, heard(segment)[0])

    # Leading --------------------------------------------------------------------------------------------------------
    def _lead(self, node_id: int, epoch: int, event: leader_events.LeaderEvent) -> None:
        part = self.nodes[node_id].parts[epoch]
        if part.leader is None:
            return
        effects: list[leader_events.LeaderEffect] = part.leader.step(event, self.now_ms)
        part.leader.check_invariants()
        for effect in effects:
            match effect:
                case leader_events.PersistBatches(batches):
                    for _ in batches:
                        self.written += 1
                        self._write(node_id, part, epoch, (self.written,))
                    self._lead(node_id, epoch, leader_events.BatchesPersisted(effect.end_offset))
                case leader_events.Acknowledge(_, high_watermark):
                    self._decide(epoch, high_watermark)
                case leader_events.ProposeIsr():
                    part.proposal = effect
                case leader_events.StopLeading():
                    self._begin_following(node_id, part.leader.key)
                case leader_events.RollSegment():
                    pass  # whoever requested it asks the service
                case _:
                    raise AssertionError(effect)

    def _decide(self, epoch: int, high_watermark: int) -> None:
        record = self.record(epoch)
        if record is None or high_watermark <= self.decided.get(epoch, record.base_offset):
            return
        voters = record.replicas if self.policy.is_quorum else record.isr
        lacking = [member for member in voters if not self._holds(member, record, high_watermark)]
        if len(lacking) > ((len(voters) - 1) // 2 if self.policy.is_quorum else 0):
            raise Broken("HW is within the committed ISR", f"{high_watermark} of epoch {epoch}, not nodes {lacking}")
        self.decided[epoch] = high_watermark

    def _holds(self, node_id: int, record: Segment, end_offset: int) -> bool:
        node = self.nodes[node_id]
        if node.is_cut or (self.policy.is_quorum and node_id in [one.node_id for one in record.handed.doubts]):
            return True
        part = node.parts.get(record.epoch)
        return part is not None and record.base_offset + len(part.copy) >= end_offset

    def _propose(self, node_id: int, epoch: int, *, is_told: bool) -> None:
        node = self.nodes[node_id]
        part, record = node.parts[epoch], self.record(epoch)
        proposal, part.proposal = part.proposal, None
        assert proposal is not None and record is not None
        caller = Life(node_id, node.life)
        try:
            taken = self._apply(commands.ProposeIsr(record.key, proposal.isr, proposal.version, caller=caller))
        except StratalogError:
            part.unread = proposal
            return
        if is_told:
            self._lead(node_id, epoch, leader_events.IsrCommitted(taken.isr, taken.isr_version))
        else:
            part.unread = proposal

    def _roll(self, node_id: int, epoch: int, *, is_told: bool) -> None:
        node = self.nodes[node_id]
        part, caller = node.parts[epoch], Life(node_id, node.life)
        assert part.leader is not None
        key, end_offset = part.leader.key, part.leader.end_offset
        self._lead(node_id, epoch, leader_events.RollRequested())
        try:
            self._apply(commands.PrepareSegment(key, caller=caller))
            part.flushed = len(part.copy)
            opened = self._apply(commands.RollSegment(key, end_offset, caller=caller))
        except StratalogError:
            self._lead(node_id, epoch, leader_events.RollFailed())
            return
        self.given.setdefault(opened.epoch, ())
        if not is_told:
            return
        # It takes no more, and proves its copy as the others do.
        self._begin_following(node_id, key)
        if opened.leader == node_id and opened.epoch not in node.parts:
            self._open(node_id, opened)

    # Following ------------------------------------------------------------------------------------------------------
    def _begin_following(self, node_id: int, key: SegmentKey) -> None:
        node = self.nodes[node_id]
        part = node.parts[key.epoch]
        part.leader = part.proposal = part.unread = part.asks = part.inbox = None
        part.words = ()
        end_offset = key.base_offset + len(part.copy)
        part.follower = SegmentFollower(
            key, node_id, end_offset=end_offset, is_tail_whole=node.is_tail_whole, promised_fence=part.fence
        )
        node.seen = {}

    def _follow(self, node_id: int, epoch: int, event: told.FollowerEvent) -> None:
        part = self.nodes[node_id].parts[epoch]
        answer: told.FollowerEvent | None = event
        while answer is not None and part.follower is not None:
            effects, answer = part.follower.step(answer, self.now_ms), None
            part.follower.check_invariants()
            for effect in effects:
                answer = self._perform(node_id, part, effect) or answer

    def _perform(self, node_id: int, part: SmallPart, effect: told.FollowerEffect) -> told.FollowerEvent | None:
        assert part.follower is not None
        key = part.follower.key
        match effect:
            case told.Ask():
                part.asks = effect
            case told.StopAsking():
                part.asks = None
            case told.AppendRange(found):
                self._write(node_id, part, key.epoch, found.payload)
                return told.RangeAppended()
            case told.CutTail(end_offset):
                part.copy = part.copy[: end_offset - key.base_offset]
                part.flushed = min(part.flushed, len(part.copy))
                return told.TailCut()
            case told.FillCopy(end_offset):
                part.copy += (_NOTHING,) * (end_offset - key.base_offset - len(part.copy))
                return told.CopyFilled(end_offset)
            case told.WritePromise(fence):
                part.fence = fence
                return told.PromiseWritten(fence)
            case told.ProveCopy():
                part.flushed = len(part.copy)
                return told.CopyProven(10 * len(part.copy), digest_of(part.copy))
            case told.SubmitPromise() | told.SubmitReport():
                part.words = (*part.words, effect)
            case told.DropCopy():
                part.copy, part.flushed, part.follower = (), 0, None
                part.asks = part.inbox = None
                part.words = ()
            case told.MoveHighWatermark() | told.ReportFault() | told.FlushData():
                pass
        return None

    def _write(self, node_id: int, part: SmallPart, epoch: int, numbers: tuple[int, ...]) -> None:
        part.copy = (*part.copy, *numbers)
        given = self.given[epoch]
        longer = max(part.copy, given, key=len)
        if any(one != other and _NOTHING not in (one, other) for one, other in zip(part.copy, given, strict=False)):
            raise Broken("an offset is given once", f"node {node_id} has {part.copy} of epoch {epoch}, not {given}")
        self.given[epoch] = longer

    def _fetch(self, node_id: int, epoch: int, part: SmallPart) -> None:
        ask = part.asks
        assert ask is not None
        record, peer = self.record(epoch), self.nodes[ask.node_id].parts.get(epoch)
        if record is None or peer is None:
            return
        base, high, copy = record.base_offset, 0, peer.copy
        leader = peer.leader
        if leader is not None:
            self._lead(ask.node_id, epoch, leader_events.FollowerFetched(node_id, ask.offset, self.nodes[node_id].life))
            high = leader.high_watermark
        elif record.end_offset is not None:
            copy = copy[: record.end_offset - base]
        else:
            copy = ()
        numbers, found = copy[max(0, ask.offset - base) :], None
        if not numbers and part.follower is not None and high <= part.follower.committed_offset:
            return  # nothing moved: it is held
        if numbers:
            end_offset = ask.offset + len(numbers)
            found = told.CheckedRange(epoch, ask.offset, end_offset, 10 * len(numbers), numbers)
        part.inbox = told.RangeArrived(ask.node_id, found, high)

    def _take(self, node_id: int, epoch: int, part: SmallPart) -> None:
        inbox, part.inbox = part.inbox, None
        if inbox is not None:
            self._follow(node_id, epoch, inbox)

    def _tell(self, node_id: int, epoch: int, part: SmallPart) -> None:
        word, caller, record = part.words[0], Life(node_id, self.nodes[node_id].life), self.record(epoch)
        part.words = part.words[1:]
        assert record is not None
        command: commands.Command[Any]
        if isinstance(word, told.SubmitPromise):
            command = commands.PromiseFence(
                record.key, word.fence, word.end_offset, word.high_watermark, word.is_tail_whole, caller=caller
            )
        else:
            proof = SealRecord(
                epoch,
                record.base_offset,
                word.end_offset,
                0,
                0,
                word.size_bytes,
                word.digest,
                NO_PRODUCERS,
                (node_id,),
                0,
            )
            command = commands.ReportReplica(record.key, proof, caller=caller)
        try:
            segment = self._apply(command)
        except StratalogError:
            self._follow(node_id, epoch, told.ReportFailed())
        else:
            self._follow(node_id, epoch, told.ReportAccepted.answered(segment, node_id))
        self.given.setdefault(self.segments[-1].epoch, ())

    def _crash(self, node_id: int, *, is_lost: bool) -> None:
        node = self.nodes[node_id]
        for part in node.parts.values():
            if is_lost:
                node.is_cut = node.is_cut or len(part.copy) > part.flushed
                part.copy = part.copy[: part.flushed]
            part.flushed = len(part.copy)
        node.life += 1
        node.is_tail_whole = not is_lost
        self._register(node_id, f"{node.life}" if is_lost else "1")
        node.is_cut = False
        for epoch in list(node.parts):
            record = self.record(epoch)
            if record is not None and (record.seal is None or node_id not in record.local_nodes):
                self._begin_following(node_id, record.key)

    # What must hold -------------------------------------------------------------------------------------------------
    def _check(self, before: tuple[Segment, ...]) -> None:
        """Raises Broken, or AssertionError of the table."""
        records = self.segments
        if records == before:
            return
        self.table.check_invariants()
        if [one.state for one in records].count(SegmentState.ACTIVE) > 1:
            raise Broken("one ACTIVE segment per shard", f"{[one.key for one in records]}")
        for record in records:
            if record.end_offset is not None and record not in before:
                self._check_end(record)

    def _check_end(self, record: Segment) -> None:
        """Nothing that counted lies beyond it, unless no voter has it; and what is sealed is true."""
        end, decided, base = record.end_offset or 0, self.decided.get(record.epoch, 0), record.base_offset
        if decided > end:
            voters = {*record.isr, *(vote.node_id for vote in record.handed.votes)}
            holders = [one for one in voters if base + len(self._copy(one, record.epoch)) > end]
            if holders:
                raise Broken("no decided record is lost", f"{decided} decided, {record.key} ends at {end}, {holders}")
            self.decided[record.epoch] = end
        if record.seal is not None:
            given = self.given[record.epoch][: end - base]
            if not record.handed.given_up and len(given) == end - base and record.seal.digest != digest_of(given):
                raise Broken("seal records are true", f"{record.key} at {end}")
            for node_id in record.local_nodes:
                if (
                    not self.nodes[node_id].is_cut
                    and digest_of(self._copy(node_id, record.epoch)) != record.seal.digest
                ):
                    raise Broken("each listed replica proved the digest", f"node {node_id}, {record.key}")

    def _copy(self, node_id: int, epoch: int) -> tuple[int, ...]:
        part = self.nodes[node_id].parts.get(epoch)
        return part.copy if part is not None else ()


def digest_of(numbers: tuple[int, ...]) -> bytes:
    return bytes(numbers) or b"\0"


def heard(segment: Segment) -> Heard:
    named = told.SegmentNamed.of(segment, lambda _: True, has_store=False)
    return named, leader_events.SegmentRecord.of(segment)


def settled(world: SmallWorld) -> SmallWorld:
    """Without what is only kept to answer faster, and without what can make no difference any more: so that more states
    are one."""
    world.table.state.views.clear()
    world.table.state.header = replace(_HEADER)
    for record in world.segments:
        record = _settled_record(world, record)
        if record.seal is not None and all(_is_over(node, record.epoch) for node in world.nodes.values()):
            world.decided[record.epoch] = record.end_offset or 0
        for node_id, node in world.nodes.items():
            _settle(world, node_id, node, record)
    return world


def _settled_record(world: SmallWorld, record: Segment) -> Segment:
    """For a sealed segment it does not matter which replicas were in sync, or which node proved its copy first."""
    if record.seal is None:
        return record
    seal = replace(record.seal, replicas=record.local_nodes)
    plain = replace(record, isr=record.replicas, isr_version=0, seal=seal)
    if plain == record:
        return record
    world.table.state.shards[world.shard].segments[record.epoch] = plain
    for node in world.nodes.values():
        if node.seen.get(record.epoch) == heard(record):
            node.seen[record.epoch] = heard(plain)
    return plain


def _is_over(node: SmallNode, epoch: int) -> bool:
    part = node.parts.get(epoch)
    return part is None or part.leader is None


def _settle(world: SmallWorld, node_id: int, node: SmallNode, record: Segment) -> None:
    part = node.parts.get(record.epoch)
    if record.seal is not None and _is_over(node, record.epoch):
        is_done = part is None or node_id in record.local_nodes
        if is_done:
            node.seen[record.epoch] = heard(record)  # nothing follows from that
        if part is not None and is_done:
            part = node.parts[record.epoch] = SmallPart(part.copy, len(part.copy))
    if part is None:
        return
    if not world.left["crashes"]:
        part.flushed = len(part.copy)
    if not world.left["waits"] and part.follower is not None:
        _forget_times(part.follower, world.now_ms)


def _forget_times(follower: SegmentFollower, now_ms: int) -> None:
    """No time passes any more: what it waits for never comes, and how long it would have waited is nothing."""
    until_ms = follower._paused_until_ms
    follower._paused_until_ms = None if until_ms is None or until_ms <= now_ms else _NEVER_MS
    follower._pause_ms = 0
