"""Produce: find the batches in a request, check their headers, hand them to their shards, answer when they are
acknowledged.

Per request work only; records are looked at only for their times, and only where the topic's window asks for it
(`formats/batches/time_window.py`). Appends keep arrival order per connection, because a batch joins its
shard's pending list while its frame is being read.
Source: docs/kafka.md "Produce"; KIP-98 for sequences.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from stratalog.formats.batches.offered_batch import (
    LOG_APPEND_TIME_BIT,
    LZ4,
    ZSTD,
    BatchFault,
    FaultyBatch,
    check_offered,
    clear_append_time,
    stamp_append_time,
)
from stratalog.formats.batches.time_window import time_fault
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.produce import (
    NodeEndpoint,
    ProducedPartition,
    TopicRecords,
    decode_produce,
    encode_produce_response,
)
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.machines.leading.producer_table import SequenceFault
from stratalog.model.append import AppendFailure
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.connections.answer import Answer
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.registry import Need
from stratalog_node.serve.connections.serving import Serving
from stratalog_node.serve.connections.unknown_shards import UnknownShards
from stratalog_node.serve.producing.produce_timeouts import Line, ProduceTimeouts
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.append import AppendRequest
from stratalog_node.shards.log.shard_log import ShardLog

_ATTRIBUTES = 5
"""Index of the attributes in an `OfferedHeader`."""
_ACKS = (-1, 1, 0)
_TIMED_OUT = "not acknowledged in time; it may be appended: repeat it with idempotence on"
_ZSTD_FROM_VERSION = 7
"""Clients that speak no newer version of Produce may not be able to read zstd."""

CODES: dict[BatchFault | SequenceFault | AppendFailure, ErrorCode] = {
    BatchFault.NO_BATCH: ErrorCode.INVALID_RECORD,
    BatchFault.NOT_WHOLE: ErrorCode.CORRUPT_MESSAGE,
    BatchFault.OLD_MAGIC: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    BatchFault.SEVERAL: ErrorCode.INVALID_RECORD,
    BatchFault.WRONG_CRC: ErrorCode.CORRUPT_MESSAGE,
    BatchFault.WRONG_COUNT: ErrorCode.INVALID_RECORD,
    BatchFault.CONTROL: ErrorCode.INVALID_RECORD,
    BatchFault.TRANSACTIONAL: ErrorCode.INVALID_TXN_STATE,
    BatchFault.WRONG_SEQUENCE: ErrorCode.INVALID_RECORD,
    BatchFault.UNKNOWN_CODEC: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    BatchFault.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    BatchFault.WRONG_TIME: ErrorCode.INVALID_TIMESTAMP,
    SequenceFault.OUT_OF_ORDER: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    SequenceFault.DUPLICATE_FORGOTTEN: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    SequenceFault.STALE_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    AppendFailure.NO_ROOM: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.WRITE_FAILED: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.NOT_OPEN: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.HEALING: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.STOPPED: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    AppendFailure.LEAD_UNKNOWN: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    AppendFailure.BEHIND_REFUSED: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.TOPIC_DELETED: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    AppendFailure.NO_SUCCESSOR: ErrorCode.KAFKA_STORAGE_ERROR,
    AppendFailure.MOVING: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    AppendFailure.NOT_ENOUGH_REPLICAS_LEFT: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    AppendFailure.NOT_ENOUGH_REPLICAS: ErrorCode.NOT_ENOUGH_REPLICAS,
    AppendFailure.OUTCOME_UNKNOWN: ErrorCode.REQUEST_TIMED_OUT,
}
"""The error code for each reason to refuse a batch. Total: each reason is here.

