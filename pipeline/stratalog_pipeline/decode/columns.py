"""Makes Arrow columns of record batches: one row per record, payloads copied once and by native code.

Control batches have no rows. A transactional batch has: there are no transactions in the product yet, so nothing that
it stores was aborted. No Python runs per byte.
Raises: Corrupt for what does not fit, TooLarge for a batch whose records are over `max_batch_bytes` decompressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.formats.batches.batch_bodies import groups_of
from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.record_frames import Bodies, Frames, Longs, find_frames
from stratalog.formats.batches.records import MAX_DECODED_BYTES
from stratalog.formats.fields import Buffer
from stratalog.model.errors import Corrupt
from stratalog_pipeline.decode.headers import header_column
from stratalog_pipeline.decode.pieces import cut_out

GROUP_BYTES: Final = 32 << 20
"""So many decompressed bytes are looked at together, or one batch that has more."""
_ALONE: Final = 64
"""So many batches are opened one by one where some of them cannot be opened."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
_MOST_MILLISECONDS: Final = (1 << 63) // 1_000 - 1
"""What a timestamp in microseconds can hold."""

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER_TYPE)),
        pa.field("leader_epoch", pa.int32()),
    ]
)
"""All that a record is. Of `timestamp` null is none, or one that cannot be told in microseconds."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records, and of them which columns. Offsets `[from_offset, to_offset)`, times `[from_ms, to_ms)`."""

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    from_offset: int = 0
    to_offset: int = (1 << 63) - 1
    from_ms: int | None = None
    to_ms: int | None = None

    def batches(self, headers: BatchHeaders) -> BatchHeaders:
        """Those that may hold a wanted record. Of their times only one that the log gave is believed."""
        wanted = (headers.longs("record_count") > 0) & ~headers.is_control
        wanted &= (headers.end_offset > self.from_offset) & (headers.longs("base_offset") < self.to_offset)
        if self.from_ms is not None:
            wanted &= ~headers.is_log_append_time | (headers.longs("max_timestamp_ms") >= self.from_ms)
        return headers if wanted.all() else headers.only(np.flatnonzero(wanted))


class UnreadBatch(NamedTuple):
    """A batch whose records cannot be read, because they are damaged or too large."""

    base_offset: int
    end_offset: int
    why: str

    def __str__(self) -> str:
        return f"offsets {self.base_offset} to {self.end_offset}: the batch cannot be read: {self.why}"


def batches_to_columns(
    data: Buffer,
    headers: BatchHeaders,
    *,
    topic: str,
    shard: int,
    wanted: Wanted,
    source: str,
    max_batch_bytes: int = MAX_DECODED_BYTES,
    unread: Callable[[UnreadBatch], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Tables of about GROUP_BYTES of records, or of one batch. Errors name `source`. With `unread`, a batch that cannot
    be opened is passed to it and raises no error, because nodes do not check the records inside batches."""
    chosen = wanted.batches(headers)
    begin = 0
    while begin < len(chosen):
        rest = chosen.only(np.arange(begin, len(chosen))) if begin else chosen
        try:
            for group, bodies in groups_of(
                data, rest, source=source, max_batch_bytes=max_batch_bytes, group_bytes=GROUP_BYTES
            ):
                table = _table(bodies, find_frames(bodies), group, topic, shard, wanted)
                begin += len(group)
                if table.num_rows:
                    yield table
        except Corrupt as error:
            if unread is None:
                raise
            if len(rest) == 1:
                unread(UnreadBatch(int(rest.longs("base_offset")[0]), int(rest.end_offset[0]), str(error)))
                return
            for row in range(begin, min(begin + _ALONE, len(chosen))):
                yield from batches_to_columns(
                    data,
                    chosen.only(np.array([row])),
                    topic=topic,
                    shard=shard,
                    wanted=wanted,
                    source=source,
                    max_batch_bytes=max_batch_bytes,
                    unread=unread,
                )
            begin = min(begin + _ALONE, len(chosen))


# Columns ------------------------------------------------------------------------------------------------------------
def _table(
    bodies: Bodies, frames: Frames, headers: BatchHeaders, topic: str, shard: int, wanted: Wanted
) -> pa.RecordBatch:
    offsets = headers.longs("base_offset")[frames.batch] + frames.offset_delta
    times = _times(frames, headers)
    rows = _rows(offsets, times, wanted)
    if rows is None:
        kept = frames
    else:
        offsets, times, kept = offsets[rows], times[rows], _only(frames, rows)
    count = offsets.size
    columns = []
    for name in wanted.columns:
        match name:
            case "topic":
                column = pa.repeat(pa.scalar(topic, pa.string()), count)
            case "shard":
                column = pa.array(np.full(count, shard, np.int32))
            case "offset":
                column = pa.array(offsets)
            case "timestamp":
                column = _timestamps(times)
            case "timestamp_type":
                column = pa.array(headers.is_log_append_time.astype(np.int32)[kept.batch])
            case "key":
                column = cut_out(bodies.data, kept.key_at, kept.key_size)
            case "value":
                column = cut_out(bodies.data, kept.value_at, kept.value_size)
            case "headers":
                column = header_column(bodies, kept, HEADER_TYPE)
            case "leader_epoch":
                column = pa.array(headers.longs("epoch").astype(np.int32)[kept.batch])
            case _:
                raise AssertionError(f"{name} is none of {SCHEMA.names}")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([SCHEMA.field(name) for name in wanted.columns]))


def _times(frames: Frames, headers: BatchHeaders) -> Longs:
    times: Longs = headers.longs("base_timestamp_ms")[frames.batch] + frames.timestamp_delta
    is_appended = headers.is_log_append_time
    if is_appended.any():
        return np.where(is_appended[frames.batch], headers.longs("max_timestamp_ms")[frames.batch], times)
    return times


def _rows(offsets: Longs, times: Longs, wanted: Wanted) -> Longs | None:
    """Which rows stay; None for all."""
    stays = np.ones(offsets.size, np.bool_)
    if offsets.size and (int(offsets[0]) < wanted.from_offset or int(offsets[-1]) >= wanted.to_offset):
        stays &= (offsets >= wanted.from_offset) & (offsets < wanted.to_offset)
    if wanted.from_ms is not None:
        stays &= times >= wanted.from_ms
    if wanted.to_ms is not None:
        stays &= times < wanted.to_ms
    return None if stays.all() else np.flatnonzero(stays)


def _only(frames: Frames, rows: Longs) -> Frames:
    return Frames(*(getattr(frames, name)[rows] for name in Frames.__slots__))


def _timestamps(times: Longs) -> pa.Array:
    none = (times < 0) | (times > _MOST_MILLISECONDS)
    micros = np.where(none, 0, times) * 1_000
    return pa.array(micros, pa.int64(), mask=none if none.any() else None).cast(pa.timestamp("us", "UTC"))
