"""Positions of a stream: what lies between two of them is always the same, and no shard waits for another."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemotePart
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard
from stratalog_pipeline.cold.cutting import GapInLog, PartRange
from stratalog_pipeline.cold.progress import (
    Position,
    TriggerDelay,
    advance,
    advance_by_offsets,
    beginning,
    between,
    end_of,
    from_json,
    gaps,
    to_json,
)

TOPIC = UUID(int=1)


def shard(number: int, end: int, *, start: int = 0, topic_id: UUID = TOPIC) -> CommittedShard:
    key = SegmentKey(topic_id, number, 0, 0)
    parts = tuple(RemotePart(f"{number}/{base}", 0, 1_000, base, min(base + 10, end)) for base in range(0, end, 10))
    return CommittedShard(key.shard_key, "t", start, (CommittedSegment(key, end, parts),))


def ranges(shards: list[CommittedShard], start: Position) -> list[PartRange]:
    found = []
    for one in shards:
        wanted = between(start, end_of(shards), one)
        for part in one.segments[0].parts:
            if wanted is not None and part.end_offset > wanted.from_offset and part.base_offset < wanted.to_offset:
                low, high = max(part.base_offset, wanted.from_offset), min(part.end_offset, wanted.to_offset)
                found.append(PartRange("t", one.segments[0].key, part, low, high))
    return found


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(1, 5_000))
def test_batches_cover_everything_once_whatever_the_limit(ends: list[int], limit: int) -> None:
    shards = [shard(number, end) for number, end in enumerate(ends)]
    at, covered = beginning(shards, {}), {one.key: 0 for one in shards}
    for _ in range(200):
        after = from_json(json.loads(json.dumps(to_json(advance(at, shards, ranges(shards, at), limit)))))
        for one in shards:
            assert covered[one.key] == at.at(one.key) <= after.at(one.key)
            covered[one.key] = after.at(one.key)
        if after == at:
            break
        at = after
    assert covered == {one.key: one.end_offset for one in shards}


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(1, 300))
def test_batches_of_a_number_of_offsets_cover_everything_once(ends: list[int], limit: int) -> None:
    shards = [shard(number, end) for number, end in enumerate(ends)]
    at = beginning(shards, {})
    for _ in range(2_000):
        after = advance_by_offsets(at, shards, limit)
        taken = {one.key: after.at(one.key) - at.at(one.key) for one in shards}
        waits = {one.key: one.end_offset - at.at(one.key) for one in shards}
        small = sum(0 < size * limit < sum(waits.values()) for size in waits.values())
        assert sum(taken.values()) <= limit + small, "only a share below one offset is rounded up"
        assert all(min(taken[key], 1) == min(size, 1) and taken[key] <= size for key, size in waits.items())
        if after == at:
            break
        at = after
    assert {one.key: at.at(one.key) for one in shards} == {one.key: one.end_offset for one in shards}


def test_shards_are_read_in_turn_under_a_limit() -> None:
    shards = [shard(number, 100) for number in range(3)]
    start = beginning(shards, {})
    after = advance(start, shards, ranges(shards, start), 3_000)
    assert [after.at(one.key) for one in shards] == [10, 10, 10]


def test_a_shard_that_came_later_is_read_from_its_beginning() -> None:
    start = beginning([shard(0, 10)], {})
    after = advance(start, [shard(0, 10), shard(1, 20)], (), None)
    assert (start.at(ShardKey(TOPIC, 1)), after.at(ShardKey(TOPIC, 1))) == (0, 20)


def test_what_retention_took_first_is_a_gap() -> None:
    (gap,) = gaps(beginning([shard(0, 10)], {}), [shard(0, 50, start=30)])
    assert (gap.from_offset, gap.to_offset) == (0, 30)


@pytest.mark.fault("topic-deleted-created-stream")
def test_a_topic_made_anew_is_not_mistaken_for_the_one_that_was_read() -> None:
    with pytest.raises(GapInLog, match="made again"):
        gaps(beginning([shard(0, 10)], {}), [shard(0, 50, topic_id=UUID(int=2))])


@pytest.mark.fault("topic-deleted-created-stream")
def test_a_bucket_older_than_the_checkpoint_is_refused() -> None:
    with pytest.raises(GapInLog, match="older than the checkpoint"):
        between(beginning([shard(0, 10)], {}), end_of([shard(0, 50)]), shard(0, 40))


@pytest.mark.parametrize("told", [{}, {"format": 2, "topics": {}}, {"format": 1, "topics": {"x": {}}}, {"0": 5}])
def test_a_foreign_checkpoint_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="checkpoint"):
        from_json(told)


def test_a_batch_waits_for_offsets_or_for_the_most_delay() -> None:
    delay, start = TriggerDelay(30, 1_000), Position({}, {})
    assert delay.is_due(start, [shard(0, 1)], 7), "the first one is not delayed"
    assert not delay.is_due(start, [shard(0, 20), shard(1, 9)], 8)
    assert not delay.is_due(start, [shard(0, 29)], 1_006)
    assert delay.is_due(start, [shard(0, 29)], 1_007), "so long after the last one"
    assert delay.is_due(start, [shard(0, 20), shard(1, 10)], 1_008), "enough, of all shards together"
    assert not delay.is_due(start, [shard(0, 40, start=20)], 1_009), "what expired does not wait"
    assert delay.is_due(start, [], 2_008)
