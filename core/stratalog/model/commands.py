"""What may be asked of the meta service: each command is described here, once.

A command is plain data that says what it wants, what its caller learns (`Command[Segment]`) and whether asking twice
does harm. `MetaClient.perform` takes it, the service queues it, the shard table steps with it, and over HTTP it is JSON
made from its fields. Times and new ids are the service's and travel beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, get_args
from uuid import UUID

from stratalog.model.bounds import Count, Int32
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, Lock, NodeInfo, PartCommit, PartReplacement, Registration
from stratalog.model.segment import SealRecord, Segment
from stratalog.model.topic import Shard, Topic

R_co = TypeVar("R_co", covariant=True)


class Command(Generic[R_co]):
    """One change that a caller asks for; `R_co` is what it learns when it was made."""

    __slots__ = ()

    is_idempotent: ClassVar[bool] = False
    """Asking again comes to the same: the service sees that it was done, or doing it twice changes nothing. When not, a
    lost answer is `OutcomeUnknown`, to be resolved by reading: a repetition could be refused for what the first did, or
    undo what another did meanwhile."""


@dataclass(frozen=True, slots=True)
class NodeCommand(Command[R_co]):
    """A command that a node may send; each raises Fenced when the node has begun another life since."""

    caller: Life | None = field(default=None, kw_only=True)
    """The life of the node that asks; None when no node does (an operator, a tool)."""


# Nodes ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RegisterNode(Command[Registration]):
    """A node begins a life; its epoch grows by one."""

    is_idempotent = True

    node: NodeInfo
    start_id: str = ""
    """Made anew by each start: one that comes twice is answered twice, and is one life. Empty: always a new life."""


@dataclass(frozen=True, slots=True)
class ForgetLocal(NodeCommand[None]):
    """The node is about to free its local copies. Raises Conflict unless each is COMPLETE in the object store, or is
    DELETED."""

    is_idempotent = True

    segments: tuple[SegmentKey, ...]
    node_id: Int32


# Topics and shards ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CreateTopic(NodeCommand[Topic]):
    """Create a topic, its shards and the first (ACTIVE, epoch 0, base offset 0) segment of each, in one transaction.
    Id and placement are the service's. Raises AlreadyExists, InvalidRequest."""

    name: str
    shard_count: int
    replication_factor: int
    settings: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic(NodeCommand[None]):
    """The topic and its shards vanish from the snapshot at once; each segment becomes DELETED and stays listed by
    `deleted_segments` until it is purged."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class AddShards(NodeCommand[Topic]):
    """Let a topic grow."""

    topic_id: UUID
    shard_count: int
    """The new total, as in Kafka's CreatePartitions."""


@dataclass(frozen=True, slots=True)
class AlterTopic(NodeCommand[Topic]):
    """Replace the topic's settings as a whole and, with `shard_count`, let it grow, in one transaction."""

    topic_id: UUID
    settings: Mapping[str, str]
    expected: Mapping[str, str] | None = None
    """When given, the settings the caller read: raises Conflict when they are not the present ones."""
    shard_count: int | None = None
    """The new total, when the topic grows in the same change."""


@dataclass(frozen=True, slots=True)
class AdvanceLogStart(NodeCommand[Shard]):
    """Monotonic: a lower offset than the present one changes nothing. Above the end of sealed data is allowed up to the
    caller's high watermark; segments wholly below it become DELETED (never the ACTIVE one)."""

    is_idempotent = True

    shard: ShardKey
    offset: Count


# Life of a segment ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RollSegment(NodeCommand[Segment]):
    """The ACTIVE segment ends at `end_offset` (-> SEALING) and the next one opens there, epoch + 1 (rule 1), in one
    transaction. Returns the new ACTIVE segment. Raises Fenced when `segment` is not the active one, or its fence is
    above the caller's."""

    is_idempotent = True

    segment: SegmentKey
    end_offset: Count
    fence: Count = 0
    """Under which the caller acts: 0 for the leader that the segment was opened with, its own for a recovery."""


@dataclass(frozen=True, slots=True)
class SealSegment(NodeCommand[Segment]):
    """SEALING -> SEALED, once (rule 10). Raises Conflict for another record than the one that is there. The answer is
    DELETED already when the log start passed its end while it was ACTIVE."""

    is_idempotent = True

    segment: SegmentKey
    record: SealRecord


