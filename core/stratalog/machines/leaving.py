"""What of a segment still needs a node that leaves: the one rule that the plan and the table's transaction share.

A segment is *kept* without a node when it is COMPLETE in the object store, empty, or proven by as many living nodes
that stay as its topic has replicas (all of them, where fewer stay). In volume mode what the node has proven itself is
kept, too: its directory stays. What is open is never kept.

Pure. Source: docs/scaling.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from stratalog.model.retirement import LostRange, RetireMode, UnheldRange
from stratalog.model.segment import RemoteState, Segment, SegmentState


class Need(Enum):
    """How a segment stands that lists the node. Closed."""

    NONE = "it is not the node's"
    OPEN = "it is not sealed"
    KEPT = "it is kept without the node"
    THIN = "others that live have it, and they are too few"
    ONLY_HERE = "nobody else that lives and stays has it, nor all of it the object store"


def lost_of(segment: Segment) -> LostRange:
    """What of a sealed segment is gone when no node has it: all but what is in the object store."""
    assert segment.end_offset is not None, "it is sealed"
    return LostRange(segment.key, max(segment.base_offset, segment.remote.commit_offset), segment.end_offset)


def unheld_of(segment: Segment, topic: str) -> UnheldRange:
    """The same before anybody gave it up, and of an open one, too."""
    return UnheldRange(topic, segment.key, max(segment.base_offset, segment.remote.commit_offset), segment.end_offset)


def need_of(segment: Segment, node_id: int, mode: RetireMode, wanted: int, is_staying: Callable[[int], bool]) -> Need:
    """`wanted`: so many nodes are to have it. `is_staying`: alive, and not leaving."""
    if node_id not in segment.replicas and node_id not in segment.local_nodes:
        return Need.NONE
    if segment.state is SegmentState.DELETED:
        return Need.NONE
    if segment.state is not SegmentState.SEALED:
        return Need.OPEN
    if segment.remote.state is RemoteState.COMPLETE or segment.end_offset == segment.base_offset:
        return Need.KEPT
    if mode is RetireMode.VOLUME and node_id in segment.local_nodes:
        return Need.KEPT
    holders = sum(1 for holder in segment.local_nodes if holder != node_id and is_staying(holder))
    if holders >= max(wanted, 1):
        return Need.KEPT
    if holders:
        return Need.THIN
    return Need.ONLY_HERE
