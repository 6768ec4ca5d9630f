"""Topics and shards as the meta service knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from stratalog.model.bounds import Count, Int32
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `settings` holds only what was set on the topic, under Kafka's names; defaults come from the process."""

    name: str
    topic_id: UUID
    shard_count: Int32
    replication_factor: Int32
    settings: Mapping[str, str]
    created_ms: Count
    is_internal: bool = False
    unflushed_until_ms: Count = 0
    """What was opened up to then may hold what was confirmed before it was flushed, whatever `flush.policy` says."""
    seal_asked_ms: Count = 0
    """The newest request to seal its active segments (`SealTopic.asked_ms`); 0: there was none."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard and its segments, oldest first; the last one is ACTIVE (or being opened)."""

    key: ShardKey
    log_start_offset: Count
    segments: tuple[Segment, ...]


def undotted_name(name: str) -> str | None:
    """Topics with the same one are not told apart by metrics that write '.' as '_', so Kafka refuses the second. None
    for a name with neither."""
    return name.replace(".", "_") if "." in name or "_" in name else None
