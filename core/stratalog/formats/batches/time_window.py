"""Whether the records of an offered batch lie in the topic's window of timestamps.

A header that a correct client wrote tells it. Records are looked at where the header is outside the window or
contradicts itself, as with libraries that leave `maxTimestamp` at -1, and for topics that set a window of their own.
For these topics alone a compressed batch is decompressed, on the event loop and therefore up to a bound. Of any other
compressed batch the later one of the header's two times counts.
"""

from __future__ import annotations

from stratalog.formats.batches.offered_batch import LOG_APPEND_TIME_BIT, BatchFault, FaultyBatch, OfferedHeader
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.batches.record_times import Opened, times_of

_CODEC_BITS = 0x07
_MOST_OPENED_BYTES = 1 << 20
"""So much is decompressed of a batch on the event loop: 0.3 ms (lz4) to 5 ms (gzip)."""


def time_fault(
    batch: memoryview, header: OfferedHeader, earliest_ms: int, latest_ms: int, *, looks_at_each: bool
) -> FaultyBatch | None:
    """What is wrong when a record has a time outside `[earliest_ms, latest_ms]`; one without a time is never wrong.
    `looks_at_each`: the topic has a window of its own. Cost: about 0.5 us; where it looks, that of
    `record_times` and of decompression."""
    _, _, _, _, _, attributes, _, base_ms, max_ms, _, _, _, count = header
    is_inside = max_ms <= latest_ms and not 0 <= max_ms < earliest_ms
    if attributes & LOG_APPEND_TIME_BIT:
        return None if is_inside else _fault(max_ms, earliest_ms, latest_ms)
    is_coherent = base_ms <= max_ms and (count > 1 or base_ms == max_ms)
    if is_inside and is_coherent and not looks_at_each:
        return None
    lowest_ms = highest_ms = max(base_ms, max_ms)
    if looks_at_each or not attributes & _CODEC_BITS:
        found = times_of(batch, parse_header(batch), max_bytes=_MOST_OPENED_BYTES)
        if found.opened is Opened.ALL:
            lowest_ms, highest_ms = found.lowest_ms, found.highest_ms
    if highest_ms > latest_ms:
        return _fault(highest_ms, earliest_ms, latest_ms)
    return _fault(lowest_ms, earliest_ms, latest_ms) if 0 <= lowest_ms < earliest_ms else None


def _fault(timestamp_ms: int, earliest_ms: int, latest_ms: int) -> FaultyBatch:
    return FaultyBatch(
        BatchFault.WRONG_TIME,
        f"timestamp {timestamp_ms} is outside the topic's window, {earliest_ms} to {latest_ms} now",
    )
