"""Sparse index points: built while a log is appended to, searched by offset and by time (docs/formats.md section 5).

A point marks the first batch that begins INDEX_INTERVAL_BYTES or more after the point before; it holds the batch's
offset, its position (from the first batch) and the highest time of all batches *before* it.
Invariant: offsets and positions rise strictly, timestamps never fall. So a search by time is exact although the times
in a log rise and fall, if the times are those of the records (`has_true_times`). Where they are only what clients wrote
into headers, a search by time begins at the start.
Cost: 24 bytes per point, nothing per builder but the object itself until the first 64 KiB (10,000 idle shards have one
each); `append` about 0.15 us, a search about 1 us.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from operator import le, lt
from typing import NamedTuple

from stratalog.formats.batches.record_batch import first_timestamp_ms
from stratalog.formats.batches.record_times import BatchTimes, Opened, times_of
from stratalog.formats.fields import NO_TIMESTAMP_MS, Buffer, FieldReader, FieldWriter
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import TimesKnown

INDEX_INTERVAL_BYTES = 65_536
POINT_BYTES = 24

_FIELDS = 3
_NONE = array("q")
"""Shared by all builders without a point; never changed."""


class IndexPoint(NamedTuple):
    offset: int
    position: int
    max_timestamp_ms: int
    """Highest timestamp before this point; -1 when there is none."""


class IndexPoints:
    """Points in order, searchable. Immutable to its users; `IndexBuilder` is the one that grows."""

    __slots__ = ("_flat", "has_true_times")

    def __init__(self, points: Iterable[IndexPoint] = (), *, has_true_times: bool = False) -> None:
        """`has_true_times`: the times were taken from the records, not from the headers of batches."""
        self.has_true_times = has_true_times
        self._flat = array("q", [number for point in points for number in point]) or _NONE
        fault = self._order_fault()
        if fault is not None:
            raise InvalidRequest(fault[1])

    def __len__(self) -> int:
        return len(self._flat) // _FIELDS

    def __getitem__(self, index: int) -> IndexPoint:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return IndexPoint(*self._flat[index * _FIELDS : index * _FIELDS + _FIELDS])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexPoints) and self._flat == other._flat

    def __hash__(self) -> int:
        return hash(self._flat.tobytes())

    def __repr__(self) -> str:
        return f"IndexPoints({len(self)})"

    def before_offset(self, offset: int) -> int:
        """Which point is the last with an offset at or below `offset`; -1 is the start of the batches."""
        return bisect_right(memoryview(self._flat)[0::_FIELDS], offset) - 1

    def before_time(self, timestamp_ms: int) -> int:
        """The last point with only older batches before it. -1 is the start of the batches, also if the records' times
        are not known."""
        if not self.has_true_times:
            return -1
        return bisect_left(memoryview(self._flat)[2::_FIELDS], timestamp_ms) - 1

    def before_position(self, position: int) -> int:
        """The last point at or below `position`; -1 is the start of the batches."""
        return bisect_right(memoryview(self._flat)[1::_FIELDS], position) - 1

    def has_places_of(self, other: IndexPoints) -> bool:
        """Whether its points are at the same places, whatever their times."""
        return all(self._flat[field::_FIELDS] == other._flat[field::_FIELDS] for field in (0, 1))

    def position(self, index: int) -> int | None:
        """Where point `index` is: 0 for -1, None past the last."""
        if index < 0:
            return 0
        at = index * _FIELDS + 1
        return self._flat[at] if at < len(self._flat) else None

    def write(self, out: FieldWriter) -> None:
        flat = self._flat
        out.natural(len(flat) // _FIELDS, "point count")
        out.raw(struct.pack(f">{len(flat)}q", *flat))

    @classmethod
    def read(cls, fields: FieldReader, *, has_true_times: bool) -> IndexPoints:
        """Raises: Corrupt when there are fewer than claimed or the invariant does not hold."""
        count = fields.count("point count", POINT_BYTES)
        points = cls(has_true_times=has_true_times)
        if count == 0:
            return points
        flat = array("q", struct.unpack(f">{count * _FIELDS}q", fields.read_bytes(count * POINT_BYTES, "points")))
        points._flat = flat
        fault = points._order_fault()
        if fault is not None:
            fields.refuse(fault[1], back=(count - fault[0]) * POINT_BYTES)
        return points

    def _order_fault(self) -> tuple[int, str] | None:
        """The first point that does not follow the one before, and what to say; None when all do."""
        if self._is_in_order():
            return None
        before = IndexPoint(0, 0, NO_TIMESTAMP_MS)
        for index in range(len(self)):
            point = self[index]
            if (
                point.offset <= before.offset
                or point.position <= before.position
                or point.max_timestamp_ms < before.max_timestamp_ms
            ):
                return index, f"point {index} {tuple(point)} does not follow {tuple(before)}"
            before = point
        return None

    def _is_in_order(self) -> bool:
        """Whether `_order_fault` finds nothing: about 0.1 us a point, with no step of Python for it."""
        offsets, positions, times = (self._flat[field::_FIELDS] for field in range(_FIELDS))
        return not offsets or (
            min(offsets[0], positions[0]) > 0
            and times[0] >= NO_TIMESTAMP_MS
            and all(map(lt, offsets, offsets[1:]))
            and all(map(lt, positions, positions[1:]))
            and all(map(le, times, times[1:]))
        )

    def fault_within(self, base_offset: int, end_offset: int, size_bytes: int, max_timestamp_ms: int) -> str | None:
        """What is wrong when these are the points of a log of that extent; None when they fit."""
        if not self._flat:
            return None
        first, last = self[0], self[len(self) - 1]
        if first.offset <= base_offset or last.offset >= end_offset or last.position >= size_bytes:
            return (
                f"points reach from {tuple(first)} to {tuple(last)}, outside offsets {base_offset} to {end_offset} "
                f"and {size_bytes} bytes"
            )
        if last.max_timestamp_ms > max_timestamp_ms:
            return f"a point names time {last.max_timestamp_ms}, the log ends at {max_timestamp_ms}"
        return None


class IndexBuilder(IndexPoints):
    """The index of a log that is being written, and the times it has seen.

    `size_bytes` says where the log ends; `first_timestamp_ms` and `max_timestamp_ms` are -1 while it is empty. With
    true times `first_timestamp_ms` is the lowest of all, and `unopened` counts the batches that could not be opened;
    else it is what the first header says. One thread appends; others may search meanwhile.
    """

    __slots__ = ("base_offset", "first_timestamp_ms", "max_timestamp_ms", "next_point_at", "size_bytes", "unopened")

    def __init__(self, base_offset: int, *, has_true_times: bool = False) -> None:
        super().__init__(has_true_times=has_true_times)
        self.unopened = 0
        self.base_offset = base_offset
        self.size_bytes = 0
        self.first_timestamp_ms = NO_TIMESTAMP_MS
        self.max_timestamp_ms = NO_TIMESTAMP_MS
        self.next_point_at = INDEX_INTERVAL_BYTES

    def append(self, base_offset: int, size_bytes: int, first_timestamp_ms: int, max_timestamp_ms: int) -> None:
        """Take in the next batch, or the next few as one: their first offset, whole size, first and highest time."""
        at = self.size_bytes
        if at >= self.next_point_at:
            self._add(base_offset, at)
        if at == 0 or self.has_true_times:
            self._note_lowest(first_timestamp_ms)
        self.size_bytes = at + size_bytes
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms

    def append_opened(self, base_offset: int, size_bytes: int, times: BatchTimes) -> None:
        """Take in the next batch, whose records were looked at."""
        self.append(base_offset, size_bytes, times.lowest_ms, times.highest_ms)
        if times.opened is not Opened.ALL:
            self.unopened += 1

    def append_batch(self, header: BatchHeader, batch: Buffer) -> None:
        """Take in the next batch, checked: by its records with true times, else by its header."""
        if self.has_true_times:
            self.append_opened(header.base_offset, header.size_bytes, times_of(batch, header))
        else:
            first_ms = first_timestamp_ms(header)
            self.append(header.base_offset, header.size_bytes, first_ms, header.max_timestamp_ms)

    @property
    def times_known(self) -> TimesKnown:
        """How far the times of what was taken in are those of its records."""
        if not self.has_true_times:
            return TimesKnown.CLAIMED
        return TimesKnown.PARTLY if self.unopened else TimesKnown.ALL

    def _note_lowest(self, timestamp_ms: int) -> None:
        if self.first_timestamp_ms < 0 or 0 <= timestamp_ms < self.first_timestamp_ms:
            self.first_timestamp_ms = timestamp_ms

    def _add(self, offset: int, position: int) -> None:
        if self._flat is _NONE:
            self._flat = array("q")
        point = (offset, position, self.max_timestamp_ms)
        try:
            self._flat.extend(point)
        except BufferError:
            # Another thread is searching it just now, and an array cannot grow while there is a view of it.
            self._flat = self._flat + array("q", point)
        self.next_point_at = position + INDEX_INTERVAL_BYTES

    def append_all(
        self,
        base_offset: int,
        points: IndexPoints,
        size_bytes: int,
        first_timestamp_ms: int,
        max_timestamp_ms: int,
        times_known: TimesKnown,
    ) -> None:
        """Take in a run of batches that has points of its own, positions counted from its start: as if each stretch
        from one point to the next were appended. With a run whose times are only claimed the times of all of them are.
        No other thread searches meanwhile. About 0.2 us per point."""
        if times_known is TimesKnown.CLAIMED:
            self.has_true_times = False
        elif times_known is TimesKnown.PARTLY:
            self.unopened += 1
        begin, newest = self.size_bytes, self.max_timestamp_ms
        flat = points._flat
        # Its points keep their distance from its start and from one another, so each of them is one here as well.
        self.append(base_offset, flat[1] if flat else size_bytes, first_timestamp_ms, max_timestamp_ms)
        if not flat:
            return
        moved = flat[:]
        moved[1::_FIELDS] = array("q", map(begin.__add__, flat[1::_FIELDS]))
        if flat[2] < newest:
            moved[2::_FIELDS] = array("q", map(partial(max, newest), flat[2::_FIELDS]))
        if self._flat is _NONE:
            self._flat = moved
        else:
            self._flat.extend(moved)
        self.next_point_at = moved[-2] + INDEX_INTERVAL_BYTES
        self.size_bytes = begin + size_bytes

    @classmethod
    def resume(
        cls, base_offset: int, points: IndexPoints, size_bytes: int, first_timestamp_ms: int, max_timestamp_ms: int
    ) -> IndexBuilder:
        """Go on where a checkpoint stands."""
        builder = cls(base_offset, has_true_times=points.has_true_times)
        if len(points):
            last = points[len(points) - 1]
            if last.position >= size_bytes:
                raise InvalidRequest(f"a point is at {last.position}, the log ends at {size_bytes}")
            builder._flat = points._flat[:]
            builder.next_point_at = last.position + INDEX_INTERVAL_BYTES
        builder.size_bytes = size_bytes
        builder.first_timestamp_ms = first_timestamp_ms
        builder.max_timestamp_ms = max_timestamp_ms
        return builder

    def freeze(self) -> IndexPoints:
        """The points so far; later appends do not show."""
        frozen = IndexPoints(has_true_times=self.has_true_times)
        if self._flat:
            frozen._flat = self._flat[:]
        return frozen

    def position_for_offset(self, offset: int) -> tuple[int, int]:
        """Scan `[position, next position)` for the batch that contains `offset`."""
        return scan_range(self, self.before_offset(offset), self.size_bytes)

    def position_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Where to scan for the first batch with a record of `timestamp_ms` or later; None when there is none."""
        if not self.size_bytes or (self.has_true_times and timestamp_ms > self.max_timestamp_ms):
            return None
        return scan_range(self, self.before_time(timestamp_ms), self.size_bytes)


def scan_range(points: IndexPoints, index: int, size_bytes: int) -> tuple[int, int]:
    """From where to where to scan when a search gave point `index`."""
    start = points.position(index)
    end = points.position(index + 1)
    assert start is not None
    return start, size_bytes if end is None else end
