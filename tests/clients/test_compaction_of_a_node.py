"""Chunks of a running node are merged, and packed, while a Kafka client reads them from the bucket; what is damaged
after that is made again of the node's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from stratalog_cli.entry import build_app
from support.cluster_ports import free_port
from support.node_process import NodeProcess
from support.topics import create_topic
from support.waiting import eventually_sync

RECORDS = 2_400
SETTINGS = {
    "remote.upload.interval.ms": 50,
    "remote.upload.chunk.bytes": 4_096,
    "remote.upload.bundle.bytes": 8_192,
    "remote.upload.timeout.ms": 5_000,
    "remote.orphan.grace.ms": 6_000,
    "remote.orphan.sweep.interval.ms": 200,
    "remote.read.policy": "Force",
}


@pytest.fixture
def meta() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def node(tmp_path: Path, meta: str) -> Iterator[NodeProcess]:
    settings = SETTINGS | {"meta.listen": meta}
    with NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), settings=settings) as running:
        yield running


def pipeline(*words: str) -> Any:
    ran = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", *words, "--threads", "0", "--output", "json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def values(node: NodeProcess, count: int = RECORDS) -> list[bytes]:
    reader = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False})
    reader.assign([TopicPartition("flights", 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = reader.poll(30)
        assert message is not None and message.error() is None, f"after {len(found)} records: {message}"
        found.append(message.value() or b"")
    reader.close()
    return found


def parts_beside(one: Path) -> list[Path]:
    return [*one.parent.glob("*.chunk"), *one.parent.glob("*.packed")]


@pytest.mark.fault("chunks-merged-readers-hold")
@pytest.mark.parametrize("kind", ["chunk", "packed"])
def test_clients_keep_reading_and_files_of_the_node_still_repair_it(
    node: NodeProcess, meta: str, tmp_path: Path, kind: str
) -> None:
    bucket = tmp_path / "bucket"
    create_topic(node.bootstrap, "flights", 1, {"index.keys": "true", "segment.bytes": 60_000})
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 1, "enable.idempotence": True})
    sent = [b"%060d" % number for number in range(RECORDS)]
    for number, value in enumerate(sent):
        producer.produce("flights", value, b"flight-%d" % (number % 300))
        if number % 20 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    eventually_sync(lambda: len(set(bucket.rglob("*.manifest"))) >= 2, 60)
    assert values(node) == sent
    places = ("--bucket", str(bucket), "--meta", f"http://{meta}")
    told = pipeline("compact", *places, "--topics", "flights", *(["--pack"] if kind == "packed" else []))
    assert told["merged"] >= 2 and told["objects_after"] == told["merged"] and told["not_merged"] == []
    assert told["packed"] == (told["merged"] if kind == "packed" else 0)
    assert values(node) == sent
    merged = [path for path in bucket.rglob(f"*.{kind}") if ".2147483648." in path.name]
    assert len(merged) == told["merged"]
    eventually_sync(lambda: all(parts_beside(one) == [one] for one in merged), 60)
    assert values(node) == sent, "the old objects are gone"
    before = merged[0].read_bytes()
    merged[0].write_bytes(before[:-100])
    mended = pipeline("verify", *places, "--topics", "flights", "--repair", str(node.data_dir))
    assert mended["repaired"] and mended["findings"] == [] and merged[0].read_bytes() == before
