"""A reader by librdkafka follows shards that roll all the time: each roll is a new epoch, and no record is passed over.

librdkafka asks after each new epoch whether its position still holds. While it waits for the answer it takes in records
of the next epoch, and compares with the position behind them: told where the epoch before ended, it goes back there and
throws away what its application has not taken yet.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from support import kafka_oracle
from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic
from support.waiting import eventually_sync

SHARDS = 8
RECORDS = 12_000
AHEAD = 100


class Writer:
    """Writes to all shards, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "acks": "1"})
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _write(self) -> None:
        while not self._stopping.is_set():
            for shard in range(SHARDS):
                self._producer.produce(self._topic, bytes(100), partition=shard)
            self._producer.poll(0.002)
        self._producer.purge()


@pytest.mark.fault("librdkafka-reader-asks-roll")
def test_no_record_is_passed_over_while_its_shard_rolls(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic, SHARDS, settings={"segment.bytes": 4_000})
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 10,  # it hears of each epoch at once
        }
    )
    reader.assign([confluent_kafka.TopicPartition(topic, shard, 0) for shard in range(SHARDS)])
    expected: Counter[int] = Counter()

    def is_behind(shard: int) -> bool:
        """What the client has waits for its application."""
        known = reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, shard), cached=True)
        return known[1] >= expected[shard] + AHEAD

    try:
        with Writer(node.bootstrap, topic):
            for taken in range(RECORDS):
                message = reader.poll(30)
                assert message is not None, "nothing comes"
                assert message.error() is None, message.error()
                shard, offset = message.partition() or 0, message.offset() or 0
                assert offset <= expected[shard], f"shard {shard}: {offset - expected[shard]} records were passed over"
                expected[shard] = max(expected[shard], offset + 1)
                if taken % AHEAD == 0:
                    eventually_sync(lambda shard=shard: is_behind(shard), timeout=30)
    finally:
        reader.close()


def test_the_answer_about_an_epoch_is_as_new_as_the_fetch_answered_before_it(node: NodeProcess, topic: str) -> None:
    """A fetch waits for data, and the question about its epoch comes behind it on the same connection."""
    create_topic(node.bootstrap, topic)
    question = kafka_oracle.request_class(23)
    partition = question.OffsetForLeaderTopic.OffsetForLeaderPartition(
        version=2, partition=0, current_leader_epoch=-1, leader_epoch=0
    )
    topics = [question.OffsetForLeaderTopic(version=2, topic=topic, partitions=[partition])]
    with RawClient(node.bootstrap) as reader, RawClient(node.bootstrap) as writer:
        waiting = reader.fetch_frame(topic, 0, max_wait_ms=8_000)
        reader.send(waiting + reader.frame(23, 2, topics=topics))
        assert writer.produce(topic, batch_of(b"a", b"b", b"c")).base_offset == 0
        assert reader.receive_fetched()[0].high_watermark == 3
        told = kafka_oracle.decode_response(23, 2, reader.receive_frame())
    assert told.topics[0].partitions[0].end_offset == 3
