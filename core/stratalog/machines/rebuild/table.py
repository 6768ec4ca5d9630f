"""Rebuilds the metadata of a cluster from a snapshot and the contents of the bucket, for nodes with empty disks.
Unchanged: seal records, manifests, log starts, commit offsets, epochs. As of the snapshot: settings, topics, mounts,
and which nodes have left (`machines.rebuild.mounts`). New: nodes (they register as such), placement, and an ACTIVE
segment of an unused epoch for each shard. Nothing that was given out before is given out again: epochs of segments and
write locks continue after the highest one seen, producer ids and the version jump ahead. A disk from before must not
come back: the new metadata do not count on its data, and would have them deleted. Its storage id is locked
(`disk_lock`), and a registration that names it is refused.

Pure. Source: docs/backup.md section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import UUID

from stratalog.machines.copies.internal_topics import FIXED_SETTINGS, is_reserved
from stratalog.machines.copies.wanted_copies import next_copies
from stratalog.machines.rebuild.meta_backups import LOCK, FoundSnapshot, holder_of
from stratalog.machines.rebuild.mounts import Leavers, plan_leavers, with_tokens
from stratalog.machines.rebuild.shard import FoundSegment, PlannedSegment, ShardPlan, plan_shard
from stratalog.machines.table.locks import MAX_PRODUCER_ID, NOBODY, disk_lock
from stratalog.machines.table.records import (
    NodeEntry,
    PurgedTopic,
    ShardRow,
    StoredRecord,
    TableHeader,
)
from stratalog.machines.table.state import kept
from stratalog.machines.tiering.claims import name_ending
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock
from stratalog.model.mounts import data_set_name
from stratalog.model.parts import PartList
from stratalog.model.quotas import EntityQuotas
from stratalog.model.rights import Rule
from stratalog.model.segment import (
    GapReason,
    GivenUp,
    Handover,
    RemoteCopy,
    RemoteState,
    SealRecord,
    Segment,
    SegmentState,
)
from stratalog.model.storage_policy import next_policy
from stratalog.model.topic import Topic

VERSION_JUMP: Final = 1 << 20
PRODUCER_ID_JUMP: Final = 1 << 32
"""So many ids at most were given since the snapshot."""
_NEW_TOPIC_REPLICAS: Final = 3
_REBUILD: Final = "rebuild"


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic that has objects in the bucket: as the objects' own headers name it."""

    name: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What lies in the bucket."""

    segments: Mapping[ShardKey, Collection[FoundSegment]]
    topics: Mapping[UUID, FoundTopic]
    """Of those that the snapshot does not know."""
    lock_epochs: Mapping[int, int]
    """The highest epoch of each node's write lock that any name tells of."""
    claims: Mapping[int, Sequence[UUID]]
    """Nonces of the present claims, by node."""
    snapshots: Sequence[FoundSnapshot] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """A complete copy that the rebuild put together."""

    seal: SealRecord
    manifest_key: str
    manifest_digest: bytes
    size_bytes: int


@dataclass(slots=True)
class RebuildPlan:
    """What is to be done before the records can be made: each segment of `to_publish` needs its `Published`."""

    header: TableHeader
    topics: list[Topic]
    shards: list[ShardPlan]
    locks: list[Lock]
    deleted: list[Segment]
    purged: list[PurgedTopic]
    nodes: tuple[int, ...]
    taken_in: list[Topic] = field(default_factory=list)
    """Created after the snapshot: with default settings, because theirs are unknown."""
    orphans: list[UUID] = field(default_factory=list)
    """Topics that have objects in the bucket, and were deleted, or whose name another topic has now."""
    leavers: Leavers = field(default_factory=Leavers)
    rules: list[Rule] = field(default_factory=list)
    """As in the snapshot. It has no credentials: users are made again."""
    quotas: list[EntityQuotas] = field(default_factory=list)

    @property
    def to_publish(self) -> Iterator[PlannedSegment]:
        return (segment for shard in self.shards for segment in shard.to_publish)

    def writer_epoch(self) -> int:
        """The epoch of the first node's write lock under which the rebuild writes: above all that were used."""
        return next(lock.epoch for lock in self.locks if lock.name == data_set_name(self.nodes[0]))


