"""Topics and shards as metrics: what this node leads, what lacks replicas or is stopped, what waits for its upload.

Each number comes from the node that knows it, so that sums over nodes are the cluster's: sizes and in-sync replicas
from the leader, upload lag from the uploader. Only `without_leader` is the same on every node: take the greatest.
Lives on the event loop. Cost: some microseconds a shard, and one a copy of a segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.telemetry.metrics import Kind, MetricRegistry
from stratalog_node.measures.series import Bounded
from stratalog_node.replication.following import Following
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.stats import ShardStats
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.slices import Slices

Unsent = Callable[[], list[tuple[SegmentKey, int, int]]]
"""(segment, committed bytes that are not in the object store, age of the oldest in ms), of what this node uploads."""


@dataclass(slots=True)
class ShardMeasure:
    topic: str
    shard: int
    start_offset: int = 0
    end_offset: int = 0
    replicas: int = 0
    in_sync: int = 0
    needs_eye: bool = False
    upload_lag_bytes: int = 0
    upload_lag_ms: int = 0
    is_led: bool = False


@dataclass(slots=True)
class TopicMeasure:
    topic: str
    led: int = 0
    without_leader: int = 0
    stopped: int = 0
    under_replicated: int = 0
    under_min: int = 0
    local_bytes: int = 0
    upload_lag_bytes: int = 0
    upload_lag_ms: int = 0
    appended_bytes: int = 0
    fetched_bytes: int = 0

    @property
    def needs_eye(self) -> bool:
        return bool(self.without_leader or self.stopped or self.under_replicated or self.under_min)


_TOPIC: Final[tuple[tuple[str, Kind, str, Callable[[TopicMeasure], float]], ...]] = (
    ("led_shards", "gauge", "Shards that this node leads.", lambda one: one.led),
    (
        "leaderless_shards",
        "gauge",
        "Shards without a leader, the same on every node: they take no writes.",
        lambda one: one.without_leader,
    ),
    (
        "stopped_shards",
        "gauge",
        "Shards that take no writes on this node until an operator acts.",
        lambda one: one.stopped,
    ),
    (
        "under_replicated_shards",
        "gauge",
        "Shards led here with fewer in-sync replicas than the topic asks for.",
        lambda one: one.under_replicated,
    ),
    (
        "under_min_isr_shards",
        "gauge",
        "Shards led here with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
        lambda one: one.under_min,
    ),
    ("local_bytes", "gauge", "Bytes of its segments on this node's disk.", lambda one: one.local_bytes),
    (
        "upload_lag_bytes",
        "gauge",
        "Committed bytes that this node has to upload and has not.",
        lambda one: one.upload_lag_bytes,
    ),
    ("upload_lag_seconds", "gauge", "Age of the oldest of these bytes.", lambda one: one.upload_lag_ms / 1_000),
    ("appended_bytes_total", "counter", "Bytes that producers wrote to it here.", lambda one: one.appended_bytes),
    ("fetched_bytes_total", "counter", "Bytes that consumers read of it here.", lambda one: one.fetched_bytes),
)
_SHARD: Final[tuple[tuple[str, str, Callable[[ShardMeasure], float]], ...]] = (
    ("start_offset", "First offset of the log.", lambda one: one.start_offset),
    (
        "end_offset",
        "High watermark: the offset after the last one that consumers may read.",
        lambda one: one.end_offset,
    ),
    ("replicas", "Replicas that it should have.", lambda one: one.replicas),
    ("in_sync_replicas", "Replicas in the ISR.", lambda one: one.in_sync),
)
_UPLOAD: Final[tuple[tuple[str, str, Callable[[ShardMeasure], float]], ...]] = (
    ("upload_lag_bytes", "Committed bytes that this node has to upload and has not.", lambda one: one.upload_lag_bytes),
    ("upload_lag_seconds", "Age of the oldest of these bytes.", lambda one: one.upload_lag_ms / 1_000),
)


class ShardMeasures:
    def __init__(
        self,
        catalog: Catalog,
        shards: ShardDirectory,
        stats: ShardStats,
        following: Following,
        unsent: Unsent | None,
        bounded: Bounded,
    ) -> None:
        """`unsent` is None on a node without an object store."""
        self._catalog = catalog
        self._shards = shards
        self._stats = stats
        self._following = following
        self._unsent = unsent
        self._bounded = bounded
        self._topics: list[TopicMeasure] = []
        self._led: list[ShardMeasure] = []
        self._waiting: list[ShardMeasure] = []

    def add_metrics(self, metrics: MetricRegistry) -> None:
        for name, kind, help, of_topic in _TOPIC:
            if self._unsent is not None or not name.startswith("upload"):
                read = partial(self._of_topics, of_topic)
                metrics.register(f"stratalog_topic_{name}", kind, help, read, label_names=("topic",))
        for name, help, of_shard in _SHARD:
            self._register_shard(metrics, name, help, lambda of=of_shard: _rows(self._led, of))  # type: ignore[misc]
        for name, help, of_shard in _UPLOAD if self._unsent is not None else ():
            self._register_shard(metrics, name, help, lambda of=of_shard: _rows(self._waiting, of))  # type: ignore[misc]

    def _register_shard(
        self, metrics: MetricRegistry, name: str, help: str, read: Callable[[], dict[tuple[str, ...], float]]
    ) -> None:
        metrics.register(f"stratalog_shard_{name}", "gauge", help, read, label_names=("topic", "shard"))

    def _of_topics(self, of: Callable[[TopicMeasure], float]) -> dict[tuple[str, ...], float]:
        return {(one.topic,): of(one) for one in self._topics}

    async def measure(self) -> None:
        slices = Slices()
        topics = {topic.name: TopicMeasure(topic.name) for topic in self._catalog.topics()}
        measured: dict[ShardKey, ShardMeasure] = {}
        for shard in list(self._shards.all()):
            topic = topics.get(shard.topic.name)
            if topic is not None:
                measured[shard.key] = self._measure(shard, topic)
                topic.local_bytes += sum(copy.file.size_bytes for copy in list(shard.copies.values()))
                topic.local_bytes += sum(copy.file.size_bytes for copy in (*shard.ended, shard.active) if copy)
                await slices.did(1 + len(shard.copies) // 4)
        for replica in list(self._following.replicas.values()):
            known = self._catalog.topic_by_id(replica.copy.key.topic_id)
            if known is not None and known.name in topics:
                topics[known.name].local_bytes += replica.copy.file.size_bytes
            await slices.did()
        await self._measure_uploads(topics, measured, slices)
        for known in self._catalog.topics():
            work = self._stats.topics.get(known.topic_id)
            if work is not None and (topic := topics.get(known.name)) is not None:
                topic.appended_bytes, topic.fetched_bytes = work.appended_bytes, work.fetched_bytes
        cut = self._bounded.cut
        self._topics = await cut(
            "topics", topics.values(), lambda one: (not one.needs_eye, -one.upload_lag_bytes, one.topic)
        )
        led = [one for one in measured.values() if one.is_led]
        self._led = await cut("shards", led, lambda one: (not one.needs_eye, one.topic, one.shard))
        waiting = [one for one in measured.values() if one.upload_lag_bytes]
        self._waiting = await cut("shards with upload lag", waiting, lambda one: -one.upload_lag_ms)

    def _measure(self, shard: ShardLog, topic: TopicMeasure) -> ShardMeasure:
        found = ShardMeasure(shard.topic.name, shard.key.shard, shard.log_start_offset, shard.high_watermark)
        stop = shard.stop
        if stop is not None and not stop.ends_leading:
            topic.stopped += 1
            found.needs_eye = True
        leader = self._catalog.leader_of(shard.key)
        if leader is None or not self._catalog.is_alive(leader[0]):
            topic.without_leader += 1
        if not shard.is_leader:
            return found
        topic.led += 1
        found.is_led = True
        active = self._catalog.active_segment(shard.key)
        if active is not None:
            found.replicas = max(len(active.replicas), shard.topic.replication_factor)
            found.in_sync = len(active.isr)
            is_under = found.in_sync < found.replicas
            topic.under_replicated += is_under
            least = self._catalog.topic_settings(shard.key.topic_id).min_insync_replicas
            topic.under_min += found.in_sync < least
            found.needs_eye = found.needs_eye or is_under
        return found

    async def _measure_uploads(
        self, topics: dict[str, TopicMeasure], measured: dict[ShardKey, ShardMeasure], slices: Slices
    ) -> None:
        for key, unsent_bytes, age_ms in self._unsent() if self._unsent is not None else ():
            found = measured.get(key.shard_key)
            if found is None:
                continue
            for one in (found, topics[found.topic]):
                one.upload_lag_bytes += unsent_bytes
                one.upload_lag_ms = max(one.upload_lag_ms, age_ms)
            await slices.did()


def _rows(shards: list[ShardMeasure], of: Callable[[ShardMeasure], float]) -> dict[tuple[str, ...], float]:
    return {(one.topic, str(one.shard)): of(one) for one in shards}
