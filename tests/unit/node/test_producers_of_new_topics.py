"""The first batches of an idempotent producer to a topic that the node it writes to has not heard of yet.

Kafka 4.3.1, one node, raw batches of one record: sequence 0 to an unknown topic 3; once the topic is made sequence 1 is
taken, sequence 0 gets 45. An empty partition takes sequence 5 of an unknown producer, also of epoch 3, and sequence 0
gets 45 after it. A partition with another producer's record, and one whose records were deleted, take it as well. The
node differs only in the first two: it answers 56, and takes sequence 0 first (`clients/test_kafka_answers.py`, with the
command that recorded Kafka's answers).

Kafka's Java producer (4.3.1, four batches of one record to each of 525 partitions, of 21 topics made just before, three
replicas) against three nodes in one process: 2,100 acknowledged, none failed.
"""

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
from support.raw_client import RawClient, batch_of
from support.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeCluster]:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        yield cluster


def sequenced(sequence: int) -> bytes:
    return batch_of(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)


def client_of(cluster: NodeCluster, node_id: int) -> RawClient:
    host, port = cluster.nodes[node_id].address
    return RawClient(f"{host}:{port}")


async def made(cluster: NodeCluster, name: str, seen_by: int) -> ShardKey:
    topic = await cluster.meta.service.perform(CreateTopic(name, 1, 1))
    key = ShardKey(topic.topic_id, 0)
    await eventually(lambda: cluster.nodes[seen_by].shards.get(key) is not None)
    return key


async def led_by_node_2(cluster: NodeCluster) -> str:
    """A topic that node 1 knows, and that node 2, its leader, does not know yet."""
    for number in range(10):
        key = await made(cluster, f"topic-{number}", seen_by=1)
        if cluster.segments(key, at=1)[0].leader == 2:
            return f"topic-{number}"
    raise AssertionError("node 2 never leads")


async def produced(client: RawClient, topic: str, sequence: int) -> int:
    return (await asyncio.to_thread(client.produce, topic, sequenced(sequence))).error_code


@pytest.mark.fault("idempotent-producer-sends-first")
async def test_what_was_refused_before_a_node_heard_of_the_topic_comes_before_what_follows_it(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two batches the first got 3, the second was taken, and the first got 45 for ever."""
    monkeypatch.setattr(catalog_lag, "_PATIENCE_MS", 20)
    with client_of(cluster, 2) as client, cluster.deaf(2):
        topic = await led_by_node_2(cluster)
        assert await produced(client, topic, 0) == ErrorCode.LEADER_NOT_AVAILABLE, "it may exist: nobody can say"
    with client_of(cluster, 2) as client:
        shard = cluster.nodes[2].shards.by_name(topic, 0)
        assert shard is not None, "it has heard of it now"
        await cluster.append(shard.key, b"of another")  # else what never held a record takes no later batch anyway
        assert await produced(client, topic, 1) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produced(client, topic, 0) == 0
        assert await produced(client, topic, 1) == 0
        assert await cluster.values(shard.key) == [b"of another", b"0", b"1"]


@pytest.mark.fault("idempotent-producer-sends-first")
async def test_a_node_that_lags_catches_up_before_it_says_that_there_is_no_topic(cluster: NodeCluster) -> None:
    with client_of(cluster, 2) as client:
        with cluster.deaf(2):
            topic = await led_by_node_2(cluster)
            before = cluster.meta.calls["read_version"]
            waiting = asyncio.create_task(produced(client, topic, 0))
            await eventually(lambda: cluster.meta.calls["read_version"] > before)
            assert not waiting.done()
        assert await waiting == ErrorCode.LEADER_NOT_AVAILABLE, "retriable: it is here by now"
        assert await produced(client, topic, 0) == 0


async def test_what_another_node_leads_is_said_once_it_is_known(cluster: NodeCluster) -> None:
    with client_of(cluster, 2) as client:
        with cluster.deaf(2):
            key = await made(cluster, "first", seen_by=1)
            assert cluster.segments(key, at=1)[0].leader == 1
            before = cluster.meta.calls["read_version"]
            waiting = asyncio.create_task(produced(client, "first", 0))
            await eventually(lambda: cluster.meta.calls["read_version"] > before)
        assert await waiting == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_that_there_is_no_topic_is_said_once_it_is_sure(cluster: NodeCluster) -> None:
    with client_of(cluster, 2) as client:
        assert await produced(client, "nowhere", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        key = await made(cluster, "somewhere", seen_by=2)
        topic = cluster.nodes[2].catalog.topic_by_id(key.topic_id)
        assert topic is not None
