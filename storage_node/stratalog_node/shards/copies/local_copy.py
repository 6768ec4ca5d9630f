"""A segment's local copy: its file, its sparse points, and how to find and read a range of it.

Positions count from the first batch. Reads come in two kinds with one code: `read` functions that take from the page
cache and raise `NotCached` (event loop), and blocking ones (disk threads).
Cost: a sequential reader's hint gives the position without a scan; else one lookup and at most one index interval of
headers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from stratalog.formats.batches.batch_scan import scan_batches
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.model.batch import BATCH_HEADER_BYTES, BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.segment_scan import WINDOW_BYTES
from stratalog_node.disk.yielding_gil import yielding_gil

ReadBytes = Callable[[int, int], "bytes | memoryview"]
"""(position, size) -> at most that many bytes, fewer only at the end of the batches."""

_HINTS = 64
_PARSE_NS = 500
_HEADER_VIEW = memoryview(bytearray(BATCH_HEADER_BYTES))
_MOST_RANGES = 64
"""Ranges that are remembered of one copy. Above that the shortest is dropped, and the next read of it checks it
again."""


class CheckedRanges:
    """Which bytes of a local copy this process has checked since it started. Only these are served from the page cache
    without another check: readahead or another process may have put the others there straight from the disk.

    Cost: one comparison for a segment that this process writes or seals, which is checked from some position on; else a
    search among at most `_MOST_RANGES` ranges, which merge as a reader proceeds.

    Positions count from the first batch. Lives on the event loop.
    """

    __slots__ = ("_ends", "_starts", "all_from")

    def __init__(self, all_from: int) -> None:
        self.all_from = all_from
        """From here on everything is checked, also what is still to be written."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Ends of the ranges below `all_from`, ascending; the ranges neither overlap nor touch."""

    def covers(self, start: int, end: int) -> bool:
        if start >= self.all_from:
            return True
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and end <= self._ends[place]

    def add(self, start: int, end: int) -> None:
        if start >= self.all_from:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        if end >= self.all_from:
            self.all_from = start
            del self._starts[first:], self._ends[first:]
            return
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > _MOST_RANGES:
            shortest = min(range(len(self._starts)), key=lambda place: self._ends[place] - self._starts[place])
            del self._starts[shortest], self._ends[shortest]


class NotCached(Exception):
    """The bytes are not in the page cache: ask again on a disk thread."""


class NotChecked(NotCached):
    """The bytes are in the page cache, but this process has not checked them since it started: read them again on a
    disk thread."""


class Extent(NamedTuple):
    """Whole batches at `[position, end_position)`; the first one contains the offset asked for."""

    position: int
    base_offset: int
    """First offset in it: what the index and the batches before it say, not the batch itself."""
    end_position: int
    next_offset: int
    """First offset after the extent."""

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


