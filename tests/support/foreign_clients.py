"""Four third-party Kafka clients behind one interface: produce these messages with this codec, read that many back.

Each uses its own group-less consumer and its own codec libraries. Reading ends when the messages have come or the
deadline has passed, and returns them in the order of offsets within each partition.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import kafka
import kafka.codec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 30.0
_FETCH_WAIT_MS = 20


class Message(NamedTuple):
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class ForeignClient(Protocol):
    name: str

    def missing(self, codec: str = "none") -> str | None:
        """Why it cannot be used here, if it cannot."""

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
        """Returns once all are acknowledged by acks=all, in order, in partition 0 if the topic has no other."""

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        """From the beginning of partition 0."""


class Confluent:
    name = "confluent-kafka"

    def missing(self, codec: str = "none") -> str | None:
        return None

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "acks": "all"}
        )
        failures = []
        for message in messages:
            producer.produce(
                topic,
                message.value,
                message.key,
                headers=list(message.headers),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        left = producer.flush(DEADLINE_S)
        assert left == 0 and not failures, f"{left} undelivered, {failures[:3]}"

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        deadline = time.monotonic() + DEADLINE_S
        found: list[Message] = []
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, timeout=0.2):
                assert message.error() is None, message.error()
                headers = tuple((name, value) for name, value in message.headers() or ())
                found.append(Message(message.key(), message.value(), headers))
        consumer.close()
        return found


class KafkaPython:
    name = "kafka-python"

    def missing(self, codec: str = "none") -> str | None:
        if codec != "none" and not getattr(kafka.codec, f"has_{codec}")():
            return f"kafka-python finds no library for {codec} (lz4, python-snappy, zstandard)"
        return None

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            acks="all",
        )
        sent = [producer.send(topic, m.value, m.key, headers=list(m.headers)) for m in messages]
        producer.flush(DEADLINE_S)
        for future in sent:
            future.get(timeout=DEADLINE_S)
        producer.close()

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, group_id=None, fetch_max_wait_ms=_FETCH_WAIT_MS
        )
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        deadline = time.monotonic() + DEADLINE_S
        found: list[Message] = []
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(200).values():
                found += [Message(r.key, r.value, tuple((n, v) for n, v in r.headers)) for r in records]
        consumer.close()
        return found


class AioKafka:
    name = "aiokafka"

    def missing(self, codec: str = "none") -> str | None:
        return None

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
        asyncio.run(self._produce(bootstrap, topic, messages, codec))

    async def _produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            acks="all",
        ) as producer:
            sent = [await producer.send(topic, m.value, m.key, headers=list(m.headers)) for m in messages]
            await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        return asyncio.run(self._consume(bootstrap, topic, count))

    async def _consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, fetch_max_wait_ms=_FETCH_WAIT_MS
        )
        found: list[Message] = []
        async with consumer:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [Message(r.key, r.value, tuple(r.headers)) for r in records]
        return found


class Kcat:
    """Lines in, lines out: keys and values must be printable, and all messages of a call have the same headers."""

    name = "kcat"

    def missing(self, codec: str = "none") -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed (apt-get install kcat)"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
        lines = b"".join(m.key + b"\t" + m.value + b"\n" for m in messages)
        headers = [f"-H{name}={value.decode()}" for name, value in messages[0].headers]
        self.run(
            "-P", "-b", bootstrap, "-t", topic, "-z", codec, "-K\t", *headers, *self._waits(), standard_input=lines
        )

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        wait = f"fetch.wait.max.ms={_FETCH_WAIT_MS}"
        output = self.run(
            "-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J", "-X", wait
        )
        return [self._message(json.loads(line)) for line in output.splitlines()]

    def run(self, *arguments: str, standard_input: bytes = b"") -> str:
        done = subprocess.run(
            ["kcat", *arguments], input=standard_input, capture_output=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def _waits(self) -> list[str]:
        return ["-X", "linger.ms=20", "-X", "acks=all"]

    def _message(self, line: dict[str, Any]) -> Message:
        names_and_values = line.get("headers", [])
        headers = zip(names_and_values[::2], names_and_values[1::2], strict=True)
        return Message(
            line["key"].encode(), line["payload"].encode(), tuple((name, value.encode()) for name, value in headers)
        )


CLIENTS: tuple[ForeignClient, ...] = (Confluent(), KafkaPython(), AioKafka(), Kcat())
