"""What a replica may read of a segment: all that its leader has, acknowledged or not; once the segment's end is known,
any replica that has all of it may answer. And what any reader may read of a sealed segment: what this node proved.

Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.formats.segments.index_points import IndexPoints
from stratalog.model.in_order import place_of
from stratalog.model.segment import Segment, SegmentState
from stratalog_node.disk.opened_batches import opened_times
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.local_copy import Extent
from stratalog_node.shards.copies.local_shard import LocalShard
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.read.reading import ReadPosition
from stratalog_node.shards.read.time_scan import passes_by_header


def segment_of_epoch(segments: Sequence[Segment], epoch: int) -> Segment | None:
    """As the metadata list it."""
    index = place_of(segments, epoch)
    return segments[index] if index < len(segments) and segments[index].epoch == epoch else None


def unsealed_of_epoch(shard: LocalShard, epoch: int) -> ActiveSegment | None:
    """The segment that this node leads, or led to its end."""
    active = shard.active
    if active is not None and active.key.epoch == epoch:
        return active
    return next((ended for ended in shard.ended if ended.key.epoch == epoch), None)


def whole_copy(shard: LocalShard, epoch: int) -> ReadPosition | None:
    """This node's copy of a segment up to its end, None when there is none."""
    unsealed = unsealed_of_epoch(shard, epoch)
    if unsealed is not None:
        return ReadPosition(unsealed, unsealed.size_bytes, unsealed.leader.end_offset, None, is_in_store=False)
    copy = shard.copies.get(epoch)
    if isinstance(copy, SealedCopy):
        return ReadPosition(copy, copy.seal.size_bytes, copy.seal.end_offset, None, is_in_store=False)
    return _followed_copy(shard, epoch)


def _followed_copy(shard: LocalShard, epoch: int) -> ReadPosition | None:
    """The position in an ended segment, once all of it is here: other replicas ask a recovery's source for what they
    lack."""
    segment = segment_of_epoch(shard.segments, epoch)
    followed = shard.context.followed.get(segment.key) if segment is not None else None
    if segment is None or followed is None or segment.end_offset != followed.end_offset:
        return None
    copy = followed.local_copy()
    return None if copy is None else ReadPosition(copy, copy.size_bytes, followed.end_offset, None, is_in_store=False)


def proven_copy(shard: LocalShard, segment: Segment) -> SealedCopy | None:
    """This node's copy of a sealed segment, if the seal record says that it equals all others and no read has found
    damage in it since."""
    if segment.state is not SegmentState.SEALED or shard.context.node_id not in segment.local_nodes:
        return None
    copy = shard.copies.get(segment.epoch)
    is_good = isinstance(copy, SealedCopy) and copy.key == segment.key and copy.damage is None
    return copy if is_good and isinstance(copy, SealedCopy) else None


async def batch_since(shard: LocalShard, copy: SealedCopy, from_offset: int, timestamp_ms: int) -> bytes:
    """The first batch that ends above an offset and has a record of a time or a later one, checked; empty when none
    has. Raises: Corrupt, NotFound, Unavailable."""
    return await shard.context.sealed_points.read_in_time(
        copy, lambda points: first_batch_since(copy, points, from_offset, timestamp_ms)
    )


def first_batch_since(copy: SealedCopy, points: IndexPoints, from_offset: int, timestamp_ms: int) -> bytes:
    """The same, blocking, with the copy's points at hand."""
    seal = copy.seal
    position = points.position(points.before_time(timestamp_ms)) or 0
    if from_offset > copy.key.base_offset:
        position = max(position, points.position(points.before_offset(from_offset)) or 0)
    while position < seal.size_bytes:
        header = copy.header_at(position)
        end_position = position + header.size_bytes
        if header.end_offset > from_offset and not passes_by_header(header, timestamp_ms):
            batch = copy.read_verified(Extent(position, header.base_offset, end_position, header.end_offset))
            if opened_times(batch, header).highest_ms >= timestamp_ms:
                return batch
        position = end_position
    return b""
