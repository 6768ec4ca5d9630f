"""The write-ahead journal that fsync topics of one disk share (docs/formats.md section 10).

An entry repeats bytes of a segment file and says where they belong. Entries carry their journal's number, so what an
earlier life of a reused file left behind is not taken for new. Reading stops at the first entry that is not whole, and
says why.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from stratalog.formats.envelope import PREAMBLE_BYTES, Structure, open_fixed, seal_fixed
from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.identity import MAX_CLUSTER_ID_BYTES, read_key
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.model.ids import SegmentKey

JOURNAL_HEADER_BYTES = 128
JOURNAL_ENTRY_HEADER_BYTES = 80
_ENTRY_FIELDS = struct.Struct(">q16siiqqqII")
"""As `decode_entry_head` reads: journal, topic, shard, epoch, base offset, position, size, CRC, zero."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    cluster_id: str
    node_id: int
    number: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class JournalEntryHead:
    """What goes before an entry's payload: where the payload belongs, its size and its CRC."""

    segment: SegmentKey
    position: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`payload` is what the segment holds from `position` on, counted from its first batch; a view, not a copy."""

    segment: SegmentKey
    position: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class JournalScan:
    """`end_position` is where the last whole entry ends, counted from the first byte scanned."""

    entries: tuple[JournalEntry, ...]
    end_position: int
    reason: str | None
    """Why the scan stopped, naming source and byte; None when the data ended exactly after an entry."""
    wanted_bytes: int
    """When the data ends inside an entry: how many bytes from `end_position` on are needed to judge it; else 0."""


def encode_journal_header(header: JournalHeader) -> bytes:
    out = FieldWriter()
    out.natural(header.node_id, "node id")
    out.natural(header.number, "journal number")
    out.i64(header.created_ms, "creation time")
    out.text(header.cluster_id, MAX_CLUSTER_ID_BYTES, "cluster id")
    out.pad_to(JOURNAL_HEADER_BYTES - PREAMBLE_BYTES, "journal header")
    return seal_fixed(Structure.JOURNAL, out.getvalue())


def decode_journal_header(data: Buffer, *, source: str) -> JournalHeader:
    """The header at the front of `data`, which may hold more. Raises: Corrupt."""
    fields = open_fixed(data, Structure.JOURNAL, JOURNAL_HEADER_BYTES, source=source, position=0)
    node_id = fields.natural("node id")
    number = fields.natural("journal number")
    created_ms = fields.i64("creation time")
    cluster_id = fields.text(MAX_CLUSTER_ID_BYTES, "cluster id")
    fields.zeros_to_end()
    return JournalHeader(cluster_id, node_id, number, created_ms)


def encode_entry_header(number: int, segment: SegmentKey, position: int, payload: list[Buffer]) -> bytes:
    """The bytes that go before the payload's pieces, which are written as they are. Cost: one CRC over the payload, and
    2 us: a group of flushes has one entry for each of its files. Raises: InvalidRequest."""
    crc = size = 0
    for piece in payload:
        crc = crc32c(piece, crc)
        size += len(piece)
    numbers = (segment.shard, segment.epoch, segment.base_offset, position, size)
    if number < 0 or min(numbers) < 0:
        raise InvalidRequest(f"journal {number}, entry of {segment} at {position}: no number may be below 0")
    return seal_fixed(Structure.JOURNAL_ENTRY, _ENTRY_FIELDS.pack(number, segment.topic_id.bytes, *numbers, crc, 0))


def scan_journal(data: Buffer, number: int, *, source: str, position: int = JOURNAL_HEADER_BYTES) -> JournalScan:
    """The whole entries at the front of `data`, which begins at byte `position` of `source`. Never raises.

    What follows was not flushed, or belongs to an earlier life of the file.
    """
    view = memoryview(data)
    at = 0
    entries: list[JournalEntry] = []
    while at < len(view):
        try:
            entry = _read_entry(view[at:], number, source, position + at)
        except Corrupt as torn:
            return JournalScan(tuple(entries), at, str(torn), _wanted_bytes(view[at:], source))
        entries.append(entry)
        at += JOURNAL_ENTRY_HEADER_BYTES + len(entry.payload)
    return JournalScan(tuple(entries), at, None, 0)


def decode_entry_head(data: Buffer, number: int, *, source: str, position: int) -> JournalEntryHead:
    """The head at the front of `data`, which may hold more, of an entry at byte `position` of journal `number`: for
    readers that take a payload in windows. Raises: Corrupt."""
    fields = _open(memoryview(data), source, position)
    found = fields.natural("journal number")
    if found != number:
        fields.refuse(f"entry is of journal {found}, this is journal {number}", back=8)
    segment = read_key(fields)
    at = fields.natural("position in the segment")
    size = fields.natural("payload size")
    crc = fields.u32("payload's CRC")
    fields.zeros_to_end()
    return JournalEntryHead(segment, at, size, crc)


def check_entry(head: JournalEntryHead, held_bytes: int, computed: int, *, source: str, position: int) -> None:
    """Whether the payload that was found is the head's: its size, and the CRC computed over it. Raises: Corrupt."""
    if held_bytes < head.size_bytes:
        raise Corrupt(
            f"journal entry claims a payload of {head.size_bytes} bytes, {held_bytes} are there",
            source=source,
            position=position,
        )
    if computed != head.crc:
        raise Corrupt(
            f"journal entry's payload has CRC {computed:08x}, its header says {head.crc:08x}",
            source=source,
            position=position + JOURNAL_ENTRY_HEADER_BYTES,
        )


def _read_entry(view: memoryview, number: int, source: str, position: int) -> JournalEntry:
    head = decode_entry_head(view, number, source=source, position=position)
    payload = view[JOURNAL_ENTRY_HEADER_BYTES : JOURNAL_ENTRY_HEADER_BYTES + head.size_bytes]
    check_entry(head, len(payload), crc32c(payload), source=source, position=position)
    return JournalEntry(head.segment, head.position, payload)


def _open(view: memoryview, source: str, position: int) -> FieldReader:
    return open_fixed(view, Structure.JOURNAL_ENTRY, JOURNAL_ENTRY_HEADER_BYTES, source=source, position=position)


def _wanted_bytes(view: memoryview, source: str) -> int:
    """How long the data must be to judge the entry it begins with, when it is not that long; else 0."""
    if len(view) < JOURNAL_ENTRY_HEADER_BYTES:
        return JOURNAL_ENTRY_HEADER_BYTES
    try:
        fields = _open(view, source, 0)
        fields.natural("journal number")
        read_key(fields)
        fields.natural("position in the segment")
        size = JOURNAL_ENTRY_HEADER_BYTES + fields.natural("payload size")
    except Corrupt:
        return 0
    return size if size > len(view) else 0
