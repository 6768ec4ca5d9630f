"""Sends records to a Kafka with bounded memory, and says whether every one was acknowledged.

At most `QUEUE_BYTES` wait for their acknowledgement; a call that would exceed this waits. All bytes of a record count:
key, value, headers, and the client's own overhead. The client's own limit counts only values. The producer is
idempotent: the client's retries create no duplicates and keep the order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from stratalog.model.counting import counted
from stratalog.model.errors import Forbidden, InvalidRequest, Unavailable
from stratalog_pipeline.sending.login import NO_LOGIN, KafkaLogin

QUEUE_BYTES: Final = 32 << 20
_OWN_BYTES: Final = 512
"""What the client and this keep of a record beside its bytes."""
_CLIENT_LIMIT: Final = "queue.buffering.max.kbytes"
_SETTINGS: Final = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,
    "batch.size": 256 << 10,
    _CLIENT_LIMIT: QUEUE_BYTES >> 10,
    "delivery.timeout.ms": 120_000,
    "log_level": 2,
}
_STUCK_S: Final = 120.0


class Sender:
    """One producer. For one thread.

    Invariant: `queued_bytes` is at most `QUEUE_BYTES`, or one record that is larger.
    """

    def __init__(self, servers: str, login: KafkaLogin = NO_LOGIN) -> None:
        """`login` has what the servers ask of clients, and settings of librdkafka; its limits of the queue may be
        smaller. Raises: InvalidRequest, also where a server refuses the login; NotFound for a file; WrongServer."""
        from confluent_kafka import KafkaException, Producer

        check_limit(dict(login.settings))
        login.check(servers)
        settings = {**_SETTINGS, **login.of_librdkafka(), "bootstrap.servers": servers}
        try:
            self._producer = Producer({**settings, "error_cb": self._note})
        except KafkaException as error:
            raise InvalidRequest(f"the producer's settings cannot be used: {error}") from None
        self._servers, self._login = servers, login
        self._topic = ""
        """Of the last record: a refusal before any record is about it."""
        self._refused: Forbidden | None = None
        self.failures: list[str] = []
        self.acknowledged = 0
        self.queued_bytes = 0
        """Bytes of records that were sent and not acknowledged yet."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        shard: int | None,
    ) -> None:
        """Waits while the queue is full. Raises: Forbidden where the client may not write to the topic; Unavailable
        when a record could not be delivered."""
        self._topic = topic
        more: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        if shard is not None:
            more["partition"] = shard
        size = _OWN_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(value_bytes or b"") for name, value_bytes in headers)
        give_up = time.monotonic() + _STUCK_S
        while not self._produce(topic, key, value, headers, size, more):
            heard = self._poll(0.1)
            if heard:
                give_up = time.monotonic() + _STUCK_S
            elif time.monotonic() > give_up:
                raise Unavailable(f"the Kafka took nothing for {_STUCK_S:.0f} s: run the job again")
        self._poll(0)

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        size: int,
        more: Mapping[str, Any],
    ) -> bool:
        """False while there is no room for it. Raises: as `send`."""
        from confluent_kafka import KafkaException

        if self.queued_bytes and self.queued_bytes + size > QUEUE_BYTES:
            return False
        on_delivery = partial(self._delivered, size)
        try:
            self._producer.produce(topic, value, key, headers=list(headers), on_delivery=on_delivery, **more)
        except BufferError:
            return False
        except KafkaException as error:  # a refusal ended the producer
            self._note(error.args[0])
            self._raise_failures()
            raise Unavailable(f"the Kafka did not take a record: {error.args[0].str()}") from None
        self.queued_bytes += size
        return True

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was sent is acknowledged. Raises: Forbidden, Unavailable."""
        left = self._guarded(lambda: self._producer.flush(timeout_s))
        self._raise_failures()
        return left == 0

    def _poll(self, timeout_s: float) -> int:
        heard = self._guarded(lambda: self._producer.poll(timeout_s))
        self._raise_failures()
        return heard

    def _guarded(self, call: Callable[[], int]) -> int:
        """confluent-kafka raises what ends its producer, and where records wait, from within their callbacks: as a
        SystemError that the real one causes."""
        from confluent_kafka import KafkaException

        try:
            return call()
        except (KafkaException, SystemError) as error:
            cause = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(cause, KafkaException):
                raise
            self._note(cause.args[0])
            self._raise_failures()
            raise Unavailable(f"the Kafka did not take all records: {cause.args[0].str()}") from None

    def _delivered(self, size: int, error: Any, message: Any) -> None:
        self.queued_bytes -= size
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))
            self._note(error, message.topic())

    def _note(self, error: Any, topic: str = "") -> None:
        """A refusal is remembered; what else librdkafka says meanwhile passes, or fails a record."""
        if self._refused is None:
            self._refused = self._login.refusal(error.code(), topic or self._topic, self._servers)

    def _raise_failures(self) -> None:
        if self._refused is not None:
            raise self._refused
        if self.failures:
            raise Unavailable(f"the Kafka did not take {counted(len(self.failures), 'record')}: {self.failures[0]}")


def check_limit(settings: Mapping[str, str]) -> None:
    """Refuses a client setting above the limit, because memory is bounded whatever is set. Raises: InvalidRequest."""
    limit = settings.get(_CLIENT_LIMIT, "")
    if limit.strip().isdecimal() and int(limit) > QUEUE_BYTES >> 10:
        raise InvalidRequest(
            f"{_CLIENT_LIMIT}={limit}: {QUEUE_BYTES >> 20} MiB at most wait to be acknowledged, so it is "
            f"{QUEUE_BYTES >> 10} at most, or left out"
        )
