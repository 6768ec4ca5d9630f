"""The producers at the beginning of a segment, as far as this node knows them: without them retries of earlier batches
would be appended as new ones. Lives on the event loop.

They are the table at the end of the segment before (`shards/copies/producer_tables.py`); for segments that are not
sealed yet they follow from this node's own copies, led or followed.
Source: docs/replication.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.machines.leading.sealed_producers import Producers, is_whole, producers_before, sealed_table, without
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext

log = logger(__name__)

_FEW: Final = 32
"""Of so few producers a tally takes less time than to hand it to a thread. Thousands of segments have no more when the
shards of a dead node get other leaders."""


def producers_at_base(context: ShardContext, key: SegmentKey, ended: Sequence[ActiveSegment] = ()) -> Producers | None:
    """The producer table at a segment's base offset. None: not known here yet. `ended`: segments that this node led to
    their end and that are not sealed."""

    def in_copy(segment: Segment) -> Producers | None:
        led = next((one for one in ended if one.key == segment.key), None)
        if led is not None:
            return led.leader.producers_at_end
        copy = context.followed.get(segment.key)
        return copy.own_producers() if copy is not None and is_whole(segment, copy.end_offset) else None

    segments, rule = context.catalog.segments(key.shard_key), context.producer_rule
    return producers_before(segments, key.epoch, context.tables.known, in_copy, rule)


async def tally_at_end(
    context: ShardContext, key: SegmentKey, found: Producers, ended: Sequence[ActiveSegment]
) -> ProducerTally | None:
    """What this node would have the seal of a segment say, whose batches say `found`; of a sealed one, what it says.
    None: what was before it is not known here yet."""
    segment = context.catalog.segment(key)
    if segment is not None and segment.seal is not None:
        return segment.seal.producers
    before = producers_at_base(context, key, ended)
    if before is None or segment is None:
        return None
    rule, opened_ms = context.producer_rule, segment.opened_ms

    def tally() -> ProducerTally:
        made = sealed_table(before, found, base_offset=key.base_offset, opened_ms=opened_ms, rule=rule)
        return tally_of(made, encode_table(made), rule)

    if len(before) + len(found) <= _FEW:
        return tally()
    return await context.threads.background(tally)  # of 20,000 producers it takes 0.2 s


async def producers_before_seal(context: ShardContext, old: ActiveSegment) -> Producers:
    """The table at the base of a segment that this node led to its end. If no node can give that table now, the
    leader's own table replaces it: the seal records the result, and other replicas copy it from here."""
    segments = context.catalog.segments(old.key.shard_key)
    before = next((one for one in segments if one.epoch == old.key.epoch - 1), None)
    if before is not None and (before := context.tables.as_sealed(before)).seal is not None:
        try:
            return await context.tables.producers(before, is_far=True)
        except StratalogError as error:
            log.warning(
                "the table of producers before a segment cannot be read: it is sealed with the leader's own",
                segment=str(old.key),
                error=str(error),
            )
    assert old.leader.producers_at_end is not None
    return without(old.leader.producers_at_end, old.key.base_offset)
