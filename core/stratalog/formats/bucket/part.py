"""A part: a committed range of one segment with its identity, its batches and its index (docs/formats.md section 6).

A chunk object is exactly one part; a bundle holds many. The header's digests chain: one part's `digest_after` is the
next one's `digest_before`, and the last one's is the segment's seal digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.record_times import BatchTimes
from stratalog.formats.envelope import (
    ENVELOPE_BYTES,
    PREAMBLE_BYTES,
    Structure,
    open_envelope,
    open_fixed,
    seal_envelope,
    seal_fixed,
    version_in,
)
from stratalog.formats.fields import NO_TIMESTAMP_MS, Buffer, FieldWriter
from stratalog.formats.identity import read_identity, write_identity
from stratalog.formats.segments.digest import extend_digest_over
from stratalog.formats.segments.index_points import POINT_BYTES, IndexBuilder, IndexPoints, scan_range
from stratalog.formats.segments.seal import read_times_known, write_times_known
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.model.segment import SegmentIdentity, TimesKnown

PART_HEADER_BYTES = 512
_CLAIMED_TIMES_VERSION = 1
"""Of part headers whose times are those of the batches' headers."""
_ENCODED: Final = "part just encoded"
LEAST_OVERHEAD_BYTES: Final = PART_HEADER_BYTES + ENVELOPE_BYTES + 8
"""What a part has beside its batches, when its index has no point."""


@dataclass(frozen=True, slots=True)
class PartHeader:
    """What a part says about itself. Offsets `[base_offset, end_offset)`; `identity.base_offset` is the segment's."""

    identity: SegmentIdentity
    base_offset: int
    end_offset: int
    data_size_bytes: int
    index_size_bytes: int
    batch_count: int
    attempt: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    digest_before: bytes
    digest_after: bytes
    times_known: TimesKnown = TimesKnown.CLAIMED

    @property
    def size_bytes(self) -> int:
        """The whole part."""
        return PART_HEADER_BYTES + self.data_size_bytes + self.index_size_bytes

    @property
    def index_position(self) -> int:
        """Where the part index begins, from the part's start."""
        return PART_HEADER_BYTES + self.data_size_bytes


