"""Sends records to a Kafka with bounded memory, and says whether every one was acknowledged.

The client's queue holds so many bytes at most; who sends more waits for it. Idempotent: a repetition by the client
makes no double.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, Unavailable

QUEUE_BYTES: Final = 32 << 20
_SETTINGS: Final = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,
    "batch.size": 256 << 10,
    "queue.buffering.max.kbytes": QUEUE_BYTES >> 10,
    "delivery.timeout.ms": 120_000,
    "log_level": 2,
}
_STUCK_S: Final = 120.0


class Sender:
    """One producer. For one thread."""

    def __init__(self, servers: str, settings: Mapping[str, str]) -> None:
        """`settings` are librdkafka's, for what the servers ask of clients. Raises: InvalidRequest."""
        from confluent_kafka import KafkaException, Producer

        try:
            self._producer = Producer({**_SETTINGS, **settings, "bootstrap.servers": servers})
        except KafkaException as error:
            raise InvalidRequest(f"the producer's settings cannot be used: {error}") from error
        self.failures: list[str] = []
        self.acknowledged = 0

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        shard: int | None,
    ) -> None:
        """Waits while the queue is full. Raises: Unavailable when a record could not be delivered."""
        more: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        if shard is not None:
            more["partition"] = shard
        give_up = time.monotonic() + _STUCK_S
        while True:
            try:
                self._producer.produce(topic, value, key, headers=list(headers), on_delivery=self._delivered, **more)
                break
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > give_up:
                    raise Unavailable(f"the Kafka took nothing for {_STUCK_S:.0f} s: run the job again") from None
        self._producer.poll(0)
        self._raise_failures()

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was sent is acknowledged. Raises: Unavailable."""
        left = self._producer.flush(timeout_s)
        self._raise_failures()
        return left == 0

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))

    def _raise_failures(self) -> None:
        if self.failures:
            raise Unavailable(f"the Kafka did not take {counted(len(self.failures), 'record')}: {self.failures[0]}")
