"""A process's copy of the metadata, kept by the watch: as old as its last news."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    ChangeSet,
    MountChanged,
    MountEnded,
    Node,
    NodeChanged,
    SegmentChanged,
    SegmentPurged,
    ShardChanged,
    Snapshot,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.mounts import Mount, data_set_name
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Topic


@dataclass(slots=True)
class ShardView:
    log_start_offset: int = 0
    segments: dict[int, Segment] = field(default_factory=dict)
    """By epoch, ascending; those that are DELETED are not here."""


@dataclass(slots=True)
class View:
    version: int = -1
    topics: dict[UUID, Topic] = field(default_factory=dict)
    shards: dict[ShardKey, ShardView] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)
    mounts: dict[str, Mount] = field(default_factory=dict)

    def is_alive(self, node_id: int) -> bool:
        known = self.nodes.get(node_id)
        return known is not None and known.is_alive

    def is_retired(self, node_id: int) -> bool:
        known = self.nodes.get(node_id)
        return known is not None and known.is_retired

    def first_living(self) -> int | None:
        return min((node_id for node_id, node in self.nodes.items() if node.is_alive), default=None)

    def mount_of(self, node_id: int) -> Mount | None:
        return self.mounts.get(data_set_name(node_id))

    def holder_of(self, node_id: int) -> int | None:
        mount = self.mount_of(node_id)
        return mount.holder if mount is not None else None

    def reads_at(self, node_id: int) -> str | None:
        """The process to ask for the sealed segments that a node proved: the node itself while it lives, or the process
        that reads its directory since it was retired; None if no process can be asked now."""
        mount = self.mount_of(node_id)
        if mount is not None:
            return mount.volume.host if mount.volume is not None else None
        return f"node-{node_id}" if self.is_alive(node_id) else None

    def segments(self, key: ShardKey) -> list[Segment]:
        shard = self.shards.get(key)
        return list(shard.segments.values()) if shard is not None else []

    def segment(self, key: SegmentKey) -> Segment | None:
        shard = self.shards.get(key.shard_key)
        found = shard.segments.get(key.epoch) if shard is not None else None
        return found if found is not None and found.key == key else None

    def segment_named(self, name: SegmentName) -> Segment | None:
        shard = self.shards.get(ShardKey(name.topic_id, name.shard))
        return shard.segments.get(name.epoch) if shard is not None else None

    def active(self, key: ShardKey) -> Segment | None:
        segments = self.segments(key)
        return segments[-1] if segments and segments[-1].state is SegmentState.ACTIVE else None

    def log_start(self, key: ShardKey) -> int:
        shard = self.shards.get(key)
        return shard.log_start_offset if shard is not None else 0

    def take(self, news: Snapshot | tuple[ChangeSet, ...]) -> list[SegmentKey]:
        """Returns: the segments that changed."""
        if isinstance(news, Snapshot):
            if news.version <= self.version:
                return []
            return self._take_all(news)
        changed: list[SegmentKey] = []
        for change_set in news:
            if change_set.version == self.version + 1:
                changed += self._take_changes(change_set)
                self.version = change_set.version
        return changed

    def _take_all(self, news: Snapshot) -> list[SegmentKey]:
        before = {segment.key: segment for shard in self.shards.values() for segment in shard.segments.values()}
        self.version = news.version
        self.topics = {topic.topic_id: topic for topic in news.topics}
        self.nodes = {node.node_id: node for node in news.nodes}
        self.mounts = {mount.name: mount for mount in news.mounts}
        self.shards = {}
        for shard in news.shards:
            view = self.shards[shard.key] = ShardView(shard.log_start_offset)
            for segment in shard.segments:
                self._put(view, segment)
        now = {segment.key: segment for shard in self.shards.values() for segment in shard.segments.values()}
        return [key for key in {**before, **now} if before.get(key) != now.get(key)]

    def _take_changes(self, change_set: ChangeSet) -> list[SegmentKey]:
        changed: list[SegmentKey] = []
        for change in change_set.changes:
            match change:
                case TopicChanged(topic):
                    self.topics[topic.topic_id] = topic
                case TopicDeleted(topic):
                    self.topics.pop(topic.topic_id, None)
                    for key in [key for key in self.shards if key.topic_id == topic.topic_id]:
                        changed += [segment.key for segment in self.shards.pop(key).segments.values()]
                case ShardChanged(shard):
                    view = self.shards.setdefault(shard.key, ShardView())
                    view.log_start_offset = shard.log_start_offset
                    for segment in shard.segments:
                        self._put(view, segment)
                        changed.append(segment.key)
                case SegmentChanged(segment):
                    shard_view = self.shards.get(segment.key.shard_key)
                    if shard_view is not None:
                        self._put(shard_view, segment)
                        changed.append(segment.key)
                case SegmentPurged():
                    pass
                case NodeChanged(node):
                    self.nodes[node.node_id] = node
                case MountChanged(mount):
                    self.mounts[mount.name] = mount
                case MountEnded(name):
                    self.mounts.pop(name, None)
        return changed

    @staticmethod
    def _put(view: ShardView, segment: Segment) -> None:
        if segment.state is SegmentState.DELETED:
            view.segments.pop(segment.epoch, None)
        else:
            view.segments[segment.epoch] = segment
