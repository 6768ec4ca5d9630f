"""What lies behind the whole batches of a segment file: nothing, a write that was cut off, or damage.

A process that dies leaves at most the front of its last write behind the whole batches: the front of one batch, up to
the end of a page, then zeros (room that was made ahead) or the end of the file. None of that was acknowledged. Anything
else there is damage: batches that were written whole, and may have been acknowledged, are not readable any more. A
power cut leaves the same picture where later pages reached the disk before earlier ones: only the caller knows whether
there was one.

Source: docs/formats.md section 2. Cost: reads the first bytes; after damage, the bytes behind it about twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from crc32c import crc32c

from stratalog.formats.batches.record_batch import (
    ATTRIBUTES_AT,
    EPOCH_AT,
    MAGIC,
    parse_header,
    scan_valid_prefix,
)
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.fields import Buffer
from stratalog.model.batch import BATCH_HEADER_BYTES

ReadAt = Callable[[int, int], "bytes | memoryview"]

PAGE_BYTES: Final = 4096
_WINDOW_BYTES: Final = 1 << 20
_LONGEST_SEARCH: Final = 8
"""A search checks each byte at most this many times: a value may contain bytes that look like batches."""
_ZEROS_AT_END: Final = 4 << 10
"""A batch whose length field is damaged ends in at most this many zeros."""


class TailKind(Enum):
    CLEAN = auto()
    """Nothing but zeros."""
    TORN = auto()
    """The front of one batch: its write was cut off."""
    DAMAGED = auto()
    """Something that a write which was cut off does not leave."""


@dataclass(frozen=True, slots=True)
class Tail:
    kind: TailKind
    seen_offset: int
    """Below it batches were written, as far as the bytes show: of a damaged tail it is above the end of the whole
    batches, else it is that end."""


def judge_tail(read: ReadAt, position: int, size_bytes: int, next_offset: int, epoch: int) -> Tail:
    """Judge the bytes `[position, size_bytes)` behind the last whole batch, which ends at `next_offset`.

    `read` returns exactly the bytes that it is asked for, at least until the next call.
    """
    end = _end_of_data(read, position, size_bytes)
    if end == position:
        return Tail(TailKind.CLEAN, next_offset)
    behind = _end_of_batches_behind(read, position, end, min(size_bytes, end + _ZEROS_AT_END), next_offset, epoch)
    if behind > next_offset:
        return Tail(TailKind.DAMAGED, behind)
    if _is_torn(read, position, end, size_bytes, next_offset, epoch):
        return Tail(TailKind.TORN, next_offset)
    return Tail(TailKind.DAMAGED, next_offset + _claimed_offsets(read, position, end))


def _end_of_data(read: ReadAt, position: int, size_bytes: int) -> int:
    """Where the zeros at the end begin."""
    end = size_bytes
    while end > position:
        begin = max(position, end - _WINDOW_BYTES)
        kept = len(bytes(read(begin, end - begin)).rstrip(b"\0"))
        if kept:
            return begin + kept
        end = begin
    return position


def _is_torn(read: ReadAt, position: int, end: int, size_bytes: int, next_offset: int, epoch: int) -> bool:
    """Whether the bytes up to `end` are the front of the next batch, and no more."""
    held = end - position
    if held < BATCH_HEADER_BYTES:
        front = bytes(read(position, held))
        expected = next_offset.to_bytes(8, "big")
        is_next = front[: len(expected)] == expected[: len(front)]
        return is_next and _may_be_cut_off(position + BATCH_HEADER_BYTES, end, size_bytes)
    front = bytes(read(position, BATCH_HEADER_BYTES))
    header = parse_header(front)
    is_next = header.base_offset == next_offset and header.epoch == epoch and front[EPOCH_AT + 4] == MAGIC
    if not is_next or not _may_be_cut_off(position + header.size_bytes, end, size_bytes):
        return False
    return not _is_whole_but_for_its_length(read, position, end, size_bytes, header.crc)


def _may_be_cut_off(batch_end: int, end: int, size_bytes: int) -> bool:
    """Whether a write that ends at `batch_end` may have left data up to `end` alone. The kernel copies it page by page
    and stops between two of them, so zeros begin where a page does; or the file ends before the batch does."""
    next_page = end + (-(SEGMENT_HEADER_BYTES + end)) % PAGE_BYTES
    return next_page < batch_end or size_bytes < batch_end


def _is_whole_but_for_its_length(read: ReadAt, position: int, end: int, size_bytes: int, crc: int) -> bool:
    """Whether the checksum holds for what is there: the length field, which it does not cover, claims too much."""
    found = 0
    for at in range(position + ATTRIBUTES_AT, end, _WINDOW_BYTES):
        found = crc32c(read(at, min(_WINDOW_BYTES, end - at)), found)
    for _ in range(min(_ZEROS_AT_END, size_bytes - end) + 1):
        if found == crc:
            return True
        found = crc32c(b"\0", found)
    return False


def _claimed_offsets(read: ReadAt, position: int, end: int) -> int:
    """How many offsets the damaged batch says that it has, where that can be; else one."""
    if end - position < BATCH_HEADER_BYTES:
        return 1
    header = parse_header(read(position, BATCH_HEADER_BYTES))
    count = header.last_offset_delta + 1
    return count if 0 < header.record_count == count <= end - position else 1


def _end_of_batches_behind(read: ReadAt, position: int, end: int, limit: int, next_offset: int, epoch: int) -> int:
    """Where the last whole batch of this epoch behind the damage ends; `next_offset` where there is none. A batch may
    end in zeros, so its last byte lies before `limit`."""
    begin_of_batch = epoch.to_bytes(4, "big") + bytes((MAGIC,))
    found = next_offset
    at = position + 1
    budget = _LONGEST_SEARCH * (end - position) + _WINDOW_BYTES
    while end - at >= BATCH_HEADER_BYTES:
        size = min(_WINDOW_BYTES, end - at)
        window = bytes(read(at, size))
        hit = window.find(begin_of_batch, EPOCH_AT)
        if hit < 0 or hit - EPOCH_AT + BATCH_HEADER_BYTES > size:
            at += max(1, size - BATCH_HEADER_BYTES)
            continue
        at += hit - EPOCH_AT
        header = parse_header(read(at, BATCH_HEADER_BYTES))
        fits = BATCH_HEADER_BYTES <= header.size_bytes <= limit - at
        if not fits or header.base_offset < found or header.last_offset_delta < 0:
            at += 1
            continue
        budget -= header.size_bytes
        if budget < 0:
            return max(found, next_offset + 1)  # there is something, and how far it goes cannot be found in time
        data: Buffer = read(at, header.size_bytes)
        if scan_valid_prefix(data, header.base_offset, epoch).end_position == header.size_bytes:
            found = header.end_offset
            at += header.size_bytes
        else:
            at += 1
    return found
