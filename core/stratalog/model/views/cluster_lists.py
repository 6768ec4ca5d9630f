"""Pages of the lists that the cluster UI shows from the metadata: topics, shards, segments, troubles.

Plain immutable data, bounded by `MAX_LISTED` rows whatever the cluster holds. `total` counts all rows that match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.topic import Topic

MAX_LISTED: Final = 1_000
"""Rows of one page."""


@dataclass(frozen=True, slots=True)
class ListAsk:
    """Which rows of a list, in which order."""

    search: str = ""
    """Text that the row's name holds, in upper or lower case; empty: all rows."""
    sort: str = ""
    """A column; empty: the list's own order."""
    is_descending: bool = False
    offset: Count = 0
    limit: Count = 50


@dataclass(frozen=True, slots=True)
class TopicLine:
    name: str
    shards: Int32
    replication_factor: Int32
    is_internal: bool
    created_ms: Count
    hot_bytes: Count
    """Of sealed segments on the disks of nodes, all copies together."""
    cold_bytes: Count
    unsent_bytes: Count
    trouble: str | None
    """Why some shard takes no writes, or not all."""


@dataclass(frozen=True, slots=True)
class TopicPage:
    items: tuple[TopicLine, ...]
    total: Count


@dataclass(frozen=True, slots=True)
class ShardLine:
    shard: Int32
    leader: Int32 | None
    """A node that lives, or none."""
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    epoch: Int32
    log_start_offset: Count
    segments: Count
    hot_bytes: Count
    """Of sealed segments, all copies together."""
    cold_bytes: Count
    committed_cold: CountOrNone
    """All below it is in the object store; -1: nothing is."""
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardPage:
    topic: Topic
    items: tuple[ShardLine, ...]
    total: Count


@dataclass(frozen=True, slots=True)
class TierLine:
    """Segments of a shard that are in the same places."""

    place: str
    """`open`, `local`, `both`, `cold` or `nowhere`."""
    segments: Count
    bytes: Count


@dataclass(frozen=True, slots=True)
class SegmentLine:
    epoch: Int32
    state: str
    base_offset: Count
    end_offset: CountOrNone
    """-1: not sealed."""
    size_bytes: CountOrNone
    """-1: not sealed, so only its leader knows."""
    first_timestamp_ms: CountOrNone
    max_timestamp_ms: CountOrNone
    place: str
    commit_offset: CountOrNone
    """Up to there it is in the object store."""
    remote_parts: Count
    leader: Int32 | None
    nodes: tuple[Int32, ...]
    """That proved a copy; of a segment that is not sealed its replicas."""


@dataclass(frozen=True, slots=True)
class SegmentPage:
    topic: Topic
    shard: ShardLine
    tiers: tuple[TierLine, ...]
    items: tuple[SegmentLine, ...]
    total: Count


@dataclass(frozen=True, slots=True)
class TroubleLine:
    topic: str
    shard: Int32
    epoch: Int32
    kind: str
    nodes: tuple[Int32, ...]
    words: str
    """What is wrong, and what to do next."""


@dataclass(frozen=True, slots=True)
class TroublePage:
    items: tuple[TroubleLine, ...]
    total: Count
    is_cut: bool
    """There are more troubles than are kept for this list."""
