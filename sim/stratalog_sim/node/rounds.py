"""Rounds between two nodes: the real machines of both ends of a session, over a connection that keeps order or ends.

`Peer` asks for what this node's replicas want of another node, `Sessions` answers those that follow what is here. A
round whose answer does not come ends its connection, as it does in `storage_node/stratalog_node/replication`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stratalog.machines.following.fetch_rounds import (
    NO_SESSION,
    FetchRounds,
    RoundAnswered,
    SegmentName,
    SegmentUnwanted,
    SegmentWanted,
    SendRound,
    SessionLost,
    TurnEnded,
)
from stratalog.machines.following.fetch_session import FetchSession
from stratalog.machines.following.follower_events import RangeRefusal
from stratalog.machines.leading.chain_events import SegmentEventReceived
from stratalog.machines.leading.leader_events import FollowerFetched
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentState
from stratalog_sim.environment.disk import Batch
from stratalog_sim.environment.process import Ask, Request, Task
from stratalog_sim.node.shard import LeadingNode, ShardShell

_HOLD_MS = 300
_ANSWER_MS = 350
"""With what it may be held: after that the connection ends."""
_AGAIN_MS = 40
_CATCH_UP_MS = 30
_MOST_LOOKS = 500


def name_of(key: SegmentKey) -> SegmentName:
    return SegmentName(key.topic_id, key.shard, key.epoch)


@dataclass(frozen=True, slots=True)
class ReplicaRound:
    """Of a follower: of each segment everything below the offset is here."""

    connection: int
    node_id: int
    life_epoch: int
    token: int
    sent: SendRound

    def __str__(self) -> str:
        asks = " ".join(f"s{name.shard}/e{name.epoch} from {offset}" for name, offset in self.sent.asks)
        gone = " forgets some" if self.sent.forgotten else ""
        return f"round {self.sent.session_epoch} of life {self.life_epoch}: {asks or 'as before'}{gone}"


@dataclass(frozen=True, slots=True)
class RangeOf:
    """What there is of one segment, or why nothing of it is given."""

    name: SegmentName
    batches: tuple[Batch, ...]
    high_watermark: int
    refusal: RangeRefusal | None = None

    def __str__(self) -> str:
        what = self.refusal.name if self.refusal else " ".join(map(str, self.batches)) or "nothing"
        return f"s{self.name.shard}/e{self.name.epoch} {what} hw {self.high_watermark}"


@dataclass(frozen=True, slots=True)
class RoundTold:
    session_id: int
    ranges: tuple[RangeOf, ...] = ()
    error: str = ""
    """`session`: begin again; `token`: the node that asks is unknown."""

    def __str__(self) -> str:
        return self.error or "; ".join(map(str, self.ranges)) or "nothing moved"


class FollowingPart(Protocol):
    """What rounds use of the node's part that follows."""

    catch_up: TokenBucket

    def take(self, node_id: int, found: RangeOf) -> None: ...

    def lost(self, node_id: int) -> None: ...

    def leader_named(self, name: SegmentName) -> tuple[ShardShell, SegmentLeader] | None: ...


