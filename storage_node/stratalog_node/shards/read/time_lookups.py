"""Finds offsets by time in one shard, on any tier: for ListOffsets.

Nothing here is on the hot path. Files are read on the disk threads; data without a local copy is searched on other
nodes or in the object store.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from stratalog.formats.fields import NO_TIMESTAMP_MS
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.segment import Segment, TimesKnown
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.missing_files import copy_gone
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.flush.shard_lookup import FoundOffset
from stratalog_node.shards.read.other_sources import OtherSources
from stratalog_node.shards.read.ranges import readable_end
from stratalog_node.shards.read.time_scan import NewestScan, TimeScan

_AT_ONCE = 2
"""Lookups by time on the disk threads at once: each may take one for a second, and reads need some, too."""

_Found: TypeAlias = tuple[int, int] | None


class TimeLookups:
    def __init__(self, other_sources: OtherSources) -> None:
        self._other_sources = other_sources
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def offset_for_time(self, shard: LocalShard, timestamp_ms: int) -> FoundOffset | None:
        """The first record at or after a time, on any tier, by the times of the records."""
        for segment in _segments_of(shard):
            if segment.seal is not None and segment.seal.is_older_than(timestamp_ms):
                continue
            if shard.is_unwritten(segment.key) or segment.end_offset == segment.base_offset:
                continue
            found = await self._here_or_elsewhere(
                shard,
                segment,
                lambda copy, position, offset: self._local_time(shard, copy, position, offset, timestamp_ms),
                partial(self._other_sources.find_by_time, shard, segment, timestamp_ms),
            )
            if found is not None:
                is_cut_off = shard.cut_offset is not None and found[0] >= shard.cut_offset
                return None if is_cut_off else FoundOffset(found[0], found[1], segment.epoch)
        return await self._unlisted_time(shard, timestamp_ms)

    async def _here_or_elsewhere(
        self,
        shard: LocalShard,
        segment: Segment,
        local: Callable[[LocalCopy, int, int], Awaitable[_Found]],
        remote: Callable[[], Awaitable[_Found]],
    ) -> _Found:
        """Searches this node's copy, or other sources if it has none, or if the copy is damaged or unreadable while
        another source has all of the segment. `local` gets what `_readable` returned."""
        here = _readable(shard, segment)
        if here is None or (here[0].damage is not None and self._other_sources.has_whole(shard, segment)):
            return await remote()
        try:
            return await local(*here)
        except NotFound:
            copy_gone(shard, here[0])
        except (Corrupt, Unavailable):
            if not self._other_sources.has_whole(shard, segment):
                raise
        return await remote()

    async def _unlisted_time(self, shard: LocalShard, timestamp_ms: int) -> FoundOffset | None:
        """In segments whose roll is confirmed but not yet told by the meta service's watch: they may hold committed
        records, and "no such time" would send a consumer to the end."""
        listed = {segment.key for segment in shard.segments}
        for active in (*shard.ended, *((shard.active,) if shard.active is not None else ())):
            if active.key in listed:
                continue
            found = await self._local_time(shard, active, *readable_end(active), timestamp_ms)
            if found is not None:
                return FoundOffset(found[0], found[1], active.key.epoch)
        return None

    async def _local_time(
        self, shard: LocalShard, copy: LocalCopy, end_position: int, end_offset: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """The first such record of a copy at or above the log start."""
        from_offset = shard.log_start_offset
        if from_offset >= end_offset:
            return None
        look = TimeScan(timestamp_ms, from_offset)

        def work(points: IndexPoints) -> tuple[int, int] | None:
            position = points.position(points.before_time(timestamp_ms)) or 0
            if from_offset > copy.key.base_offset:
                position = max(position, points.position(points.before_offset(from_offset)) or 0)
            return _first_in(copy, look, position, end_position)

        async with self._slots:
            return await _with_true_times(shard, copy, end_position, work)

    async def offset_of_max_timestamp(self, shard: LocalShard) -> FoundOffset | None:
        """For a snapshot's mount whose last segment is not on this node: of the segments before that one."""
        best: FoundOffset | None = None
        for segment in sorted(_segments_of(shard), key=_newest_first):
            newest_ms = _newest_ms(segment)
            if best is not None and newest_ms is not None and not _is_newer(segment.base_offset, newest_ms, best):
                continue
            if shard.is_unwritten(segment.key) or segment.end_offset == segment.base_offset:
                continue
            found = await self._here_or_elsewhere(
                shard,
                segment,
                partial(self._local_max, shard, segment),
                partial(self._other_sources.offset_of_max_timestamp, shard, segment),
            )
            if (
                found is not None
                and found[0] >= shard.log_start_offset
                and (shard.cut_offset is None or found[0] < shard.cut_offset)
                and (best is None or _is_newer(*found, best))
            ):
                best = FoundOffset(found[0], found[1], segment.epoch)
        return best

    async def _local_max(
        self, shard: LocalShard, segment: Segment, copy: LocalCopy, end_position: int, end_offset: int
    ) -> tuple[int, int] | None:
        """The first of the newest records of a copy at or above the log start."""
        from_offset, cut_offset = shard.log_start_offset, shard.cut_offset
        if from_offset >= end_offset:
            return None
        is_whole = from_offset <= copy.key.base_offset and cut_offset is None

        def work(points: IndexPoints) -> tuple[int, int] | None:
            if is_whole and isinstance(copy, SealedCopy) and segment.seal is not None:
                newest_ms = _newest_ms(segment)
                found = None if newest_ms is None else _first_at(copy, points, newest_ms)
                if found is not None or newest_ms == NO_TIMESTAMP_MS:
                    return found
            look = NewestScan(from_offset)
            position = points.position(points.before_offset(from_offset)) or 0
            while position < end_position:
                header = copy.header_at(position)
                if cut_offset is not None and header.base_offset >= cut_offset:
                    break
                if not look.passes(header):
                    look.take_in(copy.read_blocking(position, header.size_bytes), header, str(copy.file.path))
                position += header.size_bytes
            return look.best

        async with self._slots:
            return await _with_true_times(shard, copy, end_position, work)


