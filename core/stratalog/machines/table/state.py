"""The shard table's memory, and the transaction through which alone it changes.

Records are immutable and replaced as a whole; maps hold them. A transaction notes the old entry of all it replaces, so
that a refused command leaves nothing behind and an applied one can still be undone until its store has synced it.

Invariants: epochs of a shard's living segments are `first_epoch .. next_epoch - 1` without a gap; `load` and `led`
count the replicas and leaders of ACTIVE segments; `unsettled` names the ACTIVE and SEALING ones that another node than
their leader has a say in. Cost: O(1) per record changed, whatever the shard holds. What changes any number of records
is a generator (`Steps`): between two steps the caller may do something else, as long as it leaves this state alone.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from stratalog.machines.copies.disk_room import weight_class, with_good_disks
from stratalog.machines.copies.leaving import is_given_up
from stratalog.machines.copies.placement import LEADER_WEIGHT, weights_of
from stratalog.machines.reading.bucket_reads import READ_POLICY, reads_bucket, reads_by_default
from stratalog.machines.table import records as table_records
from stratalog.model.errors import NotFound
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    Change,
    ChangeSet,
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
from stratalog.model.mounts import Mount, data_set_name
from stratalog.model.quotas import EntityQuotas, QuotaEntity, QuotaLimits
from stratalog.model.rights import Permission, Rule
from stratalog.model.scram import CredentialName, UserCredential
from stratalog.model.segment import NO_HANDOVER, Handover, RemotePart, Segment, SegmentState
from stratalog.model.topic import Shard, Topic, undotted_name

K = TypeVar("K")
V = TypeVar("V")
Steps: TypeAlias = Generator[None, None, V]
"""A long change in steps; it returns its result with the last one."""
RECORDS_PER_STEP: Final = 256
_ABSENT: Final = object()
PURGED_TOPICS: Final = 10_000
"""So many purged topics are remembered (about 1 MB)."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in memory. `segments` maps the epoch of each living segment; only a transaction changes it."""

    key: ShardKey
    log_start_offset: int
    first_epoch: int
    next_epoch: int
    segments: dict[int, Segment]

    @property
    def last(self) -> Segment:
        return self.segments[self.next_epoch - 1]


