"""What may be asked of the shard table: one record per method of the meta service's client.

Ids and times are chosen by the caller and travel in the command, so that the table stays pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Lock, NodeInfo, PartCommit, PartReplacement, Registration
from stratalog.model.segment import SealRecord, Segment
from stratalog.model.topic import Shard, Topic


@dataclass(frozen=True, slots=True)
class RegisterNode:
    node: NodeInfo


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic_id: UUID
    name: str
    shard_count: int
    replication_factor: int
    settings: Mapping[str, str]
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class AddShards:
    topic_id: UUID
    shard_count: int
    """The new total, as in Kafka's CreatePartitions."""


@dataclass(frozen=True, slots=True)
class AlterTopic:
    topic_id: UUID
    settings: Mapping[str, str]
    expected: Mapping[str, str] | None = None
    """When given, the settings the caller read: the change is refused when they are not the present ones."""
    shard_count: int | None = None
    """The new total, when the topic grows in the same change."""


@dataclass(frozen=True, slots=True)
class RollSegment:
    segment: SegmentKey
    end_offset: int


@dataclass(frozen=True, slots=True)
class SealSegment:
    segment: SegmentKey
    record: SealRecord


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    segment: SegmentKey
    isr: tuple[int, ...]
    expected_version: int


@dataclass(frozen=True, slots=True)
class RaiseFence:
    segment: SegmentKey
    fence: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    shard: ShardKey
    offset: int


@dataclass(frozen=True, slots=True)
class ForgetLocal:
    segments: tuple[SegmentKey, ...]
    node_id: int


@dataclass(frozen=True, slots=True)
class CommitParts:
    lock: Lock
    commits: tuple[PartCommit, ...]


@dataclass(frozen=True, slots=True)
class CompleteRemote:
    lock: Lock
    segment: SegmentKey
    manifest_key: str
    manifest_digest: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReplaceParts:
    lock: Lock
    replacements: tuple[PartReplacement, ...]


@dataclass(frozen=True, slots=True)
class PurgeSegments:
    segments: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class AcquireLock:
    name: str
    holder: str
    ttl_ms: int
    lasting: tuple[str, ...] = ()
    """Endings of names: earlier holders that have one stay remembered, however many came after them."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    lock: Lock


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    count: int


TableCommand: TypeAlias = (
    RegisterNode
    | CreateTopic
    | DeleteTopic
    | AddShards
    | AlterTopic
    | RollSegment
    | SealSegment
    | ProposeIsr
    | RaiseFence
    | AdvanceLogStart
    | ForgetLocal
    | CommitParts
    | CompleteRemote
    | ReplaceParts
    | PurgeSegments
    | AcquireLock
    | ReleaseLock
    | AllocateProducerIds
)


@dataclass(frozen=True, slots=True)
class PartOutcomes:
    """One entry per commit or replacement, in order: the segment after it, or why it was refused."""

    outcomes: tuple[Segment | StratalogError, ...]


TableResult: TypeAlias = Registration | Topic | Segment | Shard | PartOutcomes | Lock | range | None
