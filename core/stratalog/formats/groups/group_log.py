"""The records of the group log (`__consumer_offsets`): what a coordinator writes so that groups outlive it.

Bytes: docs/formats-groups.md. Each entry is one record of a batch, whose CRC protects it; key and value carry versions
of their own. Reading refuses what it does not know with Corrupt: guessing would lose offsets silently.
Cost: about 3 us per offset in either direction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, assert_never
from uuid import UUID

from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.groups.consumer_group_log import put_change, put_record, take_change, take_record
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.model.groups.consumer_group import ConsumerGroupChange, ConsumerGroupRecord
from stratalog.model.groups.group import CommittedOffset, GroupRecord, MemberProtocol, MemberRecord
from stratalog.model.ids import ShardKey

VERSION = 1
TEXT_LIMIT = 65_534
"""Longest group id, member id or host, in UTF-8 bytes: twice what Kafka's own strings can hold."""

_CACHED_TEXT = 300
"""Longer names are not kept in the caches of names: a few thousand of them would be hundreds of megabytes."""

_OFFSET, _GROUP, _SNAPSHOT, _OPENED, _MEMBER, _CONSUMERS, _CONSUMERS_CHANGED = 1, 2, 3, 4, 5, 6, 7
_BEGIN, _END = 0, 1
_NONE = 0xFFFF

_OFFSET_HEAD = bytes((VERSION, _OFFSET))
_HEAD = struct.Struct(">BB")
_LENGTH = struct.Struct(">H")
_SIZE = struct.Struct(">I")
_TIMEOUTS = struct.Struct(">ii")
_NO_TEXT = _LENGTH.pack(_NONE)
_SHARD = struct.Struct(">16sI")
_OFFSET_KEY_HEAD = struct.Struct(">BBH")
_OFFSET_VALUE = struct.Struct(">BqiqqI")


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """A committed offset, or with None: it is forgotten."""

    group_id: str
    shard: ShardKey
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group's members and generation, or with None: the group and all its offsets are gone."""

    group_id: str
    record: GroupRecord | None
    changed_ms: int


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """A static member of the group came back under a new id, in this generation, and replaces its instance's former id.
    The record has one member's bytes instead of the whole group's."""

    group_id: str
    generation: int
    member: MemberRecord
    changed_ms: int


@dataclass(frozen=True, slots=True)
class ConsumersEntry:
    """A whole group of the consumer protocol: it replaces all earlier records of the group."""

    group_id: str
    record: ConsumerGroupRecord
    changed_ms: int


@dataclass(frozen=True, slots=True)
class ConsumersChangedEntry:
    """What one step changed of it, on top of the write before; it means nothing where that one is not in the log."""

    group_id: str
    change: ConsumerGroupChange
    changed_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotBegun:
    """From here to the matching end: the whole live state of the shard."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The snapshot is complete if exactly this many entries are between its first and last record, and nothing else."""

    snapshot_id: int
    entry_count: int


@dataclass(frozen=True, slots=True)
class LogOpened:
    """A coordinator took the shard over: all that was acknowledged before lies below this record."""

    node_id: int
    opened_ms: int


LogEntry: TypeAlias = (
    OffsetEntry
    | GroupEntry
    | MemberEntry
    | ConsumersEntry
    | ConsumersChangedEntry
    | SnapshotBegun
    | SnapshotEnded
    | LogOpened
)
KeyValue: TypeAlias = tuple[bytes, bytes | None]


def encode_entry(entry: LogEntry) -> KeyValue:
    """Key and value of the entry's record. Raises: InvalidRequest when a text is too long."""
    match entry:
        case OffsetEntry(group_id, shard, committed):
            key = _group_key(_OFFSET, group_id) + _shard_bytes(shard)
            return key, None if committed is None else _encode_offset(committed)
        case GroupEntry(group_id, record, changed_ms):
            return _group_key(_GROUP, group_id), None if record is None else _encode_group(record, changed_ms)
        case MemberEntry(group_id, generation, member, changed_ms):
            return _group_key(_MEMBER, group_id), _encode_returned(generation, member, changed_ms)
        case ConsumersEntry(group_id, consumers, changed_ms):
            out = _value_of(changed_ms)
            put_record(out, consumers)
            return _group_key(_CONSUMERS, group_id), out.getvalue()
        case ConsumersChangedEntry(group_id, change, changed_ms):
            out = _value_of(changed_ms)
            put_change(out, change)
            return _group_key(_CONSUMERS_CHANGED, group_id), out.getvalue()
        case SnapshotBegun(snapshot_id):
            return _HEAD.pack(VERSION, _SNAPSHOT), _encode_mark(_BEGIN, snapshot_id, 0)
        case SnapshotEnded(snapshot_id, entry_count):
            return _HEAD.pack(VERSION, _SNAPSHOT), _encode_mark(_END, snapshot_id, entry_count)
        case LogOpened(node_id, opened_ms):
            out = FieldWriter()
            out.u8(VERSION, "version")
            out.i32(node_id, "node id")
            out.i64(opened_ms, "opening time")
            return _HEAD.pack(VERSION, _OPENED), out.getvalue()
        case _:
            assert_never(entry)


