"""A follower of a node on a bench, over raw frames: it asks as one, and takes nothing."""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

from stratalog.formats.batches.record_batch import walk
from stratalog.kafka.replica_fetch import (
    ReplicaAnswer,
    ReplicaFetch,
    SegmentAsk,
    decode_replica_answer,
    encode_replica_fetch,
)
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.metadata import NodeInfo
from stratalog_node.shards.log.shard_log import ShardLog
from support.serve_rig import ServeRig, WireClient
from support.waiting import eventually


class Follows(NamedTuple):
    node_id: int
    token: int


async def register(rig: ServeRig, node_id: int, *, was_stopped: bool = False) -> Follows:
    """A life of another node, as the node on the bench hears of it. It keeps its place in every ISR if it had stopped
    in order."""
    info = NodeInfo(node_id, f"disk-{node_id}", "elsewhere", 9092)
    before = rig.catalog.node(node_id)
    stopped_epoch = before.epoch if before is not None and was_stopped else 0
    told = await rig.meta.service.perform(RegisterNode(info, stopped_epoch=stopped_epoch))
    await eventually(lambda: (node := rig.catalog.node(node_id)) is not None and node.token == told.token)
    return Follows(node_id, told.token)


def ask_of(shard: ShardLog, offset: int, epoch: int = 0) -> SegmentAsk:
    return SegmentAsk(shard.key.topic_id, shard.key.shard, epoch, offset, 1 << 20)


class ReplicaClient:
    """One connection and its session."""

    def __init__(self, client: WireClient, follows: Follows) -> None:
        self.client = client
        self.follows = follows
        self.session_id = 0
        self.session_epoch = 0
        self._numbers = itertools.count(1)

    async def send(self, *asks: SegmentAsk, max_wait_ms: int = 600_000, forgotten: tuple[ShardLog, ...] = ()) -> None:
        request = ReplicaFetch(
            self.follows.node_id,
            self.follows.token,
            max_wait_ms,
            8 << 20,
            self.session_id,
            self.session_epoch,
            list(asks),
            [(shard.key.topic_id, shard.key.shard) for shard in forgotten],
        )
        self.session_epoch += 1
        await self.client.write(encode_replica_fetch(next(self._numbers), "follower", request))

    async def receive(self) -> ReplicaAnswer:
        frame = await self.client.read_frame()
        (size,) = struct.unpack_from(">i", frame)
        assert size == len(frame) - 4
        _, answer = decode_replica_answer(memoryview(frame)[4:])
        self.session_id = answer.session_id
        return answer

    async def fetch(self, *asks: SegmentAsk, max_wait_ms: int = 600_000) -> ReplicaAnswer:
        await self.send(*asks, max_wait_ms=max_wait_ms)
        return await self.receive()


def offsets_in(answer: ReplicaAnswer) -> list[tuple[int, int, int]]:
    """(shard, base offset, end offset) of each batch."""
    return [
        (segment.shard, header.base_offset, header.end_offset)
        for segment in answer.segments
        for _, header in walk(b"".join(segment.records), source="answer")
    ]
