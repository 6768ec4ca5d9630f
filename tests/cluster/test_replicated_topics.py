"""Two nodes as processes of their own, each with a copy of every shard, under a real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually_sync

SHARDS = 4


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    meta = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=("node.lease.ms=1000",)).start()
    started = [
        NodeProcess(
            tmp_path / f"node-{number}",
            verb=("node", "start"),
            arguments=("--meta", meta.url, "--id", str(number)),
        ).start()
        for number in (1, 2)
    ]
    yield started
    for node in started:
        node.kill()
    meta.kill()


def bootstrap_of(nodes: list[NodeProcess]) -> str:
    return ",".join(node.bootstrap for node in nodes)


def produce(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    failed: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            "flights",
            value.encode(),
            partition=number % SHARDS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0 and failed == []


def consume(bootstrap: str, count: int) -> set[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("flights", shard, 0) for shard in range(SHARDS)])
    found: set[str] = set()

    def has_all() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            if message.error() is None:
                found.add(bytes(message.value() or b"").decode())
        return len(found) >= count

    eventually_sync(has_all, timeout=60)
    consumer.close()
    return found


def test_what_was_acknowledged_survives_the_kill_of_either_node(nodes: list[NodeProcess]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_of(nodes)})
    for made in admin.create_topics([NewTopic("flights", SHARDS, 2)]).values():
        made.result(30)
    before = [f"before-{number}" for number in range(400)]
    produce(bootstrap_of(nodes), before)
    killed, left = nodes
    killed.kill()
    after = [f"after-{number}" for number in range(100)]
    produce(left.bootstrap, after)
    assert consume(left.bootstrap, 500) == {*before, *after}
