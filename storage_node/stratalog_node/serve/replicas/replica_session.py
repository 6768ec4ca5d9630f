"""One follower on one connection: what it asks for, which of that moved, and what it is sent.

Lives on the event loop. Checks only what moved (`machines/following/fetch_session.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import ReplicaFetch, SegmentAnswer
from stratalog.machines.following.fetch_rounds import SegmentName, segment_name
from stratalog.machines.following.fetch_session import FetchSession, SessionFault
from stratalog.machines.leading.chain_events import SegmentEventReceived
from stratalog.machines.leading.leader_events import BatchesReceived, FollowerFetched
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Life
from stratalog.model.segment import SegmentState
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.serve.replicas.replica_cold_reads import Found, ReplicaColdReads
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import ReadBuffer, ReadPosition
from stratalog_node.shards.read.replica_reads import segment_of_epoch, unsealed_of_epoch, whole_copy


class ReplicaSession:
    """Invariant: it waits at each shard, and at each segment that grows, that is asked for, and at no others."""

    __slots__ = ("_moved", "_names", "_owed", "_shards", "_waits_at", "asked", "cold", "life")

    def __init__(
        self, shards: ShardDirectory, life: Life, session_id: int, moved: Callable[[], None], scheduler: FetchScheduler
    ) -> None:
        """`moved`: called when there is something to look at."""
        self.cold = ReplicaColdReads(scheduler, self._was_read)
        self.asked = FetchSession(session_id)
        self.life = life
        self._shards = shards
        self._moved = moved
        self._names: dict[ShardLog, set[SegmentName]] = {}
        self._waits_at: dict[SegmentName, tuple[ShardLog, ActiveSegment | None]] = {}
        self._owed: dict[SegmentName, tuple[int, int]] = {}
        """The high watermark last told, and the end then, of segments that were sent more than is committed."""

    def update(self, request: ReplicaFetch) -> SessionFault | None:
        """A round came: what it names is confirmed up to there, and will be looked at."""
        asks = [(segment_name(ask[:3]), ask.fetch_offset) for ask in request.asks]
        named = self.asked.names_of(request.forgotten)
        fault = self.asked.receive_round(request.session_id, request.session_epoch, asks, request.forgotten)
        if fault is not None:
            return fault
        for name in named:
            if self.asked.offset_of(name) is not None:
                continue  # a newer round of the same shard
            self._leave(name)
            self.cold.forget(name)
            self._owed.pop(name, None)
        for name, offset in asks:
            shard, grows = self._waits_at.get(name, (None, None))
            if shard is not None and grows is not None and self._is_led(shard, grows):
                self._confirm(shard, grows, offset)
            elif (found := self._shards.get(ShardKey(name.topic_id, name.shard))) is not None:
                if self._waits_to_be_let_in(found, name) and found.context.file_creations.may_open([]):
                    found.handle(BatchesReceived([]))  # only with a file are others let in
                self._wait_at(found, name)
                grows = unsealed_of_epoch(found, name.epoch)
                if grows is not None and not self._why_not(found, name):
                    self._confirm(found, grows, offset)
        return None

    def _waits_to_be_let_in(self, shard: ShardLog, name: SegmentName) -> bool:
        """Whether it waits to join the ISR of an unwritten segment."""
        segment = segment_of_epoch(shard.segments, name.epoch)
        if segment is None or not shard.is_unwritten(segment.key) or shard.stop is not None:
            return False
        return self.life.node_id in segment.replicas and self.life.node_id not in segment.isr

    def _is_led(self, shard: ShardLog, grows: ActiveSegment) -> bool:
        """The common case, which needs no look at the metadata: this node writes it, for this follower too."""
        leader = grows.leader
        is_open = grows is shard.active and leader.is_confirmed
        return is_open and shard.is_leader and self.life.node_id in leader.replicas

    def _wait_at(self, shard: ShardLog, name: SegmentName) -> None:
        self._leave(name)  # the shard, or where it grows, may be another now
        self._waits_at[name] = shard, None
        self._names.setdefault(shard, set()).add(name)
        shard.waiters[self] = None
        self._join(shard, name)

    def _join(self, shard: ShardLog, name: SegmentName) -> None:
        unsealed = unsealed_of_epoch(shard, name.epoch)
        if unsealed is not None:
            unsealed.followers[self] = None
            self._waits_at[name] = shard, unsealed

    def _was_read(self, name: SegmentName) -> None:
        if self.asked.moved(name):
            self._moved()
        else:
            self.cold.forget(name)

    def _leave(self, name: SegmentName) -> None:
        shard, unsealed = self._waits_at.pop(name, (None, None))
        if unsealed is not None:
            unsealed.followers.pop(self, None)
        if shard is not None:
            names = self._names[shard]
            names.discard(name)
            if not names:
                shard.waiters.pop(self, None)
                del self._names[shard]

    def close(self) -> None:
        self.cold.close()
        for name in list(self._waits_at):
            self._leave(name)

    def _confirm(self, shard: ShardLog, grows: ActiveSegment, offset: int) -> None:
        if grows.key.base_offset <= offset <= grows.leader.end_offset:
            life = self.life
            shard.handle(SegmentEventReceived(grows.key.epoch, FollowerFetched(life.node_id, offset, life.epoch)))

    # What moved -----------------------------------------------------------------------------------------------------
    def grew(self, active: ActiveSegment) -> None:
        key = active.key
        if self.asked.moved(segment_name((key.topic_id, key.shard, key.epoch))):
            self._moved()

    def wake(self, shard: ShardLog) -> None:
        """A new high watermark is sent along with the next data; the end of the shard here must be reported at once."""
        if shard.is_leader and shard.stop is None:
            for name in self._names.get(shard, ()):
                if self._waits_at[name][1] is not shard.active:
                    self._join(shard, name)  # its first batch makes its file
            return
        if [name for name in self._names.get(shard, ()) if self.asked.moved(name)]:
            self._moved()

    # Looking --------------------------------------------------------------------------------------------------------
    def find(self, name: SegmentName) -> Found | SegmentAnswer[ReadBuffer] | None:
        """What there is of a segment, why it is not served, or None: nothing more."""
        offset = self.asked.offset_of(name)
        if offset is None:
            return None
        led, grows = self._waits_at.get(name, (None, None))
        if led is not None and grows is not None and self._is_led(led, grows):
            end_offset = grows.leader.end_offset
            if offset == end_offset:
                return None
            if grows.key.base_offset <= offset < end_offset:
                return Found(led, ReadPosition(grows, grows.size_bytes, end_offset, None, False), offset)
        shard = self._shards.get(ShardKey(name.topic_id, name.shard))
        if shard is None or shard is not led:
            # Also a shard that the metadata brought between the round and this check: the session is not registered
            # with it, and without an error the follower would miss what is appended.
            return self._refuse(name, None, ErrorCode.UNKNOWN_TOPIC_ID)
        code = self._why_not(shard, name)
        segment = segment_of_epoch(shard.segments, name.epoch)
        if code or segment is None:
            return self._refuse(name, shard, code)
        begun = unsealed_of_epoch(shard, name.epoch)
        if begun is not None and not begun.leader.is_confirmed:
            return None  # it may be thrown away yet, and the same offsets given again: told of once it is settled
        where = whole_copy(shard, name.epoch)
        if where is None and not shard.is_unwritten(segment.key):
            return self._refuse(name, shard, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        end_offset = where.end_offset if where is not None else segment.base_offset
        if not segment.base_offset <= offset <= end_offset:
            return self._refuse(name, shard, ErrorCode.OFFSET_OUT_OF_RANGE)
        return Found(shard, where, offset) if where is not None and offset < end_offset else None

    def _why_not(self, shard: ShardLog, name: SegmentName) -> int:
        segment = segment_of_epoch(shard.segments, name.epoch)
        if segment is None:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.life.node_id not in segment.replicas:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if segment.state is SegmentState.ACTIVE and (segment.fence or not shard.is_leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return 0

    def refuse_unreadable(self, name: SegmentName, code: ErrorCode) -> SegmentAnswer[ReadBuffer]:
        """It could not be read: the follower must ask for it again."""
        return self._refuse(name, None, code)

    def _refuse(self, name: SegmentName, shard: ShardLog | None, code: int) -> SegmentAnswer[ReadBuffer]:
        self.asked.drop(name)
        self._leave(name)
        leader = shard.leader if shard is not None else None
        return SegmentAnswer(*name, code, -1, -1, leader=leader[0] if leader is not None else -1)

    def answer(
        self, name: SegmentName, found: Found, records: list[ReadBuffer], size_bytes: int
    ) -> SegmentAnswer[ReadBuffer]:
        """These are sent: the segment rests until the follower tells where it is."""
        self.asked.sent(name)
        shard = found.shard
        self._owed[name] = shard.high_watermark, found.where.end_offset
        return SegmentAnswer(
            *name, 0, shard.high_watermark, shard.log_start_offset, records, size_bytes, shard.context.node_id
        )

    def high_watermarks(self) -> list[SegmentAnswer[ReadBuffer]]:
        """High watermarks that moved since they were sent; for a round that times out and has nothing else to send."""
        found: list[SegmentAnswer[ReadBuffer]] = []
        for name, (last_sent, end_offset) in list(self._owed.items()):
            shard, _ = self._waits_at.get(name, (None, None))
            if shard is None or last_sent >= end_offset:
                del self._owed[name]
            elif shard.high_watermark > last_sent:
                self._owed[name] = shard.high_watermark, end_offset
                marks = shard.high_watermark, shard.log_start_offset
                found.append(SegmentAnswer(*name, 0, *marks, leader=shard.context.node_id))
        return found
