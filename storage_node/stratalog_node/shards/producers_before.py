"""What is known here of the producers at the beginning of a segment: without that repetitions of what they wrote before
would get in as if they were new. Lives on the event loop.

It is in the seal record of the segment before; before there is one it follows from this node's own copies, of those
that it led as of those that it followed.
Source: docs/replication.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.machines.producer_table import continued
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.context import ShardContext


def producers_before(
    context: ShardContext, key: SegmentKey, ended: Sequence[ActiveSegment] = ()
) -> tuple[ProducerSnapshot, ...] | None:
    """At its base offset. None: not known here yet. `ended`: what this node led to the end and is not sealed. What is
    gone with its records nobody asks for any more.

    Behind a recovery nobody knows before it is sealed.
    """
    before = [segment for segment in context.catalog.segments(key.shard_key) if segment.epoch < key.epoch]
    if not is_settled(before):
        return None
    newest_sealed = next((at for at in range(len(before) - 1, -1, -1) if before[at].seal is not None), 0)
    known: tuple[ProducerSnapshot, ...] | None = ()
    for segment in before[newest_sealed:]:
        known = _producers_after(context, segment, ended, known)
    return known


def is_settled(before: Sequence[Segment]) -> bool:
    """Whether nothing that a recovery found there may still be given up. Until its seal it may lie on one node alone,
    and another copy may be taken for true: a repetition of it must not be acknowledged, and nobody be shown what
    follows."""
    return not any(segment.is_fenced and segment.seal is None for segment in before)


def _producers_after(
    context: ShardContext,
    segment: Segment,
    ended: Sequence[ActiveSegment],
    before: tuple[ProducerSnapshot, ...] | None,
) -> tuple[ProducerSnapshot, ...] | None:
    if segment.seal is not None:
        return segment.seal.producers
    led = next((one for one in ended if one.key == segment.key), None)
    if led is not None:
        return led.leader.producers_at_end
    copy = context.followed.get(segment.key)
    if before is None or copy is None or segment.end_offset is None or copy.end_offset != segment.end_offset:
        return None
    return continued(before, copy.own_producers())
