"""What may be asked of the meta service: each command is described here, once.

A command is plain data that says what it wants, what its caller learns (`Command[Segment]`) and whether asking twice
does harm. `MetaClient.perform` takes it, the service queues it, the shard table steps with it, and over HTTP it is JSON
made from its fields. Times and new ids are the service's and travel beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, get_args
from uuid import UUID

from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.commands.command import Command as Command
from stratalog.model.commands.command import NodeCommand as NodeCommand
from stratalog.model.commands.mount_commands import MountCommand
from stratalog.model.commands.retirement_commands import (
    AdvanceRetirement,
    CancelRetirement,
    GiveUpOpen,
    ReleaseNode,
    ReportInventory,
    ReportSighting,
    RetireNode,
)
from stratalog.model.commands.rights_commands import RightsCommand, RightsResult
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, Lock, NodeInfo, PartCommit, PartReplacement, Registration
from stratalog.model.mounts import Mount
from stratalog.model.retirement import Retirement
from stratalog.model.segment import NextReplicas, SealRecord, Segment
from stratalog.model.topic import Shard, Topic


# Nodes ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RegisterNode(Command[Registration]):
    """A node begins a life; its epoch grows by one."""

    is_idempotent = True

    node: NodeInfo
    start_id: str = ""
    """Made again by each start: one that comes twice is answered twice, and is one life. Empty: always a new life."""
    boot_id: str = ""
    """Of the machine's present boot: the same one as in the life before says that its page cache outlived the process.
    Empty: not known."""
    stopped_epoch: Count = 0
    """The life that ended in order on this disk, with everything flushed; 0 for none. If it is not the previous life it
    proves nothing: the disk is a copy, or another process used it in between."""
    is_flushed_by_default: bool = False
    """Topics that do not set `flush.policy` confirm nothing here that is not flushed, from this life on."""
    earlier_starts: tuple[str, ...] = ()
    """Of this directory: one of them began the life that ran in it last. The directory continues the node's last life
    if that is among them, or if that life stopped in order here. Else it is a copy, or an older state of it."""
    seat: str = ""
    """Names the directory's lock, which the caller holds, and the boot of its machine: the process that began the last
    life under the same name is over. Empty: nothing shows that."""
    scarcity: Count | None = None
    """How scarce room on its disk is (`Node.scarcity`). None: as it is noted of that disk."""


@dataclass(frozen=True, slots=True)
class ForgetLocal(NodeCommand[None]):
    """The node is about to free its local copies. Raises Conflict unless each is COMPLETE in the object store, or is
    DELETED."""

    is_idempotent = True

    segments: tuple[SegmentKey, ...]
    node_id: Int32


@dataclass(frozen=True, slots=True)
class ReportLostCopies(NodeCommand[None]):
    """The caller's sealed copies of these are gone, or damaged. The caller stops being a holder of them, so that others
    upload and serve them. The only holder of a segment that is not COMPLETE in the object store stays listed, because
    no other node has it."""

    is_idempotent = True

    segments: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class ReportFaultyCopies(NodeCommand[None]):
    """The caller's copies of these segments, which are not sealed, cannot be relied on in this life: a flush failed, or
    the data cannot be read. The caller leaves the ISR unless it is the last member, its copy counts as doubted, and it
    gives up leadership where others can lead. Segments that are sealed, deleted or not the caller's are ignored."""

    is_idempotent = True

    segments: tuple[SegmentKey, ...]


# Topics and shards ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CreateTopic(NodeCommand[Topic]):
    """Create a topic, its shards and the first (ACTIVE, epoch 0, base offset 0) segment of each, in one transaction.
    Id and placement are the service's. An internal topic has fewer replicas if fewer nodes are alive. Raises
    AlreadyExists, InvalidRequest."""

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
class WidenTopic(NodeCommand[Topic]):
    """Segments of an internal topic that open from now on have this many replicas, as far as there are living nodes;
    never fewer than it has."""

    is_idempotent = True

    topic_id: UUID
    replication_factor: int


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
class SealTopic(NodeCommand[Topic]):
    """Ask the leaders of a topic to end its ACTIVE segments, once for each request. The next segments open as they are
    prepared. An internal topic is refused."""

    is_idempotent = True

    topic_id: UUID
    asked_ms: Count
    """Names the request, and is its time by the clock of the caller. One that is not newer than the newest that was
    made changes nothing."""


