"""Group log entries as record batches, there and back.

They are control batches, which no client may write: whatever else finds its way into the internal topic is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.formats.group_log import KeyValue, LogEntry, decode_entry
from stratalog.formats.record_batch import walk
from stratalog.formats.records import NEXT_OFFSET, Record, decode_records, encode_batch


def size_of(pairs: Sequence[KeyValue]) -> int:
    return sum(len(key) + len(value or b"") for key, value in pairs)


def batches_of(pairs: Sequence[KeyValue], now_ms: int, target_bytes: int) -> list[bytes]:
    """Batches of about `target_bytes` each; an entry is never cut."""
    batches: list[bytes] = []
    records: list[Record] = []
    size = 0
    for key, value in pairs:
        grown = len(key) + len(value or b"")
        if records and size + grown > target_bytes:
            batches.append(encode_batch(records, is_control=True))
            records, size = [], 0
        records.append(Record(NEXT_OFFSET, now_ms, key, value))
        size += grown
    if records:
        batches.append(encode_batch(records, is_control=True))
    return batches


def entries_of(data: bytes | memoryview, source: str) -> Iterator[tuple[LogEntry | None, int]]:
    """Each entry of whole batches back to back, and the offset after it; None for what is not an entry of ours.

    Raises: Corrupt.
    """
    view = memoryview(data)
    for position, header in walk(view, source=source):
        if not header.is_control:
            yield None, header.end_offset
            continue
        batch = view[position : position + header.size_bytes]
        for record in decode_records(batch, source=source, position=position):
            entry = decode_entry(record.key, record.value, source=source, position=record.offset)
            yield entry, record.offset + 1
