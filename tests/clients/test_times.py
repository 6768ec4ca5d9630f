"""Offsets for times: the first record at or after a moment, exact inside a compressed batch, whichever client asks."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioShard

from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from support.foreign_clients import CODECS
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.topics import create_topic, read

BASE_MS = 1_700_000_000_000
TIMES = [10, 20, 20, 50, 40, 90, 60, 100]
"""Of eight records in one batch; not in order, as producers' clocks are."""


def write_batches(node: NodeProcess, topic: str, codec: str, batches: int = 3) -> None:
    """Batch n holds TIMES + 1000 n: offsets 8 n to 8 n + 7."""
    with RawClient(node.bootstrap) as raw:
        for number in range(batches):
            times = [BASE_MS + 1000 * number + time for time in TIMES]
            records = [Record(NEXT_OFFSET, time, None, b"x" * 50) for time in times]
            batch = encode_batch(records, compression=CODECS.index(codec))
            assert raw.produce(topic, batch).base_offset == 8 * number


EXPECTED = {-5: 0, 10: 0, 11: 1, 20: 1, 21: 3, 51: 5, 91: 7, 100: 7, 101: 8, 1010: 8, 1045: 11, 2091: 23, 2101: None}
"""Milliseconds after BASE_MS -> offset."""


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_finds_the_first_record_at_or_after_a_time(codec: str, node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    write_batches(node, topic, codec)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "unused"})
    found = {}
    for after_ms in EXPECTED:
        (answer,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, BASE_MS + after_ms)], 10)
        found[after_ms] = None if answer.offset == confluent_kafka.OFFSET_END else answer.offset
    consumer.close()
    assert found == EXPECTED


async def test_kafka_python_and_aiokafka_get_the_offset_and_the_records_own_time(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    write_batches(node, topic, "lz4")
    blocking = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap)
    asked = kafka.TopicPartition(topic, 0)
    found = blocking.offsets_for_times({asked: BASE_MS + 1045})[asked]
    assert (found.offset, found.timestamp) == (11, BASE_MS + 1050)
    assert blocking.offsets_for_times({asked: BASE_MS + 2101})[asked] is None
    blocking.close()

    async with AIOKafkaConsumer(bootstrap_servers=node.bootstrap) as consumer:
        shard = AioShard(topic, 0)
        consumer.assign([shard])
        answer = (await consumer.offsets_for_times({shard: BASE_MS + 21}))[shard]
        assert (answer.offset, answer.timestamp) == (3, BASE_MS + 50)
        assert await consumer.beginning_offsets([shard]) == {shard: 0}
        assert await consumer.end_offsets([shard]) == {shard: 24}


def test_reading_from_a_time_on_starts_at_that_record(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    write_batches(node, topic, "zstd")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "unused"})
    (start,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, BASE_MS + 1045)], 10)
    consumer.close()
    messages = read(node.bootstrap, topic, 24 - 11, offset=start.offset)
    assert [message.offset() for message in messages] == list(range(11, 24))
    assert messages[0].timestamp()[1] == BASE_MS + 1050


@pytest.mark.fault("start-trim-inside-batch")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_times_are_found_over_many_segments_and_after_a_restart(
    end: str, start_node: Callable[..., NodeProcess], topic: str
) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic, settings={"segment.bytes": 1500})
    write_batches(node, topic, "none", batches=60)
    getattr(node, end)()
    node.start()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "unused"})
    asked = [0, 7, 31, 59]
    found = [
        consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, BASE_MS + 1000 * number + 45)], 10)[
            0
        ].offset
        for number in asked
    ]
    consumer.close()
    assert found == [8 * number + 3 for number in asked]
