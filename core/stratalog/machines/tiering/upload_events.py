"""Events and effects between `machines.tiering.uploader` and its shell. Events are past participles, effects
imperatives. All of it is plain data; sizes in bytes, times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart

PART_OVERHEAD_BYTES = 768
"""What a part adds to its batches (header, index, bundle entry), estimated from above for small parts."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """How much, how often, how patient. One object per node; topics may have their own chunk size and interval."""

    chunk_bytes: int = 8 << 20
    """A segment with this much not yet uploaded sends a chunk object of its own."""
    bundle_bytes: int = 16 << 20
    bundle_parts: int = 4_096
    """Parts of one bundle: bounds its directory, its commits, and what one step of the event loop does for it."""
    interval_ms: int = 10_000
    """Longest time a committed record waits before its upload begins."""
    direct_interval_ms: int = 250
    """The same of Direct segments, whose producers wait for it."""
    direct_bytes: int = 8 << 20
    """So much of all Direct segments together does not wait for that time."""
    in_flight_bytes: int = 64 << 20
    max_requests: int = 8
    """Uploads at a time, when the store takes them; it falls while the store says "slow down"."""
    put_timeout_ms: int = 30_000
    call_timeout_ms: int = 10_000
    """Of any other request to the store or the meta service."""
    backoff_ms: int = 100
    backoff_cap_ms: int = 10_000
    doubts_before_backoff: int = 3
    """A doubtful upload is sent again at once; after this many in a row the store counts as away (F51)."""
    first_hold_ms: int = 1_000
    """A segment whose local copy did not read is tried again after this: mostly it waits for an earlier segment."""
    hold_ms: int = 60_000
    """The pause doubles up to this while the copy still does not read."""
    merge_parts: int = 16
    """So many bundle parts of like size, next to each other, are merged into one."""
    direct_merge_parts: int = 128
    """The same of a Direct segment that has more to send: it waits while its parts are merged."""
    mounted_requests: int = 2
    """The number of uploads that may read in directories of retired nodes at a time, because consumers read there,
    too."""

    def __post_init__(self) -> None:
        assert 0 < self.chunk_bytes <= self.bundle_bytes, "chunk_bytes: what is too small for a chunk must fit a bundle"
        assert self.bundle_bytes <= self.in_flight_bytes, "bundle_bytes: one bundle must fit the budget in flight"
        assert self.max_requests > 0 and self.bundle_parts > 0, "max_requests, bundle_parts: must be positive"
        assert 0 < self.backoff_ms <= self.backoff_cap_ms, "backoff_ms: must be between 1 and backoff_cap_ms"
        assert self.mounted_requests > 0, "mounted_requests: must be positive"
        assert self.merge_parts > 1, "merge_parts: one part needs no merging"

    @property
    def max_chunk_bytes(self) -> int:
        """What a chunk may grow to by data that came while an earlier attempt failed."""
        return min(2 * self.chunk_bytes, self.in_flight_bytes)


# Events ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SegmentSeen:
    """What is known about a segment that this node uploads: at start, when it sealed, when metadata was read again."""

    key: SegmentKey
    is_sealed: bool
    """It has a seal record; then `end_offset` is final."""
    end_offset: int | None
    commit_offset: int
    parts: Sequence[RemotePart]
    has_local: bool
    """It can be read: in the local copy, or where it is mounted."""
    unsent_bytes: int
    """Committed batches at and above the commit offset, below min(HW, LSO), in the local copy; of what is mounted as
    many at most."""
    missing: str | None = None
    """Why there is no local copy to upload the rest from, though there should be one."""
    directories: tuple[int, ...] | None = None
    """This node has no copy, and reads the segment in the directories of these retired nodes, asked in this order. What
    is read at the same ones waits together. None: it has a copy."""
    away: str | None = None
    """Why that directory is not read now. It is seen again once it is."""
    is_direct: bool = False
    """Its producers wait for the object store: `unsent_bytes` counts all that is written."""
    chunk_bytes: int | None = None
    """What its topic says instead of `UploadLimits.chunk_bytes`."""
    interval_ms: int | None = None
    """What its topic says instead of `UploadLimits.interval_ms`. Direct segments have an interval of their own."""


@dataclass(frozen=True, slots=True)
class CommittedGrew:
    """min(HW, LSO) of the segment's shard moved; `unsent_bytes` counts from the segment's commit offset."""

    key: SegmentKey
    unsent_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentGone:
    """Deleted, complete, or no longer this node's: nothing more is to be done for it (F38)."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class RewriteRequested:
    """Committed parts in an object that should go: move them into a new one."""

    key: SegmentKey
    parts: tuple[RemotePart, ...]


