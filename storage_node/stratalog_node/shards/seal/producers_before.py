"""The producers at the beginning of a segment, as far as this node knows them: without them retries of earlier batches
would be appended as new ones. Lives on the event loop.

They are the table at the end of the segment before (`shards/copies/producer_tables.py`); for segments that are not
sealed yet they follow from this node's own copies, led or followed.
Source: docs/replication.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.machines.leading.sealed_producers import Producers, sealed_table, without
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext

log = logger(__name__)


def producers_before(context: ShardContext, key: SegmentKey, ended: Sequence[ActiveSegment] = ()) -> Producers | None:
    """The producer table at a segment's base offset, as a seal would have it. None: not known here yet. `ended`:
    segments that this node led to their end and that are not sealed. Batches that were deleted need no producers.

    Behind a recovery the table is unknown until the recovery is sealed.
    """
    before = [segment for segment in context.catalog.segments(key.shard_key) if segment.epoch < key.epoch]
    if not is_settled(before):
        return None
    newest_sealed = next((at for at in range(len(before) - 1, -1, -1) if before[at].seal is not None), 0)
    known: Producers | None = ()
    for segment in before[newest_sealed:]:
        known = _producers_after(context, segment, ended, known)
    return known


async def tally_at_end(
    context: ShardContext, key: SegmentKey, found: Producers, ended: Sequence[ActiveSegment]
) -> ProducerTally | None:
    """What this node would have the seal of a segment say, whose batches say `found`; of a sealed one, what it says.
    None: what was before it is not known here yet."""
    segment = context.catalog.segment(key)
    if segment is not None and segment.seal is not None:
        return segment.seal.producers
    before = producers_before(context, key, ended)
    if before is None or segment is None:
        return None
    rule, opened_ms = context.producer_rule, segment.opened_ms

    def tally() -> ProducerTally:
        made = sealed_table(before, found, base_offset=key.base_offset, opened_ms=opened_ms, rule=rule)
        return tally_of(made, encode_table(made), rule)

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
            log.warning("sealed after what the leader knows of producers", segment=str(old.key), error=str(error))
    assert old.leader.producers_at_end is not None
    return without(old.leader.producers_at_end, old.key.base_offset)


def is_settled(before: Sequence[Segment]) -> bool:
    """Whether a recovery may no longer give up anything before the segment. Until its seal, a recovered batch may exist
    on one node alone, and another copy may win: so a retry of it must not be acknowledged, and readers must not see
    what follows."""
    return not any(segment.is_fenced and segment.seal is None for segment in before)


def _producers_after(
    context: ShardContext, segment: Segment, ended: Sequence[ActiveSegment], before: Producers | None
) -> Producers | None:
    if segment.seal is not None:
        return context.tables.known(segment)
    found: Producers | None = None
    led = next((one for one in ended if one.key == segment.key), None)
    copy = context.followed.get(segment.key)
    if led is not None:
        found = led.leader.producers_at_end
    elif copy is not None and segment.end_offset is not None and copy.end_offset == segment.end_offset:
        found = copy.own_producers()
    if before is None or found is None:
        return None
    return sealed_table(
        before, found, base_offset=segment.base_offset, opened_ms=segment.opened_ms, rule=context.producer_rule
    )
