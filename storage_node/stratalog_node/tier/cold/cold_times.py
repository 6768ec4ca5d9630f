"""Finds records of the cold tier by their time.

A sealed segment's index block names the few batches to look into; a segment that is still being uploaded is searched by
its parts' headers and indexes. Where these have only the times that clients claimed, as an older release wrote them,
all batches are looked into, and what that shows of a sealed segment is kept (`TimesFound`), so that the
next lookup does not read it again. Batches are opened on the cold readers' threads.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.bucket.part import PartHeader
from stratalog.formats.fields import NO_TIMESTAMP_MS
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, RemoteState, Segment, TimesKnown
from stratalog_node.shards.read.time_scan import NewestScan, TimeScan
from stratalog_node.tier.cold.block_cache import HeldBlock
from stratalog_node.tier.cold.remote_index import RemoteIndex
from stratalog_node.tier.cold.remote_walk import remote_end_offset

_HEADERS_AT_ONCE = 8

_MOST_SEGMENTS = 4_096
_MOST_TIMES = 32

Hold = Callable[[Segment, int], AbstractAsyncContextManager[HeldBlock]]


@dataclass(slots=True)
class _SegmentTimes:
    """For one segment: no record before `offsets[i]` is as late as `times_ms[i]`. Both ascend."""

    times_ms: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    newest: tuple[int, int] | None = None


class TimesFound:
    """Results of earlier lookups by time in sealed segments whose index has only the times that clients claimed.

    An older release sealed such a segment. A lookup that finds no record in it reads all of it. Its records never
    change, so the result stays valid and spares the next lookup that read.
    Bounded: the segments used last, and some times of each. Memory: some 100 bytes per time. Lives on the event loop.
    """

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: dict[SegmentKey, _SegmentTimes] = {}
        """In the order of their last use."""

    def none_before(self, key: SegmentKey, timestamp_ms: int) -> int:
        """The offset before which no record is that late; -1 if nothing is known."""
        found = self._segments.get(key)
        at = bisect_right(found.times_ms, timestamp_ms) - 1 if found is not None else -1
        return found.offsets[at] if found is not None and at >= 0 else -1

    def newest(self, key: SegmentKey) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the highest time."""
        found = self._segments.get(key)
        return None if found is None else found.newest

    def note(self, key: SegmentKey, timestamp_ms: int, offset: int) -> None:
        """No record before `offset` has that time or a later one."""
        found = self._used(key)
        if offset <= self.none_before(key, timestamp_ms):
            return
        first = bisect_left(found.times_ms, timestamp_ms)
        last = bisect_right(found.offsets, offset)
        # Entries of later times with lower offsets are now redundant.
        found.times_ms[first : max(first, last)] = [timestamp_ms]
        found.offsets[first : max(first, last)] = [offset]
        if len(found.times_ms) > _MOST_TIMES:
            del found.times_ms[0], found.offsets[0]

    def note_newest(self, key: SegmentKey, offset: int, timestamp_ms: int, end_offset: int) -> None:
        """The first record with the highest time; the segment ends at `end_offset`."""
        self._used(key).newest = offset, timestamp_ms
        self.note(key, timestamp_ms + 1, end_offset)

    def _used(self, key: SegmentKey) -> _SegmentTimes:
        found = self._segments.pop(key, None) or _SegmentTimes()
        self._segments[key] = found
        if len(self._segments) > _MOST_SEGMENTS:
            del self._segments[next(iter(self._segments))]
        return found


