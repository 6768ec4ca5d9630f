"""Finds ranges, sizes and ends of one shard's local copies, for the tier and the control requests
(shards/copies/shard_view.py, shards/flush/shard_lookup.py).

Nothing here is on the hot path. File reads run on the disk threads.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.formats.batches.record_times import BatchTimes
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState
from stratalog_node.disk.opened_batches import opened_times
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.active_age import may_be_before, newest_record
from stratalog_node.shards.copies.local_copy import Extent, LocalCopy
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.missing_files import copy_gone
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.copies.shard_view import LogRange, NewestRecord, TakeBuffer


def readable_end(copy: LocalCopy) -> tuple[int, int]:
    """(position, offset) below which a local copy is committed."""
    if isinstance(copy, ActiveSegment):
        return copy.hw_position, copy.hw_offset
    assert isinstance(copy, SealedCopy)
    return copy.seal.size_bytes, copy.seal.end_offset


def uploadable_end(copy: LocalCopy) -> tuple[int, int]:
    """(position, offset) below which a local copy may be uploaded: what is committed, and of a Direct segment, whose
    producers wait for that, all that is written."""
    if isinstance(copy, ActiveSegment) and copy.leader.is_direct:
        return copy.leader.size_bytes, copy.leader.end_offset
    return readable_end(copy)


def size_below_high_watermark(copy: LocalCopy, from_offset: int) -> int:
    """Bytes at and above a batch boundary that may be uploaded: exact when the boundary is remembered, else from the
    index point before it, which is at most one index interval too much. All of a sealed copy whose points are not in
    memory."""
    end_position, end_offset = uploadable_end(copy)
    if from_offset >= end_offset:
        return 0
    position = copy.hinted(from_offset)
    if position < 0:
        points = copy.points
        position = 0 if points is None else points.position(points.before_offset(from_offset)) or 0
    return max(end_position - position, 0)


async def read_committed_range(
    shard: LocalShard,
    segment: SegmentKey,
    from_offset: int,
    max_bytes: int,
    at_least_one: bool,
    take: TakeBuffer | None,
) -> LogRange:
    """See `ShardView.read_committed_range`."""
    copy = shard.copy_of(segment)
    if copy is None:
        if shard.is_unwritten(segment):
            return LogRange(from_offset, from_offset, b"", ())
        raise NotFound(f"{shard.topic.name}-{shard.key.shard}: no local copy of segment {segment.base_offset}")
    end_position, end_offset = uploadable_end(copy)
    if from_offset >= end_offset:
        return LogRange(from_offset, from_offset, b"", ())

    def work(points: IndexPoints) -> tuple[LogRange, Extent]:
        extent = copy.find(points, from_offset, max_bytes, end_position, end_offset, copy.read_blocking)
        if extent.size_bytes > max_bytes and not at_least_one:
            return LogRange(from_offset, from_offset, b"", (), extent.size_bytes), extent
        data: bytes | memoryview
        if take is None:
            data = copy.read_blocking(extent.position, extent.size_bytes)
        else:
            data = take(extent.size_bytes)
            copy.read_into(data, extent.position)
        headers = tuple(copy.checked_headers(data, extent))
        times = None if take is None else _times_of(data, headers)
        if isinstance(copy, ActiveSegment):
            copy.read_back.take_in(extent.position, headers, data, times)
        return LogRange(headers[0].base_offset, headers[-1].end_offset, data, headers, times=times), extent

    try:
        found, extent = await shard.context.sealed_points.read(copy, work)
    except NotFound:
        copy_gone(shard, copy)
        raise
    if found.headers:
        copy.was_checked(extent)
    return found


def _times_of(data: bytes | memoryview, headers: Iterable[BatchHeader]) -> list[BatchTimes]:
    """Blocking."""
    view, at = memoryview(data), 0
    times = []
    for header in headers:
        times.append(opened_times(view[at : at + header.size_bytes], header))
        at += header.size_bytes
    return times


class Ranged:
    """A shard that answers from its local copies."""

    __slots__ = ()

    @property
    def cut_offset(self) -> int | None:
        return None

    def size_below_high_watermark(self: LocalShard, segment: SegmentKey, from_offset: int) -> int:
        return size_below_high_watermark(copy, from_offset) if (copy := self.copy_of(segment)) is not None else 0

    def upload_limit(self: LocalShard, segment: SegmentKey) -> int:
        copy = self.copy_of(segment)
        if isinstance(copy, ActiveSegment) and copy.leader.is_direct:
            return copy.leader.end_offset
        return min(self.high_watermark, self.last_stable_offset)

    async def read_committed_range(
        self: LocalShard,
        segment: SegmentKey,
        from_offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        take_buffer: TakeBuffer | None = None,
    ) -> LogRange:
        return await read_committed_range(self, segment, from_offset, max_bytes, at_least_one, take_buffer)

    def may_active_be_before(self: LocalShard, timestamp_ms: int) -> bool:
        return may_be_before(self, timestamp_ms)

    async def newest_in_active(self: LocalShard, before_ms: int) -> NewestRecord | None:
        return await newest_record(self, before_ms)

    def earliest_local_offset(self: LocalShard) -> int:
        return earliest_local_offset(self)

    def last_tiered_offset(self: LocalShard) -> int:
        return last_tiered_offset(self)

    def local_size_bytes(self: LocalShard) -> int:
        return local_size_bytes(self)

    def moved_bytes(self: LocalShard) -> dict[str, int]:
        return moved_bytes(self)


# Offsets of the tiers -----------------------------------------------------------------------------------------------
def earliest_local_offset(shard: LocalShard) -> int:
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


def last_tiered_offset(shard: LocalShard) -> int:
    """Last offset durable in the object store; -1 when none is."""
    for segment in reversed(shard.segments):
        remote = segment.remote
        if remote.state is RemoteState.COMPLETE and segment.end_offset is not None:
            return segment.end_offset - 1
        if remote.commit_offset > segment.base_offset:
            return remote.commit_offset - 1
    return -1


def moved_bytes(shard: LocalShard) -> dict[str, int]:
    moved = shard.context.layout.moved
    found: dict[str, int] = {}
    if moved:
        for copy in shard.copies.values():
            if (root := moved.get(copy.key)) is not None:
                found[str(root)] = found.get(str(root), 0) + copy.file.size_bytes
    return found


def local_size_bytes(shard: LocalShard) -> int:
    copies: list[LocalCopy] = [*shard.copies.values(), *shard.ended]
    if shard.active is not None:
        copies.append(shard.active)
    return sum(copy.file.size_bytes for copy in copies)
