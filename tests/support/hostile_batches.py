"""Batches that a client can send and no client should: their header and CRC are right, their inside is not."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from stratalog.formats.batches.compression import Codec, compress
from stratalog.formats.batches.offered_batch import CRC_FROM
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch

GARBAGE = b"\xee" * 1000
"""No records, under any codec."""


def claiming(payload: bytes, count: int, at_ms: int, codec: int = Codec.NONE, *, base_offset: int = 0) -> bytes:
    """A batch that claims a number of records and a newest time, over any payload."""
    batch = bytearray(encode_batch([Record(NEXT_OFFSET, 0, None, None)], epoch=0)[:61]) + compress(codec, payload)
    struct.pack_into(">qi", batch, 0, base_offset, len(batch) - 12)
    struct.pack_into(">hi", batch, CRC_FROM, codec, count - 1)
    struct.pack_into(">qq", batch, 27, at_ms, at_ms)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CRC_FROM:])))
    return bytes(batch)


def with_header_times(batch: bytes, *, max_ms: int, base_ms: int | None = None) -> bytes:
    """The batch with other times in its header and a right CRC; the records keep their deltas."""
    changed = bytearray(batch)
    if base_ms is not None:
        struct.pack_into(">q", changed, 27, base_ms)
    struct.pack_into(">q", changed, 35, max_ms)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[CRC_FROM:])))
    return bytes(changed)


def timed_batch(times_ms: Sequence[int], max_ms: int, codec: int = Codec.NONE) -> bytes:
    """A record of each time, under a header that claims `max_ms`."""
    records = [Record(NEXT_OFFSET, time_ms, None, b"%d" % number) for number, time_ms in enumerate(times_ms)]
    return with_header_times(encode_batch(records, epoch=0, compression=codec), max_ms=max_ms)
