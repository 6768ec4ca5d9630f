"""The node's view of metadata: topics, shards, segments, nodes and rights, kept current by the meta service's watch.

Lives on the event loop. Reads are dictionary lookups; a change replaces records, it never edits them.
Cost: a change to a segment costs the logarithm of its shard's segments, so that a deletion of thousands costs what it
deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from stratalog.machines.copies.leaving import are_producers_lost, is_lost_for_good
from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.quotas.table import QuotaTable
from stratalog.machines.reading.bucket_reads import BucketReads
from stratalog.machines.tiering.upload_duty import keeper_of
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.in_order import find, place_of
from stratalog.model.metadata import (
    Change,
    ChangeSet,
    CredentialChanged,
    CredentialDeleted,
    MountChanged,
    MountEnded,
    Node,
    NodeChanged,
    QuotasChanged,
    QuotasDeleted,
    RuleCreated,
    RuleDeleted,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    Snapshot,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.mounts import Mount, data_set_name
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter
from stratalog_node.shards.catalog.rights import CatalogRights

log = logger(__name__)

_CHANGES_PER_STEP: Final = 256


class _ShardEntry:
    __slots__ = ("log_start_offset", "segments")

    def __init__(self, log_start_offset: int) -> None:
        self.log_start_offset = log_start_offset
        self.segments: list[Segment] = []


@dataclass(slots=True)
class CatalogStats:
    change_sets: int = counter("Change sets of the metadata that were followed.")
    reloads: int = counter("Times that all metadata were read, because the watch had lost its place.")


@dataclass(frozen=True, slots=True)
class MountedShard:
    """A shard of a topic that a user mounted: a range of another shard."""

    key: ShardKey
    """The shard that is read."""
    topic: Topic
    """The mounted topic."""
    base_offset: int
    end_offset: int


class Catalog:
    """Topics by name and id; each shard's segments, oldest first, without the deleted ones."""

    def __init__(
        self, resolve: Callable[[Mapping[str, str]], TopicSettings], rights: CatalogRights | None = None
    ) -> None:
        self._resolve = resolve
        self.rights = CatalogRights() if rights is None else rights
        self.quotas = QuotaTable()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._settings: dict[UUID, TopicSettings] = {}
        self._shards: dict[ShardKey, _ShardEntry] = {}
        self._nodes: dict[int, Node] = {}
        self._bucket: BucketReads | None = None
        """Computed from these nodes; None once one of them changed."""
        self._mounts: dict[str, Mount] = {}
        self._mounted: dict[str, Topic] = {}
        """Topics that users mounted, by the names under which clients read them."""
        self._mounted_ids: dict[UUID, Topic] = {}
        self._ranges: dict[ShardKey, MountedShard] = {}
        self._gone: list[Change] = []
        """What the change that is being applied ended besides."""
        self._listeners: list[Callable[[Change], None]] = []
        self.version = -1
        self.stats = CatalogStats()

    # Reading ----------------------------------------------------------------------------------------------------
    def topic(self, name: str) -> Topic | None:
        """Also a topic that a user mounted, such as `flights@2013-01`."""
        return self._by_name.get(name) or self._mounted.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Also a topic that a user mounted."""
        return self._by_id.get(topic_id) or self._mounted_ids.get(topic_id)

    def mounted_topics(self) -> Iterable[Topic]:
        """By hand; none of them is among `topics`."""
        return self._mounted.values()

    def is_mounted(self, topic: Topic) -> bool:
        """By hand: it is read only."""
        return topic.topic_id in self._mounted_ids

    def mounted_shard(self, key: ShardKey) -> MountedShard | None:
        """The range that a shard of a user-mounted topic reads."""
        return self._ranges.get(key)

    def topics(self) -> Iterable[Topic]:
        return self._by_name.values()

    def topic_settings(self, topic_id: UUID) -> TopicSettings:
        settings = self._settings.get(topic_id)
        return self._resolve({}) if settings is None and topic_id in self._mounted_ids else self._settings[topic_id]

    def is_quorum(self, topic_id: UUID) -> bool:
        """Whether a majority acknowledges; False of a topic that is gone."""
        topic = self._by_id.get(topic_id)
        return topic is not None and is_quorum(topic.settings)

    def reads_bucket(self, topic_id: UUID) -> bool:
        """See `machines.reading.bucket_reads`. True for a topic that is gone."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            return True
        if self._bucket is None:
            self._bucket = BucketReads(self._nodes.values())
        return self._bucket.of(topic)

    def nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    def node(self, node_id: int) -> Node | None:
        return self._nodes.get(node_id)

    def mounts(self) -> Iterable[Mount]:
        return self._mounts.values()

    def mount(self, name: str) -> Mount | None:
        return self._mounts.get(name)

    def mount_of(self, node_id: int) -> Mount | None:
        """The mount of a retired node's data set."""
        return self._mounts.get(data_set_name(node_id))

    def holder_of(self, node_id: int) -> int | None:
        """The node that holds the mount of this node's data set. None if there is no such mount, or no node holds
        it."""
        mount = self.mount_of(node_id)
        return mount.holder if mount is not None else None

    def keeper_of(self, segment: Segment) -> int | None:
        """The node that removes what all nodes share of a DELETED segment."""
        return keeper_of(segment, self.is_alive, self.holder_of, self._is_retired, self._first_living)

    def _is_retired(self, node_id: int) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.is_retired

    def _first_living(self) -> int | None:
        return min((node_id for node_id, node in self._nodes.items() if node.is_alive), default=None)

    def reads_at(self, node_id: int) -> tuple[str, int] | None:
        """Where to read the sealed segments that a node proved: from the node itself while it lives, else from the
        process that serves its directory; None if neither is available."""
        mount = self.mount_of(node_id)
        if mount is not None:
            return (mount.volume.host, mount.volume.port) if mount.volume is not None else None
        node = self._nodes.get(node_id)
        return (node.host, node.port) if node is not None and node.is_alive else None

    def are_producers_lost(self, segment: Segment) -> bool:
        """Whether the shard continues without the producer table at the end of a sealed segment."""
        behind = [one for one in self.segments(segment.key.shard_key) if one.epoch > segment.epoch]
        return are_producers_lost(segment, behind, self.node, lambda node_id: self.reads_at(node_id) is not None)

    def is_lost_for_good(self, segment: Segment) -> bool:
        """Whether all that nodes had of a sealed segment was given up by a person, and no node that returns can still
        have it."""
        return is_lost_for_good(segment, self.node, lambda node_id: self.reads_at(node_id) is not None)

    def is_alive(self, node_id: int) -> bool:
        """As the newest change that came here says; of a node that it does not tell of nothing is known against it."""
        node = self._nodes.get(node_id)
        return node is None or node.is_alive

    def shard_keys(self) -> Iterable[ShardKey]:
        return self._shards.keys()

    def has_shard(self, key: ShardKey) -> bool:
        return key in self._shards

    def segments(self, key: ShardKey) -> list[Segment]:
        """Not to be changed by the caller."""
        entry = self._shards.get(key)
        return entry.segments if entry else []

    def has_remote_data(self) -> bool:
        """Whether the object store has data of any segment. Cost: reads each segment's record at worst."""
        of_shards = (self.segments(key) for key in self.shard_keys())
        return any(one.remote.state is not RemoteState.NONE for segments in of_shards for one in segments)

    def log_start_offset(self, key: ShardKey) -> int:
        entry = self._shards.get(key)
        return entry.log_start_offset if entry else 0

    def active_segment(self, key: ShardKey) -> Segment | None:
        segments = self.segments(self._read_of(key))
        if segments and segments[-1].state is SegmentState.ACTIVE:
            return segments[-1]
        return None

    def _read_of(self, key: ShardKey) -> ShardKey:
        mounted = self._ranges.get(key) if self._ranges else None
        return key if mounted is None else mounted.key

    def leader_of(self, key: ShardKey) -> tuple[int, int] | None:
        """The leader of the newest segment, and its epoch. The segment may still be SEALING: a roll arrives as two
        changes. A shard of a user-mounted topic has the leader of the shard that it reads."""
        segments = self.segments(self._read_of(key))
        if not segments or segments[-1].leader is None:
            return None
        return segments[-1].leader, segments[-1].epoch

    def segment(self, key: SegmentKey) -> Segment | None:
        return find(self.segments(key.shard_key), key)

    # Following --------------------------------------------------------------------------------------------------
    def on_change(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` after each change has been applied."""
        self._listeners.append(listener)

    def load(self, snapshot: Snapshot) -> None:
        """Start from nothing with a snapshot; listeners are not called."""
        for topic in snapshot.topics:
            self._put_topic(topic)
        for shard in snapshot.shards:
            entry = self._shards[shard.key] = _ShardEntry(shard.log_start_offset)
            entry.segments = [s for s in shard.segments if s.state is not SegmentState.DELETED]
        self._nodes = {node.node_id: node for node in snapshot.nodes}
        self._bucket = None
        for mount in snapshot.mounts:
            self._put_mount(mount)
        self.rights.load(snapshot)
        for quotas in snapshot.quotas:
            self.quotas.put(quotas)
        self.version = snapshot.version

    def reload(self, snapshot: Snapshot) -> None:
        """Take a newer snapshot after the watch lost its place: tells the listeners what differs."""
        for _ in self.reload_in_steps(snapshot):
            pass

    def reload_in_steps(self, snapshot: Snapshot) -> Iterator[None]:
        """The same in steps, as `apply_in_steps`."""
        self.stats.reloads += 1
        kept = {topic.topic_id for topic in snapshot.topics}
        changes: list[Change] = []
        yield from self.rights.differences(snapshot, changes)  # first: a right that was revoked ends at once
        limited = {one.entity for one in snapshot.quotas}
        changes += [QuotasDeleted(one.entity) for one in self.quotas if one.entity not in limited]
        changes += [QuotasChanged(one) for one in snapshot.quotas if self.quotas.limits(one.entity) != one.limits]
        yield
        changes += [TopicDeleted(t) for t in list(self._by_id.values()) if t.topic_id not in kept]
        changes += [TopicChanged(t) for t in snapshot.topics if self._by_id.get(t.topic_id) != t]
        for number, shard in enumerate(snapshot.shards, 1):
            if number % _CHANGES_PER_STEP == 0:
                yield
            changes.append(ShardChanged(shard))
            known = {segment.key: segment for segment in self.segments(shard.key)}
            listed = {segment.key for segment in shard.segments}
            changes += [SegmentChanged(s) for s in shard.segments if known.get(s.key) != s]
            changes += [
                SegmentChanged(replace(gone, state=SegmentState.DELETED))
                for key, gone in known.items()
                if key not in listed
            ]
        changes += [NodeChanged(node) for node in snapshot.nodes]
        mounted = {mount.name for mount in snapshot.mounts}
        changes += [MountEnded(name) for name in self._mounts if name not in mounted]
        for mount in snapshot.mounts:
            before = self._mounts.get(mount.name)
            if before is not None and before.created_ms != mount.created_ms:
                changes.append(MountEnded(mount.name))  # made again: its topics are others
            changes.append(MountChanged(mount))
        yield from self.apply_in_steps(ChangeSet(snapshot.version, tuple(changes)))

    def apply(self, change_set: ChangeSet) -> None:
        for _ in self.apply_in_steps(change_set):
            pass

    def apply_in_steps(self, change_set: ChangeSet) -> Iterator[None]:
        """Between two steps others may run, and see so much of a large change set; small ones are one step.

        Requires: no other change is applied before the last step. `version` moves with that one.
        """
        if change_set.version <= self.version:
            return
        self.stats.change_sets += 1
        for number, change in enumerate(change_set.changes):
            if number and number % _CHANGES_PER_STEP == 0:
                yield
            try:
                self._apply_one(change)
            except Exception:  # told once, and not again with each attempt to follow
                self.version = change_set.version
                raise
            for part in (change, *self._gone):
                self._notify(part)
            self._gone.clear()
        self.version = change_set.version

    def _notify(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:  # the other listeners must still get this change and the following ones (F48)
                log.error("a listener failed on a change of metadata", change=type(change).__name__, exc_info=True)

    def _put_mount(self, mount: Mount) -> None:
        before = self._mounts.get(mount.name)
        for mounted in before.topics if before is not None else ():
            if before is not None and mounted not in mount.topics:
                self._drop_mounted(mounted.as_topic(before))
        self._mounts[mount.name] = mount
        for mounted in mount.topics:
            topic = mounted.as_topic(mount)
            self._mounted[topic.name] = self._mounted_ids[topic.topic_id] = topic
            for shard, (base_offset, end_offset) in enumerate(mounted.ranges):
                real = ShardKey(mounted.topic_id, shard)
                self._ranges[ShardKey(topic.topic_id, shard)] = MountedShard(real, topic, base_offset, end_offset)

    def _end_mount(self, name: str) -> None:
        """Listeners learn that the mount's topics are gone, as of any deleted topic."""
        mount = self._mounts.pop(name, None)
        if mount is not None:
            for mounted in mount.topics:
                self._drop_mounted(mounted.as_topic(mount))

    def _drop_mounted(self, topic: Topic) -> None:
        self._mounted.pop(topic.name, None)
        self._mounted_ids.pop(topic.topic_id, None)
        for shard in range(topic.shard_count):
            self._ranges.pop(ShardKey(topic.topic_id, shard), None)
        self._gone.append(TopicDeleted(topic))

    def _put_topic(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._settings[topic.topic_id] = self._resolve(topic.settings)

    def _apply_one(self, change: Change) -> None:
        match change:
            case TopicChanged(topic):
                self._put_topic(topic)
            case TopicDeleted(topic):
                if self._by_id.pop(topic.topic_id, None) is not None:
                    self._settings.pop(topic.topic_id, None)
                if (current := self._by_name.get(topic.name)) and current.topic_id == topic.topic_id:
                    del self._by_name[topic.name]
                for number in range(topic.shard_count):
                    self._shards.pop(ShardKey(topic.topic_id, number), None)
            case ShardChanged(shard):
                entry = self._shards.get(shard.key)
                if entry is None:
                    entry = self._shards[shard.key] = _ShardEntry(shard.log_start_offset)
                    entry.segments = [s for s in shard.segments if s.state is not SegmentState.DELETED]
                entry.log_start_offset = shard.log_start_offset
            case SegmentChanged(segment):
                self._put_segment(segment)
            case SegmentPurged():
                pass
            case NodeChanged(node):
                self._nodes[node.node_id] = node
                self._bucket = None
            case MountChanged(mount):
                self._put_mount(mount)
            case MountEnded(name):
                self._end_mount(name)
            case RuleCreated() | RuleDeleted() | CredentialChanged() | CredentialDeleted():
                self.rights.apply(change)
            case QuotasChanged(quotas):
                self.quotas.put(quotas)
            case QuotasDeleted(entity):
                self.quotas.drop(entity)

    def _put_segment(self, segment: Segment) -> None:
        entry = self._shards.get(segment.key.shard_key)
        if entry is None:
            return
        segments = entry.segments
        index = place_of(segments, segment.epoch)
        is_known = index < len(segments) and segments[index].key == segment.key
        if segment.state is SegmentState.DELETED:
            if is_known:
                del segments[index]
        elif is_known:
            segments[index] = segment
        else:
            segments.insert(index, segment)
