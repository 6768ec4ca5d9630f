"""The bytes of groups of the consumer protocol in the group log: a whole group, or what one step changed of it.

Bytes: docs/formats-groups.md section 2. Called by `formats.groups.group_log`, which knows keys and versions.
Cost: about 10 us a member and 0.5 us a shard in either direction.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

from stratalog.formats.fields import FieldReader, FieldWriter
from stratalog.model.groups.consumer_group import (
    ClassicSide,
    ConsumerGroupChange,
    ConsumerGroupRecord,
    ConsumerMember,
    MemberState,
)
from stratalog.model.groups.group import MemberProtocol
from stratalog.model.ids import ShardKey

_TEXT_LIMIT = 65_534
_ABSENT, _PRESENT = 0, 1
_LEAST_MEMBER_BYTES = 37
_CLASSIC = 16
"""Added to the state of a member that speaks the classic protocol: what only such a member has follows."""


def put_record(out: FieldWriter, record: ConsumerGroupRecord) -> None:
    _put_head(out, record.sequence, record.epoch, record.target_epoch, record.assignor, record.topics)
    _put_members(out, tuple(record.members.values()))


def take_record(body: FieldReader) -> ConsumerGroupRecord:
    head = _take_head(body)
    members = {member.member_id: member for member in _take_members(body)}
    return ConsumerGroupRecord(*head, members)


def put_change(out: FieldWriter, change: ConsumerGroupChange) -> None:
    _put_head(out, change.sequence, change.epoch, change.target_epoch, change.assignor, change.topics)
    _put_members(out, change.members)
    out.natural(len(change.removed), "removed members")
    for member_id in change.removed:
        out.text(member_id, _TEXT_LIMIT, "member id")


def take_change(body: FieldReader) -> ConsumerGroupChange:
    head = _take_head(body)
    members = _take_members(body)
    removed = [body.text(_TEXT_LIMIT, "member id") for _ in range(body.count("removed members", 2))]
    return ConsumerGroupChange(*head, members, tuple(removed))


def _put_head(
    out: FieldWriter, sequence: int, epoch: int, target_epoch: int, assignor: str, topics: Mapping[UUID, int]
) -> None:
    out.natural(sequence, "sequence")
    out.natural32(epoch, "epoch")
    out.natural32(target_epoch, "target epoch")
    out.text(assignor, _TEXT_LIMIT, "assignor")
    out.natural(len(topics), "topics")
    for topic_id, shards in topics.items():
        out.uuid(topic_id)
        out.u32(shards, "shards")


def _take_head(body: FieldReader) -> tuple[int, int, int, str, Mapping[UUID, int]]:
    sequence = body.natural("sequence")
    epoch, target_epoch = body.natural32("epoch"), body.natural32("target epoch")
    assignor = body.text(_TEXT_LIMIT, "assignor")
    topics: dict[UUID, int] = {}
    for _ in range(body.count("topics", 20)):
        topic_id = body.uuid("topic id")
        topics[topic_id] = body.u32("shards")
    return sequence, epoch, target_epoch, assignor, topics


def _put_members(out: FieldWriter, members: tuple[ConsumerMember, ...]) -> None:
    out.natural(len(members), "members")
    for member in members:
        out.text(member.member_id, _TEXT_LIMIT, "member id")
        _put_optional(out, member.instance_id, "instance id")
        _put_optional(out, member.rack_id, "rack id")
        out.text(member.client_id, _TEXT_LIMIT, "client id")
        out.text(member.client_host, _TEXT_LIMIT, "client host")
        out.i32(member.rebalance_timeout_ms, "rebalance timeout")
        out.natural(len(member.topic_names), "topic names")
        for name in member.topic_names:
            out.text(name, _TEXT_LIMIT, "topic name")
        out.text(member.topic_regex, _TEXT_LIMIT, "regular expression")
        out.text(member.assignor, _TEXT_LIMIT, "assignor")
        out.i32(member.epoch, "member epoch")
        out.i32(member.previous_epoch, "previous epoch")
        out.u8(member.state + (0 if member.classic is None else _CLASSIC), "state")
        for shards in (member.assigned, member.revoking, member.target):
            _put_shards(out, shards)
        if member.classic is not None:
            _put_classic(out, member.classic)


def _take_members(body: FieldReader) -> tuple[ConsumerMember, ...]:
    return tuple([_take_member(body) for _ in range(body.count("members", _LEAST_MEMBER_BYTES))])


def _take_member(body: FieldReader) -> ConsumerMember:
    member_id = body.text(_TEXT_LIMIT, "member id")
    instance_id, rack_id = _take_optional(body, "instance id"), _take_optional(body, "rack id")
    client_id, client_host = body.text(_TEXT_LIMIT, "client id"), body.text(_TEXT_LIMIT, "client host")
    rebalance_timeout_ms = body.i32("rebalance timeout")
    names = tuple([body.text(_TEXT_LIMIT, "topic name") for _ in range(body.count("topic names", 2))])
    regex, assignor = body.text(_TEXT_LIMIT, "regular expression"), body.text(_TEXT_LIMIT, "assignor")
    epoch, previous_epoch, state = body.i32("member epoch"), body.i32("previous epoch"), body.u8("state")
    is_classic = state >= _CLASSIC
    if state % _CLASSIC not in MemberState.__members__.values() or state >= 2 * _CLASSIC:
        body.refuse(f"a member in the unknown state {state}: a newer release wrote it", back=1)
    assigned, revoking, target = (_take_shards(body) for _ in range(3))
    classic = _take_classic(body) if is_classic else None
    return ConsumerMember(
        member_id,
        instance_id,
        rack_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        names,
        regex,
        assignor,
        epoch,
        previous_epoch,
        MemberState(state % _CLASSIC),
        assigned,
        revoking,
        target,
        classic,
    )


def _put_classic(out: FieldWriter, classic: ClassicSide) -> None:
    out.i32(classic.session_timeout_ms, "session timeout")
    out.natural(len(classic.protocols), "protocols")
    for name, metadata in classic.protocols:
        out.text(name, _TEXT_LIMIT, "protocol")
        out.u32(len(metadata), "size of metadata")
        out.raw(metadata)


def _take_classic(body: FieldReader) -> ClassicSide:
    session_timeout_ms = body.i32("session timeout")
    protocols: list[MemberProtocol] = []
    for _ in range(body.count("protocols", 6)):
        name = body.text(_TEXT_LIMIT, "protocol")
        metadata = bytes(body.read_bytes(body.u32("size of metadata"), "metadata"))
        protocols.append(MemberProtocol(name, metadata))
    return ClassicSide(session_timeout_ms, tuple(protocols))


def _put_shards(out: FieldWriter, shards: frozenset[ShardKey]) -> None:
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, shard in sorted(shards):
        by_topic.setdefault(topic_id, []).append(shard)
    out.natural(len(by_topic), "topics of shards")
    for topic_id, indexes in by_topic.items():
        out.uuid(topic_id)
        out.natural(len(indexes), "shards")
        out.raw(struct.pack(f">{len(indexes)}I", *indexes))


def _take_shards(body: FieldReader) -> frozenset[ShardKey]:
    found: list[ShardKey] = []
    for _ in range(body.count("topics of shards", 20)):
        topic_id = body.uuid("topic id")
        count = body.count("shards", 4)
        found += [
            ShardKey(topic_id, index) for index in struct.unpack(f">{count}I", body.read_bytes(4 * count, "shards"))
        ]
    return frozenset(found)


def _put_optional(out: FieldWriter, text: str | None, what: str) -> None:
    out.u8(_ABSENT if text is None else _PRESENT, what)
    if text is not None:
        out.text(text, _TEXT_LIMIT, what)


def _take_optional(body: FieldReader, what: str) -> str | None:
    mark = body.u8(what)
    if mark not in (_ABSENT, _PRESENT):
        body.refuse(f"{what} is neither there nor absent: {mark}", back=1)
    return body.text(_TEXT_LIMIT, what) if mark else None
