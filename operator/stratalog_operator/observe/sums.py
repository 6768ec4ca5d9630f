"""What a snapshot of the metadata comes to, for each topic, node and mount. No I/O here.

Cost: a look at each segment; a generator, so that the loop may do something else between two steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from stratalog.machines.shard_troubles import Trouble
from stratalog.model.metadata import Snapshot
from stratalog.model.mounts import Mount, MountMode
from stratalog.model.segment import RemoteState, SealRecord, Segment
from stratalog.model.status_page import Overview
from stratalog.model.topic import Shard
from stratalog_operator.plan.observed import MAX_RANGES, MountSums, NodeSums, TopicSums

_SEGMENTS_PER_STEP: Final = 256
HICCUP_SECONDS: Final = 5
"""An object store that took nothing for less is not said to be away."""
_COARSE: Final = ((3600, 600), (60, 60), (0, 10))
"""From so many seconds on a time is told in steps of so many: it must not be written again in each pass."""


@dataclass(slots=True)
class _Topic:
    hot: int = 0
    cold: int = 0
    unsent: int = 0
    oldest: int | None = None
    """None: no shard of it was looked at."""


@dataclass(slots=True)
class Sums:
    topics: dict[UUID, TopicSums] = field(default_factory=dict)
    nodes: dict[int, NodeSums] = field(default_factory=dict)
    mounts: dict[str, MountSums] = field(default_factory=dict)


def sums(snapshot: Snapshot, found: Iterable[Trouble], overview: Overview | None) -> Generator[None, None, Sums]:
    """`found` are the troubles by which a shard takes no writes, or not all."""
    topics: dict[UUID, _Topic] = {}
    held: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    since = 0
    for shard in snapshot.shards:
        of_topic = topics.setdefault(shard.key.topic_id, _Topic())
        first = shard.log_start_offset
        of_topic.oldest = first if of_topic.oldest is None else min(of_topic.oldest, first)
        for segment in shard.segments:
            _add(of_topic, segment)
            held.update(segment.replicas if segment.seal is None else segment.local_nodes)
        leader = shard.segments[-1].leader if shard.segments else None
        if leader is not None:
            leads[leader] += 1
        since += len(shard.segments)
        if since >= _SEGMENTS_PER_STEP:
            since = 0
            yield
    troubles: dict[str, str] = {}
    for one in found:
        troubles.setdefault(one.topic, f"shard {one.segment.shard}: {one.words}")
    used = _used(overview)
    return Sums(
        {
            topic.topic_id: _told(topics.get(topic.topic_id, _Topic()), troubles.get(topic.name, ""))
            for topic in snapshot.topics
        },
        {
            node.node_id: NodeSums(held[node.node_id], leads[node.node_id], used.get(node.node_id))
            for node in snapshot.nodes
        },
        {
            mount.name: _mounted(mount, snapshot.shards)
            if mount.mode is MountMode.HAND_MADE
            else _on_volume(mount.node_id, snapshot)
            for mount in snapshot.mounts
            if mount.mode in (MountMode.HAND_MADE, MountMode.VOLUME)
        },
    )


def _told(one: _Topic, trouble: str) -> TopicSums:
    return TopicSums(one.hot, one.cold, one.unsent, one.oldest or 0, trouble)


def _add(one: _Topic, segment: Segment) -> None:
    remote = segment.remote
    size = 0 if segment.seal is None else segment.seal.size_bytes
    if remote.state is RemoteState.COMPLETE:
        cold = remote.size_bytes or size
    else:
        cold = sum(part.size_bytes for part in remote.parts)
        one.unsent += max(0, size - cold)
    one.cold += cold
    one.hot += size * len(segment.local_nodes)


def _mounted(mount: Mount, shards: Iterable[Shard]) -> MountSums:
    ranges = {(topic.topic_id, shard): found for topic in mount.topics for shard, found in enumerate(topic.ranges)}
    count = size = 0
    for shard in shards:
        wanted = ranges.get((shard.key.topic_id, shard.key.shard))
        if wanted is None:
            continue
        for segment in shard.segments:
            seal = segment.seal
            if seal is not None and wanted.base_offset <= seal.base_offset and seal.end_offset <= wanted.end_offset:
                count, size = count + 1, size + seal.size_bytes
    return MountSums(count, size)


def _on_volume(node_id: int, snapshot: Snapshot) -> MountSums:
    """A node that left with its volume is listed as long as the volume is read."""
    names = {topic.topic_id: topic.name for topic in snapshot.topics}
    count = size = 0
    ranges: list[str] = []
    for shard in snapshot.shards:
        here = [one.seal for one in shard.segments if one.seal is not None and node_id in one.local_nodes]
        if not here:
            continue
        count, size = count + len(here), size + sum(seal.size_bytes for seal in here)
        name = names.get(shard.key.topic_id, str(shard.key.topic_id))
        ranges += (f"{name}/{shard.key.shard} {base}..{end}" for base, end in _joined(here))
    return MountSums(count, size, tuple(ranges[:MAX_RANGES]))


def _joined(seals: Iterable[SealRecord]) -> Iterator[tuple[int, int]]:
    """Those that follow on each other as one."""
    begin, end = None, -1
    for seal in seals:
        if seal.base_offset != end:
            if begin is not None:
                yield begin, end
            begin = seal.base_offset
        end = seal.end_offset
    if begin is not None:
        yield begin, end


def _used(overview: Overview | None) -> dict[int, int]:
    """Percent of each disk, of those that have told."""
    rows = () if overview is None else overview.nodes
    return {
        row.node_id: 100 * (row.disk_total_bytes - row.disk_free_bytes) // row.disk_total_bytes
        for row in rows
        if row.disk_total_bytes > 0 and 0 <= row.disk_free_bytes <= row.disk_total_bytes
    }


def store_away_seconds(overview: Overview) -> int | None:
    """None while no node that is alive has told of an object store."""
    away = [
        row.uploads.store_away_ms // 1000 for row in overview.nodes if row.uploads is not None and row.state == "alive"
    ]
    if not away:
        return None
    longest = max(away)
    if longest < HICCUP_SECONDS:
        return 0
    step = next(step for least, step in _COARSE if longest >= least)
    return max(HICCUP_SECONDS, longest // step * step)