class LocalCopy:
    """One segment's bytes on this node's disk."""

    __slots__ = ("_hints", "checked", "damage", "file", "is_unreadable", "key", "points")

    def __init__(self, key: SegmentKey, file: SegmentFile, points: IndexPoints | None, *, checked_from: int) -> None:
        """`checked_from`: the position from which on this life has written or checked the batches."""
        self.key = key
        self.file = file
        self.points = points
        """None if they are not in memory now. Fetch them once per read: a sealed copy's may be dropped between two
        accesses."""
        self.checked = CheckedRanges(checked_from)
        self.damage: str | None = None
        """What a read or a flush found wrong. From then on every read of this copy is checked, whatever was before."""
        self.is_unreadable = False
        """The disk did not give it when it was last asked, which says nothing about the bytes."""
        self._hints: dict[int, int] = {}
        """Offset of a batch to its position, for readers that will be back."""

    @property
    def size_bytes(self) -> int:
        """Bytes of batches."""
        return self.file.size_bytes - SEGMENT_HEADER_BYTES

    def remember(self, offset: int, position: int) -> None:
        """A reader stopped at this batch boundary and will be back. On the event loop: two threads that make room for
        their hints at the same time would trip over each other."""
        hints = self._hints
        if offset not in hints:
            if len(hints) >= _HINTS:
                del hints[next(iter(hints))]
            hints[offset] = position

    def hinted(self, offset: int) -> int:
        """The position of the batch that begins at `offset`, or -1."""
        return self._hints.get(offset, -1)

    def find(
        self, points: IndexPoints, offset: int, max_bytes: int, end_position: int, end_offset: int, read: ReadBytes
    ) -> Extent:
        """Batches from the one that contains `offset`, at least one whole, else at most `max_bytes`, all of them below
        `end_position` (where `end_offset` begins). Raises: NotCached, Corrupt."""
        position, base_offset = self.hinted(offset), offset
        if position < 0 or position >= end_position:
            position, base_offset = self._scan_to(points, offset, end_position, read)
        want = position + max_bytes
        if want >= end_position:
            return Extent(position, base_offset, end_position, end_offset)
        at = points.before_position(want)
        if at >= 0:
            point = points[at]
            if point.position > position:
                return Extent(position, base_offset, point.position, point.offset)
        return self._scan_within(position, base_offset, want, end_position, read)

    def _scan_to(self, points: IndexPoints, offset: int, end_position: int, read: ReadBytes) -> tuple[int, int]:
        """Position and base offset of the batch that contains `offset`."""
        at = points.before_offset(offset)
        position, base_offset = 0, self.key.base_offset
        if at >= 0:
            point = points[at]
            position, base_offset = point.position, point.offset
            if base_offset == offset and position < end_position:
                return position, base_offset
        while position < end_position:
            header = self._header_at(position, read)
            if base_offset != header.base_offset:
                where = SEGMENT_HEADER_BYTES + position
                reason = f"batch at offset {header.base_offset} where {base_offset} should follow"
                raise Corrupt(reason, source=str(self.file.path), position=where)
            if header.end_offset > offset:
                return position, base_offset
            position, base_offset = position + header.size_bytes, header.end_offset
        raise Corrupt(
            f"offset {offset} is not below byte {end_position}", source=str(self.file.path), position=position
        )

    def _scan_within(self, position: int, base_offset: int, want: int, end_position: int, read: ReadBytes) -> Extent:
        first = self._header_at(position, read)
        end, next_offset = position + first.size_bytes, first.end_offset
        while end < end_position:
            header = self._header_at(end, read)
            if end + header.size_bytes > want:
                break
            end += header.size_bytes
            next_offset = header.end_offset
        return Extent(position, base_offset, end, next_offset)

    def _header_at(self, position: int, read: ReadBytes) -> BatchHeader:
        data = read(position, BATCH_HEADER_BYTES)
        header = parse_header(data) if len(data) >= BATCH_HEADER_BYTES else None
        if header is None or header.size_bytes < BATCH_HEADER_BYTES:
            raise Corrupt("no batch header here", source=str(self.file.path), position=SEGMENT_HEADER_BYTES + position)
        return header

    def header_at(self, position: int) -> BatchHeader:
        """Blocking: the header of the batch at a position."""
        return self._header_at(position, self.read_blocking)

    # The two kinds of reading -----------------------------------------------------------------------------------
    def read_header_cached(self, position: int, size_bytes: int) -> bytes | memoryview:
        """What it gives is good until the next call: on the event loop a header is parsed before the next is read."""
        view = _HEADER_VIEW[:size_bytes]
        if self.file.read_cached(view, SEGMENT_HEADER_BYTES + position) < size_bytes:
            raise NotCached
        return view

    def read_blocking(self, position: int, size_bytes: int) -> bytes:
        return self.file.read(SEGMENT_HEADER_BYTES + position, size_bytes)

    def read_into(self, buffer: memoryview, position: int) -> None:
        self.file.read_into(buffer, SEGMENT_HEADER_BYTES + position)

    def window_reader(self) -> ReadBytes:
        """As `read_blocking`, for one thread: what it gives is good until the next call."""
        memory = memoryview(bytearray(WINDOW_BYTES))

        def read(position: int, size_bytes: int) -> bytes | memoryview:
            if size_bytes > len(memory):
                return self.read_blocking(position, size_bytes)
            window = memory[:size_bytes]
            self.read_into(window, position)
            return window

        return read

    def read_verified(self, extent: Extent) -> bytes:
        """Blocking. What comes off the disk is checked before it is returned (F73). Raises: Corrupt."""
        data = self.read_blocking(extent.position, extent.size_bytes)
        self._check(data, extent)
        return data

    def checked_headers(self, data: bytes | memoryview, extent: Extent) -> Iterator[BatchHeader]:
        """Blocking. The extent's batches, all of them checked before the first is given. Raises: Corrupt."""
        for position in yielding_gil(self._check(data, extent), item_ns=_PARSE_NS):
            yield parse_header(data, position)

    def _check(self, data: bytes | memoryview, extent: Extent) -> Sequence[int]:
        """Checks each batch, and that offsets are contiguous, because the CRC does not cover base offsets.

        Returns: where each batch begins. Raises: Corrupt.
        """
        source, position = str(self.file.path), SEGMENT_HEADER_BYTES + extent.position
        found = scan_batches(
            data, base_offset=extent.base_offset, epoch=self.key.epoch, source=source, position=position
        )
        if found.end_offset != extent.next_offset:
            reason = f"batches end at offset {found.end_offset} and should end at {extent.next_offset}"
            raise Corrupt(reason, source=source, position=position + extent.size_bytes)
        return found.positions[:-1]

    def was_checked(self, extent: Extent) -> None:
        """As a whole, and without a finding. On the event loop, as `remember`."""
        self.checked.add(extent.position, extent.end_position)
        self.remember(extent.next_offset, extent.end_position)


def doubt_copy(copies: Iterable[LocalCopy | None], epoch: int, reason: str) -> None:
    """Mark the copy of this epoch as unchecked: the kernel may have dropped what it could not write."""
    for copy in copies:
        if copy is not None and copy.key.epoch == epoch:
            copy.damage = reason