@dataclass(frozen=True, slots=True)
class ProposeIsr(NodeCommand[Segment]):
    """Shrink or grow the ISR by compare-and-set (rule 5). Raises Conflict when `expected_version` is not the present
    one, Fenced when the segment has no leader any more, or its fence is above the caller's."""

    segment: SegmentKey
    isr: tuple[Int32, ...]
    expected_version: Count
    fence: Count = 0
    """As of `RollSegment`."""


@dataclass(frozen=True, slots=True)
class RaiseFence(NodeCommand[Segment]):
    """Void what leaders below `fence` do: appends, changes of the ISR, rolls (rule 7). Raises Fenced when it is above
    that already."""

    is_idempotent = True

    segment: SegmentKey
    fence: Count


@dataclass(frozen=True, slots=True)
class PurgeSegments(NodeCommand[None]):
    """Forget DELETED segments whose files and objects are gone."""

    is_idempotent = True

    segments: tuple[SegmentKey, ...]


# Remote copies --------------------------------------------------------------------------------------------------
PartOutcomes: TypeAlias = tuple[Segment | StratalogError, ...]
"""One entry per commit or replacement, in order: the segment after it, or why it was refused."""


@dataclass(frozen=True, slots=True)
class CommitParts(NodeCommand[PartOutcomes]):
    """Commit parts in one transaction; each stands or falls alone by its compare-and-set (a deleted or moved segment
    does not spoil its neighbours in a bundle), and by whether the caller is the segment's uploader. Raises Fenced when
    the lock is lost."""

    is_idempotent = True

    lock: Lock
    commits: tuple[PartCommit, ...]


@dataclass(frozen=True, slots=True)
class ReplaceParts(NodeCommand[PartOutcomes]):
    """Point committed parts at other objects with the same offsets; each replacement stands or falls alone. Raises
    Fenced when the lock is lost."""

    is_idempotent = True

    lock: Lock
    replacements: tuple[PartReplacement, ...]


@dataclass(frozen=True, slots=True)
class CompleteRemote(NodeCommand[Segment]):
    """SEALED and committed to its end -> COMPLETE. The caller has read the manifest back and checked it."""

    is_idempotent = True

    lock: Lock
    segment: SegmentKey
    manifest_key: str
    manifest_digest: bytes
    size_bytes: Count


# Locks and numbers ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AcquireLock(NodeCommand[Lock]):
    """Take or renew a write lock. Raises Conflict while another holder's lease lasts."""

    is_idempotent = True

    name: str
    holder: str
    ttl_ms: int
    lasting: tuple[str, ...] = ()
    """Endings of names: earlier holders that have one stay remembered, however many came after them."""


@dataclass(frozen=True, slots=True)
class ReleaseLock(NodeCommand[None]):
    """Give a write lock back. One that is gone already, or has passed to another, is left as it is."""

    is_idempotent = True

    lock: Lock


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Ids from `first` up to, not with, `end`."""

    first: Count
    end: Count


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(NodeCommand[ProducerIdBlock]):
    """A block of producer ids never given before. One whose answer was lost is never used: there are enough of them."""

    is_idempotent = True

    count: int


# The meta service's own --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class NoteLives(Command[None]):
    """Say of lives that their leases ended, or that they were heard of again; what is not the present life of its node
    is passed over. Nobody asks for it over the network."""

    is_idempotent = True

    lost: tuple[Life, ...] = ()
    heard: tuple[Life, ...] = ()


AskedCommand: TypeAlias = (
    RegisterNode
    | ForgetLocal
    | CreateTopic
    | DeleteTopic
    | AddShards
    | AlterTopic
    | AdvanceLogStart
    | RollSegment
    | SealSegment
    | ProposeIsr
    | RaiseFence
    | PurgeSegments
    | CommitParts
    | ReplaceParts
    | CompleteRemote
    | AcquireLock
    | ReleaseLock
    | AllocateProducerIds
)
COMMANDS: Final[tuple[type[Command[Any]], ...]] = get_args(AskedCommand)  # their results differ, so Any
"""Every kind of command that may be asked for."""
TableCommand: TypeAlias = AskedCommand | NoteLives
TableResult: TypeAlias = Registration | Topic | Segment | Shard | PartOutcomes | Lock | ProducerIdBlock | None