class Peer:
    """One other node, while anything is asked of it."""

    def __init__(self, node: LeadingNode, following: FollowingPart, node_id: int) -> None:
        self._node = node
        self._following = following
        self._node_id = node_id
        self._rounds = FetchRounds(following.catch_up, most_asks=4)
        self._connection = 0
        """0: there is none."""
        self._is_due = False

    def want(self, name: SegmentName, offset: int, *, is_throttled: bool) -> None:
        self._rounds.step(SegmentWanted(name, offset, is_throttled), self._node.scheduler.now_ms)
        self._soon()

    def unwant(self, name: SegmentName) -> None:
        self._rounds.step(SegmentUnwanted(name), self._node.scheduler.now_ms)
        self._soon()

    def _soon(self, delay_ms: int = 0) -> None:
        if not self._is_due:
            self._is_due = True
            self._node.scheduler.after(delay_ms, self._node, self._send)

    def _send(self) -> None:
        node, self._is_due = self._node, False
        if not self._connection:
            if not self._rounds.has_wants:
                return
            self._connection = node.network.next_number()
        for round_ in self._rounds.step(TurnEnded(), node.scheduler.now_ms):
            node.spawn(self._ask(round_, self._connection))
        self._rounds.check_invariants()
        if self._rounds.waits_for_room:
            self._soon(_CATCH_UP_MS)

    def _ask(self, round_: SendRound, connection: int) -> Task:
        node = self._node
        asked = ReplicaRound(connection, node.node_id, node.life.epoch, node.token, round_)
        told: RoundTold | None = None
        with suppress(StratalogError):
            told = yield Ask(f"node-{self._node_id}", asked, _HOLD_MS + _ANSWER_MS, is_in_order=True)
        if connection != self._connection:
            return  # of a connection that ended
        if told is None or told.error == "token":
            self._lose()
        elif told.error:
            self._rounds.step(SessionLost(), node.scheduler.now_ms)
        else:
            self._take(told)
        self._soon(0 if self._connection else _AGAIN_MS)

    def _take(self, told: RoundTold) -> None:
        came, refused = [], []
        for one in told.ranges:
            if one.refusal is not None:
                refused.append(one.name)
            elif one.batches:
                came.append((one.name, sum(batch.size_bytes for batch in one.batches)))
        event = RoundAnswered(told.session_id, tuple(came), tuple(refused))
        self._rounds.step(event, self._node.scheduler.now_ms)
        self._rounds.check_invariants()
        for one in told.ranges:
            self._following.take(self._node_id, one)

    def _lose(self) -> None:
        self._connection = 0
        self._rounds.step(SessionLost(), self._node.scheduler.now_ms)
        self._following.lost(self._node_id)


class _Follower:
    __slots__ = ("connection", "held", "life_epoch", "node_id", "owed", "session")

    def __init__(self, session_id: int, round_: ReplicaRound) -> None:
        self.session = FetchSession(session_id)
        self.connection = round_.connection
        self.node_id = round_.node_id
        self.life_epoch = round_.life_epoch
        self.held: Request | None = None
        self.owed: dict[SegmentName, tuple[int, int]] = {}
        """High watermark last told, and the end then, of segments that were sent more than is committed."""


