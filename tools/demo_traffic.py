"""Flights that keep coming while nodes come and go: an idempotent producer at an even pace, and a group that reads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.admin import NewTopic
from demo_read import Group
from demo_stage import DemoFailed, Stage
from flights import Comparison, Flights
from rich.progress import Progress

_SHARDS: Final = 6


@dataclass(frozen=True, slots=True)
class Kind:
    """Of the topics that are written."""

    topic: str
    replicas: int
    settings: dict[str, str]


TIERED = Kind("flights-tiered", 3, {"min.insync.replicas": "2"})
LOCAL = Kind("flights-local", 1, {"remote.storage.enable": "false"})
"""Each flight of this topic is on one disk only."""

_FLIGHTS: Final = 15_000
_PER_SECOND: Final = 250
"""So that they last for as long as the nodes come and go; what is left at the end goes at once."""
_CREATED_S, _WRITTEN_S, _READ_S = 20, 60, 60


def create_topic(stage: Stage, kind: Kind) -> None:
    """Once as many nodes are known to be alive."""
    admin = KafkaAdmin(stage.admin_settings)
    deadline = time.monotonic() + _CREATED_S
    while True:
        made = admin.create_topics([NewTopic(kind.topic, _SHARDS, kind.replicas, config=kind.settings)])
        try:
            made[kind.topic].result(20)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


class Traffic:
    """Writes the first flights to a topic of its own, which is there, from now until `finish`, or `close`."""

    def __init__(self, stage: Stage, flights: Flights, kind: Kind) -> None:
        self.topic = kind.topic
        self.flights = flights.first(_FLIGHTS)
        self._client_settings = stage.client_settings
        self.ends = dict.fromkeys(range(_SHARDS), 0)
        self._unplaced: set[int] = set()
        self.acknowledged = 0
        self._failures: list[str] = []
        self._hurry, self._stopping = threading.Event(), threading.Event()
        self._group = Group(
            self._client_settings, f"{self.topic}-readers", {self.topic: Comparison(self.flights)}, members=2
        )
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def total(self) -> int:
        return len(self.flights)

    def check(self) -> None:
        """Raises: DemoFailed when a flight was refused, or a reader ended."""
        if self._failures or self._group.failures:
            raise DemoFailed(f"a client of the cluster failed: {[*self._failures, *self._group.failures][:3]}")

    def finish(self, progress: Progress) -> None:
        """What is left is written at once; all was acknowledged, read by the group, and is as it was. Raises:
        DemoFailed."""
        written = progress.add_task(f"{self.topic} in", total=self.total)
        self._hurry.set()
        deadline = time.monotonic() + _WRITTEN_S
        while self._thread.is_alive() and not self._failures and time.monotonic() < deadline:
            progress.update(written, completed=self.acknowledged)
            self._thread.join(0.05)
        progress.update(written, completed=self.acknowledged)
        self.check()
        if self.acknowledged != self.total:
            raise DemoFailed(f"after {_WRITTEN_S} s {self.acknowledged:,} of {self.total:,} records are acknowledged")
        self._place_the_rest()
        read = progress.add_task(f"{self.topic} out", total=self.total)
        self._group.until(self.total, _READ_S, lambda count: progress.update(read, completed=count))
        self.close()
        self._group.finish({self.topic: self.ends})

    def close(self) -> None:
        self._stopping.set()
        self._hurry.set()
        self._group.close()
        self._thread.join(10)

    def _write(self) -> None:
        producer = Producer({**self._client_settings, "enable.idempotence": True, "linger.ms": 5})
        began = time.monotonic()
        for row, (key, value) in enumerate(zip(self.flights.keys, self.flights.values, strict=True)):
            while row > (time.monotonic() - began) * _PER_SECOND and not self._hurry.wait(0.02):
                producer.poll(0)
            self._produce(producer, key, value)
            if self._stopping.is_set():
                return
        while producer.flush(0.2) and not self._stopping.is_set():
            pass

    def _produce(self, producer: Producer, key: bytes | None, value: bytes) -> None:
        while not self._stopping.is_set():
            try:
                producer.produce(self.topic, value, key, on_delivery=self._on_delivery)
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(str(error))
            return
        self.acknowledged += 1
        shard, offset = message.partition(), message.offset()
        assert shard is not None, "an acknowledged record has its shard"
        if offset is None:  # a repetition of a batch so old that only its being there is known: its offset is not told
            self._unplaced.add(shard)
        else:
            self.ends[shard] = max(self.ends[shard], offset + 1)

    def _place_the_rest(self) -> None:
        """Reads the end of a shard whose acknowledgements did not give all offsets. No one else writes to it, and all
        records are acknowledged."""
        if not self._unplaced:
            return
        consumer = Consumer({**self._client_settings, "group.id": "demo-ends"})
        for shard in self._unplaced:
            _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, shard), timeout=10)
            self.ends[shard] = max(self.ends[shard], end)
        consumer.close()
