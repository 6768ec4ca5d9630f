"""Which segments a node follows, according to the metadata. Pure."""

from __future__ import annotations

from stratalog.machines.following.follower_events import FollowerLife
from stratalog.machines.reading.bucket_reads import is_served_from_bucket
from stratalog.model.segment import RemoteState, Segment, SegmentState


def should_follow(segment: Segment, node_id: int, *, may_read_bucket: bool) -> bool:
    """What this node is a replica of, and does not lead; of what it led to an end and does not seal any more, too.
    A sealed one where it has not proven a copy, and readers are served from copies."""
    if node_id not in segment.replicas:
        return False
    if segment.state is SegmentState.ACTIVE:
        return segment.leader != node_id
    if segment.state is SegmentState.SEALING:
        return segment.leader != node_id or len(segment.replicas) > 1
    is_missed = segment.seal is not None and node_id not in segment.local_nodes
    return is_missed and not is_served_from_bucket(segment, may_read_bucket=may_read_bucket)


def should_drop(segment: Segment, node_id: int, life: FollowerLife, *, may_read_bucket: bool) -> bool:
    """Whether the copy may be removed. A report about it may still be on its way, and remains true. But once readers
    get all of the segment from the object store, a node that is not listed will not be added to the list."""
    is_stored = segment.remote.state is RemoteState.COMPLETE
    if is_stored and may_read_bucket and node_id not in segment.local_nodes:
        return True
    is_done = life in (FollowerLife.PROVING, FollowerLife.PROVEN, FollowerLife.SEALED)
    is_over = segment.seal is not None and node_id not in segment.local_nodes
    is_due = should_follow(segment, node_id, may_read_bucket=may_read_bucket)
    return segment.state is SegmentState.DELETED or not (is_done or not is_over or is_due)
