"""Finds the fields of many records at once: where each record lies, its numbers, where its key, value and headers are.

Records follow each other by their sizes, so their starts are found one after another, in steps that take one record of
every batch at a time; everything else is read of all records together (docs/decisions/0022).
Requires: the batches were checked (header, CRC); what is inside is not trusted. Raises: Corrupt, never anything else.
Cost: about 0.2 us per record, whatever its size. Memory: some 100 bytes per record; a batch's `record_count` is
believed only as far as its bytes go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from stratalog.formats.batches.offered_batch import LEAST_RECORD_BYTES
from stratalog.formats.fields import Buffer
from stratalog.model.errors import Corrupt

Longs: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_MOST_VARINT_BYTES = 10
_FEW_BATCHES = 24
"""With fewer batches a step of all of them costs more than a step of each."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The records of some batches, decompressed, in one buffer: batch i lies at `[starts[i], ends[i])`."""

    data: Buffer
    starts: Longs
    ends: Longs
    counts: Longs
    last_offset_deltas: Longs
    source: str

    def refuse(self, batch: int, reason: str) -> NoReturn:
        raise Corrupt(f"batch {batch}: {reason}", source=self.source, position=int(self.starts[batch]))


@dataclass(frozen=True, slots=True)
class Frames:
    """One entry per record. A size of -1 is null. `headers_at` is behind the count of headers."""

    batch: Longs
    offset_delta: Longs
    timestamp_delta: Longs
    key_at: Longs
    key_size: Longs
    value_at: Longs
    value_size: Longs
    headers_at: Longs
    header_count: Longs
    end: Longs


def find_frames(bodies: Bodies) -> Frames:
    """Every record of every batch, in order. Raises: Corrupt for whatever does not fit."""
    data = np.frombuffer(bodies.data, np.uint8)
    too_many = np.flatnonzero((bodies.counts < 0) | (bodies.counts * LEAST_RECORD_BYTES > bodies.ends - bodies.starts))
    if too_many.size:
        first = int(too_many[0])
        room = int(bodies.ends[first] - bodies.starts[first])
        bodies.refuse(first, f"it claims {int(bodies.counts[first])} records in {room} bytes")
    batch: Longs = np.repeat(np.arange(bodies.counts.size, dtype=np.int64), bodies.counts)
    at, end = _record_ranges(bodies, data)
    reader = _Numbers(bodies, data, batch)
    at = at + 1  # attributes: no bit of them is used
    timestamp_delta, at = reader.read(at, end)
    offset_delta, at = reader.read(at, end)
    key_size, key_at = reader.read(at, end)
    at = reader.behind(key_at, key_size, end, "key")
    value_size, value_at = reader.read(at, end)
    at = reader.behind(value_at, value_size, end, "value")
    header_count, headers_at = reader.read(at, end)
    wrong = np.flatnonzero(
        (header_count < 0) | (header_count > (end - headers_at) // 2) | ((header_count == 0) & (headers_at != end))
    )
    if wrong.size:
        row = int(wrong[0])
        left = int(end[row] - headers_at[row])
        bodies.refuse(int(batch[row]), f"a record claims {int(header_count[row])} headers in its last {left} bytes")
    _check_offsets(bodies, batch, offset_delta)
    return Frames(
        batch, offset_delta, timestamp_delta, key_at, key_size, value_at, value_size, headers_at, header_count, end
    )


class _Numbers:
    """Reads the number at a place of each record."""

    __slots__ = ("_batch", "_bodies", "_data")

    def __init__(self, bodies: Bodies, data: Bytes, batch: Longs) -> None:
        self._bodies = bodies
        self._data = data
        self._batch = batch

    def read(self, at: Longs, end: Longs) -> tuple[Longs, Longs]:
        """The numbers, and the places behind them."""
        values, behind, long = read_varints(self._data, at)
        wrong = np.flatnonzero(long | (behind > end))
        if wrong.size:
            row = int(wrong[0])
            reason = "a number is longer than 64 bits" if long[row] else "a record is cut short"
            self._bodies.refuse(int(self._batch[row]), reason)
        return values, behind

    def behind(self, at: Longs, size: Longs, end: Longs, what: str) -> Longs:
        wrong = np.flatnonzero((size < -1) | (size > end - at))
        if wrong.size:
            row = int(wrong[0])
            left = int(end[row] - at[row])
            self._bodies.refuse(
                int(self._batch[row]), f"a record's {what} claims {int(size[row])} bytes, {left} are left"
            )
        return at + np.maximum(size, 0)


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs, npt.NDArray[np.bool_]]:
    """The zigzag number at each place, the place behind it, and whether it is longer than 64 bits. A number that runs
    past the end of the data has its place behind that end."""
    last = data.size - 1
    if last < 0:
        return np.zeros_like(at), at + 1, np.zeros(at.size, np.bool_)
    byte = data[np.minimum(at, last)]
    raw = (byte & 0x7F).astype(np.uint64)
    long = np.zeros(at.size, np.bool_)
    behind = at + 1
    rows = np.flatnonzero(byte >= 0x80)
    for number in range(1, _MOST_VARINT_BYTES):
        if not rows.size:
            break
        byte = data[np.minimum(behind[rows], last)]
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        behind[rows] += 1
        if number == _MOST_VARINT_BYTES - 1:
            long[rows[byte > 1]] = True
        rows = rows[byte >= 0x80]
    values = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
    return values, behind, long


