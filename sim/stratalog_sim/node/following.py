"""The segments that this node follows: a shell for each segment that another node leads, the peers that these shells
ask, and the nodes that follow segments of this node."""

from __future__ import annotations

from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.machines.following.followed_segments import must_copy_again, should_follow
from stratalog.machines.following.follower_events import Ask as Asking
from stratalog.machines.following.follower_events import (
    CheckedRange,
    CopyFilled,
    FlushLost,
    FollowerLife,
    RangeArrived,
    RangeRefusal,
    RangeRefused,
)
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_sim.environment.disk import Batch
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.environment.store import Get
from stratalog_sim.node.replica import ReplicaShell
from stratalog_sim.node.rounds import Peer, RangeOf, Sessions, name_of
from stratalog_sim.node.shard import LeadingNode, ShardShell

_RETRY_MS = 100
_COPY_AGAIN_MS = 1_000
_CATCH_UP_BYTES_PER_S = 6_000
_CATCH_UP_BURST = 300


class Following:
    def __init__(self, node: LeadingNode) -> None:
        self._node = node
        self.replicas: dict[SegmentKey, ReplicaShell] = {}
        """Segments that this node follows."""
        self.sessions = Sessions(node, self)
        self.catch_up = TokenBucket(_CATCH_UP_BYTES_PER_S, _CATCH_UP_BURST, node.scheduler.now_ms)
        self.is_tail_kept = False
        self.is_continued = True
        self._peers: dict[int, Peer] = {}
        self._asked: dict[SegmentName, int] = {}
        self._named: dict[SegmentName, ReplicaShell] = {}

    def moved(self, key: SegmentKey) -> None:
        """The segment's log or record changed: followers that wait for it are answered."""
        self.sessions.moved(key)

    # Which ones -------------------------------------------------------------------------------------------------------
    def look_at(self, key: SegmentKey) -> None:
        """Begin to follow the segment, continue, or stop, as its record says."""
        node = self._node
        segment, replica = node.view.segment(key), self.replicas.get(key)
        if not node.is_shared(key):
            return
        if replica is None:
            if segment is None or node.leads(key):
                return
            if not should_follow(segment, node.node_id, may_read_bucket=True):
                return
            replica = ReplicaShell(node, key, is_fsync=node.is_fsync(key.topic_id), is_tail_whole=self.is_tail_kept)
            self.replicas[key] = self._named[name_of(key)] = replica
        replica.heard(segment)
        if segment is None or replica.is_gone:
            self._stop_following(key)
        else:
            self.replace_if_faulty(replica)

    def _stop_following(self, key: SegmentKey) -> None:
        if self.replicas.pop(key, None) is not None:
            self._named.pop(name_of(key), None)
            self.ask(key, None)

    def replace_if_faulty(self, replica: ReplicaShell) -> None:
        """Replace a faulty copy of a sealed segment, if the record lists copies of other nodes and not this one."""
        node, key = self._node, replica.key
        if replica.machine.life is not FollowerLife.FAULTY or self.replicas.get(key) is not replica:
            return
        segment = node.view.segment(key)
        if segment is not None and must_copy_again(segment, node.node_id):
            replica.is_closed = True
            self._stop_following(key)
            node.spawn(self._copy_again(key))

    def _copy_again(self, key: SegmentKey) -> Task:
        node = self._node
        if key in node.disk.files:
            node.judge.freed(node.node_id, key, is_replica=False)
            node.disk.remove(key)
        node.tell("copies again", key)
        yield Sleep(_COPY_AGAIN_MS)
        self.look_at(key)

    def fill(self, replica: ReplicaShell, end: int) -> Task:
        """Of the source of a recovery: what it lacks below the end comes from the object store, and what is not there
        was given up: a batch without records stands for it."""
        node, key = self._node, replica.key
        segment = node.view.segment(key)
        if segment is None:
            return
        file = node.disk.files.get(key)
        whole = file.whole(key) if file is not None else []
        at = whole[-1].end_offset if whole else key.base_offset
        found: list[Batch] = []
        for part in segment.remote.parts:
            while part.end_offset > at:
                try:
                    body = yield Ask("store", Get(part.object_key))
                    break
                except StratalogError:
                    yield Sleep(_RETRY_MS)
            else:
                continue
            more = [one for stored in body if stored.key == key for one in stored.batches if one.base_offset >= at]
            found += more
            at = more[-1].end_offset if more else at
        if at < end:
            found.append(Batch(at, end - at, key.epoch, f"~{key.epoch}.{at}", 10))
        while node.disk.is_full:
            yield Sleep(_RETRY_MS)
        now = node.view.segment(key)
        if now is None or self.replicas.get(key) is not replica:
            return
        if now.handed.source != node.node_id or now.seal is not None:
            replica.step(CopyFilled(replica.machine.end_offset))
            return
        if key not in node.disk.files:
            node.disk.make(key)
        replica.cut_damage()
        node.disk.append(key, found)
        if not node.disk.flush(key):
            replica.step(FlushLost("the disk lost a page"))
            return
        node.tell("fills", key, f"up to {end}")
        replica.step(CopyFilled(end))

    def forget_begun(self, key: ShardKey, epoch: int) -> None:
        """Another node continues the shard after that epoch: delete the later segments that were begun here."""
        node = self._node
        for one in [one for one, file in node.disk.files.items() if one.shard_key == key and file.is_ahead]:
            if one.epoch > epoch:
                node.disk.remove(one)
                self.look_at(one)
        for segment in node.view.segments(key):
            if segment.epoch > epoch:
                self.look_at(segment.key)

    def left(self, key: ShardKey, epoch: int) -> None:
        """Others seal what ended there."""
        for segment in self._node.view.segments(key):
            if segment.epoch == epoch:
                self._node.tell(f"leaves epoch {epoch} of shard {key.shard} to others, who seal it")
                self.look_at(segment.key)
                self.sessions.moved(segment.key)

    def resign(self, key: ShardKey) -> None:
        """Other nodes seal what the shard's chain led, and this node is now one of the replicas. It deletes each
        segment that it opened and that the meta service did not confirm."""
        node = self._node
        shard = node.shards[key]
        for one in shard.leaders():
            listed = node.view.segment(one.key)
            if (not one.is_confirmed or listed is None) and one.key in node.disk.files:
                node.disk.remove(one.key)
        node.tell(f"leads shard {key.shard} no more")
        shard.begin_again()
        for segment in node.view.segments(key):
            self.look_at(segment.key)
            self.sessions.moved(segment.key)

    # Peers that the shells ask ----------------------------------------------------------------------------------------
    def ask(self, key: SegmentKey, ask: Asking | None) -> None:
        """From now on, ask only the peer that `ask` names for this segment; None: ask no peer."""
        name = name_of(key)
        before = self._asked.pop(name, None)
        if before is not None and (ask is None or ask.node_id != before):
            self._peers[before].unwant(name)
        if ask is not None:
            self._asked[name] = ask.node_id
            peer = self._peers.get(ask.node_id)
            if peer is None:
                peer = self._peers[ask.node_id] = Peer(self._node, self, ask.node_id)
            peer.want(name, ask.offset, is_throttled=ask.is_throttled)

    def take(self, node_id: int, found: RangeOf) -> None:
        replica = self._named.get(found.name)
        if replica is None:
            return
        if found.refusal is not None:
            replica.step(RangeRefused(node_id, found.refusal))
            return
        arrived = None
        if found.batches:
            first, last = found.batches[0], found.batches[-1]
            size = sum(batch.size_bytes for batch in found.batches)
            arrived = CheckedRange(first.epoch, first.base_offset, last.end_offset, size, found.batches)
        replica.step(RangeArrived(node_id, arrived, found.high_watermark))

    def lost(self, node_id: int) -> None:
        """That node may not answer what it was asked: each shell that has another peer asks that one instead."""
        for name in [name for name, asked in self._asked.items() if asked == node_id]:
            self._named[name].step(RangeRefused(node_id, RangeRefusal.UNREACHABLE))

    # Requests from other nodes ----------------------------------------------------------------------------------------
    def leader_named(self, name: SegmentName) -> tuple[ShardShell, SegmentLeader] | None:
        """None: this node does not lead it, or not any more."""
        shard = self._node.shards.get(ShardKey(name.topic_id, name.shard))
        if shard is None or (shard.chain.stop is not None and shard.chain.stop.ends_leading):
            return None
        leader = next((one for one in shard.leaders() if one.key.epoch == name.epoch), None)
        return None if leader is None else (shard, leader)
