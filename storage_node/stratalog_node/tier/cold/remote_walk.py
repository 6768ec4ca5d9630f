"""The blocks of a shard's cold data, in order, from an offset on: across parts and segments, as far as is known now.

Never waits: if an index must be learned first, the walk ends with what is missing.
At a level above 0 blocks are halved that many times (`machines.reading.read_range`). Blocks of another size that are in
memory are taken as they are, so that nothing is fetched twice when ranges shrink or grow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stratalog.machines.reading.read_window import Block
from stratalog.model.segment import RemotePart, RemoteState, Segment
from stratalog_node.tier.cold.remote_blocks import RemoteBlock, whole_part_block
from stratalog_node.tier.cold.remote_index import RemoteIndex


@dataclass(frozen=True, slots=True)
class Missing:
    """The walk cannot continue before this is known: the segment's manifest, or with `part` the part's index."""

    segment: Segment
    part: RemotePart | None


def remote_end_offset(segment: Segment) -> int:
    """Up to where a segment is in the object store."""
    remote = segment.remote
    match remote.state:
        case RemoteState.COMPLETE:
            end_offset = segment.seal.end_offset if segment.seal is not None else segment.end_offset
            return remote.commit_offset if end_offset is None else end_offset
        case RemoteState.PARTIAL:
            return remote.commit_offset
        case RemoteState.NONE:
            return segment.base_offset


def segment_at(segments: Sequence[Segment], offset: int) -> int:
    """The number of the segment that contains an offset, or of the nearest one."""
    return max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)


def walk_blocks(
    segments: Sequence[Segment],
    offset: int,
    index: RemoteIndex,
    level: int = 0,
    finest: int = 0,
    is_there: Callable[[Block], bool] = lambda _: False,
) -> Iterator[RemoteBlock | Missing]:
    """Blocks from the one that contains `offset` on. Empty when the offset is not in the object store. `finest`: no
    block in memory is of a higher level."""
    if not segments or offset < segments[0].base_offset:
        return
    for number in range(segment_at(segments, offset), len(segments)):
        segment = segments[number]
        if remote_end_offset(segment) > offset:
            parts = index.parts_now(segment)
            if parts is None:
                yield Missing(segment, None)
                return
            if level or finest:
                yield from _walk_slices(segment, parts, offset, index, level, max(level, finest), is_there)
            else:
                yield from _walk_parts(segment, parts, offset, index)
            offset = remote_end_offset(segment)
        if segment.end_offset is None or offset < segment.end_offset:
            return  # what follows is not in the store, and nothing may be skipped


def _walk_parts(
    segment: Segment, parts: Sequence[RemotePart], offset: int, index: RemoteIndex
) -> Iterator[RemoteBlock | Missing]:
    first = max(0, bisect_right(parts, offset, key=lambda part: part.base_offset) - 1)
    for number in range(first, len(parts)):
        part = parts[number]
        if not index.is_large(part):
            yield whole_part_block(segment.key, part)
            continue
        known = index.blocks_now(segment.key, part)
        if known is None:
            yield Missing(segment, part)
            return
        start = known.at(offset) if number == first else 0
        yield from known.blocks[start:]


def _walk_slices(
    segment: Segment,
    parts: Sequence[RemotePart],
    offset: int,
    index: RemoteIndex,
    level: int,
    finest: int,
    is_there: Callable[[Block], bool],
) -> Iterator[RemoteBlock | Missing]:
    first = max(0, bisect_right(parts, offset, key=lambda part: part.base_offset) - 1)
    for part in parts[first:]:
        at = max(offset, part.base_offset)
        while at < part.end_offset:
            slice_ = index.block_at(segment.key, part, at, level)
            for other in range(finest + 1):
                found = index.block_at(segment.key, part, at, other)
                if found is not None and is_there(found.block):
                    slice_ = found
                    break
            if slice_ is None:
                yield Missing(segment, part)
                return
            yield slice_
            at = slice_.block.end_offset
