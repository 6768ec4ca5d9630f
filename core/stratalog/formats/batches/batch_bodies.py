"""Opens the records of many batches, in groups of a bounded size. Pure; over arrays of numpy.

What is not compressed stays where it is, if that is so of all of them; else each group is put together in one buffer.
Requires: the batches were checked. Raises: Corrupt for what cannot be opened, TooLarge for a batch whose records are
over `max_batch_bytes` decompressed. Memory: a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.compression import Codec, decompress
from stratalog.formats.batches.record_frames import Bodies, Longs
from stratalog.formats.fields import Buffer
from stratalog.model.batch import BATCH_HEADER_BYTES


def groups_of(
    data: Buffer, headers: BatchHeaders, *, source: str, max_batch_bytes: int, group_bytes: int
) -> Iterator[tuple[BatchHeaders, Bodies]]:
    """In order, each of about `group_bytes` of records, or of one batch that has more."""
    is_packed = headers.codec != Codec.NONE
    sizes = headers.ends - headers.positions
    if not is_packed.any() and (not sizes.size or int(sizes.max()) <= max_batch_bytes):
        group_of = np.cumsum(sizes) // group_bytes
        for rows in np.split(np.arange(sizes.size), np.flatnonzero(np.diff(group_of)) + 1):
            if rows.size:
                group = headers.only(rows)
                yield group, _bodies(data, group, group.positions + BATCH_HEADER_BYTES, group.ends, source)
        return
    view = memoryview(data)
    first, size = 0, 0
    opened: list[Buffer] = []
    for row, (codec, start, end) in enumerate(
        zip(headers.codec.tolist(), headers.positions.tolist(), headers.ends.tolist(), strict=True)
    ):
        body = view[start + BATCH_HEADER_BYTES : end]
        piece = decompress(codec, body, max_batch_bytes, source=source, position=start)
        if opened and size + len(piece) > group_bytes:
            yield _joined(headers.only(np.arange(first, row)), opened, source)
            first, size, opened = row, 0, []
        opened.append(piece)
        size += len(piece)
    if opened:
        yield _joined(headers.only(np.arange(first, len(headers))), opened, source)


def _joined(group: BatchHeaders, opened: Sequence[Buffer], source: str) -> tuple[BatchHeaders, Bodies]:
    ends = np.cumsum(np.array([len(piece) for piece in opened], np.int64))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return group, _bodies(b"".join(opened), group, starts, ends, source)


def _bodies(data: Buffer, group: BatchHeaders, starts: Longs, ends: Longs, source: str) -> Bodies:
    return Bodies(data, starts, ends, group.longs("record_count"), group.longs("last_offset_delta"), source)