@dataclass(frozen=True, slots=True)
class PartIndex:
    """A part's header and points. Positions count from the part's first batch, at PART_HEADER_BYTES of the part."""

    header: PartHeader
    points: IndexPoints

    def add_to(self, builder: IndexBuilder) -> None:
        """Take the part's batches into the index of its segment, which ends where the part begins."""
        header = self.header
        builder.append_all(
            header.base_offset,
            self.points,
            header.data_size_bytes,
            header.first_timestamp_ms,
            header.max_timestamp_ms,
            header.times_known,
        )

    def position_for_offset(self, offset: int) -> tuple[int, int]:
        """Scan `[position, next position)` for the batch that contains `offset`."""
        return scan_range(self.points, self.points.before_offset(offset), self.header.data_size_bytes)

    def position_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Where to scan for the first batch with a record of `timestamp_ms` or later; None when there is none."""
        if self.points.has_true_times and timestamp_ms > self.header.max_timestamp_ms:
            return None
        return scan_range(self.points, self.points.before_time(timestamp_ms), self.header.data_size_bytes)


def encode_part(
    identity: SegmentIdentity,
    base_offset: int,
    end_offset: int,
    data: Buffer,
    headers: Iterable[BatchHeader],
    digest_before: bytes,
    attempt: int,
    times: Sequence[BatchTimes] | None = None,
) -> tuple[list[Buffer], bytes]:
    """The part's buffers, in order (`data` is one of them, not copied), and the digest after it.

    Requires: `data` is whole, checked batches back to back, `headers` theirs, and `times` where they are known already;
    else the batches are opened here. Raises: InvalidRequest when the batches do not cover `[base_offset, end_offset)`
    exactly. Cost: about 1 us per batch, and what it takes to open them.
    """
    index = IndexBuilder(base_offset, has_true_times=True)
    view = memoryview(data)
    next_offset, count = base_offset, 0
    for header in headers:
        if header.base_offset != next_offset:
            raise InvalidRequest(f"part has a batch at offset {header.base_offset} where {next_offset} was expected")
        if times is None:
            index.append_batch(header, view[index.size_bytes : index.size_bytes + header.size_bytes])
        else:
            index.append_opened(header.base_offset, header.size_bytes, times[count])
        next_offset = header.end_offset
        count += 1
    if next_offset != end_offset or index.size_bytes != len(data) or not count:
        raise InvalidRequest(
            f"part of offsets {base_offset} to {end_offset} and {len(data)} bytes was given "
            f"{count} batches of {index.size_bytes} bytes that end at {next_offset}"
        )
    points = FieldWriter()
    index.write(points)
    index_bytes = seal_envelope(Structure.PART_INDEX, points.getvalue())
    digest_after = extend_digest_over(digest_before, data)
    header_bytes = _encode_header(
        PartHeader(
            identity=identity,
            base_offset=base_offset,
            end_offset=end_offset,
            data_size_bytes=len(data),
            index_size_bytes=len(index_bytes),
            batch_count=count,
            attempt=attempt,
            first_timestamp_ms=index.first_timestamp_ms,
            max_timestamp_ms=index.max_timestamp_ms,
            digest_before=digest_before,
            digest_after=digest_after,
            times_known=index.times_known,
        )
    )
    return [header_bytes, data, index_bytes], digest_after


def index_of_encoded(buffers: Sequence[Buffer]) -> PartIndex:
    """What a reader of a part decodes, from the buffers that `encode_part` returned."""
    header = decode_part_header(buffers[0], source=_ENCODED)
    return decode_part_index(buffers[2], header, source=_ENCODED, position=header.index_position)


def decode_part_header(data: Buffer, *, source: str, position: int = 0) -> PartHeader:
    """The header at the front of `data`, which may hold more and begins at `position` of `source`. Raises: Corrupt."""
    is_old = version_in(data) == _CLAIMED_TIMES_VERSION
    version = _CLAIMED_TIMES_VERSION if is_old else None
    fields = open_fixed(data, Structure.PART, PART_HEADER_BYTES, source=source, position=position, version=version)
    identity = read_identity(fields)
    base_offset = fields.natural("part's first offset")
    end_offset = fields.natural("part's end offset")
    header = PartHeader(
        identity=identity,
        base_offset=base_offset,
        end_offset=end_offset,
        data_size_bytes=fields.natural("part's data size"),
        index_size_bytes=fields.natural("part's index size"),
        batch_count=fields.natural("part's batch count"),
        attempt=fields.natural("attempt"),
        first_timestamp_ms=fields.i64("part's first timestamp"),
        max_timestamp_ms=fields.i64("part's max timestamp"),
        digest_before=fields.digest("digest before"),
        digest_after=fields.digest("digest after"),
        times_known=TimesKnown.CLAIMED if is_old else read_times_known(fields),
    )
    fields.zeros_to_end()
    if not identity.base_offset <= base_offset < end_offset:
        raise Corrupt(
            f"part claims offsets {base_offset} to {end_offset} of a segment that begins at {identity.base_offset}",
            source=source,
            position=position,
        )
    return header


def decode_part_index(data: Buffer, header: PartHeader, *, source: str, position: int = 0) -> PartIndex:
    """The index of a part from its `index_size_bytes` bytes at `header.index_position`. Raises: Corrupt."""
    fields = open_envelope(data, Structure.PART_INDEX, source=source, position=position)
    points = IndexPoints.read(fields, has_true_times=header.times_known is not TimesKnown.CLAIMED)
    fault = points.fault_within(header.base_offset, header.end_offset, header.data_size_bytes, header.max_timestamp_ms)
    if fault is not None:
        fields.refuse(fault, back=len(points) * POINT_BYTES)
    fields.finish()
    return PartIndex(header, points)


def check_part(
    data: Buffer, *, source: str, position: int = 0, expected_digest_before: bytes | None = None
) -> PartIndex:
    """Check everything that `data`, one whole part, says: CRCs, offsets, times, index, digests. Raises: Corrupt."""
    view = memoryview(data)
    header = decode_part_header(view, source=source, position=position)
    if header.size_bytes != len(view):
        raise Corrupt(f"part claims {header.size_bytes} bytes, {len(view)} are there", source=source, position=position)
    if expected_digest_before is not None and header.digest_before != expected_digest_before:
        raise Corrupt(
            f"part continues from digest {header.digest_before.hex()}, expected {expected_digest_before.hex()}",
            source=source,
            position=position,
        )
    batches = view[PART_HEADER_BYTES : header.index_position]
    built = IndexBuilder(header.base_offset, has_true_times=header.times_known is not TimesKnown.CLAIMED)
    next_offset, count = header.base_offset, 0
    for at, batch in walk(
        batches,
        source=source,
        position=position + PART_HEADER_BYTES,
        expected_base_offset=header.base_offset,
        epoch=header.identity.epoch,
    ):
        built.append_batch(batch, batches[at : at + batch.size_bytes])
        next_offset, count = batch.end_offset, count + 1
    for what, claimed, found in (
        ("end offset", header.end_offset, next_offset),
        ("batch count", header.batch_count, count),
        ("first timestamp", header.first_timestamp_ms, built.first_timestamp_ms if count else NO_TIMESTAMP_MS),
        ("max timestamp", header.max_timestamp_ms, built.max_timestamp_ms),
        ("origin of times", header.times_known.name, built.times_known.name),
        ("digest", header.digest_after.hex(), extend_digest_over(header.digest_before, batches).hex()),
    ):
        if claimed != found:
            raise Corrupt(f"part claims {what} {claimed}, its batches give {found}", source=source, position=position)
    index_position = position + header.index_position
    index = decode_part_index(view[header.index_position :], header, source=source, position=index_position)
    if index.points != built.freeze():
        raise Corrupt("part index is not that of the part's batches", source=source, position=index_position)
    return index


def _encode_header(header: PartHeader) -> bytes:
    out = FieldWriter()
    write_identity(out, header.identity)
    out.natural(header.base_offset, "part's first offset")
    out.natural(header.end_offset, "part's end offset")
    out.natural(header.data_size_bytes, "part's data size")
    out.natural(header.index_size_bytes, "part's index size")
    out.natural(header.batch_count, "part's batch count")
    out.natural(header.attempt, "attempt")
    out.i64(header.first_timestamp_ms, "part's first timestamp")
    out.i64(header.max_timestamp_ms, "part's max timestamp")
    out.digest(header.digest_before, "digest before")
    out.digest(header.digest_after, "digest after")
    write_times_known(out, header.times_known)
    out.pad_to(PART_HEADER_BYTES - PREAMBLE_BYTES, "part header")
    return seal_fixed(Structure.PART, out.getvalue())