class Sessions:
    """Of those that follow what is here. A node has one connection at a time."""

    def __init__(self, node: LeadingNode, following: FollowingPart) -> None:
        self._node = node
        self._following = following
        self._followers: dict[str, _Follower] = {}

    def asked(self, sender: str, request: Request, round_: ReplicaRound) -> None:
        node, sent = self._node, round_.sent
        known = node.view.nodes.get(round_.node_id)
        if known is None or known.epoch != round_.life_epoch or known.token != round_.token:
            self._forget(sender)
            node.reply(sender, request, RoundTold(NO_SESSION, error="token"), is_in_order=True)
            return
        if sent.session_id == NO_SESSION:
            self._forget(sender)
            self._followers[sender] = _Follower(node.network.next_number(), round_)
        follower = self._followers.get(sender)
        if follower is None or (follower.connection, follower.life_epoch) != (round_.connection, round_.life_epoch):
            node.reply(sender, request, RoundTold(NO_SESSION, error="session"), is_in_order=True)
            return
        self._finish(sender, follower)
        if follower.session.receive_round(sent.session_id, sent.session_epoch, sent.asks, sent.forgotten) is not None:
            self._forget(sender)
            node.reply(sender, request, RoundTold(NO_SESSION, error="session"), is_in_order=True)
            return
        follower.held = request
        for name, offset in sent.asks:
            self._confirm(follower, name, offset)
        self._look(sender, follower)
        node.scheduler.after(_HOLD_MS, node, self._expire, sender, request)

    def moved(self, key: SegmentKey) -> None:
        """There may be more of it, or less to ask of this node."""
        name = name_of(key)
        for sender, follower in list(self._followers.items()):
            if follower.session.moved(name) and follower.held is not None:
                self._look(sender, follower)

    def _forget(self, sender: str) -> None:
        follower = self._followers.pop(sender, None)
        if follower is not None:
            self._finish(sender, follower)

    def _expire(self, sender: str, request: Request) -> None:
        follower = self._followers.get(sender)
        if follower is not None and follower.held is request:
            self._finish(sender, follower)

    def _finish(self, sender: str, follower: _Follower, ranges: list[RangeOf] | None = None) -> None:
        held, follower.held = follower.held, None
        if held is None:
            return
        told = (*(ranges or ()), *self._high_watermarks(follower))
        self._node.reply(sender, held, RoundTold(follower.session.session_id, told), is_in_order=True)

    def _confirm(self, follower: _Follower, name: SegmentName, offset: int) -> None:
        found = self._following.leader_named(name)
        if found is None or self._why_not(follower, name) is not None:
            return
        shard, leader = found
        if leader.key.base_offset <= offset <= leader.end_offset:
            fetched = FollowerFetched(follower.node_id, offset, follower.life_epoch)
            shard.step(SegmentEventReceived(name.epoch, fetched))

    def _why_not(self, follower: _Follower, name: SegmentName) -> RangeRefusal | None:
        segment = self._node.view.segment_named(name)
        if segment is None or follower.node_id not in segment.replicas:
            return RangeRefusal.NOT_NOW
        is_led = self._following.leader_named(name) is not None
        if segment.state is SegmentState.ACTIVE and (segment.fence or not is_led):
            return RangeRefusal.NOT_NOW
        return None

    def _look(self, sender: str, follower: _Follower) -> None:
        ranges: list[RangeOf] = []
        for name in follower.session.take_ready(_MOST_LOOKS):
            found = self._look_at(follower, name)
            if found is None:
                continue
            if found.refusal is not None:
                follower.session.drop(name)
            else:
                follower.session.sent(name)
            ranges.append(found)
        if ranges:
            self._finish(sender, follower, ranges)

    def _look_at(self, follower: _Follower, name: SegmentName) -> RangeOf | None:
        """None: nothing more than it has."""
        node, offset = self._node, follower.session.offset_of(name)
        if offset is None:
            return None
        why = self._why_not(follower, name)
        segment = node.view.segment_named(name)
        if why is not None or segment is None:
            return RangeOf(name, (), -1, why)
        found = self._following.leader_named(name)
        file = node.disk.files.get(segment.key)
        high = segment.base_offset
        if found is not None:
            if not found[1].is_confirmed:
                return None  # its roll is not: it may be thrown away yet
            end, high = found[1].end_offset, found[1].high_watermark
        elif segment.end_offset is not None:
            end = segment.end_offset
        else:
            return RangeOf(name, (), -1, RangeRefusal.NOT_NOW)
        if offset > end:
            return RangeOf(name, (), -1, RangeRefusal.ENDS_BEFORE)
        whole = file.whole(segment.key) if file is not None else []
        batches = [one for one in whole if one.base_offset >= offset and one.end_offset <= end]
        if not batches:
            return None if found is not None or offset == end else RangeOf(name, (), -1, RangeRefusal.NOT_NOW)
        follower.owed[name] = high, batches[-1].end_offset
        return RangeOf(name, tuple(batches[: 1 + node.scheduler.rng.randrange(3)]), high)

    def _high_watermarks(self, follower: _Follower) -> list[RangeOf]:
        """Those that moved since the follower last got them."""
        found: list[RangeOf] = []
        for name, (told, end_offset) in list(follower.owed.items()):
            leading = self._following.leader_named(name)
            if leading is None or told >= end_offset or follower.session.offset_of(name) is None:
                del follower.owed[name]
            elif leading[1].high_watermark > told:
                high = leading[1].high_watermark
                follower.owed[name] = high, end_offset
                found.append(RangeOf(name, (), high))
        return found