A code is chosen by what clients do with it. They send a batch again after 2, 3, 5, 6, 7, 19, 20 and 56, so a refusal
for good must have a code that ends the batch. Java's producer splits a batch and sends it again after 10. Clients take
46 for success, and after 45 an idempotent producer begins a new epoch or ends."""

NEEDS = (Need(Operation.WRITE, ResourceType.TOPIC, "29 for its partitions"),)

Slot: TypeAlias = tuple[int, int, int]
"""Which answer of a request is meant: (topic, position in the topic, partition)."""


class PendingProduce(Answer):
    """A produce request until each of its batches has an answer."""

    __slots__ = (
        "_answers",
        "_connection",
        "_leaders",
        "_missing",
        "_names",
        "_partitions",
        "_waits_in",
        "acks",
        "correlation_id",
        "serving",
        "version",
    )

    def __init__(self, serving: Serving, connection: Connection, header: RequestHeader, acks: int) -> None:
        super().__init__()
        self.serving = serving
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.acks = acks
        self._connection = connection
        self._names: list[str] = []
        self._leaders: set[int] | None = None
        """Other nodes that the answer names as leaders."""
        self._answers: list[list[Any]] = []
        self._missing = 0
        self._waits_in: Line | None = None
        self._partitions: list[list[int]] = []

    def add_topic(self, name: str, partitions: int) -> None:
        self._names.append(name)
        self._answers.append([None] * partitions)
        self._missing += partitions

    def appended(self, slot: Slot, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        self._settle(slot, ProducedPartition(slot[2], 0, base_offset, append_time_ms, log_start_offset, None))

    def refused(
        self, slot: Slot, why: BatchFault | SequenceFault | AppendFailure, message: str, log_start_offset: int
    ) -> None:
        self.fail(slot, CODES[why], message, log_start_offset)

    def fail(self, slot: Slot, code: int, message: str | None = None, log_start_offset: int = -1) -> None:
        """Refuse one batch in Kafka's words."""
        leader = (
            self.serving.leader_of(self._names[slot[0]], slot[2]) if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else None
        )
        if leader is not None:
            self._leaders = (self._leaders or set()) | {leader[0]}
        self._settle(slot, ProducedPartition(slot[2], code, -1, -1, log_start_offset, message, leader))

    def _settle(self, slot: Slot, answer: ProducedPartition) -> None:
        topic, position, _ = slot
        answers = self._answers[topic]
        if answers[position] is not None:
            return
        answers[position] = answer
        self._missing -= 1
        if answer.error_code:
            self.serving.stats.produce_errors += 1
        if self._missing == 0:
            self.finish()

    def finish(self) -> None:
        if self._waits_in is not None:
            self._waits_in.pop(self, None)
        if self.acks == 0:
            failed = next((a for topic in self._answers for a in topic if a.error_code), None)
            if failed is not None:
                # A client that wants no answer learns of a failure only by the connection going away.
                self._connection.close(f"produce with acks=0 failed: error {failed.error_code} {failed.error_message}")
            return
        self.buffers = [
            encode_produce_response(
                self.version,
                self.correlation_id,
                list(zip(self._names, self._answers, strict=True)),
                self._connection.throttle_ms,
                node_endpoints=self._endpoints(self._leaders) if self._leaders else (),
            )
        ]
        self._connection.answer_ready()

    def _endpoints(self, leaders: Iterable[int]) -> Sequence[NodeEndpoint]:
        return self.serving.endpoints_of(leaders, self._connection.info.listener)

    @property
    def is_finished(self) -> bool:
        return self._missing == 0

    def await_acknowledgement(self, timeouts: ProduceTimeouts, timeout_ms: int, topics: Sequence[TopicRecords]) -> None:
        """Not answered within the turn: answer "timed out", outcome unknown, when the client's patience ends."""
        self._partitions = [[partition for partition, _ in partitions] for _, partitions in topics]
        self._waits_in = timeouts.add(self, timeout_ms)

    def expire(self) -> None:
        for topic, answers in enumerate(self._answers):
            for position, answer in enumerate(answers):
                if answer is None:
                    slot = topic, position, self._partitions[topic][position]
                    self.fail(slot, ErrorCode.REQUEST_TIMED_OUT, _TIMED_OUT)