def plan_rebuild(
    records: Iterable[StoredRecord],
    scan: Scan,
    nodes: Sequence[int],
    without_volumes: Collection[int] = (),
    may_have_expired: Callable[[Topic, SealRecord], bool] = lambda *_: True,
) -> RebuildPlan:
    """`records` are those of the newest whole snapshot, `nodes` who will serve: they start with empty disks.
    `without_volumes`: whose retired directories a person gives up. `may_have_expired`: whether a topic's retention may
    have deleted a segment since the snapshot. Raises: InvalidRequest (`plan_leavers`)."""
    every = list(records)
    leavers = plan_leavers(every, nodes, without_volumes)
    header = next(record for record in every if isinstance(record, TableHeader))
    header = TableHeader(
        header.cluster_id,
        header.version + VERSION_JUMP,
        min(header.next_producer_id + PRODUCER_ID_JUMP, MAX_PRODUCER_ID),
    )
    purged = [record for record in every if isinstance(record, PurgedTopic)]
    segments = [record for record in every if isinstance(record, Segment)]
    deleted = [_for_nodes(one, nodes) for one in segments if one.state is SegmentState.DELETED]
    locks = _locks(every, scan, (*nodes, *leavers.data_sets))
    leavers.mounts = with_tokens(leavers.mounts, {lock.name: lock for lock in locks})
    plan = RebuildPlan(header, [], [], locks, deleted, purged, tuple(nodes), leavers=leavers)
    plan.rules = [record for record in every if isinstance(record, Rule)]
    plan.quotas = [record for record in every if isinstance(record, EntityQuotas)]
    dead = {record.topic_id for record in purged} | {one.key.topic_id for one in deleted}
    shard_counts: dict[UUID, int] = defaultdict(int)
    for key in scan.segments:
        shard_counts[key.topic_id] = max(shard_counts[key.topic_id], key.shard + 1)
    for record in every:
        if isinstance(record, Topic):
            plan.topics.append(replace(record, shard_count=max(record.shard_count, shard_counts[record.topic_id])))
    _take_in(plan, scan, shard_counts, dead)
    rows = {record.key: record.log_start_offset for record in every if isinstance(record, ShardRow)}
    living: dict[ShardKey, list[Segment]] = defaultdict(list)
    for one in segments:
        if one.state is not SegmentState.DELETED:
            living[one.key.shard_key].append(one)
    gone = {one.key for one in deleted}
    for topic in (*plan.topics, *plan.taken_in):
        for shard in range(topic.shard_count):
            key = ShardKey(topic.topic_id, shard)
            known = sorted(living[key], key=lambda one: one.epoch)
            found = [one for one in scan.segments.get(key, ()) if one.key not in gone]
            expires = partial(may_have_expired, topic)
            plan.shards.append(plan_shard(key, rows.get(key, 0), known, found, leavers.volumes, expires))
    return plan


def _take_in(plan: RebuildPlan, scan: Scan, shard_counts: Mapping[UUID, int], dead: set[UUID]) -> None:
    known = {topic.topic_id for topic in plan.topics}
    names = {topic.name for topic in plan.topics}
    for topic_id in sorted(shard_counts.keys() - known):
        found = scan.topics.get(topic_id)
        if topic_id in dead or found is None or found.name in names:
            plan.orphans.append(topic_id)
            continue
        names.add(found.name)
        plan.taken_in.append(
            Topic(
                found.name,
                topic_id,
                shard_counts[topic_id],
                min(_NEW_TOPIC_REPLICAS, len(plan.nodes)),
                dict(FIXED_SETTINGS.get(found.name, {})),
                found.created_ms,
                is_reserved(found.name),
            )
        )


def _locks(records: Iterable[StoredRecord], scan: Scan, nodes: Sequence[int]) -> list[Lock]:
    locks = {record.name: record for record in records if isinstance(record, Lock)}
    for node_id in sorted({*scan.lock_epochs, *scan.claims, *nodes}):
        name = data_set_name(node_id)
        known = locks.get(name, Lock(name, NOBODY, 0, 0))
        epoch = max(known.epoch, scan.lock_epochs.get(node_id, 0)) + 1
        endings = [f"{_REBUILD}{name_ending(nonce)}" for nonce in scan.claims.get(node_id, ())]
        locks[name] = Lock(name, NOBODY, epoch, 0, tuple(dict.fromkeys((*_holders(known), *endings))))
    number = max((snapshot.number for snapshot in scan.snapshots), default=0)
    known = locks.get(LOCK, Lock(LOCK, NOBODY, 0, 0))
    names = [holder_of(snapshot.nonce) for snapshot in scan.snapshots]
    locks[LOCK] = Lock(LOCK, NOBODY, max(known.epoch, number), 0, tuple(dict.fromkeys((*_holders(known), *names))))
    for record in records:
        if isinstance(record, NodeEntry):
            name = disk_lock(record.info.storage_id)
            locks[name] = Lock(name, _REBUILD, 1, MAX_PRODUCER_ID)
    return list(locks.values())


def _holders(lock: Lock) -> tuple[str, ...]:
    return lock.earlier if lock.holder == NOBODY else (*lock.earlier, lock.holder)


def _for_nodes(segment: Segment, nodes: Sequence[int]) -> Segment:
    """A DELETED one: its objects are still to be taken away, by one of them."""
    return replace(segment, leader=None, replicas=tuple(nodes), isr=tuple(nodes), local_nodes=(), handover=None)


