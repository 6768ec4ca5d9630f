"""What a segment's leader hears and asks for: plain data, as `machines/leading/segment_leader.py` takes and gives
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from stratalog.machines.leading.producer_table import Duplicate, SequenceFault
from stratalog.model.append import AppendFailure
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment, SegmentState


class OfferedBatch:
    """One record batch that a client offers. `payload`, `request` and `slot` (which of the request's answers is this
    batch's) belong to the shell and are never looked at."""

    __slots__ = (
        "acks",
        "base_offset",
        "base_sequence",
        "max_timestamp_ms",
        "payload",
        "producer_epoch",
        "producer_id",
        "record_count",
        "request",
        "size_bytes",
        "slot",
    )

    def __init__(
        self,
        payload: Any,
        size_bytes: int,
        record_count: int,
        max_timestamp_ms: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        acks: int,
        request: Any,
        slot: Any,
    ) -> None:
        self.payload = payload
        self.size_bytes = size_bytes
        self.record_count = record_count
        self.max_timestamp_ms = max_timestamp_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.acks = acks
        self.request = request
        self.slot = slot
        self.base_offset = -1

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """When a segment is full or old, and what acks=all asks for. Sizes in bytes of batches."""

    segment_bytes: int
    segment_ms: int
    min_insync_replicas: int = 1
    lag_ms: int = 30_000
    """A follower that has not reached, for this long, where the leader's end was leaves the ISR."""
    is_quorum: bool = False
    """acks=all waits for a majority of the replicas, in sync or not; readers see what a majority holds."""
    spares_one: bool = False
    """Of a segment's replicas one may always be away, whatever the minimum says."""
    is_direct: bool = False
    """The next segments are to be Direct: what their leaders roll into says so, not this."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """What the meta service's record of a segment says about its leading."""

    leader: int | None
    """None: it is fenced or sealed."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    isr_version: int
    fence: int = 0
    is_open: bool = True
    """Its end is not decided."""
    is_direct: bool = False
    stored_end: int = 0
    """Everything below is in the object store."""

    @classmethod
    def of(cls, segment: Segment) -> SegmentRecord:
        return cls(
            segment.leader,
            segment.replicas,
            segment.isr,
            segment.isr_version,
            segment.fence,
            segment.state is SegmentState.ACTIVE,
            segment.is_direct,
            segment.committed_end,
        )


class LeaderLife(Enum):
    """What a leader may still do. Closed."""

    OPEN = "it takes batches"
    DOUBTED = "it takes none: a former life may have given offsets that the disk forgot; the first batch rolls it"
    ENDED = "it takes none: the next segment does"
    FLUSH_FAILED = "it is unknown what the disk holds of it: nothing more is acknowledged"
    FENCED = "the meta service seals it without us: nothing more is acknowledged"


LEADER_TRANSITIONS: Final[dict[LeaderLife, frozenset[LeaderLife]]] = {
    LeaderLife.OPEN: frozenset((LeaderLife.ENDED, LeaderLife.FLUSH_FAILED, LeaderLife.FENCED)),
    LeaderLife.DOUBTED: frozenset((LeaderLife.ENDED, LeaderLife.FLUSH_FAILED, LeaderLife.FENCED)),
    LeaderLife.ENDED: frozenset((LeaderLife.OPEN, LeaderLife.DOUBTED, LeaderLife.FLUSH_FAILED, LeaderLife.FENCED)),
    LeaderLife.FLUSH_FAILED: frozenset((LeaderLife.FENCED,)),
    LeaderLife.FENCED: frozenset(),
}
"""What each life may become. An end is undone only if its roll failed; a fence is final."""


# Events: what happened ------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class BatchesReceived:
    batches: list[OfferedBatch]


@dataclass(frozen=True, slots=True)
class BatchesWritten:
    """The last `PersistBatches` is in the file, but not yet as durable as the flush policy asks."""


@dataclass(slots=True)
class BatchesPersisted:
    """Everything below `end_offset` is as durable here as the topic's flush policy asks."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """The last `PersistBatches` did not reach the file, which ends again where it did before."""


@dataclass(frozen=True, slots=True)
class OpeningConfirmed:
    """The meta service knows this segment (a roll was committed): what is in it may be acknowledged."""

    record: SegmentRecord | None = None
    """As it was opened. None: as it was prepared."""


@dataclass(slots=True)
class FollowerFetched:
    """A follower asked for `offset`: it holds everything below, in this life."""

    node_id: int
    offset: int
    life_epoch: int = 0


@dataclass(frozen=True, slots=True)
class NodeUpdated:
    """What the meta service says of another node. What it held in a life before this one is not known any more; one
    that is not alive is not waited for longer than it takes to agree on that; and one whose disk makes no progress
    (`can_write`) is not taken into the ISR, where the next batch would wait for it."""

    node_id: int
    life_epoch: int
    is_alive: bool = True
    can_write: bool = True


@dataclass(frozen=True, slots=True)
class LagChecked:
    """Check which followers lag, by a monotonic clock."""

    steady_ms: int


@dataclass(frozen=True, slots=True)
class IsrCommitted:
    """The meta service's record has, or had, this ISR."""

    isr: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class ProposalReadBack:
    """Answers `ProposeIsr` when it was not told that it was taken: the record, from a read begun after that."""

    proposal: ProposeIsr
    isr: tuple[int, ...]
    version: int
    was_refused: bool
    """The service refused it, so it will not accept it later either. Otherwise the proposal may still be accepted."""


@dataclass(frozen=True, slots=True)
class RecordReceived:
    """The meta service's record of this segment, from its watch or in an answer; perhaps an old one."""

    record: SegmentRecord


@dataclass(frozen=True, slots=True)
class FenceRaised:
    """The meta service is sealing this segment without us: never acknowledge anything again (rule 7)."""

    fence: int


@dataclass(frozen=True, slots=True)
class FlushFailed:
    """The kernel may have dropped what it could not write, and says so once: a later flush that succeeds proves
    nothing."""


@dataclass(frozen=True, slots=True)
class SuccessorOpened:
    """The roll was done: the next segment begins where this one ends."""

    producers: tuple[ProducerSnapshot, ...]
    """The producers at the end of this segment; the next one continues with the same table."""


@dataclass(frozen=True, slots=True)
class RollFailed:
    """The next segment could not be made: this one continues."""


@dataclass(slots=True)
class RollPutOff:
    """No node is prepared to continue after this segment yet: the segment itself takes these batches, up to twice its
    usual size."""

    batches: list[OfferedBatch]


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    policy: RollPolicy


@dataclass(frozen=True, slots=True)
class RollRequested:
    """By command."""

    is_empty_too: bool = False
    """Also while nothing is in it: its replicas leave."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Look at the segment's age, and at who lags."""

    steady_ms: int = 0
    """By a clock that is not set."""


LeaderEvent: TypeAlias = (
    BatchesReceived
    | BatchesWritten
    | BatchesPersisted
    | PersistFailed
    | OpeningConfirmed
    | FollowerFetched
    | NodeUpdated
    | LagChecked
    | IsrCommitted
    | ProposalReadBack
    | RecordReceived
    | FenceRaised
    | FlushFailed
    | SuccessorOpened
    | RollFailed
    | RollPutOff
    | PolicyChanged
    | RollRequested
    | TimePassed
)


# Effects: what the shell must do, in this order -----------------------------------------------------------------------
@dataclass(slots=True)
class PersistBatches:
    """Append these, in order; each has its base offset. Then tell: `BatchesPersisted`, or
    `BatchesWritten` first where durability takes longer, or `PersistFailed`."""

    batches: list[OfferedBatch]
    size_bytes: int
    max_timestamp_ms: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RefuseBatch:
    """Nothing was appended."""

    batch: OfferedBatch
    why: AppendFailure | SequenceFault


@dataclass(frozen=True, slots=True)
class AnswerDuplicate:
    """In the log already: answer with its offset, once everything below `duplicate.end_offset` may be acknowledged."""

    batch: OfferedBatch
    duplicate: Duplicate


@dataclass(slots=True)
class Acknowledge:
    """acks=1 may be answered below `leader_mark`, acks=all (and readers served) below `high_watermark`, where a batch
    ends."""

    leader_mark: int
    high_watermark: int


@dataclass(slots=True)
class RollSegment:
    """This segment ends at `end_offset`. `remaining` were offered but belong to the next one."""

    end_offset: int
    remaining: list[OfferedBatch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PrepareSuccessor:
    """This segment will be full before long: find out which node continues after it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the meta service for this ISR under `version` (compare-and-set). Answer: `IsrCommitted`, `FenceRaised`, or
    else `ProposalReadBack`."""

    isr: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True)
class StopLeading:
    """Fenced: whoever still waits gets "outcome unknown"."""


LeaderEffect: TypeAlias = (
    PersistBatches
    | RefuseBatch
    | AnswerDuplicate
    | Acknowledge
    | RollSegment
    | PrepareSuccessor
    | ProposeIsr
    | StopLeading
)


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    key: SegmentKey
    end_offset: int
    durable_offset: int
    high_watermark: int
    size_bytes: int
    isr: tuple[int, ...]
    is_confirmed: bool
    life: LeaderLife
