"""Writing and reading back by clients of other libraries with settings of one's own: TLS, SASL, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from support.waiting import eventually_sync


def by_librdkafka(settings: Mapping[str, Any], topic: str, values: Sequence[bytes]) -> list[bytes]:
    """Writes the values, and returns what a group reads. `settings` are librdkafka's."""
    producer = confluent_kafka.Producer(dict(settings))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            got.append(message.value() or b"")
        return len(got) == len(values)

    eventually_sync(read)
    consumer.close()
    return got


def by_kafka_python(settings: Mapping[str, Any], topic: str, values: Sequence[bytes]) -> list[bytes]:
    producer = kafka.KafkaProducer(**settings, acks="all")
    for sent in [producer.send(topic, value) for value in values]:
        sent.get(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000, group_id=None
    )
    got = [next(consumer).value for _ in values]
    consumer.close()
    return got


def by_aiokafka(settings: Mapping[str, Any], topic: str, values: Sequence[bytes]) -> list[bytes]:
    async def work() -> list[bytes]:
        producer = AIOKafkaProducer(**settings, acks="all")
        await producer.start()
        for value in values:
            await producer.send_and_wait(topic, value)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
        await consumer.start()
        async with asyncio.timeout(30):
            got = [(await consumer.getone()).value for _ in values]
        await consumer.stop()
        return got

    return asyncio.run(work())
