"""Real consumers read over batches without records, as an unclean seal or a forced retirement leaves them: at the front
of a log, between records, and several in a row, from any offset within them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from stratalog.formats.records import encode_empty_batches
from stratalog.machines.leader_events import OfferedBatch
from stratalog_node.node import wall_ms
from stratalog_node.shards.internal_append import InternalAppend
from stratalog_node.shards.shard_log import ShardLog
from support.node_cluster import NodeCluster

TOPIC = "flights"
DEADLINE_S = 20.0


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
