"""What a replica may read of a segment: all that is there, acknowledged or not. Its leader alone knows what follows,
and once its end is known any replica that has all of it.

Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.model.in_order import place_of
from stratalog.model.segment import Segment
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.local_shard import LocalShard
from stratalog_node.shards.reading import Place
from stratalog_node.shards.sealed import SealedCopy


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


def whole_copy(shard: LocalShard, epoch: int) -> Place | None:
    """This node's copy of a segment up to its end, None when there is none."""
    unsealed = unsealed_of_epoch(shard, epoch)
    if unsealed is not None:
        return Place(unsealed, unsealed.size_bytes, unsealed.leader.end_offset, -1, is_in_store=False)
    copy = shard.copies.get(epoch)
    if isinstance(copy, SealedCopy):
        return Place(copy, copy.seal.size_bytes, copy.seal.end_offset, -1, is_in_store=False)
    return _followed_copy(shard, epoch)


def _followed_copy(shard: LocalShard, epoch: int) -> Place | None:
    """Of a segment that has ended, once all of it is here: a recovery's source is asked for what others lack."""
    segment = segment_of_epoch(shard.segments, epoch)
    followed = shard.context.followed.get(segment.key) if segment is not None else None
    if segment is None or followed is None or segment.end_offset != followed.end_offset:
        return None
    copy = followed.local_copy()
    return None if copy is None else Place(copy, copy.size_bytes, followed.end_offset, -1, is_in_store=False)
