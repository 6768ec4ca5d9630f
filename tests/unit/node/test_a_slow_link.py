"""A follower behind a link over which one round takes longer than a node may be silent: what arrives counts, so it
catches up, and nothing is sent twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.ids import ShardKey
from stratalog_node.replication import peer as peer_module
from support.fault_proxy import SlowLink
from support.node_cluster import NodeCluster
from support.waiting import eventually

RATE_BYTES = 4 << 20
BATCH_BYTES = 1 << 20
BATCHES = 16


@pytest.fixture
async def link() -> AsyncIterator[SlowLink]:
    async with SlowLink(RATE_BYTES) as link:
        yield link


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: SlowLink) -> AsyncIterator[NodeCluster]:
    # A round of 8 MiB takes two seconds, and one second without a byte is too long.
    monkeypatch.setattr(peer_module, "_ANSWER_S", 0.5)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, advertised_listeners=f"internal://127.0.0.1:{link.port}")
        link.upstream_port = cluster.nodes[1].address[1]
        await cluster.start(2)
        yield cluster


async def led_by_node_1(cluster: NodeCluster) -> list[ShardKey]:
    """As many shards as fill one round with a segment's worth of each."""
    found: list[ShardKey] = []
    number = 0
    while len(found) < 8:
        key = await cluster.shard(2, f"topic-{number}", max_message_bytes=str(2 * BATCH_BYTES))
        number += 1
        if cluster.leader(key) == 1:
            found.append(key)
    return found


@pytest.mark.fault("link-two-nodes-slow")
async def test_a_follower_on_a_slow_link_keeps_what_arrives_and_catches_up(
    cluster: NodeCluster, link: SlowLink
) -> None:
    keys = await led_by_node_1(cluster)
    before_bytes, connections = link.answer_bytes, link.connections
    for number in range(BATCHES):
        await cluster.offer(keys[number % len(keys)], bytes(BATCH_BYTES), acks=1)

    def has_all() -> bool:
        copies = [cluster.replica(2, key) for key in keys]
        return all(copy is not None and copy.copy.end_offset == BATCHES // len(keys) for copy in copies)

    await eventually(has_all, timeout=60)
    assert link.answer_bytes - before_bytes < 1.5 * BATCHES * BATCH_BYTES, "what arrived was kept"
    assert link.connections == connections, "no answer that was on its way was given up"
