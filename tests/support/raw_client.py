"""A Kafka client that does one thing at a time over one plain socket, for what well-behaved clients never send.

Requests are kafka-python's protocol classes (see `kafka_oracle`); Produce takes a ready batch, Fetch returns raw bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from typing import Any, NamedTuple, Self

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.model.batch import BatchHeader
from support import kafka_oracle

PRODUCE_VERSION, FETCH_VERSION = 9, 11


class Produced(NamedTuple):
    error_code: int
    base_offset: int
    log_append_time_ms: int
    error_message: str | None


class Fetched(NamedTuple):
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: bytes

    def batches(self) -> list[BatchHeader]:
        return [header for _, header in walk(self.records, source="fetch")]


def batch_of(*values: bytes, **options: Any) -> bytes:
    """A record batch of these values, with time 1000, 1001, …; options of `encode_batch`."""
    records = [Record(NEXT_OFFSET, 1000 + number, None, value) for number, value in enumerate(values)]
    return encode_batch(records, **options)


class RawClient:
    """One connection. Methods block, up to `timeout` seconds."""

    def __init__(self, bootstrap: str, *, timeout: float = 10.0, receive_buffer: int | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect((host, int(port)))
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A thread may still be stuck in send: closing alone would leave the connection open for it.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    # Bytes ----------------------------------------------------------------------------------------------------------
    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next answer with its size prefix. Raises: ConnectionError when the node closed the connection."""
        head = self._receive_exactly(4)
        (size,) = struct.unpack(">i", head)
        return head + self._receive_exactly(size)

    def _receive_exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("closed by the node")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def is_closed_by_node(self) -> bool:
        """Reads until the end. Raises: TimeoutError when the node keeps the connection open."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except ConnectionError:
            pass
        return True

    # Requests -------------------------------------------------------------------------------------------------------
    def frame(self, key: int, version: int, **fields: Any) -> bytes:
        request = kafka_oracle.request_class(key)(version=version, **fields)
        return kafka_oracle.frame_of(request, correlation_id=next(self._correlation_ids), client_id="raw")

    def call(self, key: int, version: int, **fields: Any) -> Any:
        """One request and its answer, as kafka-python reads it."""
        self.send(self.frame(key, version, **fields))
        return kafka_oracle.decode_response(key, version, self.receive_frame())

    def produce_frame(self, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> bytes:
        request = kafka_oracle.request_class(0)
        topic_data = request.TopicProduceData
        return self.frame(
            0,
            PRODUCE_VERSION,
            transactional_id=None,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                topic_data(
                    version=PRODUCE_VERSION,
                    name=topic,
                    partition_data=[
                        topic_data.PartitionProduceData(version=PRODUCE_VERSION, index=partition, records=batch)
                    ],
                )
            ],
        )

    def produce(self, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> Produced:
        self.send(self.produce_frame(topic, batch, partition=partition, acks=acks))
        return self.receive_produced()

    def receive_produced(self) -> Produced:
        answer = kafka_oracle.decode_response(0, PRODUCE_VERSION, self.receive_frame())
        result = answer.responses[0].partition_responses[0]
        return Produced(result.error_code, result.base_offset, result.log_append_time_ms, result.error_message)

    def fetch_frame(
        self,
        topic: str,
        offset: int,
        *,
        partitions: tuple[int, ...] = (0,),
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> bytes:
        request = kafka_oracle.request_class(1)
        wanted = [
            request.FetchTopic.FetchPartition(
                version=FETCH_VERSION,
                partition=partition,
                current_leader_epoch=-1,
                fetch_offset=offset,
                log_start_offset=-1,
                partition_max_bytes=partition_max_bytes,
            )
            for partition in partitions
        ]
        return self.frame(
            1,
            FETCH_VERSION,
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[request.FetchTopic(version=FETCH_VERSION, topic=topic, partitions=wanted)],
            forgotten_topics_data=[],
            rack_id="",
        )

    def fetch(self, topic: str, offset: int, **options: Any) -> list[Fetched]:
        """One entry for each partition asked, in order."""
        self.send(self.fetch_frame(topic, offset, **options))
        return self.receive_fetched()

    def receive_fetched(self) -> list[Fetched]:
        answer = kafka_oracle.decode_response(1, FETCH_VERSION, self.receive_frame())
        return [
            Fetched(result.error_code, result.high_watermark, result.log_start_offset, bytes(result.records or b""))
            for result in answer.responses[0].partitions
        ]
