"""The shards of this node, by key and by name, kept in step with the catalog. Lives on the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from stratalog.machines.leading.resigning import must_resign
from stratalog.machines.leading.shard_life import Stop
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Change, NodeChanged, SegmentChanged, ShardChanged, TopicChanged, TopicDeleted
from stratalog.model.segment import SegmentState
from stratalog.model.topic import Topic
from stratalog_node.shards.catalog.rules import ShardRules
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.due_shards import DueShards
from stratalog_node.shards.log.mounted import MountedLog
from stratalog_node.shards.log.node_news import NodeNews
from stratalog_node.shards.log.resigning import resign
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.log.workers import ShardWorkers


class ShardDirectory:
    """Cost of a lookup: one dictionary access. Cost of an idle shard: see `ShardLog`."""

    def __init__(self, context: ShardContext, workers: ShardWorkers) -> None:
        self._context = context
        self._workers = workers
        self._shards: dict[ShardKey, ShardLog] = {}
        self._by_name: dict[str, list[ShardLog | None]] = {}
        self._rules: dict[UUID, ShardRules] = {}
        self._mounted: dict[ShardKey, MountedLog] = {}
        """By hand: made when asked for."""
        self.news = NodeNews(context, self.all)
        """Changes of other nodes."""

    # Looking up -----------------------------------------------------------------------------------------------------
    def get(self, key: ShardKey) -> ShardLog | None:
        return self._shards.get(key)

    def read(self, key: ShardKey) -> ShardLog | None:
        """As `get`; also a shard of a user-mounted topic."""
        return self._shards.get(key) or self.mounted(key)

    def read_by_name(self, topic: str, shard: int) -> ShardLog | None:
        """As `by_name`; also a shard of a user-mounted topic, which only readers may use."""
        shards = self._by_name.get(topic)
        if shards is not None:
            return shards[shard] if 0 <= shard < len(shards) else None
        known = self._context.catalog.topic(topic)
        return self.mounted(ShardKey(known.topic_id, shard)) if known is not None else None

    def mounted(self, key: ShardKey) -> MountedLog | None:
        """A shard of a user-mounted topic, in its present state."""
        mounted = self._context.catalog.mounted_shard(key)
        real = self._shards.get(mounted.key) if mounted is not None else None
        if mounted is None or real is None:
            self._mounted.pop(key, None)
            return None
        found = self._mounted.get(key)
        if found is None or not found.is_range_of(real, mounted):
            found = self._mounted[key] = MountedLog(real, mounted)
        found.refresh()
        return found

    def by_name(self, topic: str, shard: int) -> ShardLog | None:
        shards = self._by_name.get(topic)
        if shards is not None and 0 <= shard < len(shards):
            return shards[shard]
        return None

    def leader_of(self, topic: str, shard: int) -> tuple[int, int] | None:
        """The other node that leads it, and its epoch. None if this node leads it, or the leader is unknown."""
        found = self.by_name(topic, shard)
        return found.leader if found is not None else None

    @property
    def due_shards(self) -> DueShards:
        """When time is to be looked at for which of them."""
        return self._context.due_shards

    @property
    def count(self) -> int:
        return len(self._shards)

    def all(self) -> Iterable[ShardLog]:
        return self._shards.values()

    def stopped(self) -> list[tuple[ShardLog, Stop]]:
        """The shards that accept no writes until the next start, with the reason."""
        found = (self._shards.get(key) for key in self._context.stopped.keys)
        return [(shard, shard.stop) for shard in found if shard is not None and shard.stop is not None]

    def doubted(self) -> dict[ShardKey, int]:
        """Shards whose active segment accepts no batches (see `ShardChain.doubted_epoch`), with its epoch."""
        return {
            key: shard.chain.doubted_epoch
            for key, shard in self._shards.items()
            if shard.chain.doubted_epoch >= 0 and shard.epoch == shard.chain.doubted_epoch
        }

    # Following the catalog ------------------------------------------------------------------------------------------
    def _rules_for(self, topic: Topic) -> ShardRules:
        rules = self._rules.get(topic.topic_id)
        if rules is None:
            rules = self._rules[topic.topic_id] = ShardRules(
                self._context.catalog.topic_settings(topic.topic_id),
                self._context.settings.replica_lag_time_max_ms,
                is_internal=topic.is_internal,
            )
        return rules

    def attach(self, key: ShardKey) -> ShardLog | None:
        """Make the shard's object, empty. Recovery fills in what the disk holds."""
        catalog = self._context.catalog
        topic = catalog.topic_by_id(key.topic_id)
        if topic is None or key in self._shards:
            return self._shards.get(key)
        shard = ShardLog(self._context, self._workers, key, topic, self._rules_for(topic), catalog.segments(key))
        shard.log_start_offset = catalog.log_start_offset(key)
        self._shards[key] = shard
        line = self._by_name.setdefault(topic.name, [])
        line.extend([None] * (key.shard + 1 - len(line)))
        line[key.shard] = shard
        return shard

    def follow(self, change: Change) -> None:
        """The catalog changed: keep shards, settings and log starts in step."""
        match change:
            case TopicChanged(topic):
                self._rules.pop(topic.topic_id, None)
                rules = self._rules_for(topic)
                for index in range(topic.shard_count):
                    shard = self._shards.get(ShardKey(topic.topic_id, index))
                    if shard is not None:
                        shard.apply_rules(topic, rules)
            case TopicDeleted(topic):
                self._detach(topic)
            case ShardChanged(changed):
                shard = self._shards.get(changed.key) or self.attach(changed.key)
                if shard is not None and changed.log_start_offset > shard.log_start_offset:
                    shard.log_start_offset = changed.log_start_offset
                    shard.wake_waiters()
            case SegmentChanged(segment):
                shard = self._shards.get(segment.key.shard_key)
                if shard is not None:
                    if segment.state is SegmentState.DELETED:
                        shard.missing.discard(segment.key)
                    shard.metadata_changed(
                        segment
                    )  # of a deleted one, too: it may be led here, by what was known up to now
                    if must_resign(shard.chain, segment, self._context.catalog.active_segment(shard.key)):
                        resign(shard)
                    shard.update_leadership()
                    self._context.events.segment_changed(shard, segment)
            case NodeChanged(node) if node.node_id != self._context.node_id:
                self.news.changed(node.node_id)
            case _:
                pass

    def _detach(self, topic: Topic) -> None:
        """The topic is gone: writers and readers learn it now, files go after the grace period."""
        for index in range(topic.shard_count):
            self._mounted.pop(ShardKey(topic.topic_id, index), None)
        self._rules.pop(topic.topic_id, None)
        self._context.stats.topics.pop(topic.topic_id, None)
        line = self._by_name.get(topic.name) or []
        if any(s is not None and s.key.topic_id == topic.topic_id for s in line):
            del self._by_name[topic.name]
        for index in range(max(topic.shard_count, len(line))):
            shard = self._shards.pop(ShardKey(topic.topic_id, index), None)
            if shard is not None:
                shard.detach()