@dataclass(frozen=True, slots=True)
class RollElsewhere(NodeCommand[None]):
    """Choose again where the segments after these open, and ask the leaders of these to end them. What is not ACTIVE
    any more, or was asked for already, is passed over."""

    is_idempotent = True

    segments: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class AdvanceLogStart(NodeCommand[Shard]):
    """Monotonic: a lower offset than the present one changes nothing. Above the end of sealed data is allowed up to the
    caller's high watermark; segments wholly below it become DELETED (never the ACTIVE one)."""

    is_idempotent = True

    shard: ShardKey
    offset: Count


# Life of a segment ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PrepareSegment(NodeCommand[Segment]):
    """Choose where the next segment will be, and say so in the record of this one (`handed.prepared`). Asked again it
    is the same, until one of the chosen is not alive or a replica that was missing can be placed. Raises Fenced unless
    the caller leads the segment."""

    is_idempotent = True

    segment: SegmentKey
    instead_of: NextReplicas | None = None
    """Choose again when this is what is prepared: nodes may have come since."""


@dataclass(frozen=True, slots=True)
class RollSegment(NodeCommand[Segment]):
    """The ACTIVE segment ends at `end_offset` (-> SEALING) and the next one opens there, epoch + 1 (rule 1), in one
    transaction: as it was prepared, else with the same leader and replicas. Returns the new ACTIVE segment. Raises
    Fenced when `segment` is not the active one, or the caller does not lead it any more."""

    is_idempotent = True

    segment: SegmentKey
    end_offset: Count


@dataclass(frozen=True, slots=True)
class SealSegment(NodeCommand[Segment]):
    """SEALING -> SEALED, once (rule 10), by the only replica there is; of several each reports (`ReportReplica`).
    Raises Conflict for another record than the one that is there. The answer is DELETED already when the log start
    passed its end while it was ACTIVE."""

    is_idempotent = True

    segment: SegmentKey
    record: SealRecord


@dataclass(frozen=True, slots=True)
class ReportReplica(NodeCommand[Segment]):
    """The caller's copy reached the end of a SEALING segment, was flushed, and read back batch by batch: `proof` says
    what it is. When all replicas that must report have reported, the service compares and seals. For a SEALED segment
    it says that the caller has a true copy, too. The caller repeats it, with pauses, until the segment is SEALED.
    Raises Conflict for a copy that differs from the sealed one, or if the node is not a replica (any more)."""

    is_idempotent = True

    segment: SegmentKey
    proof: SealRecord
    """`replicas` and `sealed_ms` are the service's, and not looked at."""
    isr_version: CountOrNone = -1
    """Of the record that it rests on: of a SEALED segment a word is passed over that is older than the caller's last
    one, that it has no copy (any more). -1: not said, for who gives up no copies."""


@dataclass(frozen=True, slots=True)
class ProposeIsr(NodeCommand[Segment]):
    """Shrink or grow the ISR by compare-and-set (rule 5). Raises Conflict when `expected_version` is not the present
    one, Fenced when the caller does not lead the segment any more."""

    segment: SegmentKey
    isr: tuple[Int32, ...]
    expected_version: Count


# Recovery -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BeginRecovery(NodeCommand[Segment]):
    """Take the segment from its leader and let its replicas seal it (rule 7). The service begins by itself when the
    leader's lease or life ends. One that is under way or over is answered as it is."""

    is_idempotent = True

    segment: SegmentKey


@dataclass(frozen=True, slots=True)
class PromiseFence(NodeCommand[Segment]):
    """The caller will never again take data of this segment from its leader: it has that on its disk, under `fence`.
    And it says what it holds. Raises Conflict for another end than it promised before in this life, or when it knows
    nothing of the segment because its disk is a new one; Fenced for another fence than the segment's."""

    is_idempotent = True

    segment: SegmentKey
    fence: Count
    end_offset: Count
    high_watermark: Count
    """The highest that it knows."""
    is_tail_whole: bool
    """Everything that it ever confirmed is still there, as far as it can tell."""
    seen_offset: Count = 0
    """`Vote.seen_offset`."""


@dataclass(frozen=True, slots=True)
class SealUnclean(NodeCommand[Segment]):
    """A person gives up data that only unreachable nodes hold. The segment ends at the best end that a replica
    reported, and its record names the range (`handed.given_up`). If no replica reported one, the log continues after
    the end of the data in the object store, and a node that comes back with more can still deliver it; repeated once
    more, a living replica replaces the missing data. Raises Conflict unless a recovery waits."""

    segment: SegmentKey


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


