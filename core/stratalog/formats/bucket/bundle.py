"""A bundle: one object that holds small parts of many segments (docs/formats.md section 7).

Header, parts back to back, a directory of them, a trailer that points at the directory. A reader with ranged GETs takes
the last BUNDLE_TRAILER_BYTES, then the directory, then one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part
from stratalog.formats.envelope import (
    ENVELOPE_BYTES,
    PREAMBLE_BYTES,
    Structure,
    open_envelope,
    open_fixed,
    seal_envelope,
    seal_fixed,
)
from stratalog.formats.fields import Buffer, FieldWriter
from stratalog.formats.identity import MAX_CLUSTER_ID_BYTES, read_identity, write_identity
from stratalog.model.errors import Corrupt
from stratalog.model.segment import SegmentIdentity

BUNDLE_HEADER_BYTES = 128
BUNDLE_TRAILER_BYTES = 40

_MIN_ENTRY_BYTES = 76
_MIN_PART_BYTES = PART_HEADER_BYTES + 61 + ENVELOPE_BYTES + 8


@dataclass(frozen=True, slots=True)
class BundleHeader:
    cluster_id: str
    node_id: int
    lock_epoch: int
    number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class BundleMember:
    """A part to be put into a bundle; `buffers` come from `encode_part`."""

    identity: SegmentIdentity
    base_offset: int
    end_offset: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Where a part lies: bytes `[position, position + size_bytes)`, offsets `[base_offset, end_offset)`."""

    identity: SegmentIdentity
    position: int
    size_bytes: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class BundleTrailer:
    directory_position: int
    directory_size_bytes: int
    part_count: int


def encode_bundle(
    header: BundleHeader, members: Sequence[BundleMember]
) -> tuple[list[Buffer], tuple[BundleEntry, ...]]:
    """The bundle's buffers, in order (the parts' own, not copied), and where each part lies."""
    head = FieldWriter()
    head.natural(header.node_id, "node id")
    head.natural(header.lock_epoch, "lock epoch")
    head.natural(header.number, "bundle number")
    head.natural(header.attempt, "attempt")
    head.text(header.cluster_id, MAX_CLUSTER_ID_BYTES, "cluster id")
    head.pad_to(BUNDLE_HEADER_BYTES - PREAMBLE_BYTES, "bundle header")
    buffers: list[Buffer] = [seal_fixed(Structure.BUNDLE, head.getvalue())]
    position = BUNDLE_HEADER_BYTES
    entries: list[BundleEntry] = []
    for member in members:
        size = sum(len(buffer) for buffer in member.buffers)
        entries.append(BundleEntry(member.identity, position, size, member.base_offset, member.end_offset))
        buffers += member.buffers
        position += size
    directory = _encode_directory(entries)
    tail = FieldWriter()
    tail.natural(position, "directory's position")
    tail.natural(len(directory), "directory's size")
    tail.natural(len(entries), "part count")
    buffers += (directory, seal_fixed(Structure.BUNDLE_TRAILER, tail.getvalue()))
    return buffers, tuple(entries)


def decode_bundle_header(data: Buffer, *, source: str) -> BundleHeader:
    """The header at the front of `data`, which may hold more. Raises: Corrupt."""
    fields = open_fixed(data, Structure.BUNDLE, BUNDLE_HEADER_BYTES, source=source, position=0)
    node_id = fields.natural("node id")
    lock_epoch = fields.natural("lock epoch")
    number = fields.natural("bundle number")
    attempt = fields.natural("attempt")
    cluster_id = fields.text(MAX_CLUSTER_ID_BYTES, "cluster id")
    fields.zeros_to_end()
    return BundleHeader(cluster_id, node_id, lock_epoch, number, attempt)


