"""Finds the offsets that retention deleted before they were archived.

Requires: the shards were read before the table's objects were listed, so that another job's work is never missed.
Invariant: each offset between a shard's begin and its log start is in a finished segment or in a gap reported here. An
accepted gap stays in the table (`_gaps/`), so every later run reports it. Cost: one small object for each shard, and
for each segment that was planned and not finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from stratalog.model.errors import NotFound
from stratalog.objects import ObjectStore
from stratalog_pipeline.cold.committed import CommittedShard
from stratalog_pipeline.cold.progress import Gap
from stratalog_pipeline.jobs.columns.table_layout import (
    begin_key,
    decode_begin,
    decode_plan,
    done_key,
    encode_object,
    gap_key,
    gaps_prefix,
    offsets_of_gap,
    place_of_seal,
    plan_key,
)
from stratalog_pipeline.jobs.put_once import put_once, put_or_read

_PLAN: Final = ".plan.json"


@dataclass(slots=True)
class ShardArchived:
    """What a table has of a shard. `end_offset` is behind its last planned segment; a shard without one has its
    beginning there. `unfinished`: the ranges of segments that were planned, and not finished."""

    end_offset: int
    unfinished: list[tuple[int, int]] = field(default_factory=list)


def missing(archived: ShardArchived, log_start_offset: int, known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges below the log start that are in no finished segment and not told yet. Pure."""
    lost = sorted([*archived.unfinished, (archived.end_offset, log_start_offset)])
    found: list[tuple[int, int]] = []
    for low, high in lost:
        high = min(high, log_start_offset)
        for from_offset, to_offset in sorted(known):
            if from_offset <= low < to_offset:
                low = to_offset
        if low >= high:
            continue
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


async def gaps_of(
    target: ObjectStore, topic: str, shards: Sequence[CommittedShard], objects: Collection[str]
) -> tuple[list[Gap], list[Gap]]:
    """Those that the table knows, and new ones. `objects`: the names below `_segments/`."""
    names = [offsets_of_gap(info.key) async for info in target.list(gaps_prefix(topic))]
    known = [one for one in names if one is not None]
    archived = await _archived(target, topic, shards, objects)
    found = []
    for shard in shards:
        number = shard.key.shard
        ranges = [(low, high) for one, low, high in known if one == number]
        for low, high in missing(archived[number], shard.log_start_offset, ranges):
            found.append(Gap(topic, number, low, high))
    return [Gap(topic, *one) for one in known], found


async def accept(target: ObjectStore, gaps: Iterable[Gap]) -> None:
    """From now on the table itself says that it has them."""
    for one in gaps:
        accepted = {"shard": one.shard, "from_offset": one.from_offset, "to_offset": one.to_offset}
        await put_once(target, gap_key(one.topic, one.shard, one.from_offset, one.to_offset), encode_object(accepted))


async def note_beginning(
    target: ObjectStore, topic: str, shards: Iterable[CommittedShard], objects: Iterable[str]
) -> None:
    """Puts where shards begin, when the table is made: what retention took before was never promised. A shard that is
    not in it came later, and begins at 0."""
    begins = {one.key.shard: one.log_start_offset for one in shards}
    for shard, base in filter(None, map(_place_of, objects)):
        begins[shard] = min(begins.get(shard, base), base)
    body = encode_object({str(shard): offset for shard, offset in begins.items()})
    await put_or_read(target, begin_key(topic), body)


async def _archived(
    target: ObjectStore, topic: str, shards: Iterable[CommittedShard], objects: Collection[str]
) -> dict[int, ShardArchived]:
    try:
        begins = decode_begin(await target.get(begin_key(topic)), begin_key(topic))
    except NotFound:  # a dry run for a table that does not exist yet
        begins = {one.key.shard: one.log_start_offset for one in shards}
    found = {one.key.shard: ShardArchived(begins.get(one.key.shard, 0)) for one in shards}
    starts = {one.key.shard: one.log_start_offset for one in shards}
    newest: dict[int, tuple[int, str]] = {}
    for key in sorted(one for one in objects if one.endswith(_PLAN)):
        place = _place_of(key)
        if place is None or place[0] not in found:
            continue
        shard, base = place
        newest[shard] = max(newest.get(shard, (-1, "")), (base, key))
        seal = key.rpartition("/")[2].removesuffix(_PLAN)
        if base < starts[shard] and done_key(topic, seal) not in objects:
            plan = decode_plan(await target.get(plan_key(topic, seal)), key)
            found[shard].unfinished += plan.pieces
    for shard, (base, key) in newest.items():
        plan = decode_plan(await target.get(key), key)
        found[shard].end_offset = max(base, plan.end_offset)
    return found


def _place_of(key: str) -> tuple[int, int] | None:
    return place_of_seal(key.rpartition("/")[2].removesuffix(_PLAN).removesuffix(".done.json"))