def decode_entry(key: Buffer | None, value: Buffer | None, *, source: str, position: int) -> LogEntry:
    """The entry of one record; `source` and `position` (the record's offset) are for messages. Raises: Corrupt."""
    if key is not None and value is not None and bytes(key[:2]) == _OFFSET_HEAD:
        return OffsetEntry(*decode_committed(bytes(key), value, source, position))
    reader = FieldReader(key or b"", source=source, position=position)
    version, kind = reader.u8("key version"), reader.u8("kind")
    if version != VERSION:
        reader.refuse(f"group log key has version {version}, this reader knows {VERSION}: a newer release wrote it")
    if kind == _OFFSET:
        group_id = reader.text(TEXT_LIMIT, "group id")
        topic_id, shard = UUID(bytes=bytes(reader.read_bytes(16, "topic id"))), reader.u32("shard")
        reader.finish()
        committed = None if value is None else _decode_offset(value, source, position)
        return OffsetEntry(group_id, ShardKey(topic_id, shard), committed)
    if kind in (_GROUP, _MEMBER):
        group_id = reader.text(TEXT_LIMIT, "group id")
        reader.finish()
        if kind == _MEMBER:
            return _decode_returned(group_id, _value_reader(value or b"", source, position))
        if value is None:
            return GroupEntry(group_id, None, -1)
        return _decode_group(group_id, _value_reader(value, source, position))
    if kind in (_CONSUMERS, _CONSUMERS_CHANGED):
        group_id = reader.text(TEXT_LIMIT, "group id")
        reader.finish()
        return _decode_consumers(kind, group_id, _value_reader(value or b"", source, position))
    reader.finish()
    body = _value_reader(value or b"", source, position)
    if kind == _SNAPSHOT:
        return _decode_mark(body)
    if kind == _OPENED:
        opened = LogOpened(body.i32("node id"), body.i64("opening time"))
        body.finish()
        return opened
    reader.refuse(f"group log entry of unknown kind {kind}: a newer release wrote it")


def _group_key(kind: int, group_id: str) -> bytes:
    if len(group_id) > _CACHED_TEXT:
        return _new_group_key(kind, group_id)
    return _cached_group_key(kind, group_id)


def _new_group_key(kind: int, group_id: str) -> bytes:
    out = FieldWriter()
    out.raw(_HEAD.pack(VERSION, kind))
    out.text(group_id, TEXT_LIMIT, "group id")
    return out.getvalue()


_cached_group_key = lru_cache(maxsize=4096)(_new_group_key)


# Offsets ----------------------------------------------------------------------------------------------------------
# By far the most entries, and the same few names in all of them: these caches make a reload three times as fast, and
# what is read shares its names.
@lru_cache(maxsize=65_536)
def _shard_bytes(shard: ShardKey) -> bytes:
    return _SHARD.pack(shard.topic_id.bytes, shard.shard)


@lru_cache(maxsize=65_536)
def _shard_of(raw: bytes) -> ShardKey:
    topic_id, shard = _SHARD.unpack(raw)
    return ShardKey(UUID(bytes=topic_id), shard)


def _new_group_of(head: bytes) -> str | None:
    """The group id in the front part of an offset's key; None when that part is cut short or too long."""
    size = _OFFSET_KEY_HEAD.size
    if len(head) < size or _OFFSET_KEY_HEAD.unpack_from(head)[2] != len(head) - size:
        return None
    return head[size:].decode()


_cached_group_of = lru_cache(maxsize=4096)(_new_group_of)