# Where records lie --------------------------------------------------------------------------------------------------
def _record_ranges(bodies: Bodies, data: Bytes) -> tuple[Longs, Longs]:
    """Of each record: behind its size, and its end."""
    if bodies.counts.size < _FEW_BATCHES:
        return _one_by_one(bodies)
    firsts = np.concatenate(([0], np.cumsum(bodies.counts)))
    starts = np.empty(int(firsts[-1]), np.int64)
    ends = np.empty_like(starts)
    # Batches by falling count, so those that still have records are always the first ones.
    order = np.argsort(-bodies.counts, kind="stable")
    counts, limit, rows = bodies.counts[order], bodies.ends[order], firsts[:-1][order]
    at = bodies.starts[order].copy()
    living = np.searchsorted(-counts, -np.arange(1, (int(counts[0]) if counts.size else 0) + 1), side="right")
    for step, count in enumerate(living.tolist()):
        if count < _FEW_BATCHES:
            _finish(bodies, order[:count], at, step, rows, starts, ends)
            break
        size, body, long = read_varints(data, at[:count])
        end = body + size
        wrong = np.flatnonzero(long | (size < LEAST_RECORD_BYTES - 1) | (size > limit[:count] - body))
        if wrong.size:
            row = int(wrong[0])
            _refuse_size(bodies, int(order[row]), step, int(size[row]), int(limit[row] - body[row]))
        starts[rows[:count] + step] = body
        ends[rows[:count] + step] = end
        at[:count] = end
    last = np.where(bodies.counts > 0, ends[np.maximum(firsts[1:] - 1, 0)] if ends.size else 0, bodies.starts)
    wrong = np.flatnonzero(last != bodies.ends)
    if wrong.size:
        batch = int(wrong[0])
        bodies.refuse(batch, f"{int(bodies.ends[batch] - last[batch])} bytes are left after the last record")
    return starts, ends


def _finish(bodies: Bodies, batches: Longs, at: Longs, step: int, rows: Longs, starts: Longs, ends: Longs) -> None:
    """The last records of the few batches that have the most."""
    for number, batch in enumerate(batches.tolist()):
        found = _walk(bodies, batch, int(at[number]), int(bodies.counts[batch]) - step, step)
        row = int(rows[number]) + step
        starts[row : row + len(found[0])] = found[0]
        ends[row : row + len(found[1])] = found[1]


def _one_by_one(bodies: Bodies) -> tuple[Longs, Longs]:
    starts: list[int] = []
    ends: list[int] = []
    for batch, (at, end, count) in enumerate(
        zip(bodies.starts.tolist(), bodies.ends.tolist(), bodies.counts.tolist(), strict=True)
    ):
        found = _walk(bodies, batch, at, count, 0)
        starts += found[0]
        ends += found[1]
        last = found[1][-1] if count else at
        if last != end:
            bodies.refuse(batch, f"{end - last} bytes are left after the last record")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _walk(bodies: Bodies, batch: int, at: int, count: int, first: int) -> tuple[list[int], list[int]]:
    """One step per record: a size of one or two bytes is read in place."""
    data, limit = bodies.data, int(bodies.ends[batch])
    starts: list[int] = []
    ends: list[int] = []
    try:
        for number in range(count):
            size = data[at]
            at += 1
            if size >= 0x80:
                shift = 7
                size &= 0x7F
                while (byte := data[at]) >= 0x80 and shift < 63:
                    size |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                size |= byte << shift
                at += 1
            end = at + (size >> 1)
            if size & 1 or size < 2 * (LEAST_RECORD_BYTES - 1) or end > limit:
                _refuse_size(bodies, batch, first + number, (size >> 1) ^ -(size & 1), limit - at)
            starts.append(at)
            ends.append(end)
            at = end
    except IndexError:
        bodies.refuse(batch, "a record is cut short")
    return starts, ends


def _refuse_size(bodies: Bodies, batch: int, record: int, size: int, left: int) -> NoReturn:
    bodies.refuse(batch, f"record {record} claims {size} bytes, {left} are left")


def _check_offsets(bodies: Bodies, batch: Longs, delta: Longs) -> None:
    """They rise within a batch, from 0 to the last one that its header names at most."""
    if not delta.size:
        return
    is_first = np.concatenate(([True], batch[1:] != batch[:-1]))
    before = np.where(is_first, -1, np.concatenate(([-1], delta[:-1])))
    wrong = np.flatnonzero((delta <= before) | (delta > bodies.last_offset_deltas[batch]))
    if wrong.size:
        row = int(wrong[0])
        last = int(bodies.last_offset_deltas[batch[row]])
        bodies.refuse(
            int(batch[row]), f"a record has offset delta {int(delta[row])} after {int(before[row])}, last is {last}"
        )
