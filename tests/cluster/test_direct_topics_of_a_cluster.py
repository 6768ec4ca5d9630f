"""A Direct topic on real processes over a bucket: nodes are killed with `kill -9`, their disks are deleted, and real
clients lose nothing of what was acknowledged (docs/direct-spec.md)."""

from __future__ import annotations

import shutil
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
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=("node.lease.ms=500",)).start()
    yield process
    if process.is_running:
        process.kill()


class Nodes:
    def __init__(self, meta: MetaProcess, folder: Path) -> None:
        self._meta, self._folder = meta, folder
        self.running: dict[int, NodeProcess] = {}

    def start(self, number: int) -> None:
        self.running[number] = NodeProcess(
            self._folder / f"node-{number}",
            verb=("node", "start"),
            arguments=("--meta", self._meta.url, "--id", str(number), "--bucket", f"file://{self._folder / 'bucket'}"),
        ).start()

    def lose(self, number: int) -> None:
        """With its disk."""
        self.running.pop(number).kill()
        shutil.rmtree(self._folder / f"node-{number}")

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.running.values())


@pytest.fixture
def nodes(meta: MetaProcess, tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "bucket").mkdir()
    nodes = Nodes(meta, tmp_path)
    yield nodes
    for node in nodes.running.values():
        node.kill()


class Writing:
    """An idempotent producer, as clients are by default. `acknowledged`: value -> where it is."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self._name = name
        settings = {"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000, "enable.idempotence": True}
        self._producer = Producer(settings)
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self._failed: list[object] = []
        self._count = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            value = f"{self._name}-{self._count}"
            self._producer.produce("flights", value.encode(), partition=self._count % SHARDS, on_delivery=self._told)
            self._count += 1

    def _told(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(error)
        else:
            self.acknowledged[message.value().decode()] = message.partition(), message.offset()  # type: ignore[attr-defined]

    def until_acknowledged(self) -> None:
        assert self._producer.flush(60) == 0 and self._failed == [] and len(self.acknowledged) == self._count


def read(bootstrap: str, count: int) -> dict[str, tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("flights", shard, 0) for shard in range(SHARDS)])
    found: dict[str, tuple[int, int]] = {}

    def has_all() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            assert message.error() is None, message.error()
            value = bytes(message.value() or b"").decode()
            assert value not in found, f"{value} is there twice"
            found[value] = message.partition(), message.offset()
        return len(found) >= count

    eventually_sync(has_all, timeout=60)
    consumer.close()
    return found


@pytest.mark.fault("direct-leader-killed")
def test_nodes_and_their_disks_are_lost_one_after_the_other_and_nothing_that_was_acknowledged_is(nodes: Nodes) -> None:
    nodes.start(1)
    nodes.start(2)
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    topic = NewTopic("flights", SHARDS, 1, config={"storage.policy": "Direct", "segment.bytes": "20000"})
    for made in admin.create_topics([topic]).values():
        made.result(30)
    first = Writing("first", nodes.bootstrap)
    first.send(400)
    first.until_acknowledged()
    first.send(400)
    nodes.lose(1)
    first.until_acknowledged()
    nodes.start(3)
    second = Writing("second", nodes.bootstrap)
    second.send(400)
    nodes.lose(2)
    second.until_acknowledged()
    assert read(nodes.bootstrap, 1_200) == first.acknowledged | second.acknowledged
