"""A leader without a good copy of a sealed segment reads it from nodes that proved theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from stratalog.formats.record_batch import walk
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog_node.node import StorageNode
from support.several_nodes import TOPIC, SeveralNodes, several_nodes
from support.shard_rig import START_MS


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path) as nodes:
        yield nodes


def lose_copies(nodes: SeveralNodes, node_id: int, key: ShardKey) -> None:
    """Behind the node's back: its disk forgets all that is sealed."""
    for copy in nodes.shard_at(node_id, key).copies.values():
        copy.file.retire()
        copy.file.path.unlink()


async def read_all(nodes: SeveralNodes, key: ShardKey, end: int) -> None:
    """As a consumer without a rack does, from the leader."""
    shard, offset = nodes.leader(key), 0
    while offset < end:
        pieces = await shard.read(offset, 1 << 20)
        headers = [header for _, header in walk(b"".join(pieces), source="read")]
        assert headers[0].base_offset == offset
        offset = headers[-1].end_offset


def leading(nodes: SeveralNodes, key: ShardKey) -> StorageNode:
    return nodes.nodes[nodes.leader(key).context.node_id]


async def test_a_leader_whose_files_are_gone_serves_what_others_hold(three: SeveralNodes) -> None:
    key, end = await three.filled()
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    await read_all(three, key, end)
    stats = leader.peer_reads.stats
    assert (stats.reads, stats.failures, stats.refusals, stats.in_flight) == (2, 0, 0, 0)
    assert stats.bytes_read == sum(s.seal.size_bytes for s in leader.catalog.segments(key) if s.seal is not None)


async def test_it_finds_times_there_as_well(three: SeveralNodes) -> None:
    key, end = await three.filled()
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)

    def look_up() -> list[int]:
        consumer = Consumer({"bootstrap.servers": three.bootstrap, "group.id": "none"})
        found = [
            consumer.offsets_for_times([TopicPartition(TOPIC, 0, START_MS + offset)], timeout=20)[0].offset
            for offset in range(end)
        ]
        consumer.close()
        return found

    assert await asyncio.to_thread(look_up) == list(range(end))
    newest = await three.leader(key).offset_of_max_timestamp()
    assert newest is not None and (newest.offset, newest.timestamp_ms) == (end - 1, START_MS + end - 1)
    assert leader.peer_reads.stats.reads >= end - 2


async def test_a_node_that_is_away_is_passed_over(three: SeveralNodes) -> None:
    key, end = await three.filled()
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    segment = leader.catalog.segments(key)[0]
    _, (first, _) = leader.peer_reads.holders(segment)
    await three.stop(first)
    await read_all(three, key, end)
    assert leader.peer_reads.stats.failures == 1, "it is asked once, and then passed over"
    assert leader.peer_reads.stats.reads == 2


async def test_bytes_that_do_not_check_are_not_served_and_the_next_node_is_asked(three: SeveralNodes) -> None:
    key, end = await three.filled(segments=1)
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    _, (first, second) = leader.peer_reads.holders(leader.catalog.segments(key)[0])
    (copy,) = three.shard_at(first, key).copies.values()
    data = bytearray(copy.file.path.read_bytes())
    data[-3] ^= 1
    copy.file.path.write_bytes(bytes(data))
    await read_all(three, key, end)
    assert (leader.peer_reads.stats.refusals, leader.peer_reads.stats.reads) == (1, 1)
    assert leader.peer_reads.holders(leader.catalog.segments(key)[0])[1] == [second], "not asked for it again, for now"


async def test_data_that_exists_and_that_nobody_can_give_now_is_never_out_of_range(three: SeveralNodes) -> None:
    key, _ = await three.filled()
    leader = three.leader(key)
    lose_copies(three, leader.context.node_id, key)
    for node_id in three.others(key):
        await three.stop(node_id)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await leader.read(0, 1 << 20)
    with pytest.raises(Unavailable):
        await leader.offset_for_time(START_MS)


async def test_many_readers_of_one_range_are_one_read(three: SeveralNodes) -> None:
    key, _ = await three.filled(segments=1)
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    shard = three.leader(key)
    stats = leader.peer_reads.stats
    readers = [asyncio.create_task(shard.read(0, 1 << 20)) for _ in range(20)]
    async with asyncio.timeout(20):
        while stats.in_flight != 1:
            await asyncio.sleep(0)
    found = await asyncio.gather(*readers)
    assert len({b"".join(pieces) for pieces in found}) == 1
    assert (stats.reads, stats.joined) == (1, 19)
    assert stats.in_flight == 0
