"""The times that the records of a batch carry, which its header need not tell (docs/formats.md section 2).

A client computes `maxTimestamp` itself: some libraries always send -1, others the time of the last record. So whatever
prunes, expires or validates by time takes it from the records, which are walked here: sizes and time deltas only.
Requires: the batch was checked (CRC); what is inside is not trusted. Pure. Never raises for what is inside.
Cost: about 0.03 us per record compiled, 0.3 us interpreted; decompression on top. `pause` is called about every
`_PAUSE_RECORDS`, so that a thread can let others run.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from stratalog.formats.batches.compression import TooLarge, decompress
from stratalog.formats.batches.offered_batch import LARGEST_DECODED_BYTES, LEAST_RECORD_BYTES
from stratalog.formats.fields import NO_TIMESTAMP_MS, Buffer
from stratalog.model.batch import BATCH_HEADER_BYTES, BatchHeader
from stratalog.model.errors import Corrupt

_WINDOW_BYTES = 1 << 14
_PAUSE_RECORDS = 1_500
_LONGEST_HEAD_BYTES = 32
"""The most bytes that size, attributes and time delta of a record take."""
_INT64_MAX = 2**63 - 1


class Opened(IntEnum):
    """How much of a batch could be read. Closed."""

    ALL = 0
    TOO_LARGE = 1
    """Its records take more bytes decompressed than the caller opens: the header's times are the only ones known."""
    GARBAGE = 2
    """The batch does not contain valid records. No consumer can read it either."""


class BatchTimes(NamedTuple):
    """No record of the batch is earlier than `lowest_ms` or later than `highest_ms`, which one of them carries; both
    are -1 where no record has a time."""

    lowest_ms: int
    highest_ms: int
    opened: Opened


NO_TIMES = BatchTimes(NO_TIMESTAMP_MS, NO_TIMESTAMP_MS, Opened.ALL)
_GARBAGE = BatchTimes(NO_TIMESTAMP_MS, NO_TIMESTAMP_MS, Opened.GARBAGE)


def _no_pause() -> None:
    return None


def claimed_times(header: BatchHeader) -> BatchTimes:
    """What the header says, where nothing else is known."""
    base_ms, max_ms = header.base_timestamp_ms, header.max_timestamp_ms
    if header.is_log_append_time:
        return BatchTimes(max_ms, max_ms, Opened.ALL)
    return BatchTimes(min(base_ms, max_ms), max(base_ms, max_ms), Opened.TOO_LARGE)


def times_of(
    batch: Buffer,
    header: BatchHeader,
    *,
    max_bytes: int = LARGEST_DECODED_BYTES,
    pause: Callable[[], None] = _no_pause,
) -> BatchTimes:
    """Of the batch at the front of `batch`, whose header this is. Memory: `max_bytes` where it is compressed."""
    if header.is_log_append_time:
        return claimed_times(header)  # whatever the records say: this is the time that each of them carries
    if header.record_count <= 0:
        return NO_TIMES
    body: Buffer = memoryview(batch)[BATCH_HEADER_BYTES : header.size_bytes]
    if header.compression:
        try:
            body = decompress(header.compression, body, max_bytes, source="batch", position=0)
        except TooLarge:
            return claimed_times(header)
        except Corrupt:
            return _GARBAGE
    return _walked(memoryview(body), header, pause)


def _walked(body: memoryview, header: BatchHeader, pause: Callable[[], None]) -> BatchTimes:
    size, left, at = len(body), header.record_count, 0
    lowest, highest = _INT64_MAX, -_INT64_MAX
    if left * LEAST_RECORD_BYTES > size:
        return _GARBAGE
    pause_at = left - _PAUSE_RECORDS
    while left:
        # A window is copied: indexing bytes is many times faster than indexing a view.
        window = bytes(body[at : at + _WINDOW_BYTES + _LONGEST_HEAD_BYTES])
        try:
            step, left, lowest, highest = _walk_heads(window, left, size - at, lowest, highest)
        except IndexError:
            return _GARBAGE
        if step <= 0:
            return _GARBAGE
        at += step
        if left <= pause_at:
            pause_at = left - _PAUSE_RECORDS
            pause()
    lowest_ms, highest_ms = header.base_timestamp_ms + lowest, header.base_timestamp_ms + highest
    if at != size or highest_ms > _INT64_MAX or lowest_ms < -_INT64_MAX - 1:
        return _GARBAGE
    return BatchTimes(max(lowest_ms, NO_TIMESTAMP_MS), max(highest_ms, NO_TIMESTAMP_MS), Opened.ALL)


def _walk_heads(window: bytes, count: int, limit: int, lowest: int, highest: int) -> tuple[int, int, int, int]:
    """Take in the records that begin in the first `_WINDOW_BYTES` of `window`, at most `count`; they end by `limit`.

    Returns: where the next one begins (-1 for a size that cannot be), how many are left, and the least and the greatest
    time delta. Raises: IndexError when a record is cut short. Numbers of one and two bytes are read in place.
    """
    at = 0
    while count and at < _WINDOW_BYTES:
        size = window[at]
        if size < 0x80:
            at += 1
        elif window[at + 1] < 0x80:
            size = size & 0x7F | window[at + 1] << 7
            at += 2
        else:
            byte, size, shift = size, size & 0x7F, 7
            while byte >= 0x80 and shift < 70:
                at += 1
                byte = window[at]
                size |= (byte & 0x7F) << shift
                shift += 7
            at += 1
        end = at + (size >> 1)
        if size & 1 or size < 2 * (LEAST_RECORD_BYTES - 1) or end > limit:
            return -1, count, lowest, highest
        delta = window[at + 1]
        if delta >= 0x80:
            byte, at = window[at + 2], at + 2
            if byte < 0x80:
                delta = delta & 0x7F | byte << 7
            else:
                delta, shift = delta & 0x7F, 7
                while byte >= 0x80 and shift < 70:
                    delta |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                    byte = window[at]
                delta |= byte << shift
        delta = (delta >> 1) ^ -(delta & 1)
        if delta > highest:
            highest = delta
        if delta < lowest:
            lowest = delta
        at = end
        count -= 1
    return at, count, lowest, highest
