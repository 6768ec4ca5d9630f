"""The seal record of a segment as bytes; shared by index block and manifest."""

from __future__ import annotations

from enum import IntEnum

from stratalog.formats.fields import FieldReader, FieldWriter
from stratalog.formats.segments.producers import read_tally, write_tally
from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import SealRecord, TimesKnown


class SealLayout(IntEnum):
    """Layouts of the seal record, oldest first. Each one adds fields at the end of the one before. A table in the
    module of each structure with a seal says which layout its versions have."""

    FIRST = 1
    TIMES_KNOWN = 2
    """With `times_known`."""


_TIMES_KNOWN = (TimesKnown.CLAIMED, TimesKnown.PARTLY, TimesKnown.ALL)
"""Each by its number in stored bytes."""
_TIMES_KNOWN_FIELD = "origin of the times"


def seal_fault(seal: SealRecord, *, epoch: int, base_offset: int) -> str | None:
    """What is wrong with the seal of the segment with `epoch` and `base_offset`; None when it fits."""
    if (seal.epoch, seal.base_offset) != (epoch, base_offset):
        return (
            f"the seal is of epoch {seal.epoch} and base offset {seal.base_offset}, "
            f"the identity says {epoch} and {base_offset}"
        )
    if seal.end_offset < base_offset:
        return f"the seal ends at offset {seal.end_offset}, before its base {base_offset}"
    if (seal.size_bytes == 0) != (seal.end_offset == base_offset):
        return f"the seal claims {seal.size_bytes} bytes for {seal.end_offset - base_offset} offsets"
    return None


def read_times_known(fields: FieldReader) -> TimesKnown:
    number = fields.u8(_TIMES_KNOWN_FIELD)
    if number >= len(_TIMES_KNOWN):
        fields.refuse(f"{_TIMES_KNOWN_FIELD} is {number}, above {len(_TIMES_KNOWN) - 1}", back=1)
    return _TIMES_KNOWN[number]


def write_times_known(out: FieldWriter, times_known: TimesKnown) -> None:
    out.u8(_TIMES_KNOWN.index(times_known), _TIMES_KNOWN_FIELD)


def write_seal(
    out: FieldWriter,
    seal: SealRecord,
    *,
    epoch: int,
    base_offset: int,
    layout: SealLayout = SealLayout.TIMES_KNOWN,
) -> None:
    """`layout`: the newest one, unless an object of an older release is made again; fields that it lacks are left out.

    Raises: InvalidRequest when the seal is not that of the segment with `epoch` and `base_offset`."""
    fault = seal_fault(seal, epoch=epoch, base_offset=base_offset)
    if fault is not None:
        raise InvalidRequest(fault)
    out.natural32(seal.epoch, "seal's epoch")
    out.natural(seal.base_offset, "seal's base offset")
    out.natural(seal.end_offset, "seal's end offset")
    out.i64(seal.first_timestamp_ms, "seal's first timestamp")
    out.i64(seal.max_timestamp_ms, "seal's max timestamp")
    out.natural(seal.size_bytes, "seal's size")
    out.digest(seal.digest, "seal's digest")
    out.i64(seal.sealed_ms, "seal's time")
    out.natural(len(seal.replicas), "replica count")
    for node_id in seal.replicas:
        out.natural32(node_id, "replica's node id")
    write_tally(out, seal.producers)
    if layout >= SealLayout.TIMES_KNOWN:
        write_times_known(out, seal.times_known)


def read_seal(fields: FieldReader, *, epoch: int, base_offset: int, layout: SealLayout) -> SealRecord:
    """Fields that the layout lacks get the value for records of older releases.

    Raises: Corrupt, also when the seal is not that of the segment with `epoch` and `base_offset`."""
    seal = SealRecord(
        epoch=fields.natural32("seal's epoch"),
        base_offset=fields.natural("seal's base offset"),
        end_offset=fields.natural("seal's end offset"),
        first_timestamp_ms=fields.i64("seal's first timestamp"),
        max_timestamp_ms=fields.i64("seal's max timestamp"),
        size_bytes=fields.natural("seal's size"),
        digest=fields.digest("seal's digest"),
        sealed_ms=fields.i64("seal's time"),
        replicas=tuple(fields.natural32("replica's node id") for _ in range(fields.count("replica count", 4))),
        producers=read_tally(fields),
        times_known=read_times_known(fields) if layout >= SealLayout.TIMES_KNOWN else TimesKnown.CLAIMED,
    )
    fault = seal_fault(seal, epoch=epoch, base_offset=base_offset)
    if fault is not None:
        fields.refuse(fault)
    return seal
