"""Real consumers read over batches without records, as an unclean seal or a forced retirement leaves them: at the front
of a log, between records, several in a row, and at its end, from any offset within them.

Also tried manually against a node, from several offsets: the Java consumer of Kafka 4.3.1, sarama 1.61.1, franz-go
1.22.3, segmentio's kafka-go 0.4.51 and KafkaJS 2.2.4. Before, given an answer with only such a batch,
kafka-go delivered record 1 thousands of times a second, and KafkaJS stayed before it.
Kafka has such batches too, after compaction, and answers with them: its answers to the same layout are recorded in
`tests/clients/kafka_answers.json` (`support.kafka_answers`).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import encode_empty_batches
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog_node.node import wall_ms
from stratalog_node.shards.log.internal_append import InternalAppend
from stratalog_node.shards.log.shard_log import ShardLog
from support import emptied_batches
from support.node_cluster import NodeCluster
from support.raw_client import RawClient

TOPIC = "flights"
DEADLINE_S = 20.0
_KAFKA = Path(__file__).parents[2] / "clients" / "kafka_answers.json"


async def put_empty(shard: ShardLog, count: int) -> None:
    data = bytearray(encode_empty_batches(0, count, epoch=0))
    request = InternalAppend(1)
    shard.offer(OfferedBatch(memoryview(data), len(data), count, wall_ms(), -1, -1, -1, -1, request, 0))
    await request.first_offset


def by_confluent(bootstrap: str, start: int, last: int) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, start)])
    found: list[int] = []
    try:
        while not found or found[-1] < last:
            message = consumer.poll(DEADLINE_S)
            assert message is not None and message.error() is None
            found.append(message.offset())
    finally:
        consumer.close()
    return found


def by_kafka_python(bootstrap: str, start: int, last: int) -> list[int]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, start)
    found: list[int] = []
    try:
        while not found or found[-1] < last:
            got = consumer.poll(timeout_ms=int(DEADLINE_S * 1_000))
            assert got
            found += [record.offset for records in got.values() for record in records]
    finally:
        consumer.close()
    return found


async def by_aiokafka(bootstrap: str, start: int, last: int) -> list[int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, start)
    found: list[int] = []
    try:
        while not found or found[-1] < last:
            found.append((await asyncio.wait_for(consumer.getone(), DEADLINE_S)).offset)
    finally:
        await consumer.stop()
    return found


@pytest.mark.parametrize("layout", [(4, "records"), ("records", 4, "records"), ("records", 3, 3, "records")], ids=str)
async def test_every_record_behind_batches_without_records_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: tuple[int | str, ...]
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        key = await cluster.shard(1)
        shard = await cluster.leads_again(key)
        records: list[int] = []
        for part in layout:
            if isinstance(part, int):
                await put_empty(shard, part)
            else:
                first = await cluster.append(key, b"x", b"y")
                records += [first, first + 1]
        host, port = cluster.nodes[1].address
        bootstrap, last = f"{host}:{port}", records[-1]
        for start in (0, last - 3):
            expected = [offset for offset in records if offset >= start]
            assert await asyncio.to_thread(by_confluent, bootstrap, start, last) == expected
            assert await asyncio.to_thread(by_kafka_python, bootstrap, start, last) == expected
            assert await by_aiokafka(bootstrap, start, last) == expected


def confluent_ends(bootstrap: str, start: int) -> int:
    """Where librdkafka says that the partition ends for it, after whatever it delivers."""
    config = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, start)])
    try:
        while True:
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            if (error := message.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return int(message.offset())
    finally:
        consumer.close()


def kafka_python_reaches(bootstrap: str, start: int, end: int) -> list[int]:
    """The offsets of the records that it delivers until its position is `end`."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, start)
    found: list[int] = []
    try:
        for _ in range(int(DEADLINE_S * 10)):
            if consumer.position(partition) == end:
                return found
            found += [record.offset for records in consumer.poll(timeout_ms=100).values() for record in records]
        raise AssertionError(f"it stays at {consumer.position(partition)} of {end}")
    finally:
        consumer.close()


@pytest.mark.fault("consumer-position-lies-batch")
@pytest.mark.parametrize("layout", [("records", 4), ("records", 3, 3), (4,)], ids=str)
async def test_consumers_reach_the_end_of_a_log_that_ends_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: tuple[int | str, ...]
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        key = await cluster.shard(1)
        shard = await cluster.leads_again(key)
        for part in layout:
            await (put_empty(shard, part) if isinstance(part, int) else cluster.append(key, b"x", b"y"))
        host, port = cluster.nodes[1].address
        bootstrap, end = f"{host}:{port}", shard.high_watermark
        records = [0, 1] if layout[0] == "records" else []
        for start in (0, end - 3, end - 1):
            assert await asyncio.to_thread(confluent_ends, bootstrap, start) == end
            expected = [offset for offset in records if offset >= start]
            assert await asyncio.to_thread(kafka_python_reaches, bootstrap, start, end) == expected


@pytest.mark.fault("consumer-position-lies-batch")
@pytest.mark.parametrize("is_slow", [False, True], ids=["from memory", "on the slow way"])
async def test_an_answer_is_never_only_batches_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        key = await cluster.shard(1)
        shard = await cluster.leads_again(key)
        await cluster.append(key, b"x", b"y")
        await put_empty(shard, 4)
        await put_empty(shard, 4)
        await cluster.append(key, b"z")
        await put_empty(shard, 5)
        if is_slow:
            shard.active.damage = "pretended, so that each read goes to the disk and is checked"  # type: ignore[union-attr]
        host, port = cluster.nodes[1].address
        with RawClient(f"{host}:{port}") as client:

            def answered(offset: int) -> list[tuple[int, int, int, bool]]:
                """Of its batches."""
                got = client.fetch(TOPIC, offset, partition_max_bytes=1)[0]
                assert got.error_code == 0
                found = [header for _, header in walk(got.records, source="answer")]
                return [(one.base_offset, one.end_offset, one.record_count, one.is_control) for one in found]

            for offset in range(2, 10):
                assert await asyncio.to_thread(answered, offset) == [(10, 11, 1, False)], offset
            for offset in range(11, 16):
                assert await asyncio.to_thread(answered, offset) == [(offset - 1, 16, 1, True)], offset
            assert await asyncio.to_thread(answered, 16) == []


@pytest.mark.fault("consumer-position-lies-batch")
async def test_an_answer_is_that_of_kafka_or_begins_at_the_next_records_where_kafka_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka_answers = json.loads(_KAFKA.read_text())["emptied batches"]
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1)
        key = await cluster.shard(1)
        shard = await cluster.leads_again(key)
        for one in emptied_batches.LAYOUT:
            if one.is_emptied:
                await put_empty(shard, len(one.keys))
            else:
                await cluster.append(key, *(name.encode() for name in one.keys))
        assert shard.high_watermark == emptied_batches.SEGMENT_END
        host, port = cluster.nodes[1].address
        with RawClient(f"{host}:{port}") as client:
            for name, limit in emptied_batches.LIMITS.items():
                for offset in range(emptied_batches.SEGMENT_END):
                    expected = kafka_answers[name][str(offset)]
                    if not any(records for _, _, records in expected):
                        # Clients that get no record stay where they are, or deliver an earlier one again.
                        following = kafka_answers["all"][str(offset)]
                        expected = [next(batch for batch in following if batch[2])]
                    found = await asyncio.to_thread(emptied_batches.batches, client, TOPIC, offset, limit)
                    assert found == expected, (name, offset)