def records_of(plan: RebuildPlan, published: Mapping[SegmentKey, Published], now_ms: int) -> Iterator[StoredRecord]:
    """The rebuilt metadata; the header comes first. Requires: all of `to_publish` are published."""
    yield plan.header
    yield from plan.leavers.nodes
    yield from plan.locks
    yield from plan.leavers.mounts
    yield from plan.rules
    yield from plan.quotas
    topics = [*plan.topics, *plan.taken_in]
    yield from topics
    yield from plan.purged
    by_id = {topic.topic_id: topic for topic in topics}
    for number, shard in enumerate(plan.shards):
        turn = number % len(plan.nodes)
        topic = by_id[shard.key.topic_id]
        chosen = (*plan.nodes[turn:], *plan.nodes[:turn])[: next_copies(topic)]
        yield ShardRow(shard.key, shard.log_start_offset)
        for planned in shard.segments:
            if planned.volumes:
                segment = _in_volumes(planned)
            else:
                segment = _complete(planned, published.get(planned.key), chosen, now_ms, plan.leavers.volumes)
            is_end_known = planned.known is not None and planned.known.end_offset is not None
            yield segment if is_end_known and planned is not shard.segments[-1] else _with_end_in_doubt(segment)
        key = SegmentKey(shard.key.topic_id, shard.key.shard, shard.next_epoch, shard.end_offset)
        policy = next_policy(topic.settings)
        yield Segment(key, SegmentState.ACTIVE, chosen[0], chosen, chosen, 0, now_ms, policy=policy)
    yield from plan.deleted


def _with_end_in_doubt(segment: Segment) -> Segment:
    """What readers saw after the last one may have been only on lost disks, and a recovery may have ended a segment
    that is still open in the snapshot: readers learn of a break there."""
    assert segment.end_offset is not None, "it is sealed"
    if segment.handed.given_up:
        return segment
    doubt = GivenUp(segment.end_offset, segment.end_offset, GapReason.UNCLEAN)
    return replace(segment, handover=Handover(given_up=(doubt,)))


def _in_volumes(planned: PlannedSegment) -> Segment:
    """As it was, but for the copies on lost disks, and for what the bucket has of it by now."""
    known = planned.known
    assert known is not None, "the snapshot says which directories have it"
    remote = RemoteCopy()
    if planned.chain:
        parts = PartList(found.part for found in planned.chain)
        size_bytes = sum(part.size_bytes for part in parts)
        remote = RemoteCopy(RemoteState.PARTIAL, planned.chain_end, parts, size_bytes=size_bytes)
    handover = kept(Handover(given_up=known.handed.given_up))
    return replace(known, local_nodes=planned.volumes, remote=remote, handover=handover)


def _complete(
    planned: PlannedSegment,
    made: Published | None,
    nodes: tuple[int, ...],
    now_ms: int,
    volumes: Collection[int],
) -> Segment:
    known, manifest = planned.known, planned.manifest
    if made is not None:
        seal, key, digest, size_bytes = made.seal, made.manifest_key, made.manifest_digest, made.size_bytes
    else:
        assert manifest is not None, "what has no manifest is published first"
        if known is not None and known.seal is not None and known.remote.manifest_key == manifest.key:
            remote = known.remote
            assert remote.manifest_digest is not None, "a manifest that is named has its digest"
            seal, key, digest, size_bytes = known.seal, manifest.key, remote.manifest_digest, remote.size_bytes
        else:
            assert manifest.seal is not None, "one that the snapshot does not name was read"
            seal, key, digest, size_bytes = manifest.seal, manifest.key, manifest.digest, manifest.size_bytes
    if known is not None and known.seal is not None and known.seal.digest == seal.digest:
        # Of producers what the bucket has is the truth: a table that only lost disks had is never found again.
        seal = replace(known.seal, producers=seal.producers)
    replicas = tuple(dict.fromkeys((*nodes, *seal.replicas)))  # who proved it stays named, as the record says
    local = tuple(one for one in (known.local_nodes if known is not None else ()) if one in volumes)
    if known is None or known.seal is None or known.seal.digest != seal.digest:
        local = ()
    return Segment(
        planned.key,
        SegmentState.SEALED,
        None,
        replicas,
        known.isr if known is not None else nodes,
        known.isr_version if known is not None else 0,
        known.opened_ms if known is not None else now_ms,
        planned.end_offset,
        seal,
        local,
        # The metadata before may have named another manifest, of merged chunks or of those before: readers hold it.
        RemoteCopy(RemoteState.COMPLETE, planned.end_offset, (), key, digest, size_bytes, now_ms),
        handover=kept(Handover(given_up=known.handed.given_up)) if known is not None else None,
    )
