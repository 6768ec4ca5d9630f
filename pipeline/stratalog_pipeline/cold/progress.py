"""How far a stream has come, and how far it goes next. Pure.

A position holds, for each topic, its id and where each shard is read next; it is what a checkpoint keeps. The records
between two positions are the same whenever they are asked for, for only committed ones are between them: so who
remembers the two positions of a batch repeats the batch exactly.
A topic that was deleted and made again has another id: its offsets mean other records, and that is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from uuid import UUID

from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import ShardKey
from stratalog_pipeline.cold.committed import CommittedShard
from stratalog_pipeline.cold.cutting import GapInLog, OffsetRange, PartRange, gap_words, take_bytes

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where each shard is read next. A shard that is not in it was not there yet: it is read from its beginning."""

    offsets: Mapping[ShardKey, int]
    topics: Mapping[UUID, str]

    def at(self, key: ShardKey) -> int:
        return self.offsets.get(key, 0)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[from_offset, to_offset)` of a shard that were never read and are no more."""

    topic: str
    shard: int
    from_offset: int
    to_offset: int

    def __str__(self) -> str:
        return gap_words(self.topic, self.shard, self.from_offset, self.to_offset)


def gap_refusal(gaps: Sequence[Gap]) -> GapInLog:
    """The error of a job that was not told what to do about gaps; at least one."""
    first = gaps[0]
    way_on = "Run it with --on-gap report"
    words = gap_words(first.topic, first.shard, first.from_offset, first.to_offset, way_on)
    more = f" ({len(gaps) - 1} more gaps like it)" if len(gaps) > 1 else ""
    return GapInLog(f"{words}{more}")


def beginning(shards: Iterable[CommittedShard], asked: Mapping[tuple[str, int], int]) -> Position:
    """The oldest record of each shard, or the offset that is asked for."""
    known = list(shards)
    offsets = {one.key: asked.get((one.topic, one.key.shard), one.log_start_offset) for one in known}
    return Position(offsets, {one.key.topic_id: one.topic for one in known})


def end_of(shards: Iterable[CommittedShard]) -> Position:
    known = list(shards)
    return Position({one.key: one.end_offset for one in known}, {one.key.topic_id: one.topic for one in known})


def to_json(position: Position) -> dict[str, Any]:
    topics: dict[str, Any] = {
        str(topic_id): {"topic": name, "shards": {}} for topic_id, name in sorted(position.topics.items())
    }
    for key, offset in sorted(position.offsets.items()):
        topics[str(key.topic_id)]["shards"][str(key.shard)] = offset
    return {"format": FORMAT, "topics": topics}


def from_json(document: Mapping[str, Any]) -> Position:
    """Raises: InvalidRequest for a checkpoint of another kind."""
    try:
        if document["format"] != FORMAT:
            raise InvalidRequest(f"the checkpoint has format {document['format']}: a newer release wrote it, use that")
        offsets, topics = {}, {}
        for topic_id, one in document["topics"].items():
            topics[UUID(topic_id)] = str(one["topic"])
            for shard, offset in one["shards"].items():
                offsets[ShardKey(UUID(topic_id), int(shard))] = int(offset)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"the checkpoint is not one of this source ({error}): name another one") from error
    return Position(offsets, topics)


def gaps(start: Position, shards: Iterable[CommittedShard]) -> list[Gap]:
    """Offsets behind `start` that retention deleted unread. Raises: GapInLog if a topic was deleted and created
    again."""
    names = {name: topic_id for topic_id, name in start.topics.items()}
    found = []
    for one in shards:
        known = names.get(one.topic)
        if known is not None and known != one.key.topic_id:
            raise GapInLog(
                f"topic {one.topic} was deleted and made again since the checkpoint was written: its offsets are those "
                "of other records. Begin with a new checkpoint"
            )
        if start.at(one.key) < one.log_start_offset:
            found.append(Gap(one.topic, one.key.shard, start.at(one.key), one.log_start_offset))
    return found


def between(
    start: Position, end: Position, shard: CommittedShard, keeper: str = "the checkpoint"
) -> OffsetRange | None:
    """What is read of a shard, retention aside. Raises: GapInLog when less is committed than was once seen. `keeper`:
    what keeps the position."""
    from_offset, to_offset = start.at(shard.key), end.at(shard.key)
    if to_offset > shard.end_offset:
        raise GapInLog(
            f"shard {shard.key.shard} of topic {shard.topic} was committed up to offset {to_offset}, and now is up to "
            f"{shard.end_offset}: the bucket, or its metadata, are older than {keeper}"
        )
    from_offset = max(from_offset, shard.log_start_offset)
    return OffsetRange(from_offset, to_offset) if from_offset < to_offset else None


def advance(
    start: Position, shards: Sequence[CommittedShard], ranges: Sequence[PartRange], most_bytes: int | None
) -> Position:
    """The position after the next read: `most_bytes` of `ranges`, which begin at `start`, from all shards in turn.
    None: everything committed. Never before `start`."""
    newest = end_of(shards)
    if most_bytes is None:
        taken = {key: max(offset, start.at(key)) for key, offset in newest.offsets.items()}
    else:
        taken = {one.key: max(start.at(one.key), one.log_start_offset) for one in shards}
        for one in take_bytes(_in_turn(ranges), most_bytes):
            taken[one.segment.shard_key] = one.to_offset
    return Position({**start.offsets, **taken}, {**start.topics, **newest.topics})


def advance_by_offsets(start: Position, shards: Sequence[CommittedShard], most_offsets: int) -> Position:
    """The position about `most_offsets` further. Each shard gets a share by its number of unread offsets, and at least
    one, as in Spark's Kafka source."""
    begins = {one.key: max(start.at(one.key), one.log_start_offset) for one in shards}
    waiting = {one.key: max(one.end_offset - begins[one.key], 0) for one in shards}
    total = sum(waiting.values())
    taken = {
        key: begins[key] + min(size, max(most_offsets * size // total, 1) if size else 0)
        for key, size in waiting.items()
    }
    return Position({**start.offsets, **taken}, {**start.topics, **end_of(shards).topics})


class TriggerDelay:
    """Whether a batch may begin yet: once that many offsets wait, or that long after the last one began. The first
    one is never delayed; as Spark's Kafka source does it."""

    def __init__(self, least_offsets: int, most_delay_ms: int) -> None:
        self._least_offsets = least_offsets
        self._most_delay_ms = most_delay_ms
        self._last_ms: int | None = None

    def is_due(self, start: Position, shards: Iterable[CommittedShard], now_ms: int) -> bool:
        """`now_ms`: of a clock that never goes back. What is due counts as begun."""
        is_late = self._last_ms is None or now_ms - self._last_ms >= self._most_delay_ms
        if not is_late and waiting_offsets(start, shards) < self._least_offsets:
            return False
        self._last_ms = now_ms
        return True


def waiting_offsets(start: Position, shards: Iterable[CommittedShard]) -> int:
    """Offsets that are committed and not read yet, of all shards together."""
    return sum(max(one.end_offset - max(start.at(one.key), one.log_start_offset), 0) for one in shards)


def _in_turn(ranges: Iterable[PartRange]) -> list[PartRange]:
    """One part of each shard, then the next one of each: no shard waits for another."""
    by_shard: dict[ShardKey, list[PartRange]] = {}
    for one in ranges:
        by_shard.setdefault(one.segment.shard_key, []).append(one)
    return [one for some in zip_longest(*by_shard.values()) for one in some if one is not None]
