"""What a segment's follower hears and asks for: plain data, as `machines/following/segment_follower.py` takes and gives
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment, SegmentState


@dataclass(slots=True, unsafe_hash=True)
class CheckedRange:
    """Whole batches that a peer sent, back to back from `base_offset` on, all of one epoch, each CRC checked. `payload`
    belongs to the shell and is never looked at."""

    epoch: int
    base_offset: int
    end_offset: int
    size_bytes: int
    payload: Any


class FollowerLife(Enum):
    """What a replica that does not lead may still do. Closed."""

    FOLLOWING = "it takes data of the leader that its record names"
    PROMISED = "a fence was seen: it takes no data of that leader any more, and waits for the end to be named"
    COPYING = "its end is known, and it is not there yet"
    PROVING = "it is at its end: flushed, and read once more"
    PROVEN = "its digest is known: the service compares"
    SEALED = "the seal record names this copy"
    LEFT = "no replica of this segment: it serves no reads"
    FAULTY = "it is unknown what the disk holds of it: it takes nothing and proves nothing"


FOLLOWER_TRANSITIONS: Final[dict[FollowerLife, frozenset[FollowerLife]]] = {
    FollowerLife.FOLLOWING: frozenset(
        (FollowerLife.PROMISED, FollowerLife.COPYING, FollowerLife.SEALED, FollowerLife.FAULTY, FollowerLife.LEFT)
    ),
    FollowerLife.PROMISED: frozenset(
        (FollowerLife.COPYING, FollowerLife.SEALED, FollowerLife.FAULTY, FollowerLife.LEFT)
    ),
    FollowerLife.COPYING: frozenset(
        (FollowerLife.PROVING, FollowerLife.SEALED, FollowerLife.FAULTY, FollowerLife.LEFT)
    ),
    FollowerLife.PROVING: frozenset(
        (FollowerLife.COPYING, FollowerLife.PROVEN, FollowerLife.SEALED, FollowerLife.FAULTY, FollowerLife.LEFT)
    ),
    FollowerLife.PROVEN: frozenset((FollowerLife.SEALED, FollowerLife.FAULTY, FollowerLife.LEFT)),
    FollowerLife.SEALED: frozenset((FollowerLife.COPYING, FollowerLife.LEFT)),
    FollowerLife.FAULTY: frozenset((FollowerLife.LEFT,)),
    FollowerLife.LEFT: frozenset(),
}
"""What each life may become. A proof is given up only for another end, a faulty copy only by leaving it."""


class RangeRefusal(Enum):
    """Why a peer gives nothing. Closed."""

    NOT_NOW = "it does not lead, or not yet, or knows less than this node: ask again"
    NEWER_EPOCH = "it is in a later segment: this one's end will be named"
    ENDS_BEFORE = "it ends before this copy"
    DAMAGED = "what it sent is not a contiguous run of whole batches of this segment"
    UNREACHABLE = "no answer"


# Events: what happened ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SegmentNamed:
    """What the metadata say of the segment now. Requires: in the order of their versions."""

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    fence: int = 0
    end_offset: int | None = None
    """Set once it is SEALING: nothing is ever added or taken away below."""
    source: int | None = None
    """The nodes that hold everything below `end_offset`, after a recovery."""
    is_sealed: bool = False
    proven: tuple[int, ...] = ()
    """Who proved the digest of the seal record."""
    is_stored: bool = False
    """The object store has all of it, and this node can read there."""
    away: tuple[int, ...] = ()
    """The nodes of `proven` that are not alive, as far as this node knows."""

    @classmethod
    def of(cls, segment: Segment, is_alive: Callable[[int], bool], *, has_store: bool) -> SegmentNamed:
        """The segment's record as a follower needs it. `has_store`: this node reads an object store. The holders are
        named only once there is a seal, and a deleted segment keeps its end and its seal."""
        seal = segment.seal
        proven = segment.local_nodes if seal is not None else ()
        is_open = segment.state is SegmentState.ACTIVE
        return cls(
            segment.leader,
            segment.replicas,
            segment.isr,
            fence=segment.fence if segment.is_fenced else 0,
            end_offset=None if is_open else segment.end_offset,
            source=segment.handed.source,
            is_sealed=seal is not None,
            proven=proven,
            is_stored=has_store and segment.is_wholly_committed,
            away=tuple([node_id for node_id in proven if not is_alive(node_id)]),
        )


@dataclass(frozen=True, slots=True)
class SegmentGone:
    """Deleted, with its topic or by retention."""


@dataclass(slots=True, unsafe_hash=True)
class RangeArrived:
    """A peer answered. `found` is None when it has nothing more at present."""

    node_id: int
    found: CheckedRange | None
    high_watermark: int


@dataclass(frozen=True, slots=True)
class RangeRefused:
    node_id: int
    why: RangeRefusal


@dataclass(frozen=True, slots=True)
class RangeAppended:
    """Answers `AppendRange`: it is in the file."""


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """Answers `AppendRange`: the file ends where it did before."""


@dataclass(frozen=True, slots=True)
class TailCut:
    """Answers `CutTail`."""


@dataclass(frozen=True, slots=True)
class CutFailed:
    """Answers `CutTail`: the file is as it was."""


@dataclass(frozen=True, slots=True)
class CopyFilled:
    """Answers `FillCopy`: the file's whole batches end there now, and all of it is on the disk. If it ends below the
    requested offset, this node is no longer the one that must replace the missing data."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class FlushPolicyChanged:
    """The topic's settings changed: from now on what is confirmed is durable, or need not be."""

    is_fsync: bool


