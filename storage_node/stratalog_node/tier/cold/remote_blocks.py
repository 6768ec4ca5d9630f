"""Cuts a part of a segment into blocks, and checks the bytes that are fetched for a block.

A small part is one block, fetched whole with its header and index. A large part is cut at its index points, so that a
block begins and ends with a batch and can be checked by itself.
The functions that check bytes run in the cold readers' threads.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from stratalog.formats.batches.batch_scan import scan_batches
from stratalog.formats.bucket.part import (
    PART_HEADER_BYTES,
    PartIndex,
)
from stratalog.formats.envelope import ENVELOPE_BYTES
from stratalog.formats.segments.index_block import INDEX_INTERVAL_BYTES, POINT_BYTES
from stratalog.machines.reading.read_window import Block
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart
from stratalog.stored.remote.parts import check_part_header
from stratalog_node.tier.cold.block_cache import HeldBlock


@dataclass(frozen=True, slots=True)
class RemoteBlock:
    """A block of a segment and where it lies: bytes `[start, end)` of its object."""

    block: Block
    segment: SegmentKey
    start: int
    end: int
    whole_part: RemotePart | None
    """Set when the range is all of this part, header and index included."""


@dataclass(frozen=True, slots=True)
class PartBlocks:
    """All blocks of one part, in order, and the part's own index."""

    index: PartIndex
    blocks: tuple[RemoteBlock, ...]
    base_offsets: tuple[int, ...]

    def at(self, offset: int) -> int:
        """The number of the block that contains `offset`."""
        return max(0, bisect_right(self.base_offsets, offset) - 1)

    def slice_at(self, offset: int, slice_bytes: int) -> RemoteBlock:
        """The slice of a block that contains `offset`: at most `slice_bytes`, so that a reader of that many bytes
        leaves nothing of it; or what lies between two index points, if that is more."""
        whole = self.blocks[self.at(offset)]
        data_start = self.blocks[0].start
        start, stop, base_offset = whole.start - data_start, whole.end - data_start, whole.block.base_offset
        end_offset = whole.block.end_offset
        points = self.index.points
        for number in range(points.before_offset(base_offset) + 1, len(points)):
            point = points[number]
            if point.position >= stop:
                break
            end = points[number + 1].position if number + 1 < len(points) else stop
            if min(end, stop) - start > slice_bytes:
                if point.offset > offset:
                    stop, end_offset = point.position, point.offset
                    break
                start, base_offset = point.position, point.offset
        block = Block(whole.block.object_key, data_start + start, base_offset, end_offset, stop - start)
        return RemoteBlock(block, whole.segment, data_start + start, data_start + stop, None)


def whole_part_block(segment: SegmentKey, part: RemotePart) -> RemoteBlock:
    block = Block(part.object_key, part.position, part.base_offset, part.end_offset, part.size_bytes)
    return RemoteBlock(block, segment, part.position, part.position + part.size_bytes, part)


def cut_part(segment: SegmentKey, part: RemotePart, index: PartIndex, block_bytes: int) -> PartBlocks:
    """Cut at the first point at or after each `block_bytes`; a rest smaller than half a block joins the last one."""
    size = index.header.data_size_bytes
    cuts: list[tuple[int, int]] = [(part.base_offset, 0)]
    for number in range(len(index.points)):
        point = index.points[number]
        if point.position - cuts[-1][1] >= block_bytes and size - point.position >= block_bytes // 2:
            cuts.append((point.offset, point.position))
    ends = [*cuts[1:], (part.end_offset, size)]
    data_start = part.position + PART_HEADER_BYTES
    blocks = tuple(
        RemoteBlock(
            Block(part.object_key, data_start + start, base_offset, end_offset, stop - start),
            segment,
            data_start + start,
            data_start + stop,
            None,
        )
        for (base_offset, start), (end_offset, stop) in zip(cuts, ends, strict=True)
    )
    return PartBlocks(index, blocks, tuple(base_offset for base_offset, _ in cuts))


def largest_index_bytes(part: RemotePart) -> int:
    """No part of this size has a larger index: points are 64 KiB apart."""
    return min(
        part.size_bytes - PART_HEADER_BYTES,
        ENVELOPE_BYTES + 8 + POINT_BYTES * (part.size_bytes // INDEX_INTERVAL_BYTES),
    )


def check_block(remote: RemoteBlock, data: memoryview, cluster_id: str) -> HeldBlock:
    """Every batch of a fetched range: CRC, offsets without a gap, epoch; of a whole part its header, too.

    Raises: Corrupt, naming object and byte.
    """
    block = remote.block
    position = remote.start
    if remote.whole_part is not None:
        header = check_part_header(data, cluster_id, remote.segment, remote.whole_part)
        data = data[PART_HEADER_BYTES : header.index_position]
        position += PART_HEADER_BYTES
    found = scan_batches(
        data, base_offset=block.base_offset, epoch=remote.segment.epoch, source=block.object_key, position=position
    )
    if found.end_offset != block.end_offset:
        raise Corrupt(
            f"batches from offset {block.base_offset} end at {found.end_offset}, expected {block.end_offset}",
            source=block.object_key,
            position=position + len(data),
        )
    return HeldBlock(block, remote.segment, data, found.base_offsets, found.positions)
