"""A shard table in a test's hands: short commands, and what its state is, to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from stratalog.machines.table.records import TableHeader
from stratalog.machines.table.shard_table import Applied, ShardTable
from stratalog.model.commands import table_commands
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, Lock, NodeInfo, PartCommit
from stratalog.model.producers import NO_PRODUCERS, ProducerTally
from stratalog.model.segment import NextReplicas, RemotePart, SealRecord, Segment
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
            self.do(table_commands.RegisterNode(NodeInfo(node_id, f"storage-{node_id}", "host", 9092)))

    def do(self, command: table_commands.Command[R], new_id: UUID = NEW_ID) -> Applied[R]:
        applied = self.table.apply(command, self.now_ms, new_id)
        self.table.check_invariants()
        return applied

    def topic(
        self, name: str = "orders", shards: int = 1, replicas: int = 1, settings: Mapping[str, str] | None = None
    ) -> Topic:
        self._next_topic += 1
        return self.do(
            table_commands.CreateTopic(name, shards, replicas, settings or {}), UUID(int=self._next_topic)
        ).result

    def active(self, topic: Topic, shard: int = 0) -> Segment:
        return self.table.shard(ShardKey(topic.topic_id, shard)).segments[-1]

    def roll(self, segment: SegmentKey, end_offset: int) -> Segment:
        return self.do(table_commands.RollSegment(segment, end_offset)).result

    def seal(self, segment: SegmentKey) -> Segment:
        """Seal with a record that says what the table says."""
        known = self.table.segment(segment)
        assert known.end_offset is not None
        return self.do(table_commands.SealSegment(segment, record_of(segment, known.end_offset))).result

    def lock(self, name: str = "tier/1", holder: str = "node-1/1") -> Lock:
        return self.do(table_commands.AcquireLock(name, holder, 10_000)).result

    def commit(self, lock: Lock, segment: SegmentKey, base_offset: int, end_offset: int) -> object:
        """The outcome of one commit: a segment, or the refusal as a value."""
        piece = RemotePart(f"chunk-{base_offset}-{end_offset}", 0, 10, base_offset, end_offset)
        (outcome,) = self.do(table_commands.CommitParts(lock, (PartCommit(segment, base_offset, piece),))).result
        return outcome

    def complete(self, lock: Lock, segment: SegmentKey) -> Segment:
        return self.do(table_commands.CompleteRemote(lock, segment, "manifest", b"digest", 10)).result

    def segment(self, key: SegmentKey) -> Segment:
        return self.table.segment(key)

    # Several nodes ----------------------------------------------------------------------------------------------
    def life(self, node_id: int) -> Life:
        """Of a node that is there."""
        return self.table.state.nodes[node_id].life

    def die(self, *node_ids: int) -> None:
        """Their leases end, all in one transaction."""
        self.do(table_commands.NoteLives(lost=tuple(self.life(node_id) for node_id in node_ids)))

    def is_heard(self, node_id: int) -> None:
        self.do(table_commands.NoteLives(heard=(self.life(node_id),)))

    def start(self, node_id: int, *, is_clean: bool = True, is_wiped: bool = False, boot_id: str = "") -> None:
        """A new life; `is_wiped`: on an empty disk."""
        known = self.table.state.nodes[node_id]
        info = replace(known.info, storage_id=known.info.storage_id + "'") if is_wiped else known.info
        self.do(table_commands.RegisterNode(info, stopped_epoch=known.node_epoch if is_clean else 0, boot_id=boot_id))

    def roll_new(self, name: str) -> Segment:
        """The second segment of a new topic."""
        return self.roll(self.active(self.topic(name)).key, 1)

    def prepare(self, segment: SegmentKey) -> NextReplicas:
        prepared = self.do(table_commands.PrepareSegment(segment)).result.handed.prepared
        assert prepared is not None
        return prepared

    def recover(self, segment: SegmentKey) -> Segment:
        return self.do(table_commands.BeginRecovery(segment)).result

    def promise(
        self, segment: SegmentKey, node_id: int, end_offset: int, *, is_whole: bool = True, high_watermark: int = 0
    ) -> Segment:
        return self.do(
            promise(self, segment, node_id, end_offset, is_whole=is_whole, high_watermark=high_watermark)
        ).result

    def leave_out(self, segment: SegmentKey, *node_ids: int) -> Segment:
        """Their promises did not come in time."""
        self.do(
            table_commands.ContinueWithout((table_commands.SilentReplicas(segment, tuple(map(self.life, node_ids))),))
        )
        return self.segment(segment)

    def report(
        self,
        segment: SegmentKey,
        node_id: int,
        digest: bytes = b"digest",
        producers: ProducerTally = NO_PRODUCERS,
    ) -> Segment:
        known = self.table.segment(segment)
        assert known.end_offset is not None
        proof = replace(record_of(segment, known.end_offset, (node_id,)), digest=digest, producers=producers)
        return self.do(table_commands.ReportReplica(segment, proof, caller=self.life(node_id))).result


def promise(
    story: TableStory,
    segment: SegmentKey,
    node_id: int,
    end_offset: int,
    *,
    is_whole: bool = True,
    high_watermark: int = 0,
) -> table_commands.PromiseFence:
    """The promise of a node in its present life, under the segment's fence."""
    fence = story.table.segment(segment).fence
    return table_commands.PromiseFence(segment, fence, end_offset, high_watermark, is_whole, caller=story.life(node_id))


def record_of(segment: SegmentKey, end_offset: int, replicas: tuple[int, ...] = (1,)) -> SealRecord:
    size = (end_offset - segment.base_offset) * 10
    return SealRecord(
        segment.epoch, segment.base_offset, end_offset, -1, -1, size, b"digest", NO_PRODUCERS, replicas, 5
    )


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
        dict(state.mounts),
        set(state.rules),
        dict(state.credentials),
        dict(state.quotas),
        {node_id: weight for node_id, weight in state.load.items() if weight},
        set(state.unsettled),
        {key: (entry.first_epoch, entry.next_epoch) for key, entry in state.shards.items()},
    )
