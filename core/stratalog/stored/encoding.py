"""Keys and values of the shard table's records, the same in every key-value store.

A key begins with a letter for the kind; integers in it are big-endian, so keys sort as the table does, and a segment's
head, seal record and parts lie next to each other. A value is a JSON array; fields are only ever added at its end.
docs/meta.md lists them.

Cost: about 5 us per record each way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

from stratalog.machines.table import records as table_records
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.listeners import Listener
from stratalog.model.metadata import (
    Change,
    CredentialChanged,
    CredentialDeleted,
    Lock,
    MountChanged,
    MountEnded,
    NodeChanged,
    NodeInfo,
    QuotasChanged,
    QuotasDeleted,
    RuleCreated,
    RuleDeleted,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange, Volume
from stratalog.model.parts import PartList
from stratalog.model.producers import NO_PRODUCERS, ProducerTally
from stratalog.model.quotas import EntityQuotas, QuotaEntity, QuotaLimits
from stratalog.model.retirement import (
    LostRange,
    Retirement,
    RetireMode,
    RetireStep,
    Sighting,
    Wait,
    WaitReason,
)
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import (
    Doubt,
    GapReason,
    GivenUp,
    Handover,
    NextReplicas,
    RemoteCopy,
    RemotePart,
    RemoteState,
    ReplicaReport,
    SealRecord,
    Segment,
    SegmentState,
    TimesKnown,
    Vote,
)
from stratalog.model.storage_policy import StoragePolicy
from stratalog.model.topic import Shard, Topic

FORMAT: Final = 1
HEADER_KEY: Final = b"a"
_CHANGES: Final = b"c"
_NODE, _LOCK, _MOUNT, _PURGED, _TOPIC, _SHARD, _SEGMENT = b"n", b"l", b"m", b"p", b"t", b"s", b"v"
_RULE, _CREDENTIAL, _QUOTAS = b"r", b"u", b"q"
_HEAD, _SEAL, _PART = b"\x00", b"\x01", b"\x02"
_SEGMENT_KEY_BYTES: Final = 1 + 16 + 4 + 8 + 8

Json: TypeAlias = Any  # what json.loads makes; checked by use, a surprise becomes Corrupt in `decode`
Item: TypeAlias = tuple[bytes, bytes | None]
"""A key and its new value, or None to delete it."""

_dump: Final[Callable[[object], str]] = json.JSONEncoder(separators=(",", ":")).encode
_STATES: Final = {state.value: state for state in SegmentState}
_REMOTE_STATES: Final = {state.value: state for state in RemoteState}


def _policy(fields: Json, place: int) -> StoragePolicy:
    """Older releases knew one."""
    return StoragePolicy(fields[place]) if len(fields) > place else StoragePolicy.REPLICATED


def encode(writes: Iterable[table_records.TableWrite]) -> Iterator[Item]:
    """The items of a transaction, in the order of its writes: of one key the last item stands."""
    for write in writes:
        yield from _encode_one(write)


def _encode_one(write: table_records.TableWrite) -> Iterator[Item]:
    if isinstance(write, table_records.RightsWrite):
        yield _encode_right(write)
        return
    match write:
        case table_records.PutHeader(header):
            yield HEADER_KEY, _value(FORMAT, header.cluster_id, header.version, header.next_producer_id)
        case table_records.PutChanges(version, changes):
            yield _CHANGES + (version % table_records.KEPT_CHANGE_SETS).to_bytes(2, "big"), _changes(version, changes)
        case table_records.PutNode(node):
            info = node.info
            key = _NODE + info.node_id.to_bytes(8, "big")
            life = (node.node_epoch, node.is_alive, node.start_id, node.token, node.boot_id, node.has_room)
            last = (info.storage_id, info.host, info.port, info.rack, *life)
            listeners = [(one.name, one.host, one.port) for one in info.listeners]
            states = (node.is_flushed_by_default, node.absences, node.can_write, info.reads_bucket_by_default)
            more = (node.scarcity, listeners, *states, node.seat, node.is_continued, node.past_starts)
            yield key, _value(*last, encode_retirement(node.retirement), *more)
        case table_records.PutLock(lock):
            yield (
                _LOCK + lock.name.encode("utf-8", "surrogatepass"),
                _value(lock.holder, lock.epoch, lock.expires_ms, lock.earlier),
            )
        case table_records.PutMount(mount):
            yield _mount_key(mount.name), _value(*mount_fields(mount))
        case table_records.DropMount(name):
            yield _mount_key(name), None
        case table_records.PutTopic(topic):
            yield (
                _TOPIC + topic.topic_id.bytes,
                _value(
                    topic.name,
                    topic.shard_count,
                    topic.replication_factor,
                    dict(topic.settings),
                    topic.created_ms,
                    topic.is_internal,
                    topic.unflushed_until_ms,
                    topic.seal_asked_ms,
                ),
            )
        case table_records.DropTopic(topic_id):
            yield _TOPIC + topic_id.bytes, None
        case table_records.PutPurgedTopic(purged):
            yield _PURGED + purged.topic_id.bytes, _value(purged.purged_ms)
        case table_records.DropPurgedTopic(topic_id):
            yield _PURGED + topic_id.bytes, None
        case table_records.PutShard(row):
            yield _shard_key(row.key), _value(row.log_start_offset)
        case table_records.DropShard(shard_key):
            yield _shard_key(shard_key), None
        case table_records.PutSegmentHead(segment):
            yield _segment_key(segment.key) + _HEAD, _segment_head(segment)
        case table_records.PutSeal(segment_key, record):
            yield _segment_key(segment_key) + _SEAL, _seal(record)
        case table_records.PutPart(segment_key, part):
            yield (
                _part_key(segment_key, part.base_offset),
                _value(part.object_key, part.position, part.size_bytes, part.end_offset),
            )
        case table_records.DropPart(segment_key, base_offset):
            yield _part_key(segment_key, base_offset), None
        case table_records.DropSegment(segment_key):
            yield _segment_key(segment_key) + _HEAD, None
            yield _segment_key(segment_key) + _SEAL, None
        case _:
            assert_never(write)


def _encode_right(write: table_records.RightsWrite) -> Item:
    match write:
        case table_records.PutRule(rule):
            return _rule_key(rule), _value(*_rule_fields(rule))
        case table_records.DropRule(rule):
            return _rule_key(rule), None
        case table_records.PutCredential(credential):
            return _credential_key(credential.name), _credential(credential.credential)
        case table_records.DropCredential(name):
            return _credential_key(name), None
        case table_records.PutQuotas(quotas):
            return _quotas_key(quotas.entity), _value(*_entity_fields(quotas.entity), *_limit_fields(quotas.limits))
        case table_records.DropQuotas(entity):
            return _quotas_key(entity), None
        case _:
            assert_never(write)


def _value(*fields: object) -> bytes:
    return _dump(fields).encode()


def _changes(version: int, changes: tuple[Change, ...] | None) -> bytes:
    """Each change as the items that its records have, so that what is added to a record is added to its changes."""
    if changes is None:
        return _value(version, None)
    return b"[%d,[%b]]" % (version, b",".join(map(_change, changes)))


def _change(change: Change) -> bytes:
    match change:
        case TopicChanged(topic):
            return _noted("topic", table_records.PutTopic(topic))
        case TopicDeleted(topic):
            return _noted("deleted", table_records.PutTopic(topic))
        case NodeChanged(node):
            entry = table_records.NodeEntry(node.info, node.epoch, node.is_alive, "", node.token, "", node.has_room)
            entry = replace(entry, retirement=node.retirement, scarcity=node.scarcity, absences=node.absences)
            return _noted("node", table_records.PutNode(replace(entry, can_write=node.can_write)))
        case MountChanged(mount):
            return _noted("mount", table_records.PutMount(mount))
        case MountEnded(name):
            return _noted("unmounted", table_records.DropMount(name))
        case RuleCreated(rule):
            return _noted("rule", table_records.PutRule(rule))
        case RuleDeleted(rule):
            return _noted("rule-deleted", table_records.PutRule(rule))
        case CredentialChanged(credential):
            return _value("credential", _credential_key(credential.name).hex())
        case CredentialDeleted(credential_name):
            return _value("credential-deleted", _credential_key(credential_name).hex())
        case QuotasChanged(quotas):
            return _noted("quotas", table_records.PutQuotas(quotas))
        case QuotasDeleted(entity):
            return _noted("quotas-deleted", table_records.PutQuotas(EntityQuotas(entity, QuotaLimits())))
        case ShardChanged(shard):
            row = table_records.PutShard(table_records.ShardRow(shard.key, shard.log_start_offset))
            return _noted("shard", row, *map(table_records.PutSegmentHead, shard.segments))
        case SegmentChanged(segment):
            kind = "sealed" if segment.seal is not None else "segment"
            return b"[%d,%b]" % (len(segment.remote.parts), _noted(kind, table_records.PutSegmentHead(segment)))
        case SegmentPurged(key):
            return _value("purged", _segment_key(key).hex())
        case _:
            assert_never(change)


def _noted(kind: str, *writes: table_records.TableWrite) -> bytes:
    """`[kind, key, value, key, value, ...]`, keys in hex."""
    items = [f'"{key.hex()}",'.encode() + (value or b"null") for write in writes for key, value in _encode_one(write)]
    return b'["%b",%b]' % (kind.encode(), b",".join(items))


def _mount_key(name: str) -> bytes:
    return _MOUNT + name.encode("utf-8", "surrogatepass")


def _mount_name(key: bytes) -> str:
    return key[1:].decode("utf-8", "surrogatepass")


def _rule_fields(rule: Rule) -> tuple[object, ...]:
    """All of a rule is its name, so no field is ever added."""
    resource = rule.resource
    of_resource = (int(resource.type), resource.name, int(resource.pattern))
    return (*of_resource, rule.principal, rule.host, int(rule.operation), int(rule.permission))


def _rule_key(rule: Rule) -> bytes:
    return _RULE + sha256(_value(*_rule_fields(rule))).digest()


def _credential_key(name: CredentialName) -> bytes:
    return _CREDENTIAL + name.mechanism.to_bytes(1, "big") + name.user.encode("utf-8", "surrogatepass")


def _credential(kept: ScramCredential) -> bytes:
    return _value(kept.salt.hex(), kept.stored_key.hex(), kept.server_key.hex(), kept.iterations)


def _credential_name(key: bytes) -> CredentialName:
    return CredentialName(key[2:].decode("utf-8", "surrogatepass"), ScramMechanism(key[1]))


def _entity_fields(entity: QuotaEntity) -> tuple[object, ...]:
    return entity.user, entity.client_id, entity.ip


def _limit_fields(limits: QuotaLimits) -> tuple[object, ...]:
    return (
        limits.producer_byte_rate,
        limits.consumer_byte_rate,
        limits.request_percentage,
        limits.controller_mutation_rate,
        limits.connection_creation_rate,
    )


def _quotas_key(entity: QuotaEntity) -> bytes:
    return _QUOTAS + sha256(_value(*_entity_fields(entity))).digest()


def _shard_key(key: ShardKey) -> bytes:
    return _SHARD + key.topic_id.bytes + key.shard.to_bytes(4, "big")


def _segment_key(key: SegmentKey) -> bytes:
    return b"".join(
        (
            _SEGMENT,
            key.topic_id.bytes,
            key.shard.to_bytes(4, "big"),
            key.epoch.to_bytes(8, "big"),
            key.base_offset.to_bytes(8, "big"),
        )
    )


def _part_key(key: SegmentKey, base_offset: int) -> bytes:
    return _segment_key(key) + _PART + base_offset.to_bytes(8, "big")


def _segment_head(segment: Segment) -> bytes:
    remote = segment.remote
    return _value(
        segment.state,
        segment.leader,
        segment.replicas,
        segment.isr,
        segment.isr_version,
        segment.opened_ms,
        segment.end_offset,
        segment.local_nodes,
        segment.deleted_ms,
        segment.fence,
        remote.state,
        remote.commit_offset,
        remote.manifest_key,
        None if remote.manifest_digest is None else remote.manifest_digest.hex(),
        remote.size_bytes,
        None if segment.handover is None else _handover(segment.handover),
        remote.replaced_ms,
        segment.policy,
    )


def _handover(handover: Handover) -> tuple[object, ...]:
    return (
        handover.prepared,
        handover.doubts,
        handover.votes,
        handover.source,
        [(report.node_id, report.size_bytes, report.digest.hex()) for report in handover.reports],
        handover.given_up,
        *((True,) if handover.is_roll_asked else ()),  # an instance before this field reads all others
    )


def _seal(record: SealRecord) -> bytes:
    return _value(
        record.end_offset,
        record.first_timestamp_ms,
        record.max_timestamp_ms,
        record.size_bytes,
        record.digest.hex(),
        _tally(record.producers),
        record.replicas,
        record.sealed_ms,
        record.times_known,
    )


def _tally(producers: ProducerTally) -> tuple[object, ...]:
    return producers.count, producers.digest.hex(), producers.limit, producers.expiration_ms


def decode(items: Iterable[tuple[bytes, bytes]], source: str) -> Iterator[table_records.StoredRecord]:
    """Records from items in key order. Raises Corrupt naming `source` and key, InvalidRequest for another format."""
    return _Decoder(source).run(items)


class _Decoder:
    """Reads items in key order; shares what many records have in common (topic ids, replica lists)."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._topic_id = UUID(int=0)
        self._head: tuple[bytes, Json] | None = None
        self._seal: Json = None
        self._parts: list[RemotePart] = []

    def run(self, items: Iterable[tuple[bytes, bytes]]) -> Iterator[table_records.StoredRecord]:
        for key, value in items:
            try:
                fields: Json = json.loads(value)
                finished = self._add_to_segment(key, fields) if key[:1] == _SEGMENT else self._plain(key, fields)
            except (ValueError, TypeError, LookupError) as error:
                raise self._corrupt(key, f"cannot be read ({error})") from error
            if finished is not None:
                yield finished
        last = self._finish_segment()
        if last is not None:
            yield last

    def _plain(self, key: bytes, fields: Json) -> table_records.StoredRecord:
        kind = key[:1]
        if key == HEADER_KEY:
            if fields[0] != FORMAT:
                raise InvalidRequest(
                    f"{self._source} holds metadata in format {fields[0]}, this version reads format {FORMAT}: start "
                    "a newer version"
                )
            return table_records.TableHeader(fields[1], fields[2], fields[3])
        if kind == _CHANGES:
            changes = None if fields[1] is None else tuple(map(self._noted, fields[1]))
            return table_records.NotedChanges(fields[0], changes)
        if kind == _NODE:
            listeners = tuple(Listener(*one) for one in fields[12]) if len(fields) > 12 else ()
            reads_bucket = fields[16] if len(fields) > 16 else True
            info = NodeInfo(
                int.from_bytes(key[1:], "big"), fields[0], fields[1], fields[2], fields[3], listeners, reads_bucket
            )
            retirement = decode_retirement(fields[10]) if len(fields) > 10 else None
            scarcity = fields[11] if len(fields) > 11 else 0
            flushed = fields[13] if len(fields) > 13 else False
            entry = replace(table_records.NodeEntry(info, *fields[4:10]), retirement=retirement, scarcity=scarcity)
            absences = fields[14] if len(fields) > 14 else 0
            can_write = bool(fields[15]) if len(fields) > 15 else True
            seat, is_continued, past = fields[17:20] if len(fields) > 19 else ("", True, ())
            entry = replace(entry, seat=seat, is_continued=is_continued, past_starts=tuple(past))
            return replace(entry, is_flushed_by_default=flushed, absences=absences, can_write=can_write)
        if kind == _LOCK:
            earlier = tuple(fields[3]) if len(fields) > 3 else ()
            return Lock(key[1:].decode("utf-8", "surrogatepass"), fields[0], fields[1], fields[2], earlier)
        if kind == _MOUNT:
            return read_mount(_mount_name(key), fields)
        if kind == _RULE:
            resource_type, name, pattern, principal, host, operation, permission = fields
            resource = Resource(ResourceType(resource_type), name, PatternType(pattern))
            return Rule(resource, principal, host, Operation(operation), Permission(permission))
        if kind == _CREDENTIAL:
            named = _credential_name(key)
            keys = [bytes.fromhex(text) for text in fields[:3]]
            return UserCredential(named.user, named.mechanism, ScramCredential(keys[0], keys[1], keys[2], fields[3]))
        if kind == _QUOTAS:
            return EntityQuotas(QuotaEntity(*fields[:3]), QuotaLimits(*fields[3:8]))
        if kind == _TOPIC:
            topic = Topic(fields[0], UUID(bytes=key[1:17]), fields[1], fields[2], fields[3], fields[4], fields[5])
            topic = topic if len(fields) < 7 else replace(topic, unflushed_until_ms=fields[6])
            return topic if len(fields) < 8 else replace(topic, seal_asked_ms=fields[7])
        if kind == _PURGED:
            return table_records.PurgedTopic(UUID(bytes=key[1:17]), fields[0])
        if kind == _SHARD:
            return table_records.ShardRow(ShardKey(self._id(key), int.from_bytes(key[17:21], "big")), fields[0])
        raise ValueError(f"unknown kind {kind!r}")

    def _noted(self, fields: Json) -> table_records.NotedChange:
        """A change that `_change` wrote."""
        part_count = 0
        if isinstance(fields[0], int):
            part_count, fields = fields
        kind, keys, values = fields[0], [bytes.fromhex(key) for key in fields[1::2]], fields[2::2]
        if kind == "purged":
            return SegmentPurged(self._segment_key(keys[0]))
        if kind == "unmounted":
            return MountEnded(_mount_name(keys[0]))
        if kind == "credential":
            return table_records.CredentialNote(_credential_name(keys[0]))
        if kind == "credential-deleted":
            return CredentialDeleted(_credential_name(keys[0]))
        if kind in ("segment", "sealed"):
            return table_records.SegmentNote(self._segment(keys[0], values[0], None, []), kind == "sealed", part_count)
        record = self._plain(keys[0], values[0])
        match record:
            case table_records.ShardRow():
                heads = [self._segment(*item, None, []) for item in zip(keys[1:], values[1:], strict=True)]
                return ShardChanged(Shard(record.key, record.log_start_offset, tuple(heads)))
            case table_records.NodeEntry():
                return NodeChanged(record.node)
            case Mount():
                return MountChanged(record)
            case Rule():
                return RuleDeleted(record) if kind == "rule-deleted" else RuleCreated(record)
            case EntityQuotas():
                return QuotasDeleted(record.entity) if kind == "quotas-deleted" else QuotasChanged(record)
            case Topic():
                return TopicDeleted(record) if kind == "deleted" else TopicChanged(record)
            case _:
                raise ValueError(f"unknown change {kind!r}")

    def _segment_key(self, key: bytes) -> SegmentKey:
        epoch, base_offset = int.from_bytes(key[21:29], "big"), int.from_bytes(key[29:37], "big")
        return SegmentKey(self._id(key), int.from_bytes(key[17:21], "big"), epoch, base_offset)

    def _add_to_segment(self, key: bytes, fields: Json) -> table_records.StoredRecord | None:
        kind = key[_SEGMENT_KEY_BYTES : _SEGMENT_KEY_BYTES + 1]
        if kind == _HEAD:
            finished = self._finish_segment()
            self._head = (key, fields)
            return finished
        if self._head is None or self._head[0][:_SEGMENT_KEY_BYTES] != key[:_SEGMENT_KEY_BYTES]:
            raise ValueError("seal record or part without its segment")
        if kind == _SEAL:
            self._seal = fields
        elif kind == _PART:
            base_offset = int.from_bytes(key[_SEGMENT_KEY_BYTES + 1 :], "big")
            self._parts.append(RemotePart(fields[0], fields[1], fields[2], base_offset, fields[3]))
        else:
            raise ValueError(f"unknown kind {kind!r}")
        return None

    def _finish_segment(self) -> Segment | None:
        if self._head is None:
            return None
        (key, fields), seal, parts = self._head, self._seal, self._parts
        self._head, self._seal, self._parts = None, None, []
        try:
            return self._segment(key, fields, seal, parts)
        except (ValueError, TypeError, LookupError) as error:
            raise self._corrupt(key, f"cannot be read ({error})") from error

    def _segment(self, key: bytes, fields: Json, seal: Json, parts: list[RemotePart]) -> Segment:
        segment_key = self._segment_key(key)
        remote = _NO_COPY
        remote_state = _REMOTE_STATES[fields[10]]
        if remote_state is not RemoteState.NONE:
            digest = None if fields[13] is None else bytes.fromhex(fields[13])
            listed = PartList(parts) if parts else ()
            replaced_ms = fields[16] if len(fields) > 16 else 0
            remote = RemoteCopy(remote_state, fields[11], listed, fields[12], digest, fields[14], replaced_ms)
        return Segment(
            segment_key,
            _STATES[fields[0]],
            fields[1],
            self._shared(fields[2]),
            self._shared(fields[3]),
            fields[4],
            fields[5],
            fields[6],
            None if seal is None else self._seal_record(segment_key, seal),
            self._shared(fields[7]),
            remote,
            fields[8],
            fields[9],
            self._handover(fields[15]) if len(fields) > 15 and fields[15] is not None else None,
            _policy(fields, 17),
        )

    def _handover(self, fields: Json) -> Handover:
        prepared, doubts, votes, source, reports, given_up = fields[:6]
        return Handover(
            None if prepared is None else NextReplicas(prepared[0], self._shared(prepared[1]), _policy(prepared, 2)),
            tuple(Doubt(*doubt) for doubt in doubts),
            tuple(Vote(*vote) for vote in votes),
            source,
            tuple(ReplicaReport(report[0], report[1], bytes.fromhex(report[2])) for report in reports),
            tuple(GivenUp(entry[0], entry[1], GapReason(entry[2])) for entry in given_up),
            len(fields) > 6 and bool(fields[6]),
        )

    def _seal_record(self, key: SegmentKey, fields: Json) -> SealRecord:
        count, digest, limit, expiration_ms = fields[5]
        return SealRecord(
            key.epoch,
            key.base_offset,
            fields[0],
            fields[1],
            fields[2],
            fields[3],
            bytes.fromhex(fields[4]),
            ProducerTally(count, bytes.fromhex(digest), limit, expiration_ms) if count else NO_PRODUCERS,
            self._shared(fields[6]),
            fields[7],
            TimesKnown(fields[8]) if len(fields) > 8 else TimesKnown.CLAIMED,
        )

    def _shared(self, numbers: list[int]) -> tuple[int, ...]:
        entry = tuple(numbers)
        return self._tuples.setdefault(entry, entry)

    def _id(self, key: bytes) -> UUID:
        raw = key[1:17]
        if self._topic_id.bytes != raw:
            self._topic_id = UUID(bytes=raw)
        return self._topic_id

    def _corrupt(self, key: bytes, reason: str) -> Corrupt:
        return Corrupt(f"metadata record {key!r} {reason}", source=self._source, position=0)