def _newest_first(segment: Segment) -> tuple[bool, int, int]:
    """Sort key: segments that may have the newest record first, by their seals, so that older ones need not be read."""
    newest_ms = _newest_ms(segment)
    return newest_ms is not None, 0 if newest_ms is None else -newest_ms, segment.base_offset


def _newest_ms(segment: Segment) -> int | None:
    """The greatest time of its records; None if unknown."""
    seal = segment.seal
    return None if seal is None or seal.times_known is TimesKnown.CLAIMED else seal.max_timestamp_ms


async def _with_true_times(
    shard: LocalShard, copy: LocalCopy, end_position: int, work: Callable[[IndexPoints], _Found]
) -> _Found:
    """Do the work on a disk thread, with index points that have the true times of the records. A followed copy that is
    not sealed yet has no such points: it is searched from its start."""
    if isinstance(copy, SealedCopy):
        return await shard.context.sealed_points.read_in_time(copy, work)
    if isinstance(copy, ActiveSegment):
        active = copy
        return await shard.context.threads.read_file(active.file, lambda: work(_true_points(active, end_position)))
    points = copy.points
    assert points is not None, "only a sealed copy's points are not always in memory"
    return await shard.context.threads.read_file(copy.file, lambda: work(points))


def _true_points(active: ActiveSegment, end_position: int) -> IndexPoints:
    """Blocking. Where a batch is damaged, those that it was written with: all above the log start may be whole."""
    try:
        return active.read_back.times_below(active.window_reader(), end_position)
    except Corrupt:
        return active.index


def _first_in(copy: LocalCopy, look: TimeScan, position: int, end_position: int) -> _Found:
    """Blocking."""
    while position < end_position:
        header = copy.header_at(position)
        if not look.passes(header):
            found = look.first_in(copy.read_blocking(position, header.size_bytes), header, str(copy.file.path))
            if found is not None:
                return found
        position += header.size_bytes
    return None


def _first_at(copy: SealedCopy, points: IndexPoints, timestamp_ms: int) -> _Found:
    """Blocking: the first record of all of a copy that has a time or a later one."""
    look = TimeScan(timestamp_ms, copy.key.base_offset)
    return _first_in(copy, look, points.position(points.before_time(timestamp_ms)) or 0, copy.seal.size_bytes)


def _is_newer(offset: int, timestamp_ms: int, than: FoundOffset) -> bool:
    """Of records with the same time the first one counts."""
    return (timestamp_ms, -offset) > (than.timestamp_ms, -than.offset)


def _readable(shard: LocalShard, segment: Segment) -> tuple[LocalCopy, int, int] | None:
    """This node's copy with where it is committed, position and offset; also one that it followed to its end."""
    copy = shard.copy_of(segment.key)
    if copy is not None:
        return copy, *readable_end(copy)
    followed = shard.context.followed.committed(segment) if segment.seal is None else None
    if followed is None or followed[1] != segment.end_offset:
        return None
    return followed[0], followed[0].size_bytes, followed[1]


def _segments_of(shard: LocalShard) -> Sequence[Segment]:
    """Segments that may hold records at or above the log start, oldest first."""
    segments = shard.segments
    first = max(bisect_right(segments, shard.log_start_offset, key=lambda s: s.base_offset) - 1, 0)
    return segments[first:]
