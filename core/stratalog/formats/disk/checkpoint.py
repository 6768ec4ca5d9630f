"""An active segment's state up to a checked position, so that a restart reads only what follows (docs/formats.md, 9).

It can always be rebuilt from the segment file: a lost or refused checkpoint costs a scan, never data.
Requires: it is written only after the batches below `position` are on disk, so that it is never ahead of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.formats.envelope import Structure, open_envelope, seal_envelope
from stratalog.formats.fields import Buffer, FieldWriter
from stratalog.formats.identity import read_key, write_key
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.formats.segments.producers import read_producers, write_producers
from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`position` counts from the first batch; the rest is the state after the batches below it."""

    key: SegmentKey
    position: int
    next_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    points: IndexPoints
    producers: tuple[ProducerSnapshot, ...]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Raises: InvalidRequest when position, offsets and points do not fit together."""
    fault = _fault(checkpoint)
    if fault is not None:
        raise InvalidRequest(f"checkpoint of segment {checkpoint.key}: {fault}")
    out = FieldWriter()
    write_key(out, checkpoint.key)
    out.natural(checkpoint.position, "checked position")
    out.natural(checkpoint.next_offset, "next offset")
    out.i64(checkpoint.first_timestamp_ms, "first timestamp")
    out.i64(checkpoint.max_timestamp_ms, "max timestamp")
    checkpoint.points.write(out)
    write_producers(out, checkpoint.producers)
    return seal_envelope(Structure.CHECKPOINT, out.getvalue())


def decode_checkpoint(data: Buffer, *, source: str) -> Checkpoint:
    """`data` is the whole stored value. Raises: Corrupt."""
    fields = open_envelope(data, Structure.CHECKPOINT, source=source, position=0)
    checkpoint = Checkpoint(
        key=read_key(fields),
        position=fields.natural("checked position"),
        next_offset=fields.natural("next offset"),
        first_timestamp_ms=fields.i64("first timestamp"),
        max_timestamp_ms=fields.i64("max timestamp"),
        points=IndexPoints.read(fields, has_true_times=False),
        producers=read_producers(fields),
    )
    fields.finish()
    fault = _fault(checkpoint)
    if fault is not None:
        fields.refuse(fault)
    return checkpoint


def _fault(checkpoint: Checkpoint) -> str | None:
    """What is wrong between the fields of a checkpoint; None when they agree."""
    base_offset, position, next_offset = checkpoint.key.base_offset, checkpoint.position, checkpoint.next_offset
    if next_offset < base_offset or (position == 0) != (next_offset == base_offset):
        return f"position {position} and next offset {next_offset} do not fit base offset {base_offset}"
    return checkpoint.points.fault_within(base_offset, next_offset, position, checkpoint.max_timestamp_ms)
