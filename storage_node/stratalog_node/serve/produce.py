"""Produce: find the batches in a request, check their headers, hand them to their shards, answer when they are
acknowledged.

Per request work only; records are never looked at. Appends keep arrival order per connection, because a batch joins its
shard's pending list while its frame is being read.
Source: docs/kafka.md "Produce"; KIP-98 for sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from stratalog.formats.offered_batch import (
    CRC_FROM,
    LEAST_RECORD_BYTES,
    OFFERED_HEADER,
    most_records,
    stamp_append_time,
)
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.produce import ProducedPartition, TopicRecords, decode_produce, encode_produce_response
from stratalog.machines.segment_leader import OfferedBatch
from stratalog_node.serve.answer import Answer
from stratalog_node.serve.connection import Connection

if TYPE_CHECKING:
    from stratalog_node.serve.server import KafkaServer
    from stratalog_node.shards.shard_log import ShardLog

_HEADER_BYTES = OFFERED_HEADER.size
_LENGTH_FROM = 12
_ACKS = (-1, 1, 0)
_TIMED_OUT = "not acknowledged in time; it may be appended: repeat it with idempotence on"
_ZSTD = 4
_ZSTD_FROM_VERSION = 7


class PendingProduce(Answer):
    """A produce request until each of its batches has an answer."""

    __slots__ = (
        "_answers",
        "_connection",
        "_missing",
        "_names",
        "_partitions",
        "_timer",
        "acks",
        "correlation_id",
        "server",
        "version",
    )

    def __init__(self, server: KafkaServer, connection: Connection, header: RequestHeader, acks: int) -> None:
        super().__init__()
        self.server = server
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.acks = acks
        self._connection = connection
        self._names: list[str] = []
        self._answers: list[list[Any]] = []
        self._missing = 0
        self._timer: asyncio.TimerHandle | None = None
        self._partitions: list[list[int]] = []

    def add_topic(self, name: str, partitions: int) -> None:
        self._names.append(name)
        self._answers.append([None] * partitions)
        self._missing += partitions

    def settle(
        self,
        place: tuple[int, int, int],
        error_code: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        message: str | None = None,
    ) -> None:
        """Answer one batch; `place` is (topic, position in the topic, partition). A second answer changes nothing."""
        topic, position, partition = place
        answers = self._answers[topic]
        if answers[position] is not None:
            return
        answers[position] = ProducedPartition(
            partition, error_code, base_offset, append_time_ms, log_start_offset, message
        )
        self._missing -= 1
        if error_code:
            self.server.stats.produce_errors += 1
        if self._missing == 0:
            self.finish()

    def finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.acks == 0:
            failed = next((a for topic in self._answers for a in topic if a.error_code), None)
            if failed is not None:
                # A client that wants no answer learns of a failure only by the connection going away.
                self._connection.close(f"produce with acks=0 failed: error {failed.error_code} {failed.error_message}")
            return
        self.buffers = [
            encode_produce_response(
                self.version, self.correlation_id, list(zip(self._names, self._answers, strict=True))
            )
        ]
        self._connection.answer_ready()

    @property
    def is_finished(self) -> bool:
        return self._missing == 0

    def await_acknowledgement(self, timeout_ms: int, topics: Sequence[TopicRecords]) -> None:
        """Not answered within the turn: answer "timed out", outcome unknown, when the client's patience ends."""
        self._partitions = [[partition for partition, _ in partitions] for _, partitions in topics]
        self._timer = self.server.loop.call_later(max(timeout_ms, 1) / 1000, self._expire)

    def _expire(self) -> None:
        for topic, answers in enumerate(self._answers):
            for position, answer in enumerate(answers):
                if answer is None:
                    self.settle(
                        (topic, position, self._partitions[topic][position]),
                        ErrorCode.REQUEST_TIMED_OUT,
                        -1,
                        -1,
                        -1,
                        _TIMED_OUT,
                    )


class PendingSingle(Answer):
    """A produce request with one batch, as most are: the same duties as `PendingProduce`, without its tables."""

    __slots__ = (
        "_connection",
        "_is_settled",
        "_name",
        "_partition",
        "_timer",
        "acks",
        "correlation_id",
        "server",
        "version",
    )

    def __init__(
        self, server: KafkaServer, connection: Connection, header: RequestHeader, acks: int, name: str, partition: int
    ) -> None:
        self.buffers = None
        self.held_bytes = 0
        self.release = None
        self.server = server
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.acks = acks
        self._connection = connection
        self._name = name
        self._partition = partition
        self._is_settled = False
        self._timer: asyncio.TimerHandle | None = None

    def settle(
        self,
        place: object,
        error_code: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        message: str | None = None,
    ) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        if self._timer is not None:
            self._timer.cancel()
        if error_code:
            self.server.stats.produce_errors += 1
            if self.acks == 0:
                self._connection.close(f"produce with acks=0 failed: error {error_code} {message}")
        if self.acks == 0:
            return
        answer = ProducedPartition(self._partition, error_code, base_offset, append_time_ms, log_start_offset, message)
        self.buffers = [encode_produce_response(self.version, self.correlation_id, ((self._name, (answer,)),))]
        self._connection.answer_ready()

    @property
    def is_finished(self) -> bool:
        return self._is_settled

    def await_acknowledgement(self, timeout_ms: int, topics: Sequence[TopicRecords]) -> None:
        self._timer = self.server.loop.call_later(max(timeout_ms, 1) / 1000, self._expire)

    def _expire(self) -> None:
        self.settle(None, ErrorCode.REQUEST_TIMED_OUT, -1, -1, -1, _TIMED_OUT)