_NO_COPY: Final = RemoteCopy()


def mount_fields(mount: Mount) -> tuple[object, ...]:
    """In their order; more are only ever added at the end."""
    held = (mount.token, mount.holder, mount.holder_epoch)
    topics = [(topic.topic_id.hex, topic.name, topic.ranges) for topic in mount.topics]
    volume = None if mount.volume is None else (mount.volume.host, mount.volume.port, mount.volume.start_id)
    of_node = (mount.mode, mount.node_id, mount.storage_id, mount.rack)
    return (*of_node, mount.state, *held, mount.created_ms, volume, topics, mount.expires_ms, mount.is_doubted)


def read_mount(name: str, fields: Json) -> Mount:
    mode, node_id, storage_id, rack, state, token, holder, holder_epoch, created_ms = fields[:9]
    volume = Volume(*fields[9]) if len(fields) > 9 and fields[9] is not None else None
    topics = tuple(
        MountedTopic(UUID(hex=topic_id), topic, tuple([OffsetRange(*one) for one in ranges]))
        for topic_id, topic, ranges in (fields[10] if len(fields) > 10 else ())
    )
    return Mount(
        name,
        MountMode(mode),
        node_id,
        storage_id,
        MountState(state),
        token,
        created_ms,
        rack,
        holder,
        holder_epoch,
        volume,
        topics,
        fields[11] if len(fields) > 11 else 0,
        fields[12] if len(fields) > 12 else False,
    )