@dataclass(frozen=True, slots=True)
class ReplaceManifest(NodeCommand[Segment]):
    """A COMPLETE segment's manifest `old_digest` gives way to another one of the same records in other objects. The
    caller has read the new one back and checked it against the seal. Raises Conflict when another manifest is named
    by now, or the segment is DELETED; Fenced when the lock is lost."""

    is_idempotent = True

    lock: Lock
    segment: SegmentKey
    old_digest: bytes
    manifest_key: str
    manifest_digest: bytes
    size_bytes: Count


# Locks and numbers ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AcquireLock(NodeCommand[Lock]):
    """Take or renew a write lock. Raises Conflict while another holder's lease lasts, and for a renewal of what was
    given back, or passed on."""

    is_idempotent = True

    name: str
    holder: str
    ttl_ms: int
    lasting: tuple[str, ...] = ()
    """Endings of names: earlier holders that have one stay remembered, however many came after them."""
    renews: Count = 0
    """The epoch that is held; 0 takes the lock, or renews whatever the holder has."""


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
class ScarcityNoted:
    """How scarce room on the disk of a life is now (`Node.scarcity`)."""

    life: Life
    scarcity: Count


@dataclass(frozen=True, slots=True)
class NoteLives(Command[None]):
    """Report which lives' leases ended, and which lives sent heartbeats again. A life that is not the present one of
    its node is ignored. Only the service itself submits it."""

    is_idempotent = True

    lost: tuple[Life, ...] = ()
    heard: tuple[Life, ...] = ()
    full: tuple[Life, ...] = ()
    """Their disks have no room for more segments."""
    roomy: tuple[Life, ...] = ()
    """Theirs have it again."""
    scarce: tuple[ScarcityNoted, ...] = ()
    stuck: tuple[Life, ...] = ()
    """Their disks make no progress."""
    working: tuple[Life, ...] = ()
    """Theirs do again."""
    quiet: tuple[Life, ...] = ()
    """Their leases last, but they sent no heartbeat since about when a lost one sent its last: all of them may have
    lost power together."""


@dataclass(frozen=True, slots=True)
class SilentReplicas:
    """Lives of replicas that the recovery of a segment has waited for long enough, without their promise."""

    segment: SegmentKey
    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class ContinueWithout(Command[None]):
    """Decide recoveries without these replicas, where the policy makes the end certain without them. A replica that
    promised meanwhile, or began another life, is passed over. Not available over the network."""

    is_idempotent = True

    silent: tuple[SilentReplicas, ...]


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """One segment's replicas as they were read, and the nodes that shall make a further copy, or no longer need one."""

    segment: SegmentKey
    replicas: tuple[Int32, ...]
    """When they are others by now, nothing is done."""
    added: tuple[Int32, ...] = ()
    dropped: tuple[Int32, ...] = ()
    leader: Life | None = None
    """The leader of an active segment, in the life that was read. When that node has begun another life by now, nothing
    is done: its start may have read the segment as it is. None: not looked at."""


@dataclass(frozen=True, slots=True)
class MoveReplicas(Command[None]):
    """Name replicas that shall make copies, and release others. Each move succeeds or fails by itself. Only the service
    itself submits it."""

    is_idempotent = True

    moves: tuple[ReplicaMove, ...]


AskedCommand: TypeAlias = (
    RegisterNode
    | ForgetLocal
    | ReportLostCopies
    | ReportFaultyCopies
    | CreateTopic
    | DeleteTopic
    | AddShards
    | WidenTopic
    | AlterTopic
    | SealTopic
    | RollElsewhere
    | AdvanceLogStart
    | PrepareSegment
    | RollSegment
    | SealSegment
    | ReportReplica
    | ProposeIsr
    | BeginRecovery
    | PromiseFence
    | SealUnclean
    | PurgeSegments
    | CommitParts
    | ReplaceParts
    | CompleteRemote
    | ReplaceManifest
    | AcquireLock
    | ReleaseLock
    | AllocateProducerIds
    | MountCommand
    | RetireNode
    | CancelRetirement
    | ReportSighting
    | ReportInventory
    | RightsCommand
)
COMMANDS: Final[tuple[type[Command[Any]], ...]] = get_args(AskedCommand)  # their results differ, so Any
"""Every kind of command that may be asked for."""
TableCommand: TypeAlias = (
    AskedCommand | NoteLives | ContinueWithout | MoveReplicas | AdvanceRetirement | ReleaseNode | GiveUpOpen
)
TableResult: TypeAlias = (
    Registration
    | Topic
    | Segment
    | Shard
    | PartOutcomes
    | Lock
    | ProducerIdBlock
    | Mount
    | Retirement
    | RightsResult
    | bool
    | None
)
