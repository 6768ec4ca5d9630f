"""A shard whose leader is gone continues on another node, which serves what was acknowledged at once, before the ended
segment is sealed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from stratalog.formats.batches.record_batch import walk
from stratalog.model.commands.table_commands import NoteLives, ReportReplica
from stratalog.model.ids import ShardKey
from stratalog.model.segment import SegmentState
from stratalog_node.shards.log.shard_log import ShardLog
from support import kafka_oracle
from support.raw_client import RawClient
from support.several_nodes import TOPIC, SeveralNodes, several_nodes
from support.shard_rig import START_MS
from support.waiting import eventually

RECORDS = 10


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path) as nodes:
        yield nodes
        nodes.meta.open_all()


async def next_leader(nodes: SeveralNodes) -> tuple[ShardKey, ShardLog]:
    """The first leader is gone, and the segment that it led cannot be sealed."""
    key = await nodes.topic()
    for number in range(RECORDS):
        await nodes.append(key, b"%d" % number, at_ms=START_MS + number)
    leader = nodes.leader(key).context.node_id
    nodes.meta.hold(ReportReplica)
    life = nodes.meta_life(leader)
    await nodes.stop(leader)
    await nodes.meta.service.perform(NoteLives(lost=(life,)))
    await eventually(lambda: any(node.shards.get(key).is_leader for node in nodes.nodes.values()))  # type: ignore[union-attr]
    shard = nodes.leader(key)
    assert shard.segments[0].state is SegmentState.SEALING
    return key, shard


@pytest.mark.fault("leader-dies-segment-sealed")
async def test_the_next_leader_knows_where_the_log_ends_before_the_first_write(three: SeveralNodes) -> None:
    """Or a consumer at offset 5 would hear that it is out of range, and jump."""
    _, shard = await next_leader(three)
    node = three.nodes[shard.context.node_id]

    def ask() -> tuple[list[int], list[int], tuple[int, int]]:
        ends_of = kafka_oracle.request_class(23).OffsetForLeaderTopic
        with RawClient(f"{node.address[0]}:{node.address[1]}") as client:
            codes = [client.fetch(TOPIC, offset, max_wait_ms=0)[0].error_code for offset in (0, 5, RECORDS)]
            epochs = []
            for epoch in (0, 1):
                asked = ends_of.OffsetForLeaderPartition(
                    version=2, partition=0, current_leader_epoch=-1, leader_epoch=epoch
                )
                answer = client.call(23, 2, topics=[ends_of(version=2, topic=TOPIC, partitions=[asked])])
                epochs.append(answer.topics[0].partitions[0].end_offset)
        consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "any"})
        ends = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)
        consumer.close()
        return codes, epochs, ends

    assert await asyncio.to_thread(ask) == ([0, 0, 0], [RECORDS, RECORDS], (0, RECORDS))


@pytest.mark.fault("leader-dies-segment-sealed")
async def test_the_next_leader_serves_what_is_committed_and_not_sealed(three: SeveralNodes) -> None:
    _, shard = await next_leader(three)
    found: list[int] = []
    while len(found) < RECORDS:
        pieces = await shard.read(len(found), 100)
        found += [header.base_offset for _, header in walk(b"".join(pieces), source="read")]
    assert found == list(range(RECORDS))
    assert shard.segments[0].seal is None


@pytest.mark.fault("leader-dies-segment-sealed")
async def test_and_finds_times_in_it(three: SeveralNodes) -> None:
    _, shard = await next_leader(three)
    for offset in range(RECORDS):
        place = await shard.offset_for_time(START_MS + offset)
        assert place is not None and place.offset == offset
    newest = await shard.offset_of_max_timestamp()
    assert newest is not None and newest.offset == RECORDS - 1


@pytest.mark.fault("leader-dies-segment-sealed")
async def test_and_once_it_is_sealed_the_copy_is_read_as_any_other(three: SeveralNodes) -> None:
    key, shard = await next_leader(three)
    await shard.read(0, 100)
    three.meta.release(ReportReplica)
    await eventually(lambda: shard.segments[0].seal is not None and bool(shard.copies))
    assert await three.append(key, b"more") == RECORDS
    assert await shard.read(0, 1 << 20)
