"""The fixed header of a segment file, and a walk over a whole one (docs/formats.md section 3).

A segment file is its header and then record batches; the file alone tells what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.envelope import PREAMBLE_BYTES, Structure, open_fixed, seal_fixed
from stratalog.formats.fields import Buffer, FieldWriter
from stratalog.formats.identity import read_identity, write_identity
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.segment import SegmentIdentity

SEGMENT_HEADER_BYTES = 512


def encode_segment_header(identity: SegmentIdentity) -> bytes:
    """Raises: InvalidRequest when the topic name or the cluster id is too long."""
    out = FieldWriter()
    write_identity(out, identity)
    out.pad_to(SEGMENT_HEADER_BYTES - PREAMBLE_BYTES, "segment identity")
    return seal_fixed(Structure.SEGMENT, out.getvalue())


def decode_segment_header(data: Buffer, *, source: str) -> SegmentIdentity:
    """The identity at the front of `data`, which may hold more than the header. Raises: Corrupt."""
    fields = open_fixed(data, Structure.SEGMENT, SEGMENT_HEADER_BYTES, source=source, position=0)
    identity = read_identity(fields)
    fields.zeros_to_end()
    return identity


def check_identity(found: SegmentIdentity, expected: SegmentIdentity, *, source: str, position: int = 0) -> None:
    """Refuse data that is whole but of another segment, naming the first field that differs. Raises: Corrupt."""
    for name in ("cluster_id", "topic_id", "topic", "shard", "epoch", "base_offset"):
        is_value, wanted = getattr(found, name), getattr(expected, name)
        if is_value != wanted:
            words = name.replace("_", " ")
            raise Corrupt(
                f"wrong identity: {words} is {is_value}, expected {wanted}: it belongs to another segment",
                source=source,
                position=position,
            )


def walk_segment(data: Buffer, *, source: str, verify: bool = True) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch of a whole segment file, as (position in the file, header), with offsets and epoch checked.

    Raises: Corrupt at the first bad byte; batches before it have been given out.
    """
    view = memoryview(data)
    identity = decode_segment_header(view, source=source)
    batches = walk(
        view[SEGMENT_HEADER_BYTES:],
        source=source,
        position=SEGMENT_HEADER_BYTES,
        verify=verify,
        expected_base_offset=identity.base_offset,
        epoch=identity.epoch,
    )
    for at, header in batches:
        yield SEGMENT_HEADER_BYTES + at, header
