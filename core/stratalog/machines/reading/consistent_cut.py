"""Joins the ends that held nodes report into the vector of a consistent cut, and decides when the bucket holds all of
it.

Why it is consistent: at one moment T all leaders are held. Records below the ends were written before T. Records
acknowledged before T lie below the ends, because a leader acknowledges only what it has written. So a record in the cut
was written before T, and every record that was acknowledged before that, on any shard, is in the cut.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stratalog.model.ids import ShardKey


@dataclass(frozen=True, slots=True)
class ReportedEnd:
    """Where a shard ended, as a node says that leads it."""

    key: ShardKey
    node_id: int
    epoch: int
    log_start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """A segment as metadata know it: is it whole in the bucket?"""

    epoch: int
    base_offset: int
    end_offset: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of `[log start, end)` of a shard is in complete segments: `epoch` is the last one's; `fault` says why it
    never will be."""

    epoch: int = 0
    is_complete: bool = False
    fault: str | None = None


def join(reports: Iterable[ReportedEnd]) -> dict[ShardKey, ReportedEnd]:
    """Of several that say that they lead a shard the one in the latest epoch does: an earlier one was deposed, and all
    that it may still acknowledge is lost."""
    ends: dict[ShardKey, ReportedEnd] = {}
    for one in reports:
        known = ends.get(one.key)
        if known is None or one.epoch > known.epoch:
            ends[one.key] = one
    return ends


def unreported_shards(shard_counts: Mapping[ShardKey, None], ends: Mapping[ShardKey, ReportedEnd]) -> list[ShardKey]:
    """Shards that no queried node leads."""
    return [key for key in shard_counts if key not in ends]


def coverage(end: ReportedEnd, segments: Iterable[TieredSegment]) -> Coverage:
    """`segments` are those that are not deleted, in any order."""
    if end.log_start_offset == end.end_offset:
        return Coverage(end.epoch, True)
    needed = sorted(
        (one for one in segments if one.base_offset < end.end_offset and one.end_offset > end.log_start_offset),
        key=lambda one: one.epoch,
    )
    at = needed[0].base_offset if needed else end.end_offset
    if at > end.log_start_offset:
        return Coverage(fault=f"retention has moved its log start from {end.log_start_offset} meanwhile")
    for one in needed:
        if one.base_offset != at:
            return Coverage(fault=f"a segment that holds offset {at} is not known")
        at = one.end_offset
    is_complete = at >= end.end_offset and all(one.is_complete for one in needed)
    return Coverage(needed[-1].epoch, is_complete)