class ProduceHandler:
    """Produce requests of all connections."""

    def __init__(self, server: KafkaServer, shard_of: Callable[[str, int], ShardLog | None]) -> None:
        self._server = server
        self._shard_of = shard_of

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        server = self._server
        request = decode_produce(frame, header.body_position, header.api_version)
        server.stats.produce_requests += 1
        topics = request.topics
        if len(topics) == 1 and len(topics[0][1]) == 1:
            name, ((partition, records),) = topics[0]
            single = PendingSingle(server, connection, header, request.acks, name, partition)
            if request.acks != 0:
                connection.expect_answer(single)
            self._offer(name, partition, records, header.api_version, request.acks, single, None)
            if not single._is_settled:
                server.await_turn(single, request.timeout_ms, topics)
            return
        pending = PendingProduce(server, connection, header, request.acks)
        if request.acks != 0:
            connection.expect_answer(pending)
        for name, partitions in topics:
            pending.add_topic(name, len(partitions))
        if pending.is_finished:  # no topics, or topics without partitions: nothing will be settled
            pending.finish()
            return
        for topic_place, (name, partitions) in enumerate(topics):
            for position, (partition, records) in enumerate(partitions):
                place = (topic_place, position, partition)
                self._offer(name, partition, records, header.api_version, request.acks, pending, place)
        if not pending.is_finished:
            server.await_turn(pending, request.timeout_ms, topics)

    def _offer(
        self,
        name: str,
        partition: int,
        records: memoryview | None,
        version: int,
        acks: int,
        pending: PendingProduce | PendingSingle,
        place: Any,
    ) -> None:
        if acks not in _ACKS:
            pending.settle(place, ErrorCode.INVALID_REQUIRED_ACKS, -1, -1, -1, f"acks={acks}: use 0, 1 or all")
            return
        shard = self._shard_of(name, partition)
        if shard is None:
            pending.settle(place, self._server.missing_shard_error(name, partition), -1, -1, -1)
            return
        if shard.topic.is_internal:
            pending.settle(place, ErrorCode.INVALID_TOPIC_EXCEPTION, -1, -1, -1, f"{name} is written by the node alone")
            return
        refusal = offer(shard, records, version, acks, pending, place, self._server.turn.now_ms)
        if refusal is not None:
            pending.settle(place, refusal[0], -1, -1, shard.log_start_offset, refusal[1])


def offer(
    shard: ShardLog,
    records: memoryview | None,
    version: int,
    acks: int,
    request: Any,
    place: Any,
    now_ms: int,
) -> tuple[int, str] | None:
    """Check a batch by its header and give it to its shard. Returns (error code, message) when it is refused."""
    if records is None or len(records) < _HEADER_BYTES:
        return ErrorCode.CORRUPT_MESSAGE, "no whole record batch"
    size = len(records)
    (
        _,
        length,
        _,
        magic,
        crc,
        attributes,
        last_delta,
        _,
        max_timestamp,
        producer_id,
        producer_epoch,
        sequence,
        count,
    ) = OFFERED_HEADER.unpack_from(records)
    if magic != 2:
        return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"magic {magic}: only record batches of magic 2 are taken"
    if length + _LENGTH_FROM != size:
        if _HEADER_BYTES - _LENGTH_FROM <= length < size - _LENGTH_FROM:
            return ErrorCode.INVALID_RECORD, "more than one record batch for one partition"
        return ErrorCode.CORRUPT_MESSAGE, f"batch length {length} in {size} bytes"
    if crc32c(records[CRC_FROM:]) != crc:
        return ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes"
    if count <= 0 or last_delta != count - 1:
        return ErrorCode.INVALID_RECORD, f"{count} records with last offset delta {last_delta}"
    if attributes & 0x30:
        if attributes & 0x20:
            return ErrorCode.INVALID_RECORD, "clients may not write control batches"
        return ErrorCode.INVALID_TXN_STATE, "transactions are not offered yet"
    if producer_id >= 0 and (sequence < 0 or producer_epoch < 0):
        return ErrorCode.INVALID_RECORD, f"producer {producer_id} with sequence {sequence}, epoch {producer_epoch}"
    codec = attributes & 0x07
    if codec > _ZSTD or (codec == _ZSTD and version < _ZSTD_FROM_VERSION):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {codec} in Produce v{version}"
    if count * LEAST_RECORD_BYTES > size - _HEADER_BYTES and count > (
        most := most_records(codec, size - _HEADER_BYTES)
    ):
        return ErrorCode.INVALID_RECORD, f"{count} records in {size} bytes: at most {most} can be in them"
    rules = shard.rules
    if size > rules.max_message_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE, f"batch of {size} bytes, max.message.bytes is {rules.max_message_bytes}"
    if rules.is_append_time:
        max_timestamp = now_ms
        stamp_append_time(records, attributes, now_ms)
    elif max_timestamp > now_ms + rules.timestamp_after_max_ms or (
        max_timestamp < now_ms - rules.timestamp_before_max_ms and max_timestamp >= 0
    ):
        return ErrorCode.INVALID_TIMESTAMP, f"timestamp {max_timestamp} is outside the topic's window around {now_ms}"
    shard.offer(
        OfferedBatch(records, size, count, max_timestamp, producer_id, producer_epoch, sequence, acks, request, place)
    )
    return None
