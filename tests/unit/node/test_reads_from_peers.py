"""A leader without a good copy of a sealed segment reads it from nodes that proved theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from stratalog.formats.batches.record_batch import walk
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState, TimesKnown
from stratalog.objects.opening import open_store
from stratalog_node.node import StorageNode
from stratalog_node.replication.peer_reads import NodePeerReads
from support.hostile_batches import timed_batch
from support.several_nodes import TOPIC, SeveralNodes, several_nodes
from support.shard_rig import START_MS
from support.waiting import eventually


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path) as nodes:
        yield nodes


def lose_copies(nodes: SeveralNodes, node_id: int, key: ShardKey) -> None:
    """Behind the node's back: its disk forgets all that is sealed."""
    for copy in nodes.shard_at(node_id, key).copies.values():
        copy.file.close_when_unused()
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


@pytest.mark.fault("leader-copy-sealed-segment")
async def test_a_leader_whose_files_are_gone_serves_what_others_hold(three: SeveralNodes) -> None:
    key, end = await three.filled()
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    await read_all(three, key, end)
    stats = leader.peer_reads.stats
    assert (stats.ranges, stats.failures, stats.refusals, stats.in_flight) == (2, 0, 0, 0)
    assert stats.bytes == sum(s.seal.size_bytes for s in leader.catalog.segments(key) if s.seal is not None)


@pytest.mark.fault("leader-copy-sealed-segment")
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
    assert leader.peer_reads.stats.ranges >= end - 2


@pytest.mark.fault("node-asked-answer-sends")
async def test_a_node_that_is_away_is_passed_over(three: SeveralNodes) -> None:
    key, end = await three.filled()
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    segment = leader.catalog.segments(key)[0]
    _, (first, _) = leader.peer_reads.holders(segment)
    await three.stop(first)
    await read_all(three, key, end)
    assert leader.peer_reads.stats.failures == 1, "it is asked once, and then passed over"
    assert leader.peer_reads.stats.ranges == 2


@pytest.mark.fault("node-asked-answer-sends", "bit-flips-copy-seal")
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
    assert (leader.peer_reads.stats.refusals, leader.peer_reads.stats.ranges) == (1, 1)
    assert leader.peer_reads.holders(leader.catalog.segments(key)[0])[1] == [second], "not asked for it again, for now"


@pytest.mark.fault("node-data-reached")
async def test_data_that_exists_but_is_unavailable_now_is_never_out_of_range(three: SeveralNodes) -> None:
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


@pytest.mark.parametrize("claimed_ms", [-1, START_MS + 10**9])
async def test_times_are_found_there_whatever_headers_claim(three: SeveralNodes, claimed_ms: int) -> None:
    """The other node looks at the records, and the seal that its copy has proved says what their times are."""
    key = await three.topic()
    for times in ([START_MS + 10], [START_MS + 30, START_MS + 50, START_MS + 40]):
        await three.leader(key).append([timed_batch(times, claimed_ms)])
    sealed = await three.seal(key)
    assert sealed.seal is not None and sealed.seal.times_known is TimesKnown.ALL
    assert (sealed.seal.first_timestamp_ms, sealed.seal.max_timestamp_ms) == (START_MS + 10, START_MS + 50)
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    shard = three.leader(key)
    for time_ms, offset in ((0, 0), (11, 1), (31, 2), (50, 2)):
        found = await shard.offset_for_time(START_MS + time_ms)
        assert found is not None and found.offset == offset
    assert await shard.offset_for_time(START_MS + 51) is None
    newest = await shard.offset_of_max_timestamp()
    assert newest is not None and newest[:2] == (2, START_MS + 50)


async def test_many_readers_of_one_range_are_one_read(three: SeveralNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = await three.filled(segments=1)
    leader = leading(three, key)
    lose_copies(three, leader.settings.node_id, key)
    shard = three.leader(key)
    stats = leader.peer_reads.stats
    everyone_asks = asyncio.Event()
    real = NodePeerReads._from

    async def held(reads: NodePeerReads, *asked: Any) -> Any:
        await everyone_asks.wait()  # each reader comes here by way of threads, in its own time
        return await real(reads, *asked)

    monkeypatch.setattr(NodePeerReads, "_from", held)
    readers = [asyncio.create_task(shard.read(0, 1 << 20)) for _ in range(20)]
    await eventually(lambda: (stats.joined, stats.in_flight) == (19, 1))  # each caller waits for its place first
    everyone_asks.set()
    found = await asyncio.gather(*readers)
    assert len({b"".join(pieces) for pieces in found}) == 1
    assert (stats.ranges, stats.joined) == (1, 19)
    assert stats.in_flight == 0


@pytest.mark.fault("leader-copy-sealed-segment")
async def test_no_more_are_asked_for_at_a_time_than_cold_reads_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = [0, 0]
    real = NodePeerReads._from

    async def counted(reads: NodePeerReads, *asked: Any) -> Any:
        under_way[0] += 1
        under_way[1] = max(under_way)
        await asyncio.sleep(0)
        try:
            return await real(reads, *asked)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(NodePeerReads, "_from", counted)
    async with several_nodes(tmp_path, 2, remote_read_max_concurrency=2) as two:
        key, end = await two.filled(segments=1, batches=10)
        leader = two.leader(key)
        lose_copies(two, leader.context.node_id, key)
        await asyncio.gather(*(leader.read(offset, 1) for offset in range(0, end - 2, 2)))
    assert under_way == [0, 2]


@pytest.mark.fault("leader-copy-sealed-segment")
async def test_a_store_comes_before_a_node_in_another_rack_and_the_node_when_the_store_has_it_not(
    tmp_path: Path,
) -> None:
    bucket = tmp_path / "bucket"
    store = open_store(str(bucket))
    async with several_nodes(tmp_path, 2, store, remote_upload_interval_ms=20) as two:
        key, end = await two.filled(segments=2)
        leader = leading(two, key)
        of_both = leader.catalog.segments(key)[:2]
        await eventually(
            lambda: all(
                one.remote.state is RemoteState.COMPLETE for one in leader.catalog.segments(key)[: len(of_both)]
            )
        )
        lose_copies(two, leader.settings.node_id, key)
        for path in bucket.rglob(f"{of_both[0].base_offset:020}-{of_both[0].epoch}/*"):
            path.unlink()
        await read_all(two, key, end)
        assert two.leader(key).context.stats.cold_reads > 1, "it is asked first"
        assert leader.peer_reads.stats.ranges == 1, "for the segment that it lacks"
    await store.close()
