"""Which segments a node follows, what it tells the follower of each, and which copies it drops: as the metadata say.

Pure; called for each change of a segment. Node and simulator use the same functions.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.machines.following.follower_events import FollowerLife, SegmentGone, SegmentNamed
from stratalog.machines.reading.bucket_reads import is_served_from_bucket
from stratalog.model.segment import RemoteState, Segment, SegmentState

_AT_ITS_END = (FollowerLife.PROVING, FollowerLife.PROVEN, FollowerLife.SEALED)


def should_follow(segment: Segment, node_id: int, *, may_read_bucket: bool) -> bool:
    """Whether this node is a replica and another node leads the segment, or this node led it to its end and no longer
    seals it. A sealed segment is followed where this node has not proven a copy and readers need one. Requires: this
    process does not write the segment."""
    if node_id not in segment.replicas:
        return False
    if segment.state is SegmentState.ACTIVE:
        return segment.leader != node_id
    if segment.state is SegmentState.SEALING:
        return segment.leader != node_id or segment.is_shared
    is_missed = segment.seal is not None and node_id not in segment.local_nodes
    return is_missed and not is_served_from_bucket(segment, may_read_bucket=may_read_bucket)


def should_drop(segment: Segment, node_id: int, life: FollowerLife, *, may_read_bucket: bool) -> bool:
    """Whether the copy may be removed. A report about it may still be on its way, and remains true. But once readers
    get all of the segment from the object store, a node that is not listed will not be added to the list."""
    is_stored = segment.remote.state is RemoteState.COMPLETE
    if is_stored and may_read_bucket and node_id not in segment.local_nodes:
        return True
    is_over = segment.seal is not None and node_id not in segment.local_nodes
    is_due = should_follow(segment, node_id, may_read_bucket=may_read_bucket)
    return segment.state is SegmentState.DELETED or not (life in _AT_ITS_END or not is_over or is_due)


def news_of(
    segment: Segment,
    node_id: int,
    life: FollowerLife,
    is_alive: Callable[[int], bool],
    *,
    has_store: bool,
    may_read_bucket: bool,
) -> SegmentNamed | SegmentGone:
    """What a follower whose copy is in this `life` hears when the segment's record changed. `has_store`: this node
    reads an object store; `may_read_bucket`: consumers of the topic are served from there."""
    if should_drop(segment, node_id, life, may_read_bucket=may_read_bucket):
        return SegmentGone()
    return SegmentNamed.of(segment, is_alive, has_store=has_store)


def must_copy_again(segment: Segment, node_id: int) -> bool:
    """Of a copy that is faulty: whether it is replaced. Other nodes have the sealed segment, and the metadata do not
    count on this copy."""
    return segment.seal is not None and node_id not in segment.local_nodes
