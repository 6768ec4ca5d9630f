"""The index block of a sealed segment: identity, seal record, table of producers, index points (docs/formats.md section
5).

It is stored beside the segment file (`.idx`) and in the object store (`.index`). A lost block can be rebuilt from the
segment's batches and its seal record. Immutable once made. The table of producers is decoded only on request. It is the
table that the seal record describes, or it is missing: it may be missing beside a file, never in the object store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from stratalog.formats.envelope import Structure, open_envelope, seal_envelope, version_in
from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.identity import read_identity, write_identity
from stratalog.formats.segments.index_points import (
    INDEX_INTERVAL_BYTES,
    POINT_BYTES,
    IndexBuilder,
    IndexPoint,
    IndexPoints,
    scan_range,
)
from stratalog.formats.segments.producers import NO_TABLE, table_fault
from stratalog.formats.segments.seal import SealLayout, read_seal, write_seal
from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import SealRecord, SegmentIdentity, TimesKnown

__all__ = [
    "INDEX_INTERVAL_BYTES",
    "POINT_BYTES",
    "SEAL_LAYOUTS",
    "IndexBlock",
    "IndexBuilder",
    "IndexPoint",
    "IndexPoints",
    "decode_index_block",
    "encode_index_block",
]

SEAL_LAYOUTS: Final = {2: SealLayout.FIRST, 3: SealLayout.TIMES_KNOWN}
"""Versions of index blocks that can be read, oldest first, each with the layout of its seal."""
_ANY_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """Positions count from the segment's first batch."""

    identity: SegmentIdentity
    seal: SealRecord
    points: IndexPoints
    table: bytes = NO_TABLE
    """Of producers at its end, as `formats/segments/producers.py` writes it; none, too, where it was not known when the
    block was written."""

    @property
    def has_table(self) -> bool:
        return len(self.table) > 0 or not self.seal.producers.count

    def position_for_offset(self, offset: int) -> tuple[int, int]:
        """Scan `[position, next position)` for the batch that contains `offset`."""
        return scan_range(self.points, self.points.before_offset(offset), self.seal.size_bytes)

    def position_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Where to scan for the first batch with a record of `timestamp_ms` or later; None when there is none."""
        if not self.seal.size_bytes or (self.points.has_true_times and self.seal.is_older_than(timestamp_ms)):
            return None
        return scan_range(self.points, self.points.before_time(timestamp_ms), self.seal.size_bytes)


def encode_index_block(
    identity: SegmentIdentity,
    seal: SealRecord,
    points: IndexPoints,
    table: bytes = NO_TABLE,
    *,
    version: int = Structure.INDEX_BLOCK.version,
) -> bytes:
    """`version`: one of `SEAL_LAYOUTS`, an older one only to make a block of an older release again. The block says
    that its times are true if those of its points are. Raises: InvalidRequest when identity, seal, points and table are
    not of one segment."""
    if not points.has_true_times:
        seal = replace(seal, times_known=TimesKnown.CLAIMED)
    out = FieldWriter()
    write_identity(out, identity)
    write_seal(out, seal, epoch=identity.epoch, base_offset=identity.base_offset, layout=SEAL_LAYOUTS[version])
    fault = _points_fault(seal, points) or (table_fault(table, seal.producers) if table else None)
    if fault is not None:
        raise InvalidRequest(fault)
    points.write(out)
    out.u8(1 if table else 0, "tables of producers")
    out.raw(table)
    return seal_envelope(Structure.INDEX_BLOCK, out.getvalue(), version=version)


def decode_index_block(data: Buffer, *, source: str) -> IndexBlock:
    """`data` is the whole file or object. Raises: Corrupt."""
    found = version_in(data)
    version = found if found in SEAL_LAYOUTS else Structure.INDEX_BLOCK.version
    fields = open_envelope(data, Structure.INDEX_BLOCK, source=source, position=0, version=version)
    identity = read_identity(fields)
    seal = read_seal(fields, epoch=identity.epoch, base_offset=identity.base_offset, layout=SEAL_LAYOUTS[version])
    points = IndexPoints.read(fields, has_true_times=seal.times_known is not TimesKnown.CLAIMED)
    fault = _points_fault(seal, points)
    if fault is not None:
        fields.refuse(fault, back=len(points) * POINT_BYTES)
    table = _read_table(fields, seal)
    fields.finish()
    return IndexBlock(identity, seal, points, table)


def _read_table(fields: FieldReader, seal: SealRecord) -> bytes:
    tables = fields.u8("tables of producers")
    if tables > 1:
        fields.refuse(f"{tables} tables of producers: there is one or none", back=1)
    table = bytes(fields.read_bytes(fields.remaining, "table of producers")) if tables else NO_TABLE
    fault = table_fault(table, seal.producers) if tables else None
    if fault is not None:
        fields.refuse(fault, back=len(table))
    return table


def _points_fault(seal: SealRecord, points: IndexPoints) -> str | None:
    newest_ms = _ANY_MS if seal.times_known is TimesKnown.CLAIMED else seal.max_timestamp_ms
    return points.fault_within(seal.base_offset, seal.end_offset, seal.size_bytes, newest_ms)
