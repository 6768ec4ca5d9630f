"""Clients and commands on data that the bucket has in an archive class: consumers skip nothing, commands say what it
is, and reads continue once it was restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest, Tier
from stratalog_cli.entry import build_app
from support.class_server import ClassServer, class_server_in_thread
from support.node_process import NodeProcess
from support.topics import create_topic, produce, read, values_of
from support.waiting import eventually_sync

QUICK = {"remote.upload.interval.ms": 100, "log.retention.check.interval.ms": 100}
VALUES = [b"value-%d" % number for number in range(20)]
ARCHIVED = "stratalog_cold_read_archived_ranges_total"


@pytest.fixture
def bucket() -> Iterator[ClassServer]:
    with class_server_in_thread() as server:
        yield server


def freeze(node: NodeProcess, topic: str) -> None:
    """Seals the topic and waits until only the bucket has its records."""
    admin = AdminClient(node.admin)
    admin.seal(SealRequest(topic=topic))

    def is_cold() -> bool:
        segments = [segment for segment in admin.segments(topic) if segment.end_offset > segment.base_offset]
        return bool(segments) and all(segment.tier is Tier.COLD for segment in segments)

    eventually_sync(is_cold, 30)


@pytest.mark.fault("lifecycle-rule-moved-object")
def test_consumers_wait_for_a_restore_and_commands_say_what_is_archived(
    start_node: Callable[..., NodeProcess], topic: str, bucket: ClassServer, tmp_path: Path
) -> None:
    node = start_node(bucket.url(), QUICK)
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1})
    produce(node.bootstrap, topic, VALUES)
    freeze(node, topic)
    bucket.archive("DEEP_ARCHIVE", of=lambda key: key.endswith((".chunk", ".bundle")))
    settings = {"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "latest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    eventually_sync(lambda: consumer.poll(0.2) is not None or node.metrics()[ARCHIVED] > 0, 30)
    assert node.metrics()[ARCHIVED] > 0
    before, requests = node.metrics()[ARCHIVED], 5
    for _ in range(requests):
        assert consumer.poll(0.1) is None, "neither a record nor an error that ends a consumer"
    assert node.metrics()[ARCHIVED] - before < requests, "the store is asked after pauses"

    (line,) = AdminClient(node.admin).status().damaged
    assert f"{topic}-0: segment 0-0: readers wait" in line and "archive class DEEP_ARCHIVE" in line
    bucket.begin_restore()
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", bucket.url(), "--output", "json"])
    found_there = [one for place in json.loads(ran.stdout) for one in place["findings"]]
    findings = [one for one in found_there if "DEEP_ARCHIVE" in one["what"]]
    assert findings and {one["severity"] for one in findings} == {"warning"}
    assert "a restore is under way" in findings[0]["what"] and findings[0]["next_step"].startswith("wait until")

    bucket.end_restore()
    found: list[bytes] = []

    def is_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            found.append(message.value() or b"")
        return len(found) == len(VALUES)

    eventually_sync(is_read, 60)
    consumer.close()
    assert found == VALUES == values_of(read(node.bootstrap, topic, len(VALUES)))
    eventually_sync(lambda: AdminClient(node.admin).status().damaged == [], 30)
