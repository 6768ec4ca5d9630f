"""Ranges and look-ups of one shard for the tier, the groups and the control requests (shards/shard_view.py,
shards/shard_lookup.py).

Nothing here is on the hot path. File reads run on the disk threads, object reads through the cold reader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Protocol

from stratalog.formats.index_points import IndexPoints
from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.local_copy import Extent, LocalCopy
from stratalog_node.shards.missing_files import copy_gone
from stratalog_node.shards.sealed import SealedCopy
from stratalog_node.shards.shard_lookup import FoundOffset
from stratalog_node.shards.shard_view import LogRange
from stratalog_node.shards.time_look import TimeLook

if TYPE_CHECKING:
    from stratalog_node.shards.shard_log import ShardLog

_MOST_PASSED = 8
"""Batches whose greatest time no record has, or that hold no records, before a segment is taken for one without."""


class ColdTimes(Protocol):
    """The part of the cold reader that looks for times."""

    async def find_by_time(
        self, segment: Segment, timestamp_ms: int, from_offset: int = 0
    ) -> tuple[int, int] | None: ...

    async def offset_of_max_timestamp(self, segment: Segment) -> tuple[int, int] | None: ...


def readable_end(copy: LocalCopy) -> tuple[int, int]:
    """(position, offset) below which a local copy is committed."""
    if isinstance(copy, ActiveSegment):
        return copy.hw_position, copy.hw_offset
    assert isinstance(copy, SealedCopy)
    return copy.seal.size_bytes, copy.seal.end_offset


def size_below_high_watermark(copy: LocalCopy, from_offset: int) -> int:
    """Committed bytes at and above a batch boundary: exact when the boundary is remembered, else from the index point
    before it, which is at most one index interval too much. All of a sealed copy whose points are not in memory."""
    end_position, end_offset = readable_end(copy)
    if from_offset >= end_offset:
        return 0
    position = copy.hinted(from_offset)
    if position < 0:
        points = copy.points
        position = 0 if points is None else points.position(points.before_offset(from_offset)) or 0
    return max(end_position - position, 0)


async def read_committed_range(
    shard: ShardLog, segment: SegmentKey, from_offset: int, max_bytes: int, at_least_one: bool
) -> LogRange:
    """See `ShardView.read_committed_range`."""
    copy = shard.copy_of(segment)
    if copy is None:
        if shard.is_unwritten(segment):
            return LogRange(from_offset, from_offset, b"", ())
        raise NotFound(f"{shard.topic.name}-{shard.key.shard}: no local copy of segment {segment.base_offset}")
    end_position, end_offset = readable_end(copy)
    if from_offset >= end_offset:
        return LogRange(from_offset, from_offset, b"", ())

    def work(points: IndexPoints) -> tuple[LogRange, Extent]:
        extent = copy.find(points, from_offset, max_bytes, end_position, end_offset, copy.read_blocking)
        if extent.size_bytes > max_bytes and not at_least_one:
            return LogRange(from_offset, from_offset, b"", (), extent.size_bytes), extent
        data = copy.read_blocking(extent.position, extent.size_bytes)
        headers = tuple(copy.checked_headers(data, extent))
        return LogRange(headers[0].base_offset, headers[-1].end_offset, data, headers), extent

    try:
        found, extent = await shard.node.sealed_points.read(copy, work)
    except NotFound:
        copy_gone(shard, copy)
        raise
    if found.headers:
        copy.was_checked(extent)
    return found


# Times ----------------------------------------------------------------------------------------------------------------
async def offset_for_time(shard: ShardLog, timestamp_ms: int) -> FoundOffset | None:
    """The first record at or after a time, on any tier; exact inside its batch, within the bounds of a `TimeLook`."""
    for segment in _segments_of(shard):
        if segment.seal is not None and segment.seal.max_timestamp_ms < timestamp_ms:
            continue
        if shard.is_unwritten(segment.key):
            continue
        copy = shard.copy_of(segment.key)
        try:
            found = await _local_time(shard, copy, timestamp_ms) if copy is not None else None
        except NotFound as error:
            _without_file(shard, segment, copy, error)
            copy = None
        if copy is None:
            found = await _cold(shard).find_by_time(segment, timestamp_ms, shard.log_start_offset)
            if found is None:
                _check_is_in_store(shard, segment)
        if found is not None:
            return FoundOffset(found[0], found[1], segment.epoch)
    return await _unlisted_time(shard, timestamp_ms)


async def _unlisted_time(shard: ShardLog, timestamp_ms: int) -> FoundOffset | None:
    """In segments whose roll is confirmed but not yet told by the meta service's watch: they may hold committed
    records, and "no such time" would send a consumer to the end."""
    listed = {segment.key for segment in shard.segments}
    for active in (*shard.ended, *((shard.active,) if shard.active is not None else ())):
        if active.key in listed:
            continue
        found = await _local_time(shard, active, timestamp_ms)
        if found is not None:
            return FoundOffset(found[0], found[1], active.key.epoch)
    return None


async def _local_time(shard: ShardLog, copy: LocalCopy, timestamp_ms: int) -> tuple[int, int] | None:
    """The first such record of a copy at or above the log start."""
    end_position, end_offset = readable_end(copy)
    from_offset = shard.log_start_offset
    if from_offset >= end_offset:
        return None
    look = TimeLook(timestamp_ms, from_offset)

    def work(points: IndexPoints) -> tuple[int, int] | None:
        position = points.position(points.before_time(timestamp_ms)) or 0
        if from_offset > copy.key.base_offset:
            position = max(position, points.position(points.before_offset(from_offset)) or 0)
        while position < end_position:
            header = copy.header_at(position)
            if not look.passes(header):
                batch = copy.read_blocking(position, header.size_bytes)
                found = look.first_in(batch, header, str(copy.file.path))
                if found is not None:
                    return found
            position += header.size_bytes
        return None

    async with shard.node.time_looks:
        return await shard.node.sealed_points.read(copy, work)


async def offset_with_max_timestamp(shard: ShardLog) -> FoundOffset | None:
    best: FoundOffset | None = None
    for segment in _segments_of(shard):
        copy = shard.copy_of(segment.key)
        if segment.seal is not None and best is not None and segment.seal.max_timestamp_ms <= best.timestamp_ms:
            continue
        if shard.is_unwritten(segment.key):
            continue
        try:
            found = await _local_max(shard, copy) if copy is not None else None
        except NotFound as error:
            _without_file(shard, segment, copy, error)
            copy = None
        if copy is None:
            _check_is_in_store(shard, segment)
            found = await _cold(shard).offset_of_max_timestamp(segment)
        if found is not None and found[0] >= shard.log_start_offset and (best is None or found[1] > best.timestamp_ms):
            best = FoundOffset(found[0], found[1], segment.epoch)
    return best


async def _local_max(shard: ShardLog, copy: LocalCopy) -> tuple[int, int] | None:
    end_position, _ = readable_end(copy)

    def claims() -> Iterator[tuple[int, int]]:
        """Each batch's greatest time, by its header, and its position, negated: the first of equals comes first."""
        position = 0
        while position < end_position:
            header = copy.header_at(position)
            if header.max_timestamp_ms >= 0:
                yield header.max_timestamp_ms, -position
            position += header.size_bytes

    def work() -> tuple[int, int] | None:
        look = TimeLook(0, 0)
        for _, position in nlargest(_MOST_PASSED, claims()):
            header = copy.header_at(-position)
            found = look.newest_in(copy.read_blocking(-position, header.size_bytes), header, str(copy.file.path))
            if found is not None:
                return found
        return None

    async with shard.node.time_looks:
        return await shard.node.threads.read_file(copy.file, work)


