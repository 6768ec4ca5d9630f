"""Sums up the shards and segments of a cluster: their troubles, and the totals of topics, nodes and mounts. Generators,
so that the caller may do other work between two steps. Cost: `health` reads each shard once, `sums` each segment once;
memory only for topics, nodes, mounts and the troubles of topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from stratalog.machines.copies.recovery_rule import least_in_sync
from stratalog.machines.plans.shard_troubles import Trouble, TroubleKind, troubles_of_active
from stratalog.model.metadata import Snapshot
from stratalog.model.mounts import Mount, MountMode, OffsetRange
from stratalog.model.segment import RemoteState, SealRecord, Segment
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.outline import AskedRolls, MountSums, NodeSums, ShardHealth, Sums, TopicSums, TopicTrouble

MAX_UNWELL: Final = 20
MAX_RANGES: Final = 100
"""Of a mount."""
_SEGMENTS_PER_STEP: Final = 256


# What is unwell -------------------------------------------------------------------------------------------------------
def health(snapshot: Snapshot, min_in_sync: int) -> Generator[None, None, ShardHealth]:
    """`min_in_sync`: the processes' `min.insync.replicas`, for topics that do not say otherwise."""
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    nodes = {node.node_id: node for node in snapshot.nodes}
    unwell: list[str] = []
    count = 0
    first: dict[str, str] = {}
    behind: set[int] = set()
    asked: Counter[str] = Counter()
    for number, shard in enumerate(snapshot.shards, 1):
        topic = topics[shard.key.topic_id]
        if shard.segments and shard.segments[-1].handed.is_roll_asked:
            asked[topic.name] += 1
        for trouble in troubles_of_active(topic, shard, nodes, min_in_sync):
            if trouble.kind is TroubleKind.NOT_IN_SYNC:
                behind.update(trouble.nodes)
            elif _is_felt(trouble, topic, min_in_sync):
                count += 1
                words = f"shard {shard.key.shard}: {trouble.words}"
                first.setdefault(topic.name, words)
                if len(unwell) < MAX_UNWELL:
                    unwell.append(f"shard {shard.key.shard} of {topic.name}: {trouble.words}")
        if number % _SEGMENTS_PER_STEP == 0:
            yield
    troubles = tuple(TopicTrouble(topic, words) for topic, words in first.items())
    rolls = tuple(AskedRolls(name, number) for name, number in asked.items())
    return ShardHealth(tuple(unwell), count, troubles, tuple(sorted(behind)), rolls)


def _is_felt(trouble: Trouble, topic: Topic, min_in_sync: int) -> bool:
    """By it a shard takes no writes, or not all, and another node would help."""
    if trouble.kind is TroubleKind.BELOW_MIN_IN_SYNC:
        return least_in_sync(topic.settings, min_in_sync) <= topic.replication_factor
    return trouble.kind is TroubleKind.NO_LEADER


# Sums -----------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Topic:
    hot: int = 0
    cold: int = 0
    unsent: int = 0
    oldest: int | None = None
    """None: no shard of it was looked at."""


@dataclass(slots=True)
class _Mount:
    segments: int = 0
    size: int = 0
    ranges: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Summing:
    topics: dict[UUID, _Topic] = field(default_factory=dict)
    held: Counter[int] = field(default_factory=Counter)
    leads: Counter[int] = field(default_factory=Counter)
    mounts: dict[str, _Mount] = field(default_factory=dict)


def sums(snapshot: Snapshot) -> Generator[None, None, Sums]:
    summing, names = _Summing(), {topic.topic_id: topic.name for topic in snapshot.topics}
    by_hand, volumes = _of_shards(snapshot.mounts), _of_nodes(snapshot.mounts)
    summing.mounts = {name: _Mount() for name in (*volumes.values(), *_names(by_hand))}
    since = 0
    for shard in snapshot.shards:
        _add_shard(summing, shard)
        place = (shard.key.topic_id, shard.key.shard)
        for name, wanted in by_hand.get(place, ()):
            _add_range(summing.mounts[name], shard, wanted)
        if volumes:
            _add_volumes(summing, shard, volumes, names.get(shard.key.topic_id, str(shard.key.topic_id)))
        since += len(shard.segments)
        if since >= _SEGMENTS_PER_STEP:
            since = 0
            yield
    return Sums(
        tuple(_of_topic(topic, summing.topics.get(topic.topic_id, _Topic())) for topic in snapshot.topics),
        tuple(
            NodeSums(node.node_id, summing.held[node.node_id], summing.leads[node.node_id]) for node in snapshot.nodes
        ),
        tuple(MountSums(name, one.segments, one.size, tuple(one.ranges)) for name, one in summing.mounts.items()),
    )


def _of_topic(topic: Topic, one: _Topic) -> TopicSums:
    return TopicSums(topic.topic_id, one.hot, one.cold, one.unsent, one.oldest or 0)


def _add_shard(summing: _Summing, shard: Shard) -> None:
    of_topic = summing.topics.setdefault(shard.key.topic_id, _Topic())
    first = shard.log_start_offset
    of_topic.oldest = first if of_topic.oldest is None else min(of_topic.oldest, first)
    for segment in shard.segments:
        _add(of_topic, segment)
        summing.held.update(segment.replicas if segment.seal is None else segment.local_nodes)
    leader = shard.segments[-1].leader if shard.segments else None
    if leader is not None:
        summing.leads[leader] += 1


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


# Mounts ---------------------------------------------------------------------------------------------------------------
_Wanted = dict[tuple[UUID, int], list[tuple[str, OffsetRange]]]


def _of_shards(mounts: Iterable[Mount]) -> _Wanted:
    """For each shard the mounts, made by a person, that have a part of it."""
    found: _Wanted = {}
    for mount in mounts:
        for topic in mount.topics if mount.mode is MountMode.HAND_MADE else ():
            for shard, wanted in enumerate(topic.ranges):
                found.setdefault((topic.topic_id, shard), []).append((mount.name, wanted))
    return found


def _names(wanted: _Wanted) -> set[str]:
    return {name for found in wanted.values() for name, _ in found}


def _of_nodes(mounts: Iterable[Mount]) -> dict[int, str]:
    """A node that left with its volume is listed as long as the volume is read."""
    return {mount.node_id: mount.name for mount in mounts if mount.mode is MountMode.VOLUME}


def _add_range(one: _Mount, shard: Shard, wanted: OffsetRange) -> None:
    for segment in shard.segments:
        seal = segment.seal
        if seal is not None and wanted.base_offset <= seal.base_offset and seal.end_offset <= wanted.end_offset:
            one.segments += 1
            one.size += seal.size_bytes


def _add_volumes(summing: _Summing, shard: Shard, volumes: dict[int, str], topic: str) -> None:
    here: dict[str, list[SealRecord]] = {}
    for segment in shard.segments:
        for node_id in segment.local_nodes if segment.seal is not None else ():
            if node_id in volumes and segment.seal is not None:
                here.setdefault(volumes[node_id], []).append(segment.seal)
    for name, seals in here.items():
        one = summing.mounts[name]
        one.segments += len(seals)
        one.size += sum(seal.size_bytes for seal in seals)
        for base, end in _joined(seals):
            if len(one.ranges) < MAX_RANGES:
                one.ranges.append(f"{topic}/{shard.key.shard} {base}..{end}")


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
