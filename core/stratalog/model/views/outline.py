"""What is known of a cluster, its shards and segments only summed up, as `GET /v1/outline` gives it.

Plain immutable data. Its size follows from the number of topics, nodes and mounts, whatever these hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stratalog.model.bounds import Count, Int32
from stratalog.model.metadata import Node
from stratalog.model.mounts import Mount
from stratalog.model.topic import Topic


@dataclass(frozen=True, slots=True)
class TopicSums:
    """Of a topic's segments, in bytes; those that are being written are known to their nodes alone."""

    topic_id: UUID
    hot_bytes: Count
    cold_bytes: Count
    unsent_bytes: Count
    """Of sealed segments, what is not in the object store."""
    oldest_offset: Count
    """The smallest of its shards' first offsets."""


@dataclass(frozen=True, slots=True)
class NodeSums:
    node_id: Int32
    segments: Count
    """That list it as a holder."""
    leaders: Count


@dataclass(frozen=True, slots=True)
class MountSums:
    """The mode: a mount that a person made, or a retired node's volume."""

    name: str
    segments: Count
    bytes: Count
    ranges: tuple[str, ...]
    """TOPIC/SHARD BASE..END of a volume, the first hundred; a mount that a person made has `topics` instead."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over all segments. They may be some time old, because reading each segment takes long."""

    topics: tuple[TopicSums, ...]
    nodes: tuple[NodeSums, ...]
    mounts: tuple[MountSums, ...]


@dataclass(frozen=True, slots=True)
class TopicTrouble:
    topic: str
    words: str
    """Why some shard of it does not take writes, or not all."""


@dataclass(frozen=True, slots=True)
class AskedRolls:
    """Segments of a topic that were asked to end and have not ended yet (`Handover.is_roll_asked`)."""

    topic: str
    count: Count


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """Of the segments that are being written, as they are now."""

    unwell: tuple[str, ...]
    """The first shards that would lose something with one node less, in words: without a leader, or with too few
    replicas in sync. A topic whose min ISR exceeds its replicas is left out, because it can never have enough."""
    unwell_count: Count
    topics: tuple[TopicTrouble, ...]
    """The first of each topic."""
    behind: tuple[Int32, ...]
    """Nodes that some shard does not count in sync."""
    asked_rolls: tuple[AskedRolls, ...] = ()
    """Of topics with any."""


@dataclass(frozen=True, slots=True)
class Outline:
    cluster_id: str
    version: Count
    topics: tuple[Topic, ...]
    nodes: tuple[Node, ...]
    mounts: tuple[Mount, ...]
    health: ShardHealth
    sums: Sums