class PendingSingle(Answer):
    """A produce request with one batch, as most are: the same duties as `PendingProduce`, without its tables."""

    __slots__ = (
        "_connection",
        "_is_settled",
        "_name",
        "_partition",
        "_waits_in",
        "acks",
        "correlation_id",
        "serving",
        "version",
    )

    def __init__(
        self, serving: Serving, connection: Connection, header: RequestHeader, acks: int, name: str, partition: int
    ) -> None:
        self.buffers = None
        self.held_bytes = self.kept_bytes = 0
        self.release = None
        self.serving = serving
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        self.acks = acks
        self._connection = connection
        self._name = name
        self._partition = partition
        self._is_settled = False
        self._waits_in: Line | None = None

    def appended(self, slot: object, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        if self._waits_in is not None:
            self._waits_in.pop(self, None)
        if self.acks:
            self._answer(ProducedPartition(self._partition, 0, base_offset, append_time_ms, log_start_offset, None))

    def refused(
        self, slot: object, why: BatchFault | SequenceFault | AppendFailure, message: str, log_start_offset: int
    ) -> None:
        self.fail(slot, CODES[why], message, log_start_offset)

    def fail(self, slot: object, code: int, message: str | None = None, log_start_offset: int = -1) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        if self._waits_in is not None:
            self._waits_in.pop(self, None)
        self.serving.stats.produce_errors += 1
        if self.acks:
            leader = (
                self.serving.leader_of(self._name, self._partition)
                if code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                else None
            )
            self._answer(
                ProducedPartition(self._partition, code, -1, -1, log_start_offset, message, leader),
                self.serving.endpoints_of((leader[0],), self._connection.info.listener) if leader is not None else (),
            )
        else:
            self._connection.close(f"produce with acks=0 failed: error {code} {message}")

    def _answer(self, answer: ProducedPartition, endpoints: Sequence[NodeEndpoint] = ()) -> None:
        self.buffers = [
            encode_produce_response(
                self.version,
                self.correlation_id,
                ((self._name, (answer,)),),
                self._connection.throttle_ms,
                node_endpoints=endpoints,
            )
        ]
        self._connection.answer_ready()

    @property
    def is_finished(self) -> bool:
        return self._is_settled

    def await_acknowledgement(self, timeouts: ProduceTimeouts, timeout_ms: int, topics: Sequence[TopicRecords]) -> None:
        self._waits_in = timeouts.add(self, timeout_ms)

    def expire(self) -> None:
        self.fail(None, ErrorCode.REQUEST_TIMED_OUT, _TIMED_OUT)


class ProduceHandler:
    """Produce requests of all connections."""

    def __init__(
        self,
        serving: Serving,
        catalog: Catalog,
        shard_of: Callable[[str, int], ShardLog | None],
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """`catch_up`: see `CatalogLag`."""
        self._serving = serving
        self._catalog = catalog
        self._this_turn: list[tuple[PendingProduce | PendingSingle, int, Sequence[TopicRecords]]] = []
        """Usually answered by this turn's flush; of those that are not, the patience counts."""
        self._timeouts = ProduceTimeouts(serving.loop)
        self._unknown = UnknownShards(serving, catalog, shard_of, catch_up)
        serving.turn.after_shards.append(self._count_patience)
        self._shard_of = shard_of

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        serving = self._serving
        request = decode_produce(frame, header.body_position, header.api_version)
        serving.stats.produce_requests += 1
        topics = request.topics
        if len(topics) == 1 and len(topics[0][1]) == 1:
            name, ((partition, records),) = topics[0]
            single = PendingSingle(serving, connection, header, request.acks, name, partition)
            if request.acks != 0:
                connection.expect_answer(single)
            if not connection.rights.may_topic(Operation.WRITE, name):
                single.fail(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                return
            self._offer(name, partition, records, header.api_version, request.acks, single, None)
            if not single._is_settled:
                self._this_turn.append((single, request.timeout_ms, topics))
            return
        pending = PendingProduce(serving, connection, header, request.acks)
        if request.acks != 0:
            connection.expect_answer(pending)
        for name, partitions in topics:
            pending.add_topic(name, len(partitions))
        if pending.is_finished:  # no topics, or topics without partitions: nothing will be settled
            pending.finish()
            return
        for topic_index, (name, partitions) in enumerate(topics):
            may_write = connection.rights.may_topic(Operation.WRITE, name)
            for position, (partition, records) in enumerate(partitions):
                slot = (topic_index, position, partition)
                if not may_write:
                    pending.fail(slot, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    continue
                self._offer(name, partition, records, header.api_version, request.acks, pending, slot)
        if not pending.is_finished:
            self._this_turn.append((pending, request.timeout_ms, topics))

    async def close(self) -> None:
        await self._unknown.close()

    def _count_patience(self) -> None:
        if self._this_turn:
            for pending, timeout_ms, topics in self._this_turn:
                if not pending.is_finished:
                    pending.await_acknowledgement(self._timeouts, timeout_ms, topics)
            self._this_turn.clear()

    def _offer(
        self,
        name: str,
        partition: int,
        records: memoryview | None,
        version: int,
        acks: int,
        pending: PendingProduce | PendingSingle,
        slot: Any,
    ) -> None:
        if acks not in _ACKS:
            pending.fail(slot, ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks}: use 0, 1 or all")
            return
        shard = self._shard_of(name, partition)
        if shard is None:
            known = self._catalog.topic(name)
            if known is not None and self._catalog.is_mounted(known):
                pending.fail(slot, ErrorCode.POLICY_VIOLATION, f"{name} is mounted: it is read only")
            else:
                self._unknown.refuse(name, partition, records, acks, pending, slot)
            return
        if shard.topic.is_internal:
            pending.fail(slot, ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by the node alone")
            return
        if self._unknown.owed:
            self._unknown.report_rejected(shard, name, partition)
        faulty = offer(shard, records, version, acks, pending, slot, self._serving.turn.now_ms)
        if faulty is not None:
            pending.refused(slot, faulty.fault, faulty.message, shard.log_start_offset)


def offer(
    shard: ShardLog,
    records: memoryview | None,
    version: int,
    acks: int,
    request: AppendRequest,
    slot: Any,
    now_ms: int,
) -> FaultyBatch | None:
    """Check a batch by its header and give it to its shard. Returns what is wrong with it when it is not taken."""
    if records is None:
        return FaultyBatch(BatchFault.NO_BATCH, "no record batch")
    rules = shard.rules
    header = check_offered(records, rules.max_message_bytes, ZSTD if version >= _ZSTD_FROM_VERSION else LZ4)
    if isinstance(header, FaultyBatch):
        return header
    if header[_ATTRIBUTES] & LOG_APPEND_TIME_BIT and not rules.is_append_time:
        header = clear_append_time(records, header[_ATTRIBUTES])
    if rules.has_time_window:
        earliest_ms, latest_ms = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
        fault = time_fault(records, header, earliest_ms, latest_ms, looks_at_each=rules.checks_each_time)
        if fault is not None:
            return fault
    _, _, _, _, _, attributes, _, _, max_timestamp, producer_id, producer_epoch, sequence, count = header
    if rules.is_append_time:
        max_timestamp = now_ms
        stamp_append_time(records, attributes, now_ms)
    shard.offer(
        OfferedBatch(
            records, len(records), count, max_timestamp, producer_id, producer_epoch, sequence, acks, request, slot
        )
    )
    return None
