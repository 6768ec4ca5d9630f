"""A consumer that heard of a topic from another node than the one it fetches from, which has not heard of it yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.ids import ShardKey
from stratalog_node.shards.catalog import lag as catalog_lag
from support.node_cluster import NodeCluster
from support.raw_client import RawClient
from support.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        yield cluster


def client_of(cluster: NodeCluster, node_id: int) -> RawClient:
    host, port = cluster.nodes[node_id].address
    return RawClient(f"{host}:{port}")


async def led_by_node_2(cluster: NodeCluster) -> str:
    """A topic that node 1 knows, and that node 2, its leader, does not know yet."""
    for number in range(10):
        topic = await cluster.meta.service.perform(CreateTopic(f"topic-{number}", 1, 1))
        key = ShardKey(topic.topic_id, 0)
        await eventually(lambda key=key: cluster.nodes[1].shards.get(key) is not None)
        if cluster.segments(key, at=1)[0].leader == 2:
            return topic.name
    raise AssertionError("node 2 never leads")


async def fetched(client: RawClient, topic: str) -> int:
    return (await asyncio.to_thread(client.fetch, topic, 0, max_wait_ms=10))[0].error_code


@pytest.mark.fault("consumer-fetches-node-heard")
async def test_a_node_that_lags_catches_up_before_it_says_that_there_is_no_topic(cluster: NodeCluster) -> None:
    """It answered 3 at once."""
    with client_of(cluster, 2) as client:
        with cluster.deaf(2):
            topic = await led_by_node_2(cluster)
            before = cluster.meta.calls["read_version"]
            waiting = asyncio.create_task(fetched(client, topic))
            await eventually(lambda: cluster.meta.calls["read_version"] > before)
            assert not waiting.done()
        assert await waiting in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER), "retriable while the shard is being opened"
        await eventually(lambda: cluster.nodes[2].shards.by_name(topic, 0) is not None)
        assert await fetched(client, topic) == 0


async def test_a_client_asks_again_while_it_is_unknown_whether_a_topic_exists(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_lag, "_PATIENCE_MS", 20)
    with client_of(cluster, 2) as client, cluster.deaf(2):
        topic = await led_by_node_2(cluster)
        assert await fetched(client, topic) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_that_there_is_no_topic_is_said_once_it_is_sure(cluster: NodeCluster) -> None:
    with client_of(cluster, 2) as client:
        assert await fetched(client, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await fetched(client, "nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "also asked again"


async def test_a_client_may_leave_while_the_node_catches_up(cluster: NodeCluster) -> None:
    with cluster.deaf(2):
        topic = await led_by_node_2(cluster)
        with client_of(cluster, 2) as leaving:
            before = cluster.meta.calls["read_version"]
            leaving.send(leaving.fetch_frame(topic, 0))
            await eventually(lambda: cluster.meta.calls["read_version"] > before)
    await eventually(lambda: cluster.nodes[2].shards.by_name(topic, 0) is not None)
    with client_of(cluster, 2) as client:
        assert await fetched(client, topic) == 0
