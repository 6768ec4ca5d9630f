"""Fetch version 15 as replicas speak it, both ways: what a follower asks and what its leader answers.

A follower names itself in `ReplicaState` (tag 1): its node id, and as replica epoch the token of its present life. An
entry is a segment: the partition with the epoch as current leader epoch, so that two segments of one partition may be
asked for at once; in the answer the epoch is in `CurrentLeader` (tag 1). Sessions are those of KIP-227. Records are
spliced into the reply, and given out of it as views, never copied.
A request without a session (`is_sealed_read`) reads one sealed segment and confirms nothing; its entry may name a time
(a tag of our own), or ask for the segment's table of producers instead of batches (another).
Ordinary clients take version 12 (`kafka/fetch.py`). Pure. Cost: about 1 us an entry.
Source: docs/replication.md sections 3 and 4, docs/kafka.md "Fetch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.fetch import MAX_PARTITIONS
from stratalog.kafka.strings import legacy_string
from stratalog.kafka.varint import encode_varint, find_tag, read_varint, skip_tags

VERSION = 15
FETCH = 1
NO_SESSION = 0
FINAL_EPOCH = -1
"""As session epoch: the session ends with this request."""

Buffer = TypeVar("Buffer")


class SegmentAsk(NamedTuple):
    """One segment asked for, from `fetch_offset` on: everything below is at the follower's."""

    topic_id: UUID
    shard: int
    epoch: int
    fetch_offset: int
    max_bytes: int
    timestamp_ms: int = -1
    """At or above 0, of a sealed read: only the first batch that claims this time or a later one."""
    table_position: int = -1
    """At or above 0, of a sealed read: no batches, but the table of producers at the segment's end, from this byte on;
    the answer's high watermark is the size of all of it."""


@dataclass(slots=True)
class ReplicaFetch:
    replica_id: int
    """The follower's node id; -1: no follower."""
    token: int
    max_wait_ms: int
    max_bytes: int
    session_id: int
    session_epoch: int
    asks: list[SegmentAsk] = field(default_factory=list)
    forgotten: list[tuple[UUID, int]] = field(default_factory=list)
    """Partitions, with all their segments; done before `asks`."""

    @property
    def is_sealed_read(self) -> bool:
        """It begins no session: a node reads what it has no copy of."""
        return self.session_id == NO_SESSION and self.session_epoch == FINAL_EPOCH


class SegmentAnswer(NamedTuple, Generic[Buffer]):
    """One segment's answer; the sizes of `records` sum up to `records_bytes`."""

    topic_id: UUID
    shard: int
    epoch: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: Sequence[Buffer] = ()
    records_bytes: int = 0
    leader: int = -1
    """The leader, if the error says that the answering node does not lead; otherwise the answering node."""


@dataclass(slots=True)
class ReplicaAnswer:
    error_code: int
    session_id: int
    segments: list[SegmentAnswer[memoryview]]


# Requests -------------------------------------------------------------------------------------------------------------
_REQUEST_HEAD = struct.Struct(">ihhi")
_BODY_HEAD = struct.Struct(">iiibii")
_ENTRY = struct.Struct(">iiqiqiB")
_REPLICA_STATE = struct.Struct(">iqB")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_UNKNOWN_EPOCH, _UNKNOWN_OFFSET = -1, -1
_TIME_TAG = 100
_TABLE_TAG = 101
_TAGGED = struct.Struct(">BBq")


def encode_replica_fetch(correlation_id: int, client_id: str, asked: ReplicaFetch) -> bytes:
    """The whole request, size prefix first."""
    head = _BODY_HEAD.pack(asked.max_wait_ms, 1, asked.max_bytes, 0, asked.session_id, asked.session_epoch)
    out = [legacy_string(client_id), b"\0", head]
    topics = _runs(asked.asks)
    out.append(encode_varint(len(topics) + 1))
    for begin, end in topics:
        out.append(asked.asks[begin].topic_id.bytes + encode_varint(end - begin + 1))
        out += map(_encode_ask, asked.asks[begin:end])
        out.append(b"\0")
    gone = [(topic_id, [shard for _, shard in of]) for topic_id, of in groupby(asked.forgotten, key=lambda one: one[0])]
    out.append(encode_varint(len(gone) + 1))
    for topic_id, shards in gone:
        out.append(topic_id.bytes + encode_varint(len(shards) + 1) + struct.pack(f">{len(shards)}i", *shards) + b"\0")
    state = _REPLICA_STATE.pack(asked.replica_id, asked.token, 0)
    out.append(b"\1" + b"\1\1" + encode_varint(len(state)) + state)  # no rack, one tag
    body = b"".join(out)
    return _REQUEST_HEAD.pack(len(body) + 8, FETCH, VERSION, correlation_id) + body


