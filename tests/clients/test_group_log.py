"""The group log of a real node: bounded by snapshots, whole after kill -9, unharmed by what clients write into it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from stratalog.admin_api.client import AdminClient as AdminApiClient
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
    refused = []
    producer.produce(
        "__consumer_offsets", b"not an entry", partition=0, on_delivery=lambda error, _: refused.append(error)
    )
    producer.flush(10)
    assert [error.code() for error in refused] == [KafkaError.TOPIC_EXCEPTION]
    for _ in range(2):
        node.kill()
        node.start()
        assert committed(node, "often", topic) == [(count, NOTE)] * SHARDS
        assert committed(node, "once", topic) == [(7, "early")] * SHARDS
        assert counter(node, "incomplete_loads_total") == 0


@pytest.mark.fault("client-admin-api-command")
def test_no_client_makes_alters_grows_or_deletes_the_group_log(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node(settings={"offsets.topic.num.partitions": 3})
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    log = "__consumer_offsets"
    config = ConfigResource(ConfigResource.Type.TOPIC, log, set_config={"segment.bytes": "1000"})

    def code_of(future: Any) -> int:
        with pytest.raises(KafkaException) as caught:
            future.result(20)
        return int(caught.value.args[0].code())

    assert code_of(admin.create_topics([NewTopic(log, 1, 1)])[log]) == KafkaError.TOPIC_EXCEPTION
    create_topic(node.bootstrap, topic, SHARDS)
    groups = [f"group-{number}" for number in range(12)]
    for number, group in enumerate(groups):
        client = committer(node, group)
        client.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=False)
        client.close()
    assert code_of(admin.create_partitions([NewPartitions(log, 50)])[log]) == KafkaError.POLICY_VIOLATION
    assert code_of(admin.alter_configs([config])[config]) == KafkaError.POLICY_VIOLATION
    assert code_of(admin.delete_topics([log])[log]) == KafkaError.TOPIC_DELETION_DISABLED
    told = AdminApiClient(node.admin).topic(log).topic
    assert (told.shards, told.is_internal, told.settings["retention.ms"]) == (3, True, "-1")
    assert [committed(node, group, topic)[0][0] for group in groups] == list(range(12))
