"""Nodes with different `socket.request.max.bytes`, as during a rolling change of it: a batch that only one node accepts
from clients is replicated to the other, and read from it, and delays no other topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.ids import ShardKey
from stratalog_node.shards.read.replica_reads import proven_copy
from support.node_cluster import NodeCluster
from support.waiting import eventually

LARGE_BYTES = 12 << 20
SMALL_LIMIT_BYTES = 2 << 20


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        await cluster.start(2, socket_request_max_bytes=SMALL_LIMIT_BYTES)
        yield cluster


async def led_by_node_1(cluster: NodeCluster, *names: str) -> list[ShardKey]:
    found: list[ShardKey] = []
    for name in names:
        key = await cluster.shard(2, name, max_message_bytes=str(64 << 20))
        attempt = 0
        while cluster.leader(key) != 1:
            attempt += 1
            key = await cluster.shard(2, f"{name}-{attempt}", max_message_bytes=str(64 << 20))
        found.append(key)
    return found


@pytest.mark.fault("nodes-different-socket-request-max-bytes")
async def test_a_batch_above_the_followers_limit_is_replicated_and_so_are_other_topics(cluster: NodeCluster) -> None:
    large, other = await led_by_node_1(cluster, "large", "other")
    assert await cluster.append(large, bytes(LARGE_BYTES)) == 0
    assert await cluster.append(other, b"one") == 0, "acknowledged by both replicas"
    assert set(cluster.segments(large)[-1].isr) == set(cluster.segments(other)[-1].isr) == {1, 2}


@pytest.mark.fault("nodes-different-socket-request-max-bytes")
async def test_a_sealed_batch_above_a_nodes_limit_is_read_from_the_other(cluster: NodeCluster) -> None:
    (key,) = await led_by_node_1(cluster, "large")
    assert await cluster.append(key, bytes(LARGE_BYTES)) == 0
    shard = cluster.led(key)
    assert shard is not None
    shard.ask_roll(0)
    segment = await cluster.is_sealed(key, copies=2)
    await eventually(lambda: proven_copy(shard, segment) is not None)
    reads = cluster.nodes[2].peer_reads
    assert reads is not None
    data = await reads.read(segment, [1], 0, 1 << 20)
    assert len(data) > LARGE_BYTES