class TimeSearch:
    """Searches single segments."""

    def __init__(self, index: RemoteIndex, hold: Hold, threads: Executor) -> None:
        self._index = index
        self._hold = hold
        self._threads = threads
        self._found = TimesFound()

    async def first_at(self, segment: Segment, timestamp_ms: int, from_offset: int = 0) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after a time, from an offset on."""
        look = TimeScan(timestamp_ms, from_offset)
        match segment.remote.state:
            case RemoteState.COMPLETE:
                block = await self._index.index_block(segment)
                if block.position_for_time(timestamp_ms) is None:
                    return None
                if not block.points.has_true_times:
                    return await self._first_of_claimed(segment, timestamp_ms, from_offset, look)
                start = max(_offset_before(block.points, timestamp_ms, segment.base_offset), from_offset)
                return await self._scan(segment, start, remote_end_offset(segment), look)
            case RemoteState.PARTIAL:
                return await self._first_in_parts(segment, timestamp_ms, from_offset, look)
            case RemoteState.NONE:
                return None

    async def first_of_max(self, segment: Segment) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the highest time of what is in the store."""
        highest: int | None = NO_TIMESTAMP_MS
        match segment.remote.state:
            case RemoteState.COMPLETE:
                block = await self._index.index_block(segment)
                highest = block.seal.max_timestamp_ms if block.points.has_true_times else None
            case RemoteState.PARTIAL:
                highest = await self._highest_in_parts(segment)
            case RemoteState.NONE:
                return None
        if highest == NO_TIMESTAMP_MS:
            return None
        if highest is not None:
            return await self.first_at(segment, highest) or await self._newest_of_all(segment)
        is_sealed = segment.remote.state is RemoteState.COMPLETE
        if is_sealed and (known := self._found.newest(segment.key)) is not None:
            return known
        newest = await self._newest_of_all(segment)
        if is_sealed and newest is not None:
            self._found.note_newest(segment.key, *newest, remote_end_offset(segment))
        return newest

    async def _first_of_claimed(
        self, segment: Segment, timestamp_ms: int, from_offset: int, look: TimeScan
    ) -> tuple[int, int] | None:
        """In a sealed segment whose index has no true times of records."""
        known = max(self._found.none_before(segment.key, timestamp_ms), segment.base_offset)
        end_offset = remote_end_offset(segment)
        found = await self._scan(segment, max(known, from_offset), end_offset, look)
        if from_offset <= known:
            self._found.note(segment.key, timestamp_ms, end_offset if found is None else found[0])
        return found

    async def _highest_in_parts(self, segment: Segment) -> int | None:
        """None if the times of a part's records were not checked."""
        highest = NO_TIMESTAMP_MS
        parts = segment.remote.parts
        for first in range(0, len(parts), _HEADERS_AT_ONCE):
            for header in await self._headers(segment, parts[first : first + _HEADERS_AT_ONCE]):
                if header.times_known is TimesKnown.CLAIMED:
                    return None
                highest = max(highest, header.max_timestamp_ms)
        return highest

    async def _newest_of_all(self, segment: Segment) -> tuple[int, int] | None:
        """By looking into all batches that are in the store."""
        look = NewestScan(segment.base_offset)
        offset, end_offset = segment.base_offset, remote_end_offset(segment)
        while offset < end_offset:
            async with self._hold(segment, offset) as held:
                await asyncio.get_running_loop().run_in_executor(self._threads, _take_in_block, held, offset, look)
            offset = held.block.end_offset
        return None if look.best is None else (look.best.offset, look.best.timestamp_ms)

    async def _first_in_parts(
        self, segment: Segment, timestamp_ms: int, from_offset: int, look: TimeScan
    ) -> tuple[int, int] | None:
        parts = [part for part in segment.remote.parts if part.end_offset > from_offset]
        for first in range(0, len(parts), _HEADERS_AT_ONCE):
            some = parts[first : first + _HEADERS_AT_ONCE]
            for part, header in zip(some, await self._headers(segment, some), strict=True):
                if header.times_known is not TimesKnown.CLAIMED and header.max_timestamp_ms < timestamp_ms:
                    continue
                start = part.base_offset
                known = self._index.blocks_now(segment.key, part)
                if known is not None:
                    start = _offset_before(known.index.points, timestamp_ms, start)
                found = await self._scan(segment, max(start, from_offset), part.end_offset, look)
                if found is not None:
                    return found
        return None

    async def _headers(self, segment: Segment, parts: Sequence[RemotePart]) -> Sequence[PartHeader]:
        return await asyncio.gather(*(self._header(segment, part) for part in parts))

    async def _header(self, segment: Segment, part: RemotePart) -> PartHeader:
        if self._index.is_large(part):
            return (await self._index.part_blocks(segment.key, part)).index.header
        return await self._index.part_header(segment.key, part)

    async def _scan(self, segment: Segment, offset: int, end_offset: int, look: TimeScan) -> tuple[int, int] | None:
        """Look into the batches of `[offset, end_offset)`."""
        while offset < end_offset:
            async with self._hold(segment, offset) as held:
                found = await asyncio.get_running_loop().run_in_executor(
                    self._threads, _first_in_block, held, offset, look
                )
            if found is not None:
                return found
            offset = held.block.end_offset
        return None


def _offset_before(points: IndexPoints, timestamp_ms: int, base_offset: int) -> int:
    """From where on to look: only older batches lie before."""
    number = points.before_time(timestamp_ms)
    return base_offset if number < 0 else points[number].offset


def _take_in_block(held: HeldBlock, offset: int, look: NewestScan) -> None:
    source = f"segment {held.segment} in {held.block.object_key}"
    for batch in held.batches_from(offset):
        header = parse_header(batch)
        if not look.passes(header):
            look.take_in(batch, header, source)


def _first_in_block(held: HeldBlock, offset: int, look: TimeScan) -> tuple[int, int] | None:
    source = f"segment {held.segment} in {held.block.object_key}"
    for batch in held.batches_from(offset):
        header = parse_header(batch)
        if look.passes(header):
            continue
        found = look.first_in(batch, header, source)
        if found is not None:
            return (found.offset, found.timestamp_ms)
    return None
