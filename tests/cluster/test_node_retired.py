"""A real cluster lets a node go while a producer writes: by the command line, to its end, and never to come back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.meta_process import MetaProcess
from support.node_process import NodeFailed, NodeProcess
from support.waiting import eventually_sync

STRATALOG = str(Path(sys.executable).with_name("stratalog"))
QUICK = {"remote.upload.interval.ms": "100", "retire.verify.interval.ms": "300", "offsets.topic.num.partitions": "1"}


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    settings = ("node.lease.ms=1000", "retire.verify.interval.ms=300")
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=settings).start()
    yield process
    process.kill()


@pytest.fixture
def nodes(tmp_path: Path, meta: MetaProcess) -> Iterator[dict[int, NodeProcess]]:
    started = {}
    for number in (1, 2):
        arguments = ("--meta", meta.url, "--id", str(number), "--bucket", str(tmp_path / "bucket"))
        node = NodeProcess(tmp_path / f"node-{number}", None, dict(QUICK), verb=("node", "start"), arguments=arguments)
        started[number] = node.start()
    yield started
    for one in started.values():
        one.kill()


class Writing:
    """An idempotent producer that never stops asking; its answers are counted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self.failures: list[str] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
        self._topic, self._is_over = topic, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            self._producer.produce(self._topic, str(number), callback=self._told)
            number += 1
            self._producer.poll(0.005)

    def _told(self, error: object, message: object) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.add(int(message.value()))  # type: ignore[attr-defined]

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(10)
        self._producer.flush(20)


def run(*arguments: str, meta: MetaProcess) -> subprocess.CompletedProcess[str]:
    command = [STRATALOG, "nodes", *arguments, "--meta", meta.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def make_topic(bootstrap: str, topic: NewTopic) -> None:
    """Once the node that is asked has heard of as many others."""
    client = AdminClient({"bootstrap.servers": bootstrap})

    def is_made() -> bool:
        (made,) = client.create_topics([topic]).values()
        try:
            made.result(20)
        except KafkaException as error:
            return error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        return True

    eventually_sync(is_made, 20)


def drop_topic(bootstrap: str, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    for dropped in client.delete_topics([topic]).values():
        dropped.result(20)


def read_all(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    found: list[int] = []
    try:
        consumer.assign([TopicPartition(topic, shard, 0) for shard in (0, 1)])
        end = time.monotonic() + 30
        while len(found) < count and time.monotonic() < end:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
    finally:
        consumer.close()
    return found


@pytest.mark.fault("retirement-cancelled-retired-node")
def test_a_node_is_retired_by_command_under_a_producer_and_all_is_read_afterwards(
    meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    bootstrap = ",".join(node.bootstrap for node in nodes.values())
    make_topic(bootstrap, NewTopic("flights", 2, 1))
    make_topic(bootstrap, NewTopic("wide", 1, 2))
    waiting = run("retire", "1", "--wait", "--timeout", "1.5", meta=meta)
    assert waiting.returncode == 3 and "ReplicationFactor" in waiting.stderr and "1 node stays" in waiting.stderr
    drop_topic(bootstrap, "wide")
    writing = Writing(bootstrap, "flights")
    eventually_sync(lambda: len(writing.acknowledged) > 100, 20)

    done = run("retire", "1", "--wait", "--timeout", "150", "--output", "json", meta=meta)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert told["retirement"]["step"] == "done" and told["remaining_segments"] == 0
    before = len(writing.acknowledged)
    eventually_sync(lambda: len(writing.acknowledged) > before + 50, 20)
    writing.end()
    assert not writing.failures

    listed = run("list", meta=meta)
    assert "retired" in listed.stdout and "alive" in listed.stdout
    refused = run("cancel", "1", meta=meta)
    assert refused.returncode == 2 and "was released" in refused.stderr

    eventually_sync(lambda: not nodes[1].is_running, 20)
    with pytest.raises(NodeFailed) as failure:
        nodes[1].start()
    assert "was retired" in str(failure.value)

    found = read_all(nodes[2].bootstrap, "flights", len(writing.acknowledged))
    assert sorted(found) == sorted(writing.acknowledged), "every acknowledged record, once"