@dataclass(frozen=True, slots=True)
class FlushRequested:
    """Send everything now, whatever its size and age."""


@dataclass(frozen=True, slots=True)
class LockGained:
    epoch: int


@dataclass(frozen=True, slots=True)
class LockLost:
    """Another holds the write lock: nothing may begin, what comes back is void (F6, F86)."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    pass


# How one piece of a task ended
@dataclass(frozen=True, slots=True)
class Moved:
    """Metadata now says this: because our commit succeeded, or because we lost the compare-and-set and read it again.
    `unsent_bytes` must be counted when this event is made, not when the commit was answered: data that came in between
    was reported already, and would be forgotten.
    """

    key: SegmentKey
    commit_offset: int
    parts: Sequence[RemotePart]
    unsent_bytes: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """Metadata says the segment is deleted, or complete."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class NothingThere:
    """No whole batch below min(HW, LSO) when it was read. `unsent_bytes` are those of now."""

    key: SegmentKey
    unsent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The source did not read: `is_final` when time cannot heal it (a digest that differs from the seal record's)."""

    key: SegmentKey
    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The first batch has `size_bytes`, more than the piece allows: nothing was read, ask for it with them."""

    key: SegmentKey
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Void:
    """It was put, but the range that it continues was not committed. So it cannot be either, and the meta service was
    not asked."""

    key: SegmentKey


PieceOutcome: TypeAlias = Moved | Gone | NothingThere | Unreadable | TooLarge | Void


class TaskFailure(StrEnum):
    """Why nothing can be said about the pieces of a task, but that they are not known to be committed."""

    DOUBTFUL = "doubtful"
    """The put may or may not have happened (lost answer, timeout, name taken): again at once, under a new name."""
    REFUSED = "refused"
    """The store says no (503, slow down, full, unreachable): back off."""
    META_AWAY = "meta_away"
    DIRECTORY_AWAY = "directory_away"
    """What reads the retired node's directory that has the data did not answer: back off, of what lies there."""
    FAULT = "fault"
    """A bug, which says nothing about store or service: these segments wait, all others continue."""
    LOCK_LOST = "lock_lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RangesCut:
    """The task has read its ranges, and puts them now: what a segment has beyond its range may be read for another
    task. `ends`: the segment, where its range ends, and the bytes of the batches in it."""

    task: int
    ends: tuple[tuple[SegmentKey, int, int], ...]


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """All that the store was asked for was done; the pieces' outcomes are in `outcomes`."""

    task: int
    outcomes: tuple[PieceOutcome, ...]


@dataclass(frozen=True, slots=True)
class TaskFailed:
    task: int
    failure: TaskFailure
    reason: str
    jitter: float
    """Random, in [0, 1)."""


UploaderEvent: TypeAlias = (
    SegmentSeen
    | CommittedGrew
    | SegmentGone
    | RewriteRequested
    | FlushRequested
    | LockGained
    | LockLost
    | TimePassed
    | RangesCut
    | TaskEnded
    | TaskFailed
)


# Effects --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one segment to put: new data from `base_offset` on, or committed parts to be moved.

    `replaces` empty: whole batches from `base_offset` on, which is the commit offset or the end of the range in flight
    before it, at most `max_bytes`, or `TooLarge`.
    Otherwise: exactly `[replaces[0].base_offset, replaces[-1].end_offset)`.
    """

    key: SegmentKey
    base_offset: int
    max_bytes: int
    replaces: tuple[RemotePart, ...] = ()


@dataclass(frozen=True, slots=True)
class SendChunk:
    task: int
    piece: Piece
    after: tuple[int, ...] = ()
    """Tasks whose ranges this one continues: it commits after they have ended. Only Direct segments have them."""


@dataclass(frozen=True, slots=True)
class SendBundle:
    task: int
    pieces: tuple[Piece, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Publish:
    """Write index and manifest, check them, complete the remote copy. `parts` are all of the segment's."""

    task: int
    key: SegmentKey
    parts: tuple[RemotePart, ...]


@dataclass(frozen=True, slots=True)
class CancelTask:
    """The segment of a chunk or a publication is gone."""

    task: int


@dataclass(frozen=True, slots=True)
class ReportStore:
    """The store (or the meta service, or a retired node's directory) went away or came back: one line for the log."""

    service: str
    is_away: bool
    reason: str
    away_ms: int


@dataclass(frozen=True, slots=True)
class ReportHeld:
    """A segment is not uploaded any further, for this reason: one line for the log."""

    key: SegmentKey
    reason: str
    is_final: bool


UploaderEffect: TypeAlias = SendChunk | SendBundle | Publish | CancelTask | ReportStore | ReportHeld
