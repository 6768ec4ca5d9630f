"""What a fetch is answered: size limits (F58), waiting at the high watermark, offsets out of range."""

from __future__ import annotations

import time
from collections.abc import Callable

import confluent_kafka
import pytest
from kafka import KafkaConsumer, TopicPartition

from support.node_process import NodeProcess
from support.raw_client import RawClient, batch_of
from support.topics import create_topic
from support.waiting import eventually_sync

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC = 1, 3
BATCH = batch_of(bytes(10_000))


@pytest.fixture
def filled(node: NodeProcess, topic: str) -> str:
    """A topic of 3 shards with twenty batches of about 10 kB in each."""
    create_topic(node.bootstrap, topic, 3)
    with RawClient(node.bootstrap) as raw:
        for partition in range(3):
            for _ in range(20):
                assert raw.produce(topic, BATCH, partition=partition).error_code == 0
    return topic


@pytest.mark.fault("answer-larger-client-node")
@pytest.mark.parametrize("limit", [0, 1, 100, len(BATCH) - 1])
def test_at_least_one_batch_comes_however_small_the_limits_are(limit: int, node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as raw:
        (only,) = raw.fetch(filled, 3, max_bytes=limit, partition_max_bytes=limit)
    assert [batch.base_offset for batch in only.batches()] == [3], "one whole batch, so that the client moves on (F58)"


def test_a_partition_gets_whole_batches_up_to_its_limit(node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as raw:
        (only,) = raw.fetch(filled, 0, partition_max_bytes=3 * len(BATCH) + 5000)
    assert [batch.base_offset for batch in only.batches()] == [0, 1, 2]


def test_the_answer_limit_holds_for_all_partitions_together(node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as raw:
        answers = raw.fetch(
            filled, 0, partitions=(2, 0, 1), max_bytes=5 * len(BATCH), partition_max_bytes=4 * len(BATCH)
        )
    sizes = [len(answer.batches()) for answer in answers]
    assert sizes[0] == 4, "partitions are filled in the order of the request"
    assert sum(sizes) == 5


def test_the_first_partition_with_data_gets_its_batch_also_behind_empty_ones(node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as raw:
        raw.send(raw.fetch_frame(filled, 20, partitions=(0,), max_wait_ms=0))
        assert raw.receive_fetched()[0].records == b""
        produced = raw.produce(filled, BATCH, partition=1)
        answers = raw.fetch(filled, 20, partitions=(0, 1, 2), max_bytes=1, partition_max_bytes=1)
    assert produced.base_offset == 20
    assert [len(answer.batches()) for answer in answers] == [0, 1, 0]


def test_a_client_with_tiny_limits_reads_everything(node: NodeProcess, filled: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=node.bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=1,
        fetch_max_bytes=1,
        fetch_max_wait_ms=50,
    )
    consumer.assign([TopicPartition(filled, partition) for partition in range(3)])
    consumer.seek_to_beginning()
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 30
    while len(found) < 60 and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found += [(record.partition, record.offset) for record in records]
    consumer.close()
    assert sorted(found) == [(partition, offset) for partition in range(3) for offset in range(20)]


@pytest.mark.fault("answer-larger-client-node")
def test_the_servers_own_limit_clips_what_a_client_asks_for(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node(settings={"fetch.max.bytes": 40_000})
    create_topic(node.bootstrap, topic)
    with RawClient(node.bootstrap) as raw:
        for _ in range(10):
            raw.produce(topic, BATCH)
        (only,) = raw.fetch(topic, 0, max_bytes=1 << 30, partition_max_bytes=1 << 30)
    assert len(only.batches()) == 3


@pytest.mark.fault("follower-next-offset-longer")
def test_offsets_outside_the_log_are_an_error_and_the_end_is_not(node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as raw:
        (at_end,) = raw.fetch(filled, 20, max_wait_ms=0)
        (beyond,) = raw.fetch(filled, 21)
        (negative,) = raw.fetch(filled, -5)
        (unknown,) = raw.fetch("no-such-topic", 0)
    assert (at_end.error_code, at_end.records, at_end.high_watermark) == (0, b"", 20)
    assert beyond.error_code == negative.error_code == OFFSET_OUT_OF_RANGE
    assert unknown.error_code == UNKNOWN_TOPIC


def test_a_waiting_fetch_is_woken_by_the_append_and_not_by_a_timer(node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as reader, RawClient(node.bootstrap) as writer:
        reader.send(reader.fetch_frame(filled, 20, partitions=(0, 1, 2), max_wait_ms=600_000))
        writer.produce(filled, BATCH, partition=2)
        answers = reader.receive_fetched()
    assert [len(answer.batches()) for answer in answers] == [0, 0, 1]


def test_a_fetch_waits_until_it_has_min_bytes(node: NodeProcess, filled: str) -> None:
    with RawClient(node.bootstrap) as reader, RawClient(node.bootstrap) as writer:
        reader.send(reader.fetch_frame(filled, 20, max_wait_ms=600_000, min_bytes=2 * len(BATCH)))
        writer.produce(filled, BATCH)
        writer.produce(filled, BATCH)
        (only,) = reader.receive_fetched()
    assert len(only.batches()) == 2


def test_consumers_at_the_high_watermark_make_no_storm(node: NodeProcess, filled: str) -> None:
    wait_s = 0.5
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "unused", "fetch.wait.max.ms": int(wait_s * 1000)}
    )
    consumer.assign([confluent_kafka.TopicPartition(filled, partition, 20) for partition in range(3)])

    def fetches() -> float:
        consumer.poll(0.01)
        return node.metrics()["stratalog_kafka_fetch_requests_total"]

    begun = fetches()
    eventually_sync(lambda: fetches() > begun, 20)
    first, began_s = fetches(), time.monotonic()
    eventually_sync(lambda: fetches() >= first + 4, 20)
    answered = fetches() - first
    elapsed_s = time.monotonic() - began_s
    consumer.close()
    # A slower machine only makes this longer; a storm would answer thousands.
    assert answered <= elapsed_s / wait_s + 1