def _without_file(shard: ShardLog, segment: Segment, copy: LocalCopy | None, error: NotFound) -> None:
    """A copy's file is gone: the object store is asked instead. Raises: Unavailable when it has not all of it."""
    if copy is not None:
        copy_gone(shard, copy)
    if segment.remote.state is not RemoteState.COMPLETE:
        raise Unavailable(f"{shard.topic.name}-{shard.key.shard}: cannot be searched: {error}") from error


def _segments_of(shard: ShardLog) -> Sequence[Segment]:
    """Segments that may hold records at or above the log start, oldest first."""
    segments = shard.segments
    first = max(bisect_right(segments, shard.log_start_offset, key=lambda s: s.base_offset) - 1, 0)
    return segments[first:]


def _check_is_in_store(shard: ShardLog, segment: Segment) -> None:
    """Raises: Unavailable when a part of the segment is neither here nor in the object store: a record that was not
    found may be in it, and a consumer that is told of none would jump over it (F40)."""
    remote = segment.remote
    if remote.state is not RemoteState.COMPLETE and (
        segment.end_offset is None or remote.commit_offset < segment.end_offset
    ):
        raise Unavailable(
            f"{shard.topic.name}-{shard.key.shard}: segment {segment.base_offset} has no local copy, and not all of it "
            "is in the object store: put its file back, then restart the node"
        )


def _cold(shard: ShardLog) -> ColdTimes:
    cold = shard.node.cold_times
    if cold is None:
        raise Unavailable(f"{shard.topic.name}-{shard.key.shard}: data is in the object store, but no bucket is set")
    return cold


# Offsets of the tiers -----------------------------------------------------------------------------------------------
def earliest_local_offset(shard: ShardLog) -> int:
    """First offset of the unbroken local run up to the high watermark."""
    earliest = shard.active.key.base_offset if shard.active else shard.high_watermark
    for ended in reversed(shard.ended):
        earliest = ended.key.base_offset
    for segment in reversed(shard.segments):
        if segment.base_offset >= earliest:
            continue
        if not shard.has_local(segment.key):
            break
        earliest = segment.base_offset
    return max(earliest, shard.log_start_offset)


def last_tiered_offset(shard: ShardLog) -> int:
    """Last offset durable in the object store; -1 when none is."""
    for segment in reversed(shard.segments):
        remote = segment.remote
        if remote.state is RemoteState.COMPLETE and segment.end_offset is not None:
            return segment.end_offset - 1
        if remote.commit_offset > segment.base_offset:
            return remote.commit_offset - 1
    return -1


def local_size_bytes(shard: ShardLog) -> int:
    copies: list[LocalCopy] = [*shard.copies.values(), *shard.ended]
    if shard.active is not None:
        copies.append(shard.active)
    return sum(copy.file.size_bytes for copy in copies)
