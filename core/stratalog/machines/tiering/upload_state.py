"""What the uploader knows of one unfinished segment, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratalog.machines.tiering.upload_directories import Place
from stratalog.machines.tiering.upload_duty import MountOf, uploader_of
from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, RemoteState, Segment, SegmentState


def uploads(segment: Segment, node_id: int, is_alive: Callable[[int], bool], mount_of: MountOf) -> bool:
    """Whether it is this node that uploads what is left of the segment."""
    if segment.state is SegmentState.DELETED or segment.remote.state is RemoteState.COMPLETE:
        return False
    return uploader_of(segment, is_alive, mount_of) == node_id


_MOST_FLIGHTS = 4
"""Ranges of a Direct segment that may be on their way at a time."""


@dataclass(slots=True)
class Flight:
    """A range of a segment that is on its way to the store."""

    task: int
    base_offset: int
    end_offset: int | None
    """Of new data; None until it was read."""
    is_move: bool
    since_ms: int | None
    """When its oldest byte was first noticed."""
    waited_bytes: int
    """What waited when it began."""
    size_bytes: int = 0

    def is_committed_by(self, commit_offset: int) -> bool:
        """Also where its end was not told, if the commit offset has moved."""
        if self.end_offset is None:
            return commit_offset > self.base_offset
        return commit_offset >= self.end_offset


class SegmentUpload:
    """One unfinished segment. Changed by the uploader only."""

    __slots__ = (
        "chunk_bytes",
        "commit_offset",
        "empty_reads",
        "end_offset",
        "first_batch_bytes",
        "flights",
        "gathered_bytes",
        "has_local",
        "held_reason",
        "held_until_ms",
        "holds",
        "interval_ms",
        "is_broken",
        "is_cut",
        "is_direct",
        "is_missing",
        "is_sealed",
        "is_suspect",
        "is_urgent",
        "key",
        "later_since_ms",
        "parts",
        "place",
        "queue",
        "reported_reason",
        "rewrites",
        "sent_bytes",
        "unsent_bytes",
        "waiting_since_ms",
    )

    def __init__(self, key: SegmentKey, limits: UploadLimits) -> None:
        self.key = key
        self.chunk_bytes = limits.chunk_bytes
        """With this much not yet uploaded it sends a chunk of its own."""
        self.interval_ms = limits.interval_ms
        """Longest time that smaller data wait for other segments."""
        self.gathered_bytes = 0
        """What came while its last piece was on its way: its rate times the time that an upload takes."""
        self.is_direct = False
        """Its producers wait for the object store."""
        self.is_sealed = False
        self.end_offset: int | None = None
        self.commit_offset = key.base_offset
        self.parts: Sequence[RemotePart] = ()
        self.has_local = False
        self.unsent_bytes = 0
        """From the commit offset on, so what is in flight counts."""
        self.waiting_since_ms: int | None = None
        """When the oldest unsent byte was first noticed."""
        self.later_since_ms: int | None = None
        """The same of what came after the range in flight was cut."""
        self.sent_bytes = 0
        self.is_cut = False
        """The range in flight leaves some of what waited before it."""
        self.is_suspect = False
        """A task that it was part of ended by a fault: it shares no bundle until it was sent."""
        self.is_urgent = False
        self.is_missing = False
        """It is held because its copy should be here and is not, or cannot be read now: until it is seen again."""
        self.place: Place | None = None
        """In which retired nodes' directories new data of it are read; None: in the local copy."""
        self.empty_reads = 0
        self.first_batch_bytes = 0
        """Of the next batch, if it is larger than a piece: it must have room for all of it."""
        self.flights: list[Flight] = []
        """In the order in which they commit. More than one only of a Direct segment."""
        self.is_broken = False
        """Ranges of new data in flight cannot be committed: one before them was not, or the write lock was lost. None
        begins until they are back."""
        self.queue: dict[SegmentKey, None] | None = None
        self.rewrites: tuple[RemotePart, ...] = ()
        self.reported_reason: str | None = None
        """The last message in the log, so that lasting trouble is one line."""
        self.held_reason: str | None = None
        self.held_until_ms: int | None = None
        """None while `held_reason` is set: for good."""
        self.holds = 0
        """Number of pauses since it was read last."""

    @property
    def is_busy(self) -> bool:
        """Whether nothing more of it may begin."""
        if not self.flights:
            return False
        if not self.is_direct or self.is_broken or len(self.flights) >= _MOST_FLIGHTS:
            return True
        last = self.last_append
        return last is not None and last.end_offset is None

    @property
    def last_append(self) -> Flight | None:
        """The last range in flight that is not of parts being moved."""
        return next((flight for flight in reversed(self.flights) if not flight.is_move), None)

    @property
    def is_moving(self) -> bool:
        """Whether some of its parts are being moved."""
        return any(flight.is_move for flight in self.flights)

    @property
    def next_offset(self) -> int:
        """Where the next range begins."""
        if (last := self.last_append) is None:
            return self.commit_offset
        assert last.end_offset is not None
        return last.end_offset

    @property
    def waiting_bytes(self) -> int:
        """Unsent and in no range that was read."""
        if not self.flights:
            return self.unsent_bytes
        return max(0, self.unsent_bytes - sum(flight.size_bytes for flight in self.flights))

    @property
    def is_wholly_committed(self) -> bool:
        return self.is_sealed and self.end_offset is not None and self.commit_offset >= self.end_offset


@dataclass(frozen=True, slots=True)
class UploaderStatus:
    """Plain numbers for status and metrics."""

    segments: int
    unsent_segments: int
    unsent_bytes: int
    mounted_unsent_bytes: int
    """Of them those that lie in retired nodes' directories, and not on this node's disk."""
    oldest_unsent_ms: int
    """Age of the oldest committed byte that is not in the store; 0 when there is none."""
    tasks: int
    bytes_in_flight: int
    to_publish: int
    held: tuple[tuple[SegmentKey, str], ...]
    store_away_ms: int
    meta_away_ms: int
    window: int
    lock_epoch: int | None
    directory_trouble: str | None = None
    """Why a retired node's directory that has unsent data gave no answer."""
