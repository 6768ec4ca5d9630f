"""What the shards offer to the rest of the node: the tier, the groups and the request handlers.

Threads: everything here is called on the node's event loop; what reads files does so on the disk threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from stratalog.formats.batches.record_times import BatchTimes
from stratalog.model.batch import BatchHeader
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic

TakeBuffer: TypeAlias = Callable[[int], memoryview]
"""Returns a buffer of the given size in bytes; called on a disk thread."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole record batches, contiguous by offset, as they are in the segment file, CRC already checked.

    `headers` has one entry per batch; `data` is all of them back to back.
    """

    base_offset: int
    end_offset: int
    data: bytes | memoryview
    headers: tuple[BatchHeader, ...]
    needed_bytes: int = 0
    """Set instead of data: the size of the first batch, which is more than the caller allowed."""
    times: Sequence[BatchTimes] | None = None
    """Times of the records of each batch, if the batches were opened."""


class NewestRecord(NamedTuple):
    """How far the active segment was read, which was its end, and the time of its newest record; the time of the last
    write if a record has no time or cannot be read."""

    end_offset: int
    timestamp_ms: int


class ShardView(Protocol):
    """One shard on this node."""

    key: ShardKey
    topic: Topic

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments that are not DELETED, oldest first."""
        ...

    def has_local(self, segment: SegmentKey) -> bool: ...

    @property
    def missing(self) -> Collection[SegmentKey]:
        """Sealed segments whose file should be on this disk, and is not: `machines.restart.missing_copy` judges what
        that means."""
        ...

    def size_below_high_watermark(self, segment: SegmentKey, from_offset: int) -> int:
        """Bytes of a local segment at and above an offset that may be uploaded (exact for a batch boundary): those of
        committed batches, and of a Direct segment of all."""
        ...

    def upload_limit(self, segment: SegmentKey) -> int:
        """What lies above this offset stays here: min(HW, LSO), or the end of a Direct segment that is written."""
        ...

    async def read_committed_range(
        self,
        segment: SegmentKey,
        from_offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        take_buffer: TakeBuffer | None = None,
    ) -> LogRange:
        """Batches of one local segment from a batch boundary on, below `upload_limit`; the first one even when it is
        larger than `max_bytes`, or only its size if not `at_least_one`. Empty when there is none. Verifies every CRC.
        With `take_buffer`, as for an upload, they are read into what it gives, and opened for the times of their
        records. Raises Corrupt, NotFound."""
        ...

    def may_active_be_before(self, timestamp_ms: int) -> bool:
        """Whether the newest record of the active segment may be older. False if there is no active segment, or it is
        too young to be worth a precise check."""
        ...

    async def newest_in_active(self, before_ms: int) -> NewestRecord | None:
        """The newest record of the active segment, if it is older than `before_ms` and all of the segment is committed.
        Nothing was appended by the time this returns. Raises Corrupt, NotFound, Unavailable."""
        ...

    def ask_roll(self, now_ms: int) -> bool:
        """End the active segment soon or at once; False when it is empty."""
        ...

    async def append(self, batches: Sequence[bytes]) -> int:
        """Append batches built by the node itself (group offsets); returns the first one's base offset when the HW has
        passed them all. Raises Unavailable, DiskFull, Fenced."""
        ...

    async def make_durable(self) -> None:
        """Returns once all that is in the log now is on the disk. Raises FlushLost, NotFound, Unavailable."""
        ...

    async def read(self, offset: int, max_bytes: int) -> list[bytes | memoryview]:
        """Whole batches from the one that contains `offset`, below HW; local or cold."""
        ...


class Shards(Protocol):
    """All shards of this node. `shards/copies/events.py` reports what happens to them."""

    def get(self, key: ShardKey) -> ShardView | None: ...

    def all(self) -> Iterable[ShardView]: ...


class LocalCopies(Protocol):
    """The files of local copies."""

    async def look_for_missing(self, key: ShardKey) -> None:
        """Look whether files that were missing are there again; then they are copies as before."""
        ...

    async def free_local(self, shard: ShardView | None, segment: SegmentKey) -> None:
        """Delete the local copy (after meta agreed): waits for readers, truncates in steps off the loop."""
        ...