def decode_bundle_trailer(tail: Buffer, *, source: str, object_size: int) -> BundleTrailer:
    """The trailer from the last BUNDLE_TRAILER_BYTES of an object of `object_size` bytes. Raises: Corrupt."""
    position = max(object_size - BUNDLE_TRAILER_BYTES, 0)
    fields = open_fixed(tail, Structure.BUNDLE_TRAILER, BUNDLE_TRAILER_BYTES, source=source, position=position)
    trailer = BundleTrailer(
        fields.natural("directory's position"), fields.natural("directory's size"), fields.natural("part count")
    )
    fields.finish()
    if (
        trailer.directory_position < BUNDLE_HEADER_BYTES
        or trailer.directory_position + trailer.directory_size_bytes != position
    ):
        raise Corrupt(
            f"trailer puts the directory at {trailer.directory_position} with {trailer.directory_size_bytes} bytes, "
            f"it must end at {position}",
            source=source,
            position=position + PREAMBLE_BYTES,
        )
    return trailer


def decode_bundle_directory(data: Buffer, trailer: BundleTrailer, *, source: str) -> tuple[BundleEntry, ...]:
    """The table of parts, from the bytes the trailer points at. Raises: Corrupt, also for a gap or an overlap."""
    fields = open_envelope(data, Structure.BUNDLE_DIRECTORY, source=source, position=trailer.directory_position)
    count = fields.count("part count", _MIN_ENTRY_BYTES)
    if count != trailer.part_count:
        fields.refuse(f"directory has {count} parts, the trailer says {trailer.part_count}", back=8)
    entries: list[BundleEntry] = []
    expected = BUNDLE_HEADER_BYTES
    for number in range(count):
        identity = read_identity(fields)
        entry = BundleEntry(
            identity,
            position=fields.natural("part's position"),
            size_bytes=fields.natural("part's size"),
            base_offset=fields.natural("part's first offset"),
            end_offset=fields.natural("part's end offset"),
        )
        if entry.position != expected or entry.size_bytes < _MIN_PART_BYTES:
            fields.refuse(
                f"part {number} is put at {entry.position} with {entry.size_bytes} bytes, expected at {expected}",
                back=32,
            )
        if not identity.base_offset <= entry.base_offset < entry.end_offset:
            fields.refuse(f"part {number} claims offsets {entry.base_offset} to {entry.end_offset}", back=16)
        expected += entry.size_bytes
        entries.append(entry)
    fields.finish()
    if expected != trailer.directory_position:
        fields.refuse(f"parts end at {expected}, the directory begins at {trailer.directory_position}")
    return tuple(entries)


def check_bundle(data: Buffer, *, source: str) -> tuple[BundleHeader, tuple[BundleEntry, ...]]:
    """Check a whole bundle: header, trailer, directory, every part and that they say the same. Raises: Corrupt."""
    view = memoryview(data)
    header = decode_bundle_header(view, source=source)
    trailer = decode_bundle_trailer(view[-BUNDLE_TRAILER_BYTES:], source=source, object_size=len(view))
    directory = view[trailer.directory_position : len(view) - BUNDLE_TRAILER_BYTES]
    entries = decode_bundle_directory(directory, trailer, source=source)
    for entry in entries:
        part = check_part(
            view[entry.position : entry.position + entry.size_bytes], source=source, position=entry.position
        ).header
        claimed = (entry.identity, entry.base_offset, entry.end_offset)
        if (
            claimed != (part.identity, part.base_offset, part.end_offset)
            or part.identity.cluster_id != header.cluster_id
        ):
            raise Corrupt("part is not the one the directory names", source=source, position=entry.position)
    return header, entries


def _encode_directory(entries: Sequence[BundleEntry]) -> bytes:
    out = FieldWriter()
    out.natural(len(entries), "part count")
    for entry in entries:
        write_identity(out, entry.identity)
        out.natural(entry.position, "part's position")
        out.natural(entry.size_bytes, "part's size")
        out.natural(entry.base_offset, "part's first offset")
        out.natural(entry.end_offset, "part's end offset")
    return seal_envelope(Structure.BUNDLE_DIRECTORY, out.getvalue())
