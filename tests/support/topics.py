"""Topics for client tests: made in one call, written to and read back with confluent-kafka, the quickest client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import eventually_sync

PATIENCE_S = 30.0


def create_topic(bootstrap: str, name: str, shards: int = 1, settings: Mapping[str, object] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {key: str(value) for key, value in (settings or {}).items()}
    admin.create_topics([NewTopic(name, shards, 1, config=config)])[name].result(PATIENCE_S)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(PATIENCE_S)


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    partition: int = 0,
    patience_s: float = PATIENCE_S,
    **options: object,
) -> None:
    """Returns once all are acknowledged; options with underscores for dots."""
    failures = []
    settings = {key.replace("_", "."): value for key, value in options.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0} | settings)
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: error and failures.append(error)
        )
        producer.poll(0)
    left = producer.flush(patience_s)
    assert left == 0 and not failures, f"{left} undelivered, {failures[:3]}"


def read(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Message]:
    """`count` messages from `offset` on, or as many as came in time; no group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, partition, offset)])
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(min(count - len(found), 10_000), 0.2):
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
    consumer.close()
    return found


def read_over_changes(bootstrap: str, topic: str, count: int, patience_s: float = 60.0) -> list[bytes]:
    """At least `count` values of shard 0, whatever single polls say meanwhile: leaders change, data move."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def has_all() -> bool:
        while (one := consumer.poll(0.5)) is not None:  # `consume` may drop what it gathered when a leader changes
            if one.error() is None:
                found.append(bytes(one.value() or b""))
        return len(found) >= count

    eventually_sync(has_all, timeout=patience_s)
    consumer.close()
    return found


def values_of(messages: Iterable[Message]) -> list[bytes]:
    return [message.value() for message in messages]
