"""The index block of a sealed segment: identity, seal record, index points (docs/formats.md section 5).

The same bytes lie beside the segment file (`.idx`) and in the object store (`.index`). With the segment's batches the
block is a seal record that can be rebuilt. Immutable once made.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.formats.envelope import Structure, open_envelope, seal_envelope
from stratalog.formats.fields import Buffer, FieldWriter
from stratalog.formats.identity import read_identity, write_identity
from stratalog.formats.index_points import (
    INDEX_INTERVAL_BYTES,
    POINT_BYTES,
    IndexBuilder,
    IndexPoint,
    IndexPoints,
    scan_range,
)
from stratalog.formats.seal import read_seal, write_seal
from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import SealRecord, SegmentIdentity

__all__ = [
    "INDEX_INTERVAL_BYTES",
    "POINT_BYTES",
    "IndexBlock",
    "IndexBuilder",
    "IndexPoint",
    "IndexPoints",
    "decode_index_block",
    "encode_index_block",
]


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """Positions count from the segment's first batch."""

    identity: SegmentIdentity
    seal: SealRecord
    points: IndexPoints

    def position_for_offset(self, offset: int) -> tuple[int, int]:
        """Scan `[position, next position)` for the batch that contains `offset`."""
        return scan_range(self.points, self.points.before_offset(offset), self.seal.size_bytes)

    def position_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Where to scan for the first batch with max_timestamp >= `timestamp_ms`; None when there is none."""
        if timestamp_ms > self.seal.max_timestamp_ms or not self.seal.size_bytes:
            return None
        return scan_range(self.points, self.points.before_time(timestamp_ms), self.seal.size_bytes)


def encode_index_block(identity: SegmentIdentity, seal: SealRecord, points: IndexPoints) -> bytes:
    """Raises: InvalidRequest when identity, seal and points are not of one segment."""
    out = FieldWriter()
    write_identity(out, identity)
    write_seal(out, seal, epoch=identity.epoch, base_offset=identity.base_offset)
    fault = _points_fault(seal, points)
    if fault is not None:
        raise InvalidRequest(fault)
    points.write(out)
    return seal_envelope(Structure.INDEX_BLOCK, out.getvalue())


def decode_index_block(data: Buffer, *, source: str) -> IndexBlock:
    """`data` is the whole file or object. Raises: Corrupt."""
    fields = open_envelope(data, Structure.INDEX_BLOCK, source=source, position=0)
    identity = read_identity(fields)
    seal = read_seal(fields, epoch=identity.epoch, base_offset=identity.base_offset)
    points = IndexPoints.read(fields)
    fault = _points_fault(seal, points)
    if fault is not None:
        fields.refuse(fault, back=len(points) * POINT_BYTES)
    fields.finish()
    return IndexBlock(identity, seal, points)


def _points_fault(seal: SealRecord, points: IndexPoints) -> str | None:
    return points.fault_within(seal.base_offset, seal.end_offset, seal.size_bytes, seal.max_timestamp_ms)
