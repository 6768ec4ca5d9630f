"""What the shard table keeps at rest: the records a store loads it from, and the writes one transaction makes.

A segment at rest is three things, so that a commit of one part does not write again what never changes: its head, its
seal record (written once) and its parts (one each).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    Change,
    CredentialDeleted,
    Life,
    Lock,
    MountChanged,
    MountEnded,
    Node,
    NodeChanged,
    NodeInfo,
    QuotasChanged,
    QuotasDeleted,
    RuleCreated,
    RuleDeleted,
    SegmentPurged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.mounts import Mount
from stratalog.model.quotas import EntityQuotas, QuotaEntity
from stratalog.model.retirement import Retirement
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName, UserCredential
from stratalog.model.segment import RemotePart, SealRecord, Segment
from stratalog.model.topic import Topic


@dataclass(frozen=True, slots=True)
class TableHeader:
    """The cluster's identity and the table's counters."""

    cluster_id: str
    version: int
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class NodeEntry:
    info: NodeInfo
    node_epoch: int
    is_alive: bool = True
    start_id: str = ""
    """Of the registration that began this life."""
    token: int = 0
    boot_id: str = ""
    """Of the machine's boot in which it began."""
    has_room: bool = True
    retirement: Retirement | None = None
    scarcity: int = 0
    is_flushed_by_default: bool = False
    """What this life confirms is flushed, of topics that say nothing of it."""
    absences: int = 0
    can_write: bool = True
    seat: str = ""
    """Where its process runs (`RegisterNode.seat`)."""
    is_continued: bool = True
    """This life runs in the directory in which the one before ran (`Registration.is_continued`)."""
    past_starts: tuple[str, ...] = ()
    """Of processes before this one, the last few: what they asked for may still arrive."""

    @property
    def node(self) -> Node:
        """As watchers see it."""
        info = self.info
        place = (info.node_id, info.storage_id, info.host, info.port, info.rack)
        state = (self.is_alive, self.token, self.has_room, self.retirement, self.scarcity)
        reported = (info.listeners, self.absences, self.can_write, info.reads_bucket_by_default)
        return Node(*place, self.node_epoch, *state, *reported)

    @property
    def is_leaving(self) -> bool:
        return self.retirement is not None and self.retirement.is_cordoned

    @property
    def life(self) -> Life:
        return Life(self.info.node_id, self.node_epoch)


@dataclass(frozen=True, slots=True)
class ShardRow:
    key: ShardKey
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class PurgedTopic:
    """A topic that nothing is left of. It is remembered so that late objects of it are recognised."""

    topic_id: UUID
    purged_ms: int


KEPT_CHANGE_SETS: Final = 1_024
"""The number of change sets that are kept; each replaces the one this many versions before."""
MAX_KEPT_CHANGES: Final = 64
"""A larger change set is not kept: who missed it takes a snapshot."""


@dataclass(frozen=True, slots=True)
class SegmentNote:
    """A `SegmentChanged` without what the segment's own records hold."""

    segment: Segment
    has_seal: bool
    part_count: int


@dataclass(frozen=True, slots=True)
class CredentialNote:
    """A `CredentialChanged` without its keys, which the credential's own record alone holds."""

    name: CredentialName


NotedChange: TypeAlias = (
    TopicChanged
    | TopicDeleted
    | ShardChanged
    | SegmentNote
    | SegmentPurged
    | NodeChanged
    | MountChanged
    | MountEnded
    | RuleCreated
    | RuleDeleted
    | CredentialNote
    | CredentialDeleted
    | QuotasChanged
    | QuotasDeleted
)


@dataclass(frozen=True, slots=True)
class NotedChanges:
    """A change set as it is kept (see `table_history`); `changes` is None for one that was too large."""

    version: int
    changes: tuple[NotedChange, ...] | None


StoredRecord: TypeAlias = (
    TableHeader
    | NotedChanges
    | NodeEntry
    | Lock
    | Mount
    | Topic
    | PurgedTopic
    | ShardRow
    | Segment
    | Rule
    | UserCredential
    | EntityQuotas
)
"""What a store loads, in any order but for the header, which comes first. A segment comes whole: head, seal and
parts (as a `PartList`)."""


@dataclass(frozen=True, slots=True)
class PutHeader:
    header: TableHeader


@dataclass(frozen=True, slots=True)
class PutChanges:
    """Keep a change set; None for one that is too large to be kept."""

    version: int
    changes: tuple[Change, ...] | None


@dataclass(frozen=True, slots=True)
class PutNode:
    node: NodeEntry


@dataclass(frozen=True, slots=True)
class PutLock:
    lock: Lock


@dataclass(frozen=True, slots=True)
class PutMount:
    mount: Mount


@dataclass(frozen=True, slots=True)
class DropMount:
    name: str


@dataclass(frozen=True, slots=True)
class PutRule:
    rule: Rule


@dataclass(frozen=True, slots=True)
class DropRule:
    rule: Rule


@dataclass(frozen=True, slots=True)
class PutCredential:
    credential: UserCredential


@dataclass(frozen=True, slots=True)
class DropCredential:
    name: CredentialName


@dataclass(frozen=True, slots=True)
class PutQuotas:
    quotas: EntityQuotas


@dataclass(frozen=True, slots=True)
class DropQuotas:
    entity: QuotaEntity


@dataclass(frozen=True, slots=True)
class PutTopic:
    topic: Topic


@dataclass(frozen=True, slots=True)
class DropTopic:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PutPurgedTopic:
    purged: PurgedTopic


@dataclass(frozen=True, slots=True)
class DropPurgedTopic:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PutShard:
    row: ShardRow


@dataclass(frozen=True, slots=True)
class DropShard:
    key: ShardKey


@dataclass(frozen=True, slots=True)
class PutSegmentHead:
    """Everything of the segment but its seal record and its parts."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class PutSeal:
    key: SegmentKey
    record: SealRecord


@dataclass(frozen=True, slots=True)
class PutPart:
    key: SegmentKey
    part: RemotePart


@dataclass(frozen=True, slots=True)
class DropPart:
    key: SegmentKey
    base_offset: int


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Its head and its seal record; its parts are dropped one by one, before."""

    key: SegmentKey


RightsWrite: TypeAlias = PutRule | DropRule | PutCredential | DropCredential | PutQuotas | DropQuotas
TableWrite: TypeAlias = (
    PutHeader
    | PutChanges
    | PutNode
    | PutLock
    | PutMount
    | DropMount
    | RightsWrite
    | PutTopic
    | DropTopic
    | PutPurgedTopic
    | DropPurgedTopic
    | PutShard
    | DropShard
    | PutSegmentHead
    | PutSeal
    | PutPart
    | DropPart
    | DropSegment
)
