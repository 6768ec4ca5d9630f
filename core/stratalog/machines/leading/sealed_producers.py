"""The table of producers at the end of a segment, as its seal describes it: a function of the segment's batches, of the
table at its base, and of a rule that the seal names. It does not depend on a node's clock, so each replica makes the
same table. A leader's own table may differ at that moment: it forgets producers by its own clock and its own limit, and
proves nothing. The meta service's opening times say when a producer wrote last: one that wrote in a segment was seen
until the next one opened. Pure.
Source: docs/replication.md section 5, docs/decisions/0021-the-table-of-producers-is-a-function-of-the-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import Final, TypeAlias

from stratalog.machines.leading.producer_table import KEPT_BATCHES
from stratalog.model.producers import BatchMemo, ProducerRule, ProducerSnapshot
from stratalog.model.segment import Segment

Producers: TypeAlias = tuple[ProducerSnapshot, ...]

TO_THE_END: Final = -1
"""As the time of a producer's last append: in this very segment."""


def sealed_table(
    before: Iterable[ProducerSnapshot],
    found: Iterable[ProducerSnapshot],
    *,
    base_offset: int,
    opened_ms: int,
    rule: ProducerRule,
) -> Producers:
    """At the segment's end, in the order of the ids. `before`: the table at its base. `found`: what its batches say,
    of a table that takes in at least `rule.limit`; what `found` has of batches before `base_offset` is passed over.
    `opened_ms`: of the segment, by its record."""
    table: dict[int, ProducerSnapshot] = {}
    for entry in before:
        seen_ms = opened_ms if entry.last_append_ms == TO_THE_END else entry.last_append_ms
        if seen_ms + rule.expiration_ms >= opened_ms and entry.batches:
            table[entry.producer_id] = _without_times(entry, seen_ms, entry.batches)
    for entry in found:
        own = tuple(memo for memo in entry.batches if memo.base_offset >= base_offset)
        if not own:
            continue
        known = table.get(entry.producer_id)
        if known is not None and known.producer_epoch == entry.producer_epoch:
            own = (*known.batches, *own)[-KEPT_BATCHES:]
        table[entry.producer_id] = _without_times(entry, TO_THE_END, own)
    kept = table.values() if len(table) <= rule.limit else nlargest(rule.limit, table.values(), key=_last_offset)
    return tuple(sorted(kept))


def producers_before(
    segments: Iterable[Segment],
    epoch: int,
    at_seal: Callable[[Segment], Producers | None],
    in_copy: Callable[[Segment], Producers | None],
    rule: ProducerRule,
) -> Producers | None:
    """The table at the base of the segment with this epoch, as a seal would have it. None: this node does not know it
    yet, or a recovery before it is not sealed.

    `segments`: the shard's, oldest first; batches that were deleted need no producers. `at_seal` gives the table at the
    end of a sealed segment. `in_copy` gives what the batches of an ended segment say, if this node's copy is whole
    (`is_whole`)."""
    before = [segment for segment in segments if segment.epoch < epoch]
    if not is_settled(before):
        return None
    newest_sealed = next((at for at in range(len(before) - 1, -1, -1) if before[at].seal is not None), 0)
    table: Producers | None = ()
    for segment in before[newest_sealed:]:
        if segment.seal is not None:
            table = at_seal(segment)
            continue
        found = in_copy(segment)
        if table is None or found is None:
            return None
        table = sealed_table(table, found, base_offset=segment.base_offset, opened_ms=segment.opened_ms, rule=rule)
    return table


def is_settled(before: Sequence[Segment]) -> bool:
    """Whether a recovery may no longer give up anything before the segment. Until its seal, a recovered batch may exist
    on one node alone, and another copy may win: so a retry of it must not be acknowledged, and readers must not see
    what follows."""
    return not any(segment.is_fenced and segment.seal is None for segment in before)


def is_whole(segment: Segment, end_offset: int) -> bool:
    """Whether a copy that ends there holds an ended segment and nothing else. A longer copy has batches that its
    leader's successor gave up."""
    return segment.end_offset is not None and segment.end_offset == end_offset


def as_seen(table: Iterable[ProducerSnapshot], now_ms: int) -> Producers:
    """For the leader that continues after the segment: producers that wrote in it count as seen now."""
    return tuple(
        entry._replace(last_append_ms=now_ms) if entry.last_append_ms == TO_THE_END else entry for entry in table
    )


def without(table: Iterable[ProducerSnapshot], base_offset: int) -> Producers:
    """The entries of a leader's table for batches before `base_offset`: they replace the table at that offset if no
    node has it any more."""
    earlier = ((entry, tuple(memo for memo in entry.batches if memo.base_offset < base_offset)) for entry in table)
    return tuple(entry._replace(batches=batches) for entry, batches in earlier if batches)


def _without_times(entry: ProducerSnapshot, seen_ms: int, batches: tuple[BatchMemo, ...]) -> ProducerSnapshot:
    """Without the times at which a node saw its batches."""
    memos = tuple(memo if memo.timestamp_ms == -1 else memo._replace(timestamp_ms=-1) for memo in batches)
    return ProducerSnapshot(entry.producer_id, entry.producer_epoch, seen_ms, memos)


def _last_offset(entry: ProducerSnapshot) -> int:
    return entry.batches[-1].base_offset
