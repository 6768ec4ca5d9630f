"""Decodes and encodes Produce requests and replies, versions 3-11, without kio and without copying a batch.

Callers hand in a frame (without its size prefix) and must not reuse its buffer while they hold a record view. Versions
outside 3-11 are the caller's mistake (the registry refuses them). Pure. Cost: about 2 us for one topic with one
partition, about 1 us for its reply.

Version differences: flexible from 9; the reply has log_start_offset from 5, record_errors and error_message from 8,
current_leader and node_endpoints (tags) from 10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.strings import compact_string, legacy_string
from stratalog.kafka.varint import encode_varint, read_varint, skip_tags

MIN_VERSION = 3
MAX_VERSION = 11
_FLEXIBLE = 9
MAX_PARTITIONS = 200_000
"""Partition entries in one request: six bytes become objects of two hundred, so a frame must be bounded."""
_FEW = 1_000
"""The most of them that a frame may have without a batch each."""
_LEAST_BATCH_BYTES = 61

TopicRecords: TypeAlias = tuple[str, list[tuple[int, memoryview | None]]]


@dataclass(slots=True)
class ProduceRequest:
    """A decoded request. Records are views into the frame, None where the client sent null."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicRecords]


class LeaderHint(NamedTuple):
    """The present leader. Sent with NOT_LEADER_OR_FOLLOWER from version 10, it saves the client a Metadata round
    trip."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where the leaders named in hints are."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class RecordError(NamedTuple):
    """Why a batch was refused, by the index of the record in it."""

    batch_index: int
    message: str | None


class ProducedPartition(NamedTuple):
    """The answer for one partition."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    current_leader: LeaderHint | tuple[int, int] | None = None
    record_errors: Sequence[RecordError] = ()


_ACKS_TIMEOUT = struct.Struct(">hi")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_INDEX_LENGTH = struct.Struct(">ii")


