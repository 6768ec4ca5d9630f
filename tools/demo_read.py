"""A consumer group reads topics of flights from their beginning, and compares each record as it comes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from demo_stage import DemoFailed
from flights import Comparison

Settings = Mapping[str, str | int]
"""Of librdkafka."""
MEMBERS: Final = 3
_GAPS_TOLD: Final = 5
_TIMEOUT_S: Final = 20
_AT_ONCE: Final = 2000
"""Messages between two commits."""


class Group:
    """Reads as soon as it is made, until `close`; `comparisons` are by topic."""

    def __init__(
        self, settings: Settings, name: str, comparisons: Mapping[str, Comparison], members: int = MEMBERS
    ) -> None:
        self._client_settings = settings
        self._comparisons = comparisons
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._poll, args=(_member(settings, name, number, list(comparisons)),), daemon=True)
            for number in range(members)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """Records that have come."""
        return sum(comparison.count for comparison in self._comparisons.values())

    def until(self, count: int, limit_s: float, told: Callable[[int], None]) -> None:
        """Waits for `count` records, or until the time is over or a member failed."""
        deadline = time.monotonic() + limit_s
        while self.count < count and not self.failures and time.monotonic() < deadline:
            told(self.count)
            time.sleep(0.05)
        told(self.count)

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)

    def finish(self, ends: Mapping[str, dict[int, int]]) -> None:
        """Requires: it is closed. `ends` are the end offsets by topic and shard. Raises: DemoFailed."""
        wrong = list(self.failures)
        for topic, comparison in self._comparisons.items():
            wrong += [f"{topic}: {what}" for what in comparison.finish(ends[topic])]
            for shard, offset in comparison.gaps[:_GAPS_TOLD]:
                wrong.append(f"{topic}: {_read_again(self._client_settings, topic, shard, offset)}")
        if wrong:
            raise DemoFailed("what came back differs from what went in:\n  " + "\n  ".join(wrong))

    def _poll(self, consumer: Consumer) -> None:
        try:
            while not self._stopping.is_set():
                messages = _next_messages(consumer)
                errors = [error for message in messages if (error := message.error()) is not None]
                if lasting := [error for error in errors if not error.retriable()]:
                    raise KafkaException(lasting[0])
                self._compare([message for message in messages if message.error() is None])
                if messages:
                    with contextlib.suppress(KafkaException):  # a rebalance: then they are read again
                        consumer.commit(asynchronous=False)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            consumer.close()

    def _compare(self, messages: list[Message]) -> None:
        with self._lock:
            for topic, comparison in self._comparisons.items():
                comparison.compare_messages(message for message in messages if message.topic() == topic)


def _next_messages(consumer: Consumer) -> list[Message]:
    """Polls one by one: if a leader changes, `consume` drops the messages that it has gathered and continues behind
    them (librdkafka 2.16)."""
    found: list[Message] = []
    while len(found) < _AT_ONCE and (message := consumer.poll(0 if found else 0.1)) is not None:
        found.append(message)
    return found


def _read_again(settings: Settings, topic: str, shard: int, offset: int) -> str:
    """Whether what did not come is there: then its reader lost it, and else the cluster."""
    consumer = Consumer({**settings, "group.id": "looks-again", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, shard, offset)])
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                return f"shard {shard}: a new reader from offset {offset} gets offset {message.offset()}"
        return f"shard {shard}: a new reader from offset {offset} gets nothing within {_TIMEOUT_S} s"
    finally:
        consumer.close()


def _member(settings: Settings, group: str, number: int, topics: list[str]) -> Consumer:
    consumer = Consumer(
        {
            **settings,
            "group.id": group,
            "client.id": f"member-{number}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(topics)
    return consumer
