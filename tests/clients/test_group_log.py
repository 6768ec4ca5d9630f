"""The group log of a real node: bounded by snapshots, whole after kill -9, unharmed by what clients write into it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from support.node_process import NodeProcess
from support.topics import create_topic

SHARDS = 4
NOTE = "x" * 4_000
"""Metadata near the limit, so that few commits make a long log."""


def counter(node: NodeProcess, name: str) -> float:
    page = urllib.request.urlopen(f"http://{node.admin}/metrics", timeout=10).read().decode()
    return sum(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"stratalog_groups_{name} "))


def committer(node: NodeProcess, group_id: str) -> Consumer:
    return Consumer({"bootstrap.servers": node.bootstrap, "group.id": group_id, "enable.auto.commit": False})


def committed(node: NodeProcess, group_id: str, topic: str) -> list[tuple[int, str]]:
    consumer = committer(node, group_id)
    found = consumer.committed([TopicPartition(topic, shard) for shard in range(SHARDS)], timeout=20)
    consumer.close()
    return [(partition.offset, partition.metadata) for partition in found]


def test_offsets_survive_snapshots_trims_kills_and_foreign_writes(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node(settings={"offsets.topic.num.partitions": 1})
    create_topic(node.bootstrap, topic, SHARDS)
    once = committer(node, "once")
    once.commit(offsets=[TopicPartition(topic, shard, 7, "early") for shard in range(SHARDS)], asynchronous=False)
    consumer = committer(node, "often")
    count = 0
    while counter(node, "snapshots_total") < 2:
        for _ in range(100):
            count += 1
            places = [TopicPartition(topic, shard, count, NOTE) for shard in range(SHARDS)]
            assert all(place.error is None for place in consumer.commit(offsets=places, asynchronous=False))
        assert count < 5_000, "the log grows, and no snapshot is made"
    for client in (once, consumer):
        client.close()

    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce("__consumer_offsets", b"not an entry", partition=0)
    producer.flush(10)
    for _ in range(2):
        node.kill()
        node.start()
        assert committed(node, "often", topic) == [(count, NOTE)] * SHARDS
        assert committed(node, "once", topic) == [(7, "early")] * SHARDS
        assert counter(node, "incomplete_loads_total") == 0
