"""Group log entries as record batches, there and back.

They are control batches, which no client may write: all other batches in the internal topic are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.formats.groups.group_log import KeyValue
from stratalog.model.batch import BatchHeader


def size_of(pairs: Sequence[KeyValue]) -> int:
    return sum(len(key) + len(value or b"") for key, value in pairs)


def cut(pairs: Sequence[KeyValue], target_bytes: int) -> list[Sequence[KeyValue]]:
    """Runs of about `target_bytes` each, for one batch; an entry is never cut."""
    pieces: list[Sequence[KeyValue]] = []
    start = size = 0
    for at, (key, value) in enumerate(pairs):
        grown = len(key) + len(value or b"")
        if at > start and size + grown > target_bytes:
            pieces.append(pairs[start:at])
            start, size = at, 0
        size += grown
    if start < len(pairs):
        pieces.append(pairs[start:])
    return pieces


def batch_of(pairs: Sequence[KeyValue], now_ms: int) -> bytes:
    return encode_batch([Record(NEXT_OFFSET, now_ms, key, value) for key, value in pairs], is_control=True)


def batches_in(data: bytes | memoryview, source: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each of the whole batches back to back. Raises: Corrupt."""
    view = memoryview(data)
    for position, header in walk(view, source=source):
        yield header, view[position : position + header.size_bytes]