def encode_retirement(record: Retirement | None) -> list[object] | None:
    if record is None:
        return None
    wait = record.wait
    return [
        record.storage_id,
        record.mode,
        record.step,
        record.begun_ms,
        record.step_since_ms,
        None if wait is None else [wait.reason, wait.words, wait.since_ms],
        [
            [
                one.by_node,
                one.at_ms,
                one.segments,
                [_key_fields(key) for key in one.unconfirmed],
                one.unconfirmed_count,
                one.is_differing,
                one.words,
            ]
            for one in record.sightings
        ],
        record.inventory_key,
        record.is_forced,
        [[_key_fields(lost.segment), lost.base_offset, lost.end_offset] for lost in record.given_up],
        record.given_up_count,
        record.is_volume_lost,
    ]


def decode_retirement(fields: Any) -> Retirement | None:
    """Raises ValueError, TypeError or LookupError for what is none."""
    if fields is None:
        return None
    wait = fields[5]
    return Retirement(
        fields[0],
        RetireMode(fields[1]),
        RetireStep(fields[2]),
        fields[3],
        fields[4],
        None if wait is None else Wait(WaitReason(wait[0]), wait[1], wait[2]),
        tuple(
            Sighting(one[0], one[1], one[2], tuple(map(_key_from_fields, one[3])), one[4], one[5], one[6])
            for one in fields[6]
        ),
        fields[7],
        fields[8],
        tuple(LostRange(_key_from_fields(one[0]), one[1], one[2]) for one in fields[9]),
        fields[10],
        fields[11] if len(fields) > 11 else False,
    )


def _key_fields(key: SegmentKey) -> list[object]:
    return [key.topic_id.hex, key.shard, key.epoch, key.base_offset]


def _key_from_fields(fields: Any) -> SegmentKey:
    return SegmentKey(UUID(hex=fields[0]), fields[1], fields[2], fields[3])