class TableState:
    """All maps of the shard table."""

    __slots__ = (
        "change_sets", "credentials", "deleted", "header", "led", "load", "locks", "min_in_sync", "mounts", "nodes",
        "purged_topics", "quotas", "rules", "shards", "topic_ids", "topics", "undotted", "unsettled", "views",
    )  # fmt: skip

    def __init__(self, header: table_records.TableHeader) -> None:
        self.header = header
        self.topics: dict[UUID, Topic] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.undotted: dict[str, tuple[str, ...]] = {}
        """Topics by `undotted_name`, for those that have one."""
        self.shards: dict[ShardKey, ShardEntry] = {}
        self.deleted: dict[SegmentKey, Segment] = {}
        self.purged_topics: dict[UUID, table_records.PurgedTopic] = {}
        self.nodes: dict[int, table_records.NodeEntry] = {}
        self.locks: dict[str, Lock] = {}
        self.mounts: dict[str, Mount] = {}
        self.rules: dict[Rule, None] = {}
        self.credentials: dict[CredentialName, UserCredential] = {}
        self.quotas: dict[QuotaEntity, QuotaLimits] = {}
        """None of them is empty."""
        self.change_sets: tuple[ChangeSet, ...] = ()
        """The newest ones, as they were when it was loaded."""
        self.load: dict[int, int] = {}
        self.led: dict[int, int] = {}
        """How many ACTIVE segments each node leads, counted as in `load`."""
        self.unsettled: dict[SegmentKey, None] = {}
        """What the beginning or the end of a life may concern, so that it costs nothing where each segment is alone."""
        self.min_in_sync = 1
        """The processes' `min.insync.replicas`, for topics that do not say otherwise. Not stored."""
        self.views: dict[ShardKey, Shard] = {}
        """Shards as readers see them, made when asked for, dropped when they change."""

    def shard(self, key: ShardKey) -> ShardEntry:
        entry = self.shards.get(key)
        if entry is None:
            raise NotFound(
                f"shard {key.shard} of topic {key.topic_id} does not exist (its topic may have been deleted)"
            )
        return entry

    def topic(self, topic_id: UUID) -> Topic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise NotFound(f"topic {topic_id} does not exist (it may have been deleted and made again under a new id)")
        return topic

    def reads_bucket(self, topic: Topic) -> bool:
        """See `machines.reading.bucket_reads`. Cost: O(nodes) where the topic has no policy of its own."""
        if READ_POLICY in topic.settings:
            return reads_bucket(topic.settings, by_default=True)
        return reads_by_default(entry.node for entry in self.nodes.values())

    def find_segment(self, key: SegmentKey) -> Segment | None:
        """The segment, living or DELETED."""
        entry = self.shards.get(key.shard_key)
        if entry is not None:
            segment = entry.segments.get(key.epoch)
            if segment is not None and segment.key == key:
                return segment
        return self.deleted.get(key)

    def segment(self, key: SegmentKey) -> Segment:
        segment = self.find_segment(key)
        if segment is None:
            raise NotFound(f"{describe_segment(key)} does not exist (never opened, or purged)")
        return segment

    def is_alive(self, node_id: int) -> bool:
        entry = self.nodes.get(node_id)
        return entry is not None and entry.is_alive

    def is_working(self, node_id: int) -> bool:
        """Alive, with a disk that makes progress."""
        entry = self.nodes.get(node_id)
        return entry is not None and entry.is_alive and entry.can_write

    def mount_of(self, node_id: int) -> Mount | None:
        """Of a retired node's data set."""
        return self.mounts.get(data_set_name(node_id))

    def holder_of(self, node_id: int) -> int | None:
        """The holder of the mount of this node's data set; None if there is no mount or no holder."""
        mount = self.mount_of(node_id)
        return mount.holder if mount is not None else None

    def first_living(self) -> int | None:
        return min((node_id for node_id, entry in self.nodes.items() if entry.is_alive), default=None)

    def is_staying(self, node_id: int) -> bool:
        """Alive, and not about to leave."""
        entry = self.nodes.get(node_id)
        return entry is not None and entry.is_alive and not entry.is_leaving

    def is_given_up(self, node_id: int) -> bool:
        """Gone for good, or given up by force while it is away."""
        entry = self.nodes.get(node_id)
        return entry is not None and is_given_up(entry.retirement, is_alive=entry.is_alive)

    def is_dead_and_leaving(self, node_id: int) -> bool:
        """Gone for good, or leaving while it is away: nothing has to wait for its vote. It may come back."""
        entry = self.nodes.get(node_id)
        return entry is not None and entry.is_leaving and not entry.is_alive

    def is_retired(self, node_id: int) -> bool:
        """Gone for good."""
        entry = self.nodes.get(node_id)
        return entry is not None and entry.retirement is not None and entry.retirement.step.is_released

    @property
    def staying_count(self) -> int:
        """Nodes that are alive and do not leave."""
        return sum(entry.is_alive and not entry.is_leaving for entry in self.nodes.values())

    def is_host(self, node_id: int) -> bool:
        """Whether it is alive and may take new segments. A leaving node may only if no node stays, because writes come
        first."""
        return self.is_staying(node_id) or (self.is_alive(node_id) and not self.staying_count)

    def hosts(self, wanted: int) -> list[NodeInfo]:
        """Where new segments may go: living nodes, with good disks where those are as many as wanted."""
        living = [entry for node_id, entry in self.nodes.items() if self.is_host(node_id)]
        return [entry.info for entry in with_good_disks(living, wanted)]

    def scarcities(self) -> dict[int, int]:
        """How much placement avoids the disks, of nodes whose disk it avoids."""
        return {node_id: weight for node_id, entry in self.nodes.items() if (weight := weight_class(entry))}

    def view(self, key: ShardKey) -> Shard:
        view = self.views.get(key)
        if view is None:
            entry = self.shard(key)
            segments = tuple(entry.segments[epoch] for epoch in range(entry.first_epoch, entry.next_epoch))
            view = self.views[key] = Shard(key, entry.log_start_offset, segments)
        return view


def kept(handover: Handover) -> Handover | None:
    """As a record keeps it: None when nothing has happened."""
    return None if handover == NO_HANDOVER else handover