def is_committed(key: bytes) -> bool:
    """Whether a record with this key, and a value, is a committed offset, which `decode_committed` reads."""
    return key[:2] == _OFFSET_HEAD


def decode_committed(key: bytes, value: Buffer, source: str, position: int) -> tuple[str, ShardKey, CommittedOffset]:
    """Group, shard and offset of one such record: nearly all of what a reload reads. Raises: Corrupt."""
    head = key[: -_SHARD.size]
    try:
        group_id = (_cached_group_of if len(head) <= _CACHED_TEXT else _new_group_of)(head)
    except UnicodeDecodeError as error:
        raise Corrupt("the group id of a committed offset is not UTF-8", source=source, position=position) from error
    if group_id is None:
        raise Corrupt("the key of a committed offset is cut short or too long", source=source, position=position)
    return group_id, _shard_of(key[-_SHARD.size :]), _decode_offset(value, source, position)


def _encode_offset(committed: CommittedOffset) -> bytes:
    metadata = committed.metadata.encode()
    return (
        _OFFSET_VALUE.pack(
            VERSION, committed.offset, committed.epoch, committed.committed_ms, committed.expires_ms, len(metadata)
        )
        + metadata
    )


def _decode_offset(value: Buffer, source: str, position: int) -> CommittedOffset:
    if len(value) < _OFFSET_VALUE.size:
        raise Corrupt(f"a committed offset of {len(value)} bytes is cut short", source=source, position=position)
    version, offset, epoch, committed_ms, expires_ms, size = _OFFSET_VALUE.unpack_from(value)
    if version != VERSION or len(value) != _OFFSET_VALUE.size + size:
        raise Corrupt(
            f"a committed offset has version {version} and {len(value)} bytes, expected version {VERSION} and "
            f"{_OFFSET_VALUE.size + size}: it is damaged, or a newer release wrote it",
            source=source,
            position=position,
        )
    if not size:
        return CommittedOffset(offset, epoch, "", committed_ms, expires_ms)
    try:
        metadata = str(memoryview(value)[_OFFSET_VALUE.size :], "utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt("the metadata of a committed offset is not UTF-8", source=source, position=position) from error
    return CommittedOffset(offset, epoch, metadata, committed_ms, expires_ms)


# Groups -----------------------------------------------------------------------------------------------------------
def _encode_group(record: GroupRecord, changed_ms: int) -> bytes:
    out = FieldWriter()
    out.u8(VERSION, "version")
    out.i64(changed_ms, "time of change")
    out.i32(record.generation, "generation")
    _put_optional(out, record.protocol_type, "protocol type")
    _put_optional(out, record.protocol_name, "protocol")
    _put_optional(out, record.leader, "leader")
    out.u32(len(record.members), "members")
    for member in record.members:
        _put_member(out, member)
    return out.getvalue()


def _put_member(out: FieldWriter, member: MemberRecord) -> None:
    """In one piece: a group may have ten thousand members."""
    timeouts = _TIMEOUTS.pack(member.session_timeout_ms, member.rebalance_timeout_ms)
    parts = [
        _text(member.member_id, "member id"),
        _NO_TEXT if member.instance_id is None else _text(member.instance_id, "instance id"),
        _text(member.client_id, "client id"),
        _text(member.client_host, "client host"),
        timeouts,
        _SIZE.pack(len(member.protocols)),
    ]
    for name, metadata in member.protocols:
        parts += (_text(name, "protocol"), _SIZE.pack(len(metadata)), metadata)
    parts += (_SIZE.pack(len(member.assignment)), member.assignment)
    out.raw(b"".join(parts))


def _text(text: str, what: str) -> bytes:
    data = text.encode()
    if len(data) > TEXT_LIMIT:
        raise InvalidRequest(f"{what} of {len(data)} bytes: at most {TEXT_LIMIT} are kept")
    return _LENGTH.pack(len(data)) + data


def _encode_returned(generation: int, member: MemberRecord, changed_ms: int) -> bytes:
    out = FieldWriter()
    out.u8(VERSION, "version")
    out.i64(changed_ms, "time of change")
    out.i32(generation, "generation")
    _put_member(out, member)
    return out.getvalue()


def _decode_returned(group_id: str, body: FieldReader) -> MemberEntry:
    changed_ms = body.i64("time of change")
    generation = body.i32("generation")
    member = _take_member(body)
    body.finish()
    return MemberEntry(group_id, generation, member, changed_ms)


def _decode_group(group_id: str, body: FieldReader) -> GroupEntry:
    changed_ms = body.i64("time of change")
    generation = body.i32("generation")
    protocol_type = _take_optional(body, "protocol type")
    protocol_name = _take_optional(body, "protocol")
    leader = _take_optional(body, "leader")
    members = tuple(_take_member(body) for _ in range(_take_count(body, "members")))
    body.finish()
    record = GroupRecord(generation, protocol_type, protocol_name, leader, members)
    return GroupEntry(group_id, record, changed_ms)


def _take_member(body: FieldReader) -> MemberRecord:
    member_id = body.text(TEXT_LIMIT, "member id")
    instance_id = _take_optional(body, "instance id")
    client_id = body.text(TEXT_LIMIT, "client id")
    client_host = body.text(TEXT_LIMIT, "client host")
    session_ms, rebalance_ms = body.i32("session timeout"), body.i32("rebalance timeout")
    protocols = tuple(
        MemberProtocol(body.text(TEXT_LIMIT, "protocol"), _take_bytes(body, "protocol metadata"))
        for _ in range(_take_count(body, "protocols"))
    )
    assignment = _take_bytes(body, "assignment")
    return MemberRecord(member_id, instance_id, client_id, client_host, session_ms, rebalance_ms, protocols, assignment)


def _put_optional(out: FieldWriter, text: str | None, what: str) -> None:
    if text is None:
        out.raw(_LENGTH.pack(_NONE))
    else:
        out.text(text, TEXT_LIMIT, what)


def _take_optional(body: FieldReader, what: str) -> str | None:
    size: int = _LENGTH.unpack(body.read_bytes(2, what))[0]
    if size == _NONE:
        return None
    raw = body.read_bytes(size, what)
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        body.refuse(f"{what} is not UTF-8", back=size)


def _put_bytes(out: FieldWriter, data: bytes, what: str) -> None:
    out.u32(len(data), f"size of {what}")
    out.raw(data)


def _take_bytes(body: FieldReader, what: str) -> bytes:
    return bytes(body.read_bytes(body.u32(f"size of {what}"), what))


def _take_count(body: FieldReader, what: str) -> int:
    """Each item takes at least 6 bytes, so a damaged count cannot make the reader run long."""
    count = body.u32(what)
    if count * 6 > body.remaining:
        body.refuse(f"{what} claims {count}, the {body.remaining} bytes left cannot hold them", back=4)
    return count


def _value_of(changed_ms: int) -> FieldWriter:
    out = FieldWriter()
    out.u8(VERSION, "version")
    out.i64(changed_ms, "time of change")
    return out


def _decode_consumers(kind: int, group_id: str, body: FieldReader) -> ConsumersEntry | ConsumersChangedEntry:
    changed_ms = body.i64("time of change")
    entry: ConsumersEntry | ConsumersChangedEntry
    if kind == _CONSUMERS:
        entry = ConsumersEntry(group_id, take_record(body), changed_ms)
    else:
        entry = ConsumersChangedEntry(group_id, take_change(body), changed_ms)
    body.finish()
    return entry


# Marks ------------------------------------------------------------------------------------------------------------
def _encode_mark(edge: int, snapshot_id: int, entry_count: int) -> bytes:
    out = FieldWriter()
    out.u8(VERSION, "version")
    out.u8(edge, "edge")
    out.natural(snapshot_id, "snapshot id")
    out.natural(entry_count, "entry count")
    return out.getvalue()


def _decode_mark(body: FieldReader) -> SnapshotBegun | SnapshotEnded:
    edge = body.u8("edge")
    snapshot_id, entry_count = body.natural("snapshot id"), body.natural("entry count")
    body.finish()
    if edge == _BEGIN:
        return SnapshotBegun(snapshot_id)
    if edge == _END:
        return SnapshotEnded(snapshot_id, entry_count)
    body.refuse(f"a snapshot mark is neither begin nor end: {edge}")


def _value_reader(value: Buffer, source: str, position: int) -> FieldReader:
    body = FieldReader(value, source=source, position=position)
    version = body.u8("value version")
    if version != VERSION:
        body.refuse(f"group log value has version {version}, this reader knows {VERSION}: a newer release wrote it")
    return body
