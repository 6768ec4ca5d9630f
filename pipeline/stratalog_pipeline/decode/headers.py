"""The headers of many records as one Arrow column: read one header of every record at a time.

Most records have none or few. A record with more than a few is read by itself, so that one with a million headers
costs what its bytes cost, and not a million steps over all. Names that are no UTF-8 are shown with what could be read
of them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from stratalog.formats.batches.record_frames import Bodies, Bytes, Frames, Longs, read_varints
from stratalog_pipeline.decode.pieces import cut_out

_STEPS = 16
"""Records with more headers are read one by one."""


def header_column(bodies: Bodies, frames: Frames, header_type: pa.DataType) -> pa.Array:
    """A list of name and value per record. Raises: Corrupt."""
    firsts = np.concatenate(([0], np.cumsum(frames.header_count)))
    total = int(firsts[-1])
    if not total:
        empty = pa.array([], header_type)
        return pa.ListArray.from_arrays(pa.array(np.zeros(firsts.size, np.int32)), empty)
    places = np.empty((total, 4), np.int64)
    data = np.frombuffer(bodies.data, np.uint8)
    few = np.flatnonzero((frames.header_count > 0) & (frames.header_count <= _STEPS))
    _read_together(bodies, frames, data, few, firsts, places)
    for row in np.flatnonzero(frames.header_count > _STEPS).tolist():
        _read_alone(bodies, frames, row, int(firsts[row]), places)
    names = cut_out(bodies.data, places[:, 0], places[:, 1])
    values = cut_out(bodies.data, places[:, 2], places[:, 3])
    pairs = pa.StructArray.from_arrays([_as_text(names), values], fields=list(header_type))
    return pa.ListArray.from_arrays(pa.array(firsts.astype(np.int32)), pairs)


def _read_together(bodies: Bodies, frames: Frames, data: Bytes, rows: Longs, firsts: Longs, places: Longs) -> None:
    at = frames.headers_at[rows]
    step = 0
    while rows.size:
        limit = frames.end[rows]
        out = firsts[rows] + step
        for column, least in ((0, 0), (2, -1)):
            size, at, long = read_varints(data, at)
            wrong = np.flatnonzero(long | (at > limit) | (size < least) | (size > limit - at))
            if wrong.size:
                _refuse(bodies, frames, int(rows[wrong[0]]))
            places[out, column] = at
            places[out, column + 1] = size
            at = at + np.maximum(size, 0)
        step += 1
        done = frames.header_count[rows] == step
        wrong = np.flatnonzero(done & (at != limit))
        if wrong.size:
            _refuse(bodies, frames, int(rows[wrong[0]]))
        rows, at = rows[~done], at[~done]


def _read_alone(bodies: Bodies, frames: Frames, row: int, out: int, places: Longs) -> None:
    data, at, end = bodies.data, int(frames.headers_at[row]), int(frames.end[row])
    for header in range(int(frames.header_count[row])):
        for column, least in ((0, 0), (2, -1)):
            size, shift = 0, 0
            while True:
                if at >= end or shift > 63:
                    _refuse(bodies, frames, row)
                byte = data[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            size = (size >> 1) ^ -(size & 1)
            if not least <= size <= end - at:
                _refuse(bodies, frames, row)
            places[out + header, column] = at
            places[out + header, column + 1] = size
            at += max(size, 0)
    if at != end:
        _refuse(bodies, frames, row)


def _refuse(bodies: Bodies, frames: Frames, row: int) -> NoReturn:
    batch = int(frames.batch[row])
    bodies.refuse(batch, f"the headers of the record with offset delta {int(frames.offset_delta[row])} do not fit")


def _as_text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[Any] = [name.decode("utf-8", "replace") for name in names.to_pylist()]
        return pa.array(texts, pa.string())
