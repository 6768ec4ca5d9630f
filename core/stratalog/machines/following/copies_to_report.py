"""Which of its own copies a node must report to the meta service: copies that it doubts, so that others continue
without them, and sealed copies that are gone. Pure; node and simulator use the same functions. The node checks again
and again: a report that was accepted shows in the record, and is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from stratalog.machines.copies.recovery_rule import has_a_say
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.segment import RemoteState, Segment

ENDS_SERVICE: Final = (StopCause.FLUSH_FAILED, StopCause.UNREADABLE, StopCause.DATA_LOST, StopCause.FAULT)
"""A shard that stopped for one of these vouches for nothing that it leads."""


def led_to_the_end(segments: Sequence[Segment], node_id: int) -> Iterator[Segment]:
    """What is not sealed of what this node leads, newest first. `segments`: a shard's, oldest first."""
    for segment in reversed(segments):
        if segment.seal is not None:
            break
        if segment.leader == node_id:
            yield segment


def has_others(segment: Segment, node_id: int) -> bool:
    """Whether another node is in the ISR, or has proven the ended segment: if none is, this copy is the only one."""
    proven = (report.node_id for report in segment.handed.reports if report.node_id in segment.replicas)
    return any(other != node_id for other in chain(segment.isr, proven))


def is_counted_on(segment: Segment, node_id: int, *, by_quorum: bool) -> bool:
    """Whether the service expects anything of this replica of a segment that is not sealed: a say in where it ends, the
    digest that it reported, or data for the others."""
    if any(doubt.node_id == node_id and doubt.is_faulty for doubt in segment.handed.doubts):
        return False
    has_reported = any(report.node_id == node_id for report in segment.handed.reports)
    is_asked = node_id in (segment.leader, segment.handed.source)
    return has_reported or is_asked or has_a_say(segment, node_id, by_quorum=by_quorum)


def is_faulty_untold(segment: Segment, node_id: int, *, by_quorum: bool) -> bool:
    """Of a copy that is faulty: whether the service counts on it still, and can do without it. Of a Direct segment the
    object store has all that was acknowledged, so any other node can continue."""
    if segment.seal is not None or node_id not in segment.replicas:
        return False
    is_counted = is_counted_on(segment, node_id, by_quorum=by_quorum)
    return is_counted and (segment.is_direct or has_others(segment, node_id))


def is_damage_untold(segment: Segment, node_id: int, *, by_quorum: bool) -> bool:
    """For a copy that was found damaged: whether the service relies on all that it held, because the copy is in the
    ISR, its digest was reported, or others copy from it. Of a Direct segment the node fetches what its copy lacks."""
    reporters = (report.node_id for report in segment.handed.reports)
    is_needed = node_id in segment.isr or node_id in reporters or segment.handed.source == node_id
    return is_needed and not segment.is_direct and is_faulty_untold(segment, node_id, by_quorum=by_quorum)


def lost_untold(segments: Iterable[Segment], node_id: int) -> Iterator[Segment]:
    """The sealed copies, of those that are gone or damaged, that the service relies on. The only holder does not
    report, for a person may bring the file back; unless the object store has all batches, and the copy in it is to be
    completed."""
    return (one for one in segments if node_id in one.local_nodes and (len(one.local_nodes) > 1 or _is_incomplete(one)))


def _is_incomplete(segment: Segment) -> bool:
    return segment.is_wholly_committed and segment.remote.state is not RemoteState.COMPLETE
