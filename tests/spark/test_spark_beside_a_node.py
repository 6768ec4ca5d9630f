"""Spark reads what a running node has put into its bucket, and the node serves no byte of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka import Producer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest
from support.node_process import NodeProcess
from support.topics import create_topic, read
from support.waiting import eventually_sync

pytestmark = needs_spark

RECORDS = 2_000
SERVED = re.compile(
    r"stratalog_(kafka_(received_bytes|sent_bytes|produce_requests|fetch_requests|control_requests)"
    r"|log_(cached|disk)_read_bytes|cold_read_(answers|fetches|fetched_bytes|used_bytes)"
    r"|topic_fetched_bytes|peer_read_bytes|find_range_reads|object_store_bytes|object_store_requests)_total\b"
)
"""All that a node counts when it is asked for data, by whomever."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    settings = {
        "remote.upload.interval.ms": 100,
        "remote.orphan.sweep.interval.ms": 3_600_000,
        "meta.snapshot.interval.ms": 3_600_000,
        "offsets.topic.num.partitions": 1,
    }
    with NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), settings=settings) as running:
        create_topic(running.bootstrap, "flights", 2, {"message.timestamp.type": "LogAppendTime"})
        yield running


def fill(node: NodeProcess) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
    for number in range(RECORDS):
        key = b"%d" % number if number % 3 else None
        headers = [("number", b"%d" % number), ("none", None)]
        producer.produce("flights", b"%0100d" % number, key, number % 2, headers=headers, timestamp=1_000 + number)
    assert producer.flush(60) == 0
    admin = AdminClient(node.admin)
    admin.seal(SealRequest(topic="flights"))

    def is_complete() -> bool:
        filled = [one for one in admin.segments("flights") if one.end_offset > one.base_offset]
        return len(filled) == 2 and all(one.remote_state == "complete" for one in filled)

    eventually_sync(is_complete, timeout=60)


def served(node: NodeProcess) -> dict[str, float]:
    return {name: value for name, value in node.metrics().items() if SERVED.match(name)}


def settled(node: NodeProcess) -> dict[str, float]:
    """Once nothing moves by itself any more."""
    seen = [served(node)]

    def is_still() -> bool:
        time.sleep(0.5)
        seen.append(served(node))
        return len(seen) > 4 and seen[-1] == seen[-2] == seen[-3]

    eventually_sync(is_still, timeout=60)
    return seen[-1]


def test_the_node_serves_no_byte_of_what_spark_reads(spark: Any, node: NodeProcess) -> None:
    began_s = time.time()
    fill(node)
    before = settled(node)
    assert {"stratalog_kafka_sent_bytes_total", "stratalog_log_disk_read_bytes_total"} <= before.keys()
    frame = (
        spark.read.format("stratalog").option("topics", "flights").option("partitionBytes", "4096").load(node.bucket)
    )
    rows = frame.orderBy("shard", "offset").collect()
    assert frame.where("shard = 1 and offset >= 900").count() == 100
    assert {name: (before[name], now) for name, now in served(node).items() if now != before[name]} == {}
    assert node.is_running
    for row, number in zip(rows, [*range(0, RECORDS, 2), *range(1, RECORDS, 2)], strict=True):
        assert (row.topic, row.shard, row.offset) == ("flights", number % 2, number // 2)
        assert (row.key, bytes(row.value)) == (b"%d" % number if number % 3 else None, b"%0100d" % number)
        headers = [(one.key, None if one.value is None else bytes(one.value)) for one in row.headers]
        assert headers == [("number", b"%d" % number), ("none", None)]
        assert row.timestamp_type == 1, "when it was appended"
        assert began_s - 1 < row.timestamp.replace(tzinfo=UTC).timestamp() < time.time() + 1
    # The counters do count: a Kafka client moves them.
    assert len(read(node.bootstrap, "flights", RECORDS // 2, 0)) == RECORDS // 2
    after = served(node)
    assert after["stratalog_kafka_sent_bytes_total"] - before["stratalog_kafka_sent_bytes_total"] > 100 * RECORDS // 2