@dataclass(frozen=True, slots=True)
class DataFlushed:
    """Everything below `end_offset` is on the disk."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class FlushLost:
    """The kernel may have dropped what it could not write: a later flush that succeeds proves nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class PromiseWritten:
    """Answers `WritePromise`: it outlives a power cut."""

    fence: int


@dataclass(frozen=True, slots=True)
class PromiseFailed:
    """Answers `WritePromise`: it is unknown whether it was written."""


@dataclass(frozen=True, slots=True)
class CopyProven:
    """Answers `ProveCopy`."""

    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CopyDamaged:
    """Answers `ProveCopy`: the disk does not have what was written."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportAccepted:
    """Answers `SubmitPromise` and `SubmitReport`: the meta service has it."""

    is_settled: bool = False
    """The segment is sealed, and this copy is listed: the record says so soon."""

    @classmethod
    def answered(cls, segment: Segment, node_id: int) -> ReportAccepted:
        """The content of the service's answer to this node: the segment as it is now. The seal also names nodes that
        proved a copy once and have lost it since: only the listed holders count."""
        return cls(segment.seal is not None and node_id in segment.local_nodes)


@dataclass(frozen=True, slots=True)
class ReportFailed:
    """Answers `SubmitPromise` and `SubmitReport`: refused, lost or unknown. The replica reports again what its record
    still requires."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """What is to be tried again is."""


FollowerEvent: TypeAlias = (
    SegmentNamed
    | SegmentGone
    | RangeArrived
    | RangeRefused
    | RangeAppended
    | AppendFailed
    | TailCut
    | CutFailed
    | CopyFilled
    | FlushPolicyChanged
    | DataFlushed
    | FlushLost
    | PromiseWritten
    | PromiseFailed
    | CopyProven
    | CopyDamaged
    | ReportAccepted
    | ReportFailed
    | TimePassed
)


# Effects: what the shell must do, in this order -----------------------------------------------------------------------
@dataclass(slots=True, unsafe_hash=True)
class Ask:
    """From now on ask this node (or `copy_sources.OBJECT_STORE`), at this offset: which says that everything below is
    here (contract, section 3)."""

    node_id: int
    offset: int
    is_throttled: bool
    """No acknowledgement waits for it: it stays within its share for catching up."""


@dataclass(frozen=True, slots=True)
class StopAsking:
    """For now. What is asked already may still be answered."""


@dataclass(slots=True, unsafe_hash=True)
class AppendRange:
    """Write it at the end of the file. Answer at once: `RangeAppended` or `AppendFailed`."""

    found: CheckedRange


@dataclass(frozen=True, slots=True)
class CutTail:
    """Shorten the file to what lies below this offset. The last of its step; nothing is asked of the file before the
    answer: `TailCut` or `CutFailed`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class FillCopy:
    """No node has more, and this node is the source: data that are missing below `end_offset` come from the object
    store, and batches without records replace what was given up. Nothing else uses the file before the answer,
    `CopyFilled`, however many attempts it takes."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class FlushData:
    """Put on the disk what is in the file. Answer: `DataFlushed` or `FlushLost`."""


@dataclass(frozen=True, slots=True)
class WritePromise:
    """Put on the disk that this node takes no data of the segment from leaders below `fence`. Answer: `PromiseWritten`
    or `PromiseFailed`."""

    fence: int


@dataclass(frozen=True, slots=True)
class SubmitPromise:
    """`PromiseFence`, to the meta service. Answer: `ReportAccepted` or `ReportFailed`."""

    fence: int
    end_offset: int
    high_watermark: int
    """The highest offset that it learnt; this copy may end below it."""
    is_tail_whole: bool


@dataclass(frozen=True, slots=True)
class ProveCopy:
    """Flush all of it, read it once more and check each batch. Answer: `CopyProven` or `CopyDamaged`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SubmitReport:
    """`ReportReplica`, to the meta service, again with pauses until it is SEALED. Answer: `ReportAccepted` or
    `ReportFailed`."""

    end_offset: int
    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class MoveHighWatermark:
    """Readers may be served below it from this copy."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class DropCopy:
    """It is not a replica any more: it serves no reads, and its file is deleted."""


@dataclass(frozen=True, slots=True)
class ReportFault:
    """Name it in the log and in metrics."""

    reason: str


FollowerEffect: TypeAlias = (
    Ask
    | StopAsking
    | AppendRange
    | CutTail
    | FillCopy
    | FlushData
    | WritePromise
    | SubmitPromise
    | ProveCopy
    | SubmitReport
    | MoveHighWatermark
    | DropCopy
    | ReportFault
)


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    key: SegmentKey
    life: FollowerLife
    end_offset: int
    durable_offset: int
    high_watermark: int
    lag_offsets: int
    """How far it is behind what its leader has committed, as far as this node knows."""
    promised_fence: int
    asks: int | None
    """The node that is asked, if any."""
