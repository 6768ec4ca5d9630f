"""A machine is lost with all that was on it; its cluster is rebuilt from the bucket alone, and clients continue."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess
from support.waiting import eventually_sync

STRATALOG = str(Path(sys.executable).with_name("stratalog"))
SETTINGS = {
    "meta.snapshot.interval.ms": 100,
    "remote.upload.interval.ms": 50,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
RECORDS = 300


def metrics(node: NodeProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{node.admin}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    found: dict[str, float] = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        found[name.partition("{")[0]] = found.get(name.partition("{")[0], 0) + float(value)
    return found


def is_all_in_the_bucket(node: NodeProcess) -> bool:
    told = metrics(node)
    is_told = told["stratalog_meta_snapshot_version"] == told["stratalog_meta_version"]
    return is_told and told["stratalog_tier_unsent_bytes"] == 0 and told["stratalog_tier_uploads_in_flight"] == 0


def consume(node: NodeProcess, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", shard, 0) for shard in range(2)])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(20)
        assert message is not None and message.error() is None, f"after {len(values)} records: {message}"
        values.append(message.value() or b"")
    consumer.close()
    return values


def rebuild(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([STRATALOG, "meta", "rebuild", *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.fault("everything-bucket-lost-disks")
def test_a_lost_machine_comes_back_from_its_bucket(tmp_path: Path) -> None:
    bucket, data = tmp_path / "bucket", tmp_path / "data"
    node = NodeProcess(data, bucket=str(bucket), settings=SETTINGS)
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("orders", 2, config={"retention.ms": "-1"})])["orders"].result(10)
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce("orders", value=b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    committer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "billing", "enable.auto.commit": False})
    committer.commit(offsets=[TopicPartition("orders", 0, 42)], asynchronous=False)
    committer.close()
    eventually_sync(lambda: is_all_in_the_bucket(node), timeout=30)
    node.kill()
    shutil.rmtree(data)

    dry = rebuild("--bucket", str(bucket), "--data", str(data), "--nodes", "1", "--dry-run", "--output", "json")
    assert dry.returncode == 0, dry.stderr
    assert not data.exists(), "a dry run changes nothing"
    done = rebuild("--bucket", str(bucket), "--data", str(data), "--nodes", "1", "--output", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["lost"] == [] and told["damaged"] == {} and told["ends"] == json.loads(dry.stdout)["ends"]
    again = rebuild("--bucket", str(bucket), "--data", str(data), "--nodes", "1")
    assert again.returncode == 2 and "an empty store" in again.stderr

    with NodeProcess(data, bucket=str(bucket), settings=SETTINGS) as node:
        assert sorted(map(int, consume(node, RECORDS))) == list(range(RECORDS))
        reader = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "billing"})
        (position,) = reader.committed([TopicPartition("orders", 0)], timeout=20)
        assert position.offset == 42
        reader.close()
        config = AdminClient({"bootstrap.servers": node.bootstrap})
        assert config.list_topics(timeout=10).topics["orders"].partitions.keys() == {0, 1}