def decode_produce(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Decode a request body that starts at `position`. Raises: MalformedFrame."""
    try:
        if version >= _FLEXIBLE:
            return _decode_compact(frame, position)
        return _decode_legacy(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"Produce v{version}, frame of {len(frame)} bytes: {error}: close it") from error


def _decode_compact(frame: memoryview, position: int) -> ProduceRequest:
    end = len(frame)
    length = frame[position]
    transactional_id: str | None = None
    if length == 0:
        position += 1
    else:
        length, at = read_varint(frame, position)
        position = at + length - 1
        if position > end:
            raise _overrun("transactional id", at, end)
        transactional_id = str(frame[at:position], "utf-8")
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    position += 6
    count = frame[position]
    position += 1
    if count > 127:
        count, position = read_varint(frame, position - 1)
    if count == 0:
        raise MalformedFrame(f"null topic array at byte {position}: close the connection")
    topics: list[TopicRecords] = []
    total = 0
    for _ in range(count - 1):
        length = frame[position]
        position += 1
        if length > 127:
            length, position = read_varint(frame, position - 1)
        if length == 0:
            raise MalformedFrame(f"null topic name at byte {position}: close the connection")
        at = position
        position += length - 1
        if position > end:
            raise _overrun("topic name", at, end)
        name = str(frame[at:position], "utf-8")
        partition_count = frame[position]
        position += 1
        if partition_count > 127:
            partition_count, position = read_varint(frame, position - 1)
        if partition_count == 0:
            raise MalformedFrame(f"null partition array at byte {position}: close the connection")
        total += partition_count  # one of them is the topic itself
        if total > _FEW:
            _check_count(total, end)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count - 1):
            (index,) = _I32.unpack_from(frame, position)
            position += 4
            length = frame[position]
            position += 1
            if length > 127:
                length, position = read_varint(frame, position - 1)
            if length == 0:
                partitions.append((index, None))
            else:
                at = position
                position += length - 1
                if position > end:
                    raise _overrun("records", at, end)
                partitions.append((index, frame[at:position]))
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
        topics.append((name, partitions))
        position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
    skip_tags(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _check_count(partitions: int, frame_bytes: int) -> None:
    """Each partition brings a batch; a few may lack one and be told so, but not a frame that holds nothing else."""
    limit = min(MAX_PARTITIONS, _FEW + frame_bytes // _LEAST_BATCH_BYTES)
    if partitions > limit:
        raise MalformedFrame(f"more than {limit} partitions in one Produce of {frame_bytes} bytes: send less at a time")


def _decode_legacy(frame: memoryview, position: int) -> ProduceRequest:
    end = len(frame)
    (length,) = _I16.unpack_from(frame, position)
    position += 2
    transactional_id: str | None = None
    if length >= 0:
        at = position
        position += length
        if position > end:
            raise _overrun("transactional id", at, end)
        transactional_id = str(frame[at:position], "utf-8")
    acks, timeout_ms, count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position)
    position += 10
    if count < 0:
        raise MalformedFrame(f"null topic array at byte {position}: close the connection")
    topics: list[TopicRecords] = []
    total = 0
    for _ in range(count):
        (length,) = _I16.unpack_from(frame, position)
        at = position + 2
        position = at + length
        if length < 0 or position > end:
            raise _overrun("topic name", at, end)
        name = str(frame[at:position], "utf-8")
        (partition_count,) = _I32.unpack_from(frame, position)
        position += 4
        total += partition_count + 1  # a topic without partitions takes room, too
        if partition_count < 0:
            raise MalformedFrame(f"null partition array at byte {position}: close the connection")
        if total > _FEW:
            _check_count(total, end)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, length = _INDEX_LENGTH.unpack_from(frame, position)
            position += 8
            if length >= 0:
                at = position
                position += length
                if position > end:
                    raise _overrun("records", at, end)
                partitions.append((index, frame[at:position]))
            elif length == -1:
                partitions.append((index, None))
            else:
                raise MalformedFrame(f"records of length {length} at byte {position}: close the connection")
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _overrun(what: str, at: int, end: int) -> MalformedFrame:
    return MalformedFrame(f"{what} at byte {at} ends outside a frame of {end} bytes: close the connection")


# Replies --------------------------------------------------------------------------------------------------------------
_ONE_HEAD_COMPACT = struct.Struct(">iibBB")
_ONE_TAIL_COMPACT = struct.Struct(">BihqqqBBBBiB")
_HEAD_V0 = struct.Struct(">ii")
_HEAD_V1 = struct.Struct(">iib")
_COMPACT_PARTITION = struct.Struct(">ihqqq")
_LEGACY_V3 = struct.Struct(">ihqq")
_LEGACY_V5 = struct.Struct(">ihqqq")
_TAGGED_LEADER = struct.Struct(">BBBiiB")
_HINT_BYTES = 9


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str, Sequence[ProducedPartition]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole reply, size prefix first. Fields that `version` lacks are left out."""
    if version < _FLEXIBLE:
        return _encode_legacy(version, correlation_id, topics, throttle_ms)
    if len(topics) == 1 and len(topics[0][1]) == 1 and not node_endpoints:
        name, (answer,) = topics[0]
        is_plain = answer[1] == 0 and answer[5] is None and answer[6] is None and not answer[7]
        if is_plain and len(name) < 100 and name.isascii():
            # The hot path: one partition, no error. Every topic name of Kafka is ASCII, so characters are bytes.
            length = len(name)
            return b"".join(
                (
                    _ONE_HEAD_COMPACT.pack(47 + length, correlation_id, 0, 2, length + 1),
                    name.encode("ascii"),
                    _ONE_TAIL_COMPACT.pack(
                        2, answer[0], 0, answer[2], answer[3], answer[4], 1, 0, 0, 0, throttle_ms, 0
                    ),
                )
            )
    return _encode_compact(version, correlation_id, topics, throttle_ms, node_endpoints)


def _encode_compact(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str, Sequence[ProducedPartition]]],
    throttle_ms: int,
    node_endpoints: Sequence[NodeEndpoint],
) -> bytes:
    out = [encode_varint(len(topics) + 1)]
    for name, partitions in topics:
        out.append(compact_string(name))
        out.append(encode_varint(len(partitions) + 1))
        for index, error, base, append_time, log_start, message, leader, record_errors in partitions:
            out.append(_COMPACT_PARTITION.pack(index, error, base, append_time, log_start))
            out.append(encode_varint(len(record_errors) + 1))
            for batch_index, why in record_errors:
                out.append(_I32.pack(batch_index) + compact_string(why) + b"\0")
            out.append(compact_string(message))
            if leader is not None and version >= 10:
                out.append(_TAGGED_LEADER.pack(1, 0, _HINT_BYTES, leader[0], leader[1], 0))
            else:
                out.append(b"\0")
        out.append(b"\0")
    out.append(_I32.pack(throttle_ms))
    if node_endpoints and version >= 10:
        endpoints = [encode_varint(len(node_endpoints) + 1)]
        for node_id, host, port, rack in node_endpoints:
            endpoints += (_I32.pack(node_id), compact_string(host), _I32.pack(port), compact_string(rack), b"\0")
        blob = b"".join(endpoints)
        out += (b"\1\0", encode_varint(len(blob)), blob)
    else:
        out.append(b"\0")
    body = b"".join(out)
    return _HEAD_V1.pack(len(body) + 5, correlation_id, 0) + body


def _encode_legacy(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str, Sequence[ProducedPartition]]],
    throttle_ms: int,
) -> bytes:
    out = [_I32.pack(len(topics))]
    for name, partitions in topics:
        out.append(legacy_string(name))
        out.append(_I32.pack(len(partitions)))
        for index, error, base, append_time, log_start, message, _, record_errors in partitions:
            if version >= 5:
                out.append(_LEGACY_V5.pack(index, error, base, append_time, log_start))
            else:
                out.append(_LEGACY_V3.pack(index, error, base, append_time))
            if version >= 8:
                out.append(_I32.pack(len(record_errors)))
                for batch_index, why in record_errors:
                    out.append(_I32.pack(batch_index) + legacy_string(why))
                out.append(legacy_string(message))
    out.append(_I32.pack(throttle_ms))
    body = b"".join(out)
    return _HEAD_V0.pack(len(body) + 4, correlation_id) + body
