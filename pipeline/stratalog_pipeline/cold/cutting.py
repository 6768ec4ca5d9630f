"""Cuts what is asked for into pieces of work: ranges of parts, of about the same size, never a shard as such. Pure.

A part (a chunk object, or its like in a bundle) is the smallest piece: its digest is checked as a whole. Parts of one
shard may be in many pieces of work, so that one busy shard keeps all cores busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.model.errors import NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, SealRecord
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard

MAX_OFFSET: Final = (1 << 63) - 1


ShardName: TypeAlias = tuple[str, int]
"""A topic's name and a shard."""


class GapInLog(NotFound):
    """Requested offsets no longer exist: retention or a user deleted their records."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader requests. None: all. Offsets and times are half-open ranges; offsets apply to each shard."""

    topics: frozenset[str] | None = None
    shards: frozenset[int] | None = None
    only: frozenset[ShardName] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    starts: Mapping[ShardName, int] = field(default_factory=dict)
    ends: Mapping[ShardName, int] = field(default_factory=dict)
    """Of single shards, before those of all."""
    least_offset: int = 0
    """A filter removed the offsets below: they are not requested, and missing ones are not a gap."""
    from_ms: int | None = None
    to_ms: int | None = None
    keys: frozenset[bytes] | None = None
    """Only records of these keys are requested; records of other keys may be returned as well."""
    is_gap_allowed: bool = False
    """Else offsets below a shard's log start that are asked for by number are an error."""

    def wants_shard(self, topic: str, shard: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.shards is None or shard in self.shards)
            and (self.only is None or (topic, shard) in self.only)
        )


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The committed records `[from_offset, to_offset)` of one shard."""

    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class PartRange:
    """A part to be read, and which of its records. Unknown digests are None."""

    topic: str
    segment: SegmentKey
    part: RemotePart
    from_offset: int
    to_offset: int
    digest_before: bytes | None = None
    digest_after: bytes | None = None


@dataclass(slots=True)
class Work:
    """Ranges that one task reads, in order."""

    ranges: list[PartRange] = field(default_factory=list)
    size_bytes: int = 0


def range_of(shard: CommittedShard, asked: Asked) -> OffsetRange | None:
    """What is to be read of a shard; None for nothing. Raises: GapInLog."""
    if not asked.wants_shard(shard.topic, shard.key.shard):
        return None
    name = (shard.topic, shard.key.shard)
    start = shard.log_start_offset
    named = asked.starts.get(name, asked.from_offset)
    from_offset = max(start if named is None else named, asked.least_offset)
    to_offset = min(
        shard.end_offset,
        asked.ends.get(name, MAX_OFFSET),
        MAX_OFFSET if asked.to_offset is None else asked.to_offset,
    )
    if from_offset >= to_offset:
        return None
    if from_offset < start:
        if not asked.is_gap_allowed:
            raise GapInLog(gap_words(shard.topic, shard.key.shard, from_offset, start))
        from_offset = start
    return OffsetRange(from_offset, to_offset) if from_offset < to_offset else None


def gap_words(
    topic: str, shard: int, from_offset: int, log_start_offset: int, way_on: str = "Set option onGap to report"
) -> str:
    return (
        f"offsets {from_offset} to {log_start_offset} of shard {shard} of topic {topic} are gone: retention or a "
        f"deletion of records came first. {way_on} to continue behind them"
    )


def segments_within(shard: CommittedShard, wanted: OffsetRange, from_ms: int | None) -> list[CommittedSegment]:
    """Those that may hold a wanted record. A segment whose newest time is too old is left out; one that begins late is
    not, for times in a log may fall."""
    return [
        segment
        for segment in shard.segments
        if segment.end_offset > wanted.from_offset
        and segment.base_offset < wanted.to_offset
        and (from_ms is None or segment.seal is None or not segment.seal.is_older_than(from_ms))
    ]


def ranges_within(
    topic: str, segment: CommittedSegment, parts: Sequence[RemotePart], seal: SealRecord | None, wanted: OffsetRange
) -> list[PartRange]:
    """The parts of a segment that hold wanted offsets. A sealed segment's first and last part know their digests."""
    found = []
    for part in parts:
        from_offset = max(part.base_offset, wanted.from_offset, segment.base_offset)
        to_offset = min(part.end_offset, wanted.to_offset, segment.end_offset)
        if from_offset >= to_offset:
            continue
        before = EMPTY_DIGEST if part.base_offset == segment.base_offset else None
        after = seal.digest if seal is not None and part.end_offset == seal.end_offset else None
        found.append(PartRange(topic, segment.key, part, from_offset, to_offset, before, after))
    return found


def cut(ranges: Iterable[PartRange], most_bytes: int) -> list[Work]:
    """Pieces of work of at most `most_bytes`, or of one part. Order is kept: within a shard offsets rise."""
    works: list[Work] = []
    for one in ranges:
        size = one.part.size_bytes
        if not works or works[-1].size_bytes + size > most_bytes:
            works.append(Work())
        works[-1].ranges.append(one)
        works[-1].size_bytes += size
    return works


def take_bytes(ranges: Iterable[PartRange], most_bytes: int) -> list[PartRange]:
    """The first ranges, about `most_bytes` in all; at least one, so that no limit stops a reader forever. A range that
    covers only some offsets of its part counts as that share of the part's bytes."""
    taken: list[PartRange] = []
    left = most_bytes
    for one in ranges:
        share = one.part.size_bytes * (one.to_offset - one.from_offset) // (one.part.end_offset - one.part.base_offset)
        if taken and share > left:
            break
        taken.append(one)
        left -= share
    return taken
