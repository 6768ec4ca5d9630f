"""What a shard's chain of segments hears and what it asks for: plain data, as `machines/leading/shard_chain.py` takes
and gives it. Events and effects that a segment's leader has too are its own (`machines/leading/leader_events.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratalog.machines.leading import leader_events
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_life import Stop
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey


# Events: what happened ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BatchesTurnedAway:
    """Offered while the node has no room for new data."""

    batches: list[leader_events.OfferedBatch]
    message: str


@dataclass(frozen=True, slots=True)
class BatchesRefusedBefore:
    """Of idempotent producers, before this shard was known here. They are answered: only what they owe is noted."""

    batches: list[leader_events.OfferedBatch]


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The last `PersistBatches` did not reach the file, which ends again where it did before; with OUTCOME_UNKNOWN a
    later start may still find some of it."""

    why: AppendFailure
    message: str


@dataclass(frozen=True, slots=True)
class ActiveNamed:
    """Answers `NameActive`: the segment that the meta service lists as active."""

    key: SegmentKey
    record: leader_events.SegmentRecord
    producers: ProducerTable | None
    """As they were at the end of the segment before. None: not known here; without them repetitions would get in."""


@dataclass(frozen=True, slots=True)
class ActiveUnknown:
    """Answers `NameActive`: there is none."""


@dataclass(frozen=True, slots=True)
class SuccessorNamed:
    """Answers `NameSuccessor`: this was prepared, and the service that confirms the roll answered lately."""

    leader: int
    replicas: tuple[int, ...]
    is_direct: bool = False


@dataclass(frozen=True, slots=True)
class SuccessorUnknown:
    """Answers `NameSuccessor`: the roll could not be confirmed soon."""


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    """Answers `OpenSegment`: its file is there."""


@dataclass(frozen=True, slots=True)
class OpeningFailed:
    """Answers `OpenSegment`: there is no file."""

    why: AppendFailure
    message: str


@dataclass(slots=True)
class SegmentEventReceived:
    """News for the leader of one segment that is not sealed yet: a late flush, a follower, the meta service."""

    epoch: int
    event: (
        leader_events.BatchesPersisted
        | leader_events.FollowerFetched
        | leader_events.LagChecked
        | leader_events.IsrCommitted
        | leader_events.ProposalReadBack
        | leader_events.RecordReceived
        | leader_events.FenceRaised
    )


@dataclass(frozen=True, slots=True)
class SegmentFlushed:
    """Answers `FlushSegment`: all of it is on the disk."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SegmentFlushFailed:
    """What the disk holds of this segment is not known any more."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class RollConfirmed:
    """Answers `ConfirmRoll`: the meta service knows where the segment ended, and the next one."""

    epoch: int
    log_start_offset: int
    opened: leader_events.SegmentRecord | None = None
    """The next one, as it was opened. None: as it was prepared."""


@dataclass(frozen=True, slots=True)
class EmptySegmentKept:
    """Answers `DropEmptySegment`: the meta service did not agree."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SegmentLeft:
    """It is sealed or deleted: later events about it have no effect."""

    epoch: int


RollNews: TypeAlias = SegmentFlushed | RollConfirmed | EmptySegmentKept | SegmentLeft
"""What moves the order of confirmations on."""


@dataclass(frozen=True, slots=True)
class ShardRecovered:
    """What a start, or the check after healing, found on the disk. Everything that was known before is void."""

    ended: tuple[SegmentLeader, ...]
    active: SegmentLeader | None
    high_watermark: int
    doubted_epoch: int = -1
    """A former life may have given offsets in this epoch that the disk forgot. -1: in none."""
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class ServiceBegun:
    """The node serves: what the last life owes may be asked for. Rolls that the meta service does not know are
    confirmed again."""

    owed_seals: tuple[int, ...] = ()
    """Epochs of ended segments whose end it knows."""


@dataclass(frozen=True, slots=True)
class ShardStopped:
    """Something befell the shard that ends its writing, or says why it has not begun."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class LeadershipChecked:
    """The answer to `CheckLeadership`. `is_known`: this node has received everything that the metadata said at the time
    of the question; False: that is unknown now."""

    question: int
    is_known: bool


