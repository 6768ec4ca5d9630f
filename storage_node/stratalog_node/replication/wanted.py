"""Which segments a node follows, by what the metadata say of them. Pure."""

from __future__ import annotations

from stratalog.model.segment import RemoteState, Segment, SegmentState


def is_wanted(segment: Segment, node_id: int) -> bool:
    """What this node is a replica of, and does not lead; of what it led to an end and does not seal any more, too.
    A sealed one where it has not proven a copy, and might need one."""
    if node_id not in segment.replicas:
        return False
    if segment.state is SegmentState.ACTIVE:
        return segment.leader != node_id
    if segment.state is SegmentState.SEALING:
        return segment.leader != node_id or len(segment.replicas) > 1
    is_missed = segment.seal is not None and node_id not in segment.local_nodes
    return is_missed and segment.remote.state is not RemoteState.COMPLETE


def is_told_faulty(segment: Segment, node_id: int) -> bool:
    """Whether the service counts on what is here no more."""
    return any(doubt.node_id == node_id and doubt.is_faulty for doubt in segment.handed.doubts)
