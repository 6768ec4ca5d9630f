"""A shard table in a test's hands: short commands, and what its state is, to be compared."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from stratalog.machines.shard_table import Applied, ShardTable
from stratalog.machines.table_records import TableHeader
from stratalog.model.commands import (
    AcquireLock,
    Command,
    CommitParts,
    CompleteRemote,
    CreateTopic,
    RegisterNode,
    RollSegment,
    SealSegment,
)
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock, NodeInfo, PartCommit
from stratalog.model.segment import RemotePart, SealRecord, Segment
from stratalog.model.topic import Topic

R = TypeVar("R")
CLUSTER_ID = "cluster-1"
NEW_ID = UUID(int=99)


class TableStory:
    """A table and a hand-moved clock. What is refused raises, as in the table."""

    def __init__(self, nodes: int = 1) -> None:
        self.table = ShardTable.empty(TableHeader(CLUSTER_ID, 0, 1))
        self.now_ms = 1_000
        self._next_topic = 0
        for node_id in range(1, nodes + 1):
            self.do(RegisterNode(NodeInfo(node_id, f"storage-{node_id}", "host", 9092)))

    def do(self, command: Command[R], new_id: UUID = NEW_ID) -> Applied[R]:
        applied = self.table.apply(command, self.now_ms, new_id)
        self.table.check_invariants()
        return applied

    def topic(self, name: str = "orders", shards: int = 1, replicas: int = 1) -> Topic:
        self._next_topic += 1
        return self.do(CreateTopic(name, shards, replicas, {}), UUID(int=self._next_topic)).result

    def active(self, topic: Topic, shard: int = 0) -> Segment:
        return self.table.shard(ShardKey(topic.topic_id, shard)).segments[-1]

    def roll(self, segment: SegmentKey, end_offset: int) -> Segment:
        return self.do(RollSegment(segment, end_offset)).result

    def seal(self, segment: SegmentKey) -> Segment:
        """Seal with a record that says what the table says."""
        known = self.table.segment(segment)
        assert known.end_offset is not None
        return self.do(SealSegment(segment, record_of(segment, known.end_offset))).result

    def lock(self, name: str = "tier/1", holder: str = "node-1/1") -> Lock:
        return self.do(AcquireLock(name, holder, 10_000)).result

    def commit(self, lock: Lock, segment: SegmentKey, base_offset: int, end_offset: int) -> object:
        """The outcome of one commit: a segment, or the refusal as a value."""
        piece = RemotePart(f"chunk-{base_offset}-{end_offset}", 0, 10, base_offset, end_offset)
        (outcome,) = self.do(CommitParts(lock, (PartCommit(segment, base_offset, piece),))).result
        return outcome

    def complete(self, lock: Lock, segment: SegmentKey) -> Segment:
        return self.do(CompleteRemote(lock, segment, "manifest", b"digest", 10)).result

    def segment(self, key: SegmentKey) -> Segment:
        return self.table.segment(key)


def record_of(segment: SegmentKey, end_offset: int, replicas: tuple[int, ...] = (1,)) -> SealRecord:
    size = (end_offset - segment.base_offset) * 10
    return SealRecord(segment.epoch, segment.base_offset, end_offset, -1, -1, size, b"digest", (), replicas, 5)


def state_of(table: ShardTable) -> object:
    """Everything a table knows, as one value that can be compared."""
    state = table.state
    return (
        state.header,
        {topic.topic_id: topic for topic in table.snapshot().topics},
        {shard.key: shard for shard in table.snapshot().shards},
        {node.node_id: node for node in table.snapshot().nodes},
        dict(state.deleted),
        dict(state.nodes),
        dict(state.locks),
        {node_id: weight for node_id, weight in state.load.items() if weight},
        {key: (entry.first_epoch, entry.next_epoch) for key, entry in state.shards.items()},
    )
