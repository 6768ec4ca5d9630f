"""Makes parts and bundle bodies of what was read. Byte work of any size goes to the encoder's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.formats.bucket.bundle import BundleEntry, BundleHeader, BundleMember, encode_bundle
from stratalog.formats.bucket.part import (
    PART_HEADER_BYTES,
    PartIndex,
    encode_part,
    index_of_encoded,
)
from stratalog.formats.fields import Buffer
from stratalog.machines.tiering.upload_events import PART_OVERHEAD_BYTES, Piece
from stratalog.model.segment import SegmentIdentity
from stratalog_node.tier.uploads.encoder import Encoder
from stratalog_node.tier.uploads.source import PieceData

_BATCH_WEIGHT = 512
_OPENING_WEIGHT = 1 << 30
"""Whatever a batch's size, its records may be many."""
_MEMBER_WEIGHT = 1024


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """A part ready to be put. `index` is what a reader of it would decode."""

    piece: Piece
    identity: SegmentIdentity
    buffers: Sequence[Buffer]
    index: PartIndex

    @property
    def base_offset(self) -> int:
        return self.index.header.base_offset

    @property
    def end_offset(self) -> int:
        return self.index.header.end_offset

    @property
    def size_bytes(self) -> int:
        return self.index.header.size_bytes


class PartBuilder:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    async def part(self, data: PieceData, identity: SegmentIdentity, attempt: int) -> BuiltPart:
        weight = _BATCH_WEIGHT * len(data.headers) if data.times is not None else _OPENING_WEIGHT
        return await self._encoder.run(weight, build_part, data, identity, attempt)

    async def bundle(
        self, header: BundleHeader, parts: Sequence[BuiltPart]
    ) -> tuple[list[Buffer], tuple[BundleEntry, ...]]:
        members = [BundleMember(part.identity, part.base_offset, part.end_offset, part.buffers) for part in parts]
        return await self._encoder.run(_MEMBER_WEIGHT * len(members), encode_bundle, header, members)


def build_part(data: PieceData, identity: SegmentIdentity, attempt: int) -> BuiltPart:
    buffers, _ = encode_part(
        identity, data.base_offset, data.end_offset, data.data, data.headers, data.digest_before, attempt, data.times
    )
    return BuiltPart(data.piece, identity, buffers, index_of_encoded(buffers))


assert PART_OVERHEAD_BYTES > PART_HEADER_BYTES, "the uploader plans bundles with at least a part's header in mind"