def _encode_ask(ask: SegmentAsk) -> bytes:
    tagged = b""
    if ask.timestamp_ms >= 0:
        tagged = _TAGGED.pack(_TIME_TAG, 8, ask.timestamp_ms)
    elif ask.table_position >= 0:
        tagged = _TAGGED.pack(_TABLE_TAG, 8, ask.table_position)
    tags = 1 if tagged else 0
    entry = _ENTRY.pack(ask.shard, ask.epoch, ask.fetch_offset, _UNKNOWN_EPOCH, _UNKNOWN_OFFSET, ask.max_bytes, tags)
    return entry + tagged


def _runs(entries: Sequence[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """Where those of one topic begin and end; their first field names it."""
    runs = []
    begin = 0
    for at in range(1, len(entries) + 1):
        if at == len(entries) or (entries[at][0] is not (topic_id := entries[begin][0]) and entries[at][0] != topic_id):
            runs.append((begin, at))
            begin = at
    return runs


def decode_replica_fetch(frame: memoryview, position: int, most_segments: int = MAX_PARTITIONS) -> ReplicaFetch:
    """Decode a request body that starts at `position`. Raises: MalformedFrame, also for more than `most_segments`."""
    try:
        return _decode_fetch(frame, position, min(most_segments, MAX_PARTITIONS))
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedFrame(f"Fetch v{VERSION}, frame of {len(frame)} bytes: {error}: close it") from error


def _decode_fetch(frame: memoryview, position: int, room: int) -> ReplicaFetch:
    max_wait, _, max_bytes, _, session_id, session_epoch = _BODY_HEAD.unpack_from(frame, position)
    request = ReplicaFetch(-1, -1, max_wait, max_bytes, session_id, session_epoch)
    count, position = _count(frame, position + _BODY_HEAD.size)
    for _ in range(count):
        topic_id, position = _uuid(frame, position)
        entries, position = _count(frame, position)
        room = _subtract_room(room, entries)
        for _ in range(entries):
            shard, epoch, offset, _, _, most, tags = _ENTRY.unpack_from(frame, position)
            position += _ENTRY.size
            timestamp_ms = table_position = -1
            if tags:
                tagged_at = position - 1
                time, position = find_tag(frame, tagged_at, _TIME_TAG)
                table, _ = find_tag(frame, tagged_at, _TABLE_TAG)
                if time is not None:
                    (timestamp_ms,) = _I64.unpack_from(time)
                if table is not None:
                    (table_position,) = _I64.unpack_from(table)
            request.asks.append(_new(SegmentAsk, (topic_id, shard, epoch, offset, most, timestamp_ms, table_position)))
        position = skip_tags(frame, position)
    count, position = _count(frame, position)
    for _ in range(count):
        topic_id, position = _uuid(frame, position)
        entries, position = _count(frame, position)
        room = _subtract_room(room, entries)
        request.forgotten += ((topic_id, shard) for shard in struct.unpack_from(f">{entries}i", frame, position))
        position = skip_tags(frame, position + 4 * entries)
    rack_bytes, position = read_varint(frame, position)
    state, _ = find_tag(frame, position + max(rack_bytes - 1, 0), 1)
    if state is not None:
        request.replica_id, request.token, _ = _REPLICA_STATE.unpack_from(state)
    return request


def _subtract_room(room: int, count: int) -> int:
    count += 1  # a topic without partitions takes room, too
    if count > room:
        raise MalformedFrame("more segments in one Fetch, or its answer, than there can be: name each once")
    return room - count


def _count(frame: memoryview, position: int) -> tuple[int, int]:
    count, position = read_varint(frame, position)
    if count == 0:
        raise MalformedFrame(f"null array before byte {position}: close the connection")
    return count - 1, position


def _uuid(frame: memoryview, position: int) -> tuple[UUID, int]:
    return _topic_id(bytes(frame[position : position + 16])), position + 16


@lru_cache(maxsize=4096)
def _topic_id(of: bytes) -> UUID:
    """A UUID takes 2 us to make, and one that is the same object is found again without a comparison."""
    return UUID(bytes=of)


_new = tuple.__new__  # saves two thirds of a NamedTuple's construction


# Answers --------------------------------------------------------------------------------------------------------------
_REPLY_HEAD = struct.Struct(">iibihi")
_FIXED = struct.Struct(">ihqqqBi")
_LEADER = struct.Struct(">BBBiiB")
_LEADER_ALONE = b"\1\1\x09"
"""One tagged field, the first, of nine bytes: what `_LEADER` writes."""
_TWO_I32 = struct.Struct(">ii")


def encode_replica_answer(
    correlation_id: int, error_code: int, session_id: int, segments: Iterable[SegmentAnswer[Buffer]]
) -> list[bytes | Buffer]:
    """The whole reply as buffers in order, size prefix first."""
    out: list[bytes | Buffer] = []
    small: list[bytes] = []
    spliced_bytes = 0
    segments = list(segments)
    topics = _runs(segments)
    small.append(encode_varint(len(topics) + 1))
    sizes = 0
    for begin, end in topics:
        small.append(segments[begin].topic_id.bytes + encode_varint(end - begin + 1))
        for _, shard, epoch, error, high_watermark, log_start, records, size, leader in segments[begin:end]:
            small.append(_FIXED.pack(shard, error, high_watermark, high_watermark, log_start, 0, -1))
            small.append(encode_varint(size + 1))
            if size:
                run = b"".join(small)
                sizes += len(run)
                out.append(run)
                out.extend(records)
                spliced_bytes += size
                small = []
            small.append(_LEADER.pack(1, 1, 9, leader, epoch, 0))
        small.append(b"\0")
    small.append(b"\0")
    last = b"".join(small)
    out.append(last)
    size = _REPLY_HEAD.size - 4 + sizes + len(last) + spliced_bytes
    return [_REPLY_HEAD.pack(size, correlation_id, 0, 0, error_code, session_id), *out]


def decode_replica_answer(frame: memoryview, most_segments: int = MAX_PARTITIONS) -> tuple[int, ReplicaAnswer]:
    """Correlation id and answer; `frame` begins after the size prefix, and the records are views of it.

    Raises: MalformedFrame, also for more than `most_segments`."""
    try:
        (correlation_id,) = _I32.unpack_from(frame)
        position = skip_tags(frame, 4)
        _, error_code, session_id = struct.unpack_from(">ihi", frame, position)
        return correlation_id, ReplicaAnswer(
            error_code, session_id, list(_segments(frame, position + 10, most_segments))
        )
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedFrame(f"answer to Fetch v{VERSION}, frame of {len(frame)} bytes: {error}: close it") from error


def _segments(frame: memoryview, position: int, room: int) -> Iterator[SegmentAnswer[memoryview]]:
    topics, position = _count(frame, position)
    for _ in range(topics):
        topic_id, position = _uuid(frame, position)
        entries, position = _count(frame, position)
        room = _subtract_room(room, entries)
        for _ in range(entries):
            shard, error, high_watermark, _, log_start, aborted, _ = _FIXED.unpack_from(frame, position)
            if aborted > 1:
                raise MalformedFrame("aborted transactions in an answer to a replica: close the connection")
            size, at = read_varint(frame, position + _FIXED.size)
            end = at + max(size - 1, 0)
            if end > len(frame):
                raise MalformedFrame(f"records at byte {at} end outside a frame of {len(frame)} bytes: close it")
            if frame[end : end + 3] == _LEADER_ALONE:
                leader, epoch = _TWO_I32.unpack_from(frame, end + 3)
                position = end + _LEADER.size
            else:
                tag, position = find_tag(frame, end, 1)
                leader, epoch = _TWO_I32.unpack_from(tag) if tag is not None else (-1, -1)
            records = (frame[at:end],) if end > at else ()
            yield _new(
                SegmentAnswer,
                (topic_id, shard, epoch, error, high_watermark, log_start, records, end - at, leader),
            )
        position = skip_tags(frame, position)