ChainEvent: TypeAlias = (
    leader_events.BatchesReceived
    | BatchesTurnedAway
    | BatchesRefusedBefore
    | leader_events.BatchesWritten
    | leader_events.BatchesPersisted
    | AppendFailed
    | ActiveNamed
    | ActiveUnknown
    | SuccessorNamed
    | SuccessorUnknown
    | SegmentOpened
    | OpeningFailed
    | SegmentEventReceived
    | SegmentFlushed
    | SegmentFlushFailed
    | RollConfirmed
    | EmptySegmentKept
    | SegmentLeft
    | leader_events.RollRequested
    | leader_events.TimePassed
    | leader_events.NodeUpdated
    | leader_events.PolicyChanged
    | ShardRecovered
    | ServiceBegun
    | ShardStopped
    | LeadershipChecked
)


# Effects: what the shell must do, in this order -----------------------------------------------------------------------
@dataclass(slots=True)
class AcknowledgeBatches:
    """Readers of segment `epoch`, and of the shard, may be served below `high_watermark`. Answer these batches, which
    are in the log at their `base_offset`."""

    epoch: int
    high_watermark: int
    batches: list[leader_events.OfferedBatch]


@dataclass(frozen=True, slots=True)
class RefuseBatches:
    """Not in the log, or unknown: see `AppendFailure`."""

    batches: list[leader_events.OfferedBatch]
    why: AppendFailure
    message: str


@dataclass(frozen=True, slots=True)
class NameActive:
    """Say which segment the meta service lists as active. Answer at once: `ActiveNamed` or `ActiveUnknown`."""


@dataclass(frozen=True, slots=True)
class NameSuccessor:
    """Name the node that was prepared to continue after this segment. Answer at once: `SuccessorNamed` or
    `SuccessorUnknown`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """This segment has ended, and none is active here any more: another node continues after it. A segment that was
    begun after it here is dropped: no one else knows it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """Make the file of `leader.key`. Answer at once: `SegmentOpened`, and it is the active one, or `OpeningFailed`."""

    leader: SegmentLeader
    is_roll: bool
    """The one that was active ends: what was made ahead for it is not needed."""


@dataclass(frozen=True, slots=True)
class FlushSegment:
    """Put an ended segment on the disk: no power cut may take back an end that the meta service knows. Answer:
    `SegmentFlushed`, or `SegmentFlushFailed`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ConfirmRoll:
    """Tell the meta service where the segment ended. Answer: `RollConfirmed`, or `ShardStopped` when another leads."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Seal it, behind those asked for before. Answer: `SegmentLeft` once it is sealed or gone."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DropEmptySegment:
    """It has no records: have the meta service move the log start behind it, so that it goes. Answer: `SegmentLeft`, or
    `EmptySegmentKept`."""

    epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class PrepareSuccessorOf:
    """Ask the meta service which node continues after a segment; the next `NameSuccessor` gets the answer."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ProposeIsrOf:
    """Ask the meta service for a segment's ISR (compare-and-set)."""

    epoch: int
    proposal: leader_events.ProposeIsr


@dataclass(frozen=True, slots=True)
class LeaveSegment:
    """Other nodes seal this segment, which ended here: its copy becomes that of a replica."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DoubtCopy:
    """Never seal this segment's file, and read it only with checks."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckLeadership:
    """Read the metadata, from now on, and hear what they say. Answer: `LeadershipChecked`."""

    question: int


@dataclass(frozen=True, slots=True)
class NotifyReaders:
    """The shard stopped: everything that waits for more data must learn of it."""


RollEffect: TypeAlias = FlushSegment | ConfirmRoll | SealSegment | DropEmptySegment | PrepareSuccessorOf | ProposeIsrOf
"""Work beside the turns, about one segment that is not sealed yet."""

RareEffect: TypeAlias = (
    leader_events.RefuseBatch
    | RefuseBatches
    | NameActive
    | NameSuccessor
    | OpenSegment
    | HandOver
    | LeaveSegment
    | DoubtCopy
    | NotifyReaders
    | CheckLeadership
    | RollEffect
)

ChainEffect: TypeAlias = leader_events.PersistBatches | AcknowledgeBatches | RareEffect
