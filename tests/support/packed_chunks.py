"""Parts that are worth packing, and packed chunks as bytes: read whole, and taken apart for tests that change them."""

from __future__ import annotations

from uuid import UUID

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.packed_chunk import (
    PACK_HEADER_BYTES,
    PackLayout,
    decode_pack_header,
    decode_pack_table,
    pack_part,
    unpack,
)
from stratalog.formats.bucket.part import encode_part
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.model.errors import Corrupt
from stratalog.model.segment import SegmentIdentity
from support.cold_data import batch_at

IDENTITY = SegmentIdentity("c", UUID(int=7), "orders", 0, 2, 0, 1_700_000_000_000)


def part_of(batches: list[bytes], identity: SegmentIdentity = IDENTITY) -> bytes:
    """The batches as one part of a segment that begins with them."""
    data = b"".join(batches)
    headers = [header for _, header in walk(data, source="made")]
    pieces, _ = encode_part(identity, headers[0].base_offset, headers[-1].end_offset, data, headers, EMPTY_DIGEST, 1)
    return b"".join(pieces)


def part_of_text(count: int, *, records: int = 20, value_bytes: int = 600) -> bytes:
    """Batches that a codec finds much in."""
    return part_of([batch_at(number * records, records, epoch=2, value_bytes=value_bytes) for number in range(count)])


def packed_sample(batches: int = 12) -> tuple[bytes, bytes]:
    """A part and its packed chunk."""
    part = part_of_text(batches)
    packed = pack_part(part, source="made")
    assert packed is not None
    return part, packed


def layout_of(packed: bytes, source: str) -> PackLayout:
    header = decode_pack_header(packed[:PACK_HEADER_BYTES], source=source)
    return decode_pack_table(packed[PACK_HEADER_BYTES : header.frames_position], header, source=source)


def unpack_range(packed: bytes, start: int, end: int, source: str = "packed") -> bytes:
    """As a reader of ranges has it, who fetches no frame that the range does not need."""
    layout = layout_of(packed, source)
    frames = layout.frames_of(start, end)
    low, high = layout.stored_range(frames) if frames else (0, 0)
    return bytes(unpack(layout, packed[low:high], frames, start, end, source=source))


def unpack_all(packed: bytes, source: str = "packed") -> bytes:
    """Every byte is accounted for. Raises: Corrupt."""
    layout = layout_of(packed, source)
    if len(packed) != layout.header.stored_bytes:
        raise Corrupt(f"it has {len(packed)} bytes", source=source, position=0)
    return unpack_range(packed, 0, layout.header.part_bytes, source)
