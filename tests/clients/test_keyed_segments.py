"""Segments of a topic with a key index, on a real node: they come to the bucket whole, with an index behind them.

`make test-compiled` runs it against the compiled formats, where the index is made: its batches are looked at in groups.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.node_process import NodeProcess
from support.topics import create_topic
from support.waiting import eventually_sync


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_segments_of_a_topic_with_a_key_index_are_completed(
    start_node: Callable[..., NodeProcess], tmp_path: Path, topic: str, codec: str
) -> None:
    bucket = tmp_path / "bucket"
    node = start_node(str(bucket), {"remote.upload.chunk.bytes": 4096})
    create_topic(node.bootstrap, topic, 1, {"index.keys": "true", "segment.bytes": 20_000})
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 1, "compression.type": codec})
    for number in range(1_000):
        producer.produce(topic, random.Random(number).randbytes(200), b"key-%d" % (number % 50))
        if number % 10 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    eventually_sync(lambda: len(set(bucket.rglob("*.manifest"))) >= 2, 60)
    assert len(set(bucket.rglob("*.keys"))) >= 2
    assert "ended by an unexpected error" not in node.log_text()
