"""Quotas as real clients meet them: librdkafka and kafka-python wait for as long as answers say, and lose nothing."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from support import kafka_oracle
from support.node_process import NodeProcess
from support.raw_client import RawClient
from support.topics import create_topic, produce, read, values_of

PATIENCE_S = 60
COUNT, SIZE = 30, 10_000


def set_quota(node: NodeProcess, client_id: str, **limits: float) -> None:
    """Of a client id of any user."""
    parts = kafka_oracle.request_class(49).EntryData
    ops = [parts.OpData(version=1, key=key, value=limit, remove=False) for key, limit in limits.items()]
    entity = [parts.EntityData(version=1, entity_type="client-id", entity_name=client_id)]
    with RawClient(node.bootstrap) as client:
        entries = [kafka_oracle.request_class(49).EntryData(version=1, entity=entity, ops=ops)]
        answer = client.call(49, 1, entries=entries, validate_only=False)
    assert [one.error_code for one in answer.entries] == [0]


def messages() -> list[bytes]:
    return [b"%06d" % number + b"x" * SIZE for number in range(COUNT)]


def test_a_producer_of_librdkafka_waits_as_it_is_told_and_loses_nothing(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic)
    set_quota(node, "slow-rd", producer_byte_rate=20_000.0)
    told: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "client.id": "slow-rd",
            "batch.size": SIZE,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    for value in messages():
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    producer.poll(0)
    assert max(told) > 0
    assert values_of(read(node.bootstrap, topic, COUNT)) == messages()


def test_a_producer_of_kafka_python_waits_as_it_is_told_and_loses_nothing(
    node: NodeProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(node.bootstrap, topic)
    set_quota(node, "slow-kp", producer_byte_rate=20_000.0)
    producer = KafkaProducer(bootstrap_servers=node.bootstrap, client_id="slow-kp", batch_size=SIZE)
    sent = [producer.send(topic, value) for value in messages()]
    producer.flush(PATIENCE_S)
    assert [one.get(PATIENCE_S).offset for one in sent] == [*range(COUNT)]
    assert "ProduceResponse throttled by broker" in caplog.text
    producer.close()
    assert values_of(read(node.bootstrap, topic, COUNT)) == messages()


def test_consumers_wait_as_they_are_told_and_get_everything(
    node: NodeProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(node.bootstrap, topic)
    produce(node.bootstrap, topic, messages())
    for name in ("slow-rd-reader", "slow-kp-reader"):
        set_quota(node, name, consumer_byte_rate=20_000.0)
    told: list[float] = []
    reader = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "client.id": "slow-rd-reader",
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 50_000,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    reader.subscribe([topic])
    found: list[bytes] = []
    while len(found) < COUNT:
        (message,) = reader.consume(1, PATIENCE_S) or [None]
        assert message is not None and message.error() is None
        found.append(message.value())
    reader.close()
    assert found == messages() and max(told) > 0

    python = KafkaConsumer(
        topic,
        bootstrap_servers=node.bootstrap,
        client_id="slow-kp-reader",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=50_000,
        consumer_timeout_ms=PATIENCE_S * 1_000,
    )
    assert [next(python).value for _ in range(COUNT)] == messages()
    assert "FetchResponse throttled by broker" in caplog.text
    python.close()