def is_unsettled(segment: Segment) -> bool:
    return segment.state in (SegmentState.ACTIVE, SegmentState.SEALING) and segment.is_shared


def describe_segment(key: SegmentKey) -> str:
    return f"segment {key.base_offset}-{key.epoch} of shard {key.shard} of topic {key.topic_id}"


def _place(change: Change) -> int:
    match change:
        case NodeChanged():
            return 2
        case RuleCreated(rule):
            return int(rule.permission is Permission.ALLOW)
        case RuleDeleted(rule):
            return int(rule.permission is Permission.DENY)
        case _:
            return 0


class TableTransaction:
    """The changes of one command: made at once in the state, undone together when asked.

    Requires: transactions are undone in the opposite order of their making.
    """

    __slots__ = ("_header_before", "_undo", "_written_heads", "changes", "new_id", "now_ms", "state", "writes")

    def __init__(self, state: TableState, now_ms: int, new_id: UUID) -> None:
        """`new_id` was never given before: what the command makes is called so."""
        self.state = state
        self.now_ms = now_ms
        self.new_id = new_id
        self.changes: list[Change] = []
        self.writes: list[table_records.TableWrite] = []
        self._header_before = state.header
        self._undo: list[tuple[dict[Any, Any], object, object]] = []  # maps of several kinds, only put back
        self._written_heads: dict[SegmentKey, tuple[int, int]] = {}
        """Where `changes` and `writes` name each segment."""

    def undo(self) -> None:
        for mapping, key, old in reversed(self._undo):
            if old is _ABSENT:
                del mapping[key]
            else:
                mapping[key] = old
        self._undo.clear()
        self.state.header = self._header_before
        self.state.views.clear()

    def _put(self, mapping: dict[K, V], key: K, value: V) -> None:
        self._undo.append((mapping, key, mapping.get(key, _ABSENT)))
        mapping[key] = value

    def _drop(self, mapping: dict[K, V], key: K) -> None:
        self._undo.append((mapping, key, mapping.pop(key)))

    # Header, nodes, locks ---------------------------------------------------------------------------------------
    def close(self) -> None:
        """Every transaction that readers can see makes a new version. Nodes are the last changes of it: a leader that
        hears of a node's death has the ISR already that the death left. Rules that take a right away come before those
        that give one: who applies the changes one by one never allows what neither the state before nor after does."""
        if self.changes:
            self.changes.sort(key=_place)
            header = replace(self.state.header, version=self.state.header.version + 1)
            self.put_header(header)
            is_kept = len(self.changes) <= table_records.MAX_KEPT_CHANGES
            self.writes.append(table_records.PutChanges(header.version, tuple(self.changes) if is_kept else None))

    def put_header(self, header: table_records.TableHeader) -> None:
        self.state.header = header
        self.writes.append(table_records.PutHeader(header))

    def put_node(self, node: table_records.NodeEntry) -> None:
        self._put(self.state.nodes, node.info.node_id, node)
        self.writes.append(table_records.PutNode(node))
        self.changes.append(NodeChanged(node.node))

    def put_lock(self, lock: Lock) -> None:
        self._put(self.state.locks, lock.name, lock)
        self.writes.append(table_records.PutLock(lock))

    def put_mount(self, mount: Mount) -> None:
        self._put(self.state.mounts, mount.name, mount)
        self.writes.append(table_records.PutMount(mount))
        self.changes.append(MountChanged(mount))

    def drop_mount(self, name: str) -> None:
        self._drop(self.state.mounts, name)
        self.writes.append(table_records.DropMount(name))
        self.changes.append(MountEnded(name))

    def put_rule(self, rule: Rule) -> None:
        self._put(self.state.rules, rule, None)
        self.writes.append(table_records.PutRule(rule))
        self.changes.append(RuleCreated(rule))

    def drop_rule(self, rule: Rule) -> None:
        self._drop(self.state.rules, rule)
        self.writes.append(table_records.DropRule(rule))
        self.changes.append(RuleDeleted(rule))

    def put_credential(self, credential: UserCredential) -> None:
        self._put(self.state.credentials, credential.name, credential)
        self.writes.append(table_records.PutCredential(credential))
        self.changes.append(CredentialChanged(credential))

    def drop_credential(self, name: CredentialName) -> None:
        self._drop(self.state.credentials, name)
        self.writes.append(table_records.DropCredential(name))
        self.changes.append(CredentialDeleted(name))

    def put_quotas(self, quotas: EntityQuotas) -> None:
        self._put(self.state.quotas, quotas.entity, quotas.limits)
        self.writes.append(table_records.PutQuotas(quotas))
        self.changes.append(QuotasChanged(quotas))

    def drop_quotas(self, entity: QuotaEntity) -> None:
        self._drop(self.state.quotas, entity)
        self.writes.append(table_records.DropQuotas(entity))
        self.changes.append(QuotasDeleted(entity))

    # Topics and shards ------------------------------------------------------------------------------------------
    def put_topic(self, topic: Topic) -> None:
        self._put(self.state.topics, topic.topic_id, topic)
        if topic.name not in self.state.topic_ids and (undotted := undotted_name(topic.name)) is not None:
            self._put(self.state.undotted, undotted, (*self.state.undotted.get(undotted, ()), topic.name))
        self._put(self.state.topic_ids, topic.name, topic.topic_id)
        self.writes.append(table_records.PutTopic(topic))
        self.changes.append(TopicChanged(topic))

    def drop_topic(self, topic: Topic) -> Steps[None]:
        """Its shards go with it; their segments must be deleted by the caller, from the entries it read before."""
        self._drop(self.state.topics, topic.topic_id)
        self._drop(self.state.topic_ids, topic.name)
        if (undotted := undotted_name(topic.name)) is not None:
            others = tuple(name for name in self.state.undotted[undotted] if name != topic.name)
            if others:
                self._put(self.state.undotted, undotted, others)
            else:
                self._drop(self.state.undotted, undotted)
        self.writes.append(table_records.DropTopic(topic.topic_id))
        self.changes.append(TopicDeleted(topic))
        for shard in range(topic.shard_count):
            key = ShardKey(topic.topic_id, shard)
            self._drop(self.state.shards, key)
            self.state.views.pop(key, None)
            self.writes.append(table_records.DropShard(key))
            if shard % RECORDS_PER_STEP == RECORDS_PER_STEP - 1:
                yield

    def open_shard(self, first: Segment) -> None:
        key = first.key.shard_key
        entry = ShardEntry(key, first.base_offset, first.epoch, first.epoch + 1, {first.epoch: first})
        self._put(self.state.shards, key, entry)
        self._count(first, 1)
        self.writes.append(table_records.PutShard(table_records.ShardRow(key, entry.log_start_offset)))
        self.writes.append(table_records.PutSegmentHead(first))
        view = self.state.views[key] = Shard(key, entry.log_start_offset, (first,))
        self.changes.append(ShardChanged(view))

    def move_log_start(self, entry: ShardEntry, offset: int) -> None:
        self._put_shard(replace(entry, log_start_offset=offset))
        self.writes.append(table_records.PutShard(table_records.ShardRow(entry.key, offset)))
        self.changes.append(ShardChanged(Shard(entry.key, offset, ())))

    def _put_shard(self, entry: ShardEntry) -> None:
        self._put(self.state.shards, entry.key, entry)
        self.state.views.pop(entry.key, None)

    # Segments ---------------------------------------------------------------------------------------------------
    def open_segment(self, segment: Segment) -> None:
        """Add the next segment of a shard."""
        entry = self.state.shards[segment.key.shard_key]
        assert segment.epoch == entry.next_epoch, "epochs grow by one"
        self._put(entry.segments, segment.epoch, segment)
        self._put_shard(replace(entry, next_epoch=segment.epoch + 1))
        self._count(segment, 1)
        self._put_head(segment)

    def replace_segment(self, old: Segment, new: Segment) -> None:
        """Put `new` in the place of `old`; the caller adds the writes of seal and parts."""
        if old.state is SegmentState.DELETED:
            self._put(self.state.deleted, new.key, new)
        else:
            key = new.key.shard_key
            self._put(self.state.shards[key].segments, new.epoch, new)
            self.state.views.pop(key, None)
            if (
                new.state is not old.state
                or new.replicas is not old.replicas
                or new.leader != old.leader
                or new.handover is not old.handover
            ):
                self._count(old, -1)
                self._count(new, 1)
        self._put_head(new)

    def _put_head(self, segment: Segment) -> None:
        """Write the segment's record and tell watchers of it, once in a transaction: as the transaction leaves it."""
        change, write = SegmentChanged(segment), table_records.PutSegmentHead(segment)
        places = self._written_heads.get(segment.key)
        if places is None:
            self._written_heads[segment.key] = len(self.changes), len(self.writes)
            self.changes.append(change)
            self.writes.append(write)
        else:
            self.changes[places[0]], self.writes[places[1]] = change, write

    def put_seal(self, old: Segment, new: Segment) -> None:
        assert old.seal is None and new.seal is not None, "a seal record is written once"
        self.replace_segment(old, new)
        self.writes.append(table_records.PutSeal(new.key, new.seal))

    def put_part(self, key: SegmentKey, part: RemotePart) -> None:
        self.writes.append(table_records.PutPart(key, part))

    def drop_part(self, key: SegmentKey, part: RemotePart) -> None:
        self.writes.append(table_records.DropPart(key, part.base_offset))

    def delete_segment(self, segment: Segment) -> None:
        """Move a segment to the deleted ones: its shard's oldest, or any when the shard has been dropped."""
        rest = kept(Handover(given_up=segment.handed.given_up))
        gone = replace(segment, state=SegmentState.DELETED, leader=None, deleted_ms=self.now_ms, handover=rest)
        entry = self.state.shards.get(segment.key.shard_key)
        if entry is not None:
            assert segment.epoch == entry.first_epoch, "segments go from the oldest on"
            self._drop(entry.segments, segment.epoch)
            self._put_shard(replace(entry, first_epoch=segment.epoch + 1))
        self._count(segment, -1)
        self._put(self.state.deleted, gone.key, gone)
        self._put_head(gone)

    def delete_below_log_start(self, key: ShardKey, *, also_unsealed: bool) -> Steps[None]:
        """Delete the oldest segments that end at or below the log start; the first that does not ends the sweep.

        Without `also_unsealed` those stay that are not sealed yet, and an empty one that the log start only reached.
        """
        entry = self.state.shards[key]
        for epoch in range(entry.first_epoch, entry.next_epoch):
            segment = entry.segments[epoch]
            if segment.end_offset is None or segment.end_offset > entry.log_start_offset:
                break
            if not also_unsealed and (
                segment.state is not SegmentState.SEALED or segment.base_offset >= entry.log_start_offset
            ):
                break
            self.delete_segment(segment)
            if epoch % RECORDS_PER_STEP == 0:
                yield

    def purge_segment(self, segment: Segment) -> None:
        self._drop(self.state.deleted, segment.key)
        for part in segment.remote.parts:
            self.drop_part(segment.key, part)
        self.writes.append(table_records.DropSegment(segment.key))
        self.changes.append(SegmentPurged(segment.key))
        if segment.key.topic_id not in self.state.topics:
            self._remember_purged(segment.key.topic_id)

    def _remember_purged(self, topic_id: UUID) -> None:
        """A topic is deleted and some of it is purged: unless it is remembered, what of it comes late is a riddle."""
        known = self.state.purged_topics
        if topic_id in known:
            return
        if len(known) >= PURGED_TOPICS:
            oldest = min(known.values(), key=lambda purged: purged.purged_ms).topic_id
            self._drop(known, oldest)
            self.writes.append(table_records.DropPurgedTopic(oldest))
        purged = table_records.PurgedTopic(topic_id, self.now_ms)
        self._put(known, topic_id, purged)
        self.writes.append(table_records.PutPurgedTopic(purged))

    def _count(self, segment: Segment, sign: int) -> None:
        """Add a segment to the load and to the unsettled ones, or take it away."""
        if segment.state is SegmentState.ACTIVE:
            load, led = self.state.load, self.state.led
            for node_id, weight in weights_of(segment):
                self._put(load, node_id, load.get(node_id, 0) + sign * weight)
                if weight == LEADER_WEIGHT:
                    self._put(led, node_id, led.get(node_id, 0) + sign)
        if is_unsettled(segment):
            if sign > 0:
                self._put(self.state.unsettled, segment.key, None)
            else:
                self._drop(self.state.unsettled, segment.key)
