"""Active segments that people asked to end: a mark in their records, which goes with the roll."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.machines.copies.rebalance import plan_rebalance
from stratalog.machines.plans.cluster_outline import health
from stratalog.model.commands.table_commands import (
    CreateTopic,
    PrepareSegment,
    RegisterNode,
    RollElsewhere,
    SealTopic,
)
from stratalog.model.errors import NotFound, Reserved
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import SegmentState
from stratalog.model.topic import Topic
from support.table_stories import TableStory

ASKED_MS = 5_000


def asked(story: TableStory, topic: Topic) -> list[int]:
    return [n for n in range(topic.shard_count) if story.active(topic, n).handed.is_roll_asked]


def asked_rolls(story: TableStory) -> dict[str, int]:
    steps = health(story.table.snapshot(), 1)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return {one.topic: one.count for one in done.value.asked_rolls}


def test_each_shard_rolls_once_for_a_request() -> None:
    story = TableStory()
    topic = story.topic(shards=2)
    assert story.do(SealTopic(topic.topic_id, ASKED_MS)).result.seal_asked_ms == ASKED_MS
    assert asked(story, topic) == [0, 1] and asked_rolls(story) == {"orders": 2}
    story.roll(story.active(topic, 0).key, 10)
    assert asked(story, topic) == [1] and asked_rolls(story) == {"orders": 1}
    version = story.table.snapshot().version
    for again in (ASKED_MS, ASKED_MS - 1):
        story.do(SealTopic(topic.topic_id, again))
    assert asked(story, topic) == [1] and story.table.snapshot().version == version, "it was asked for already"
    story.do(SealTopic(topic.topic_id, ASKED_MS + 1))
    assert asked(story, topic) == [0, 1]


def test_a_request_stays_while_the_leader_is_gone_and_goes_with_the_recovery() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(replicas=1)
    story.do(SealTopic(topic.topic_id, ASKED_MS))
    before = story.active(topic)
    assert before.leader is not None
    story.die(before.leader)
    story.start(before.leader)
    after = story.active(topic)
    assert (after.key, after.handed.is_roll_asked) == (before.key, True), "its leader ends it once it is back"
    story.roll(after.key, 0)
    assert not asked(story, topic)


def test_what_has_ended_or_was_asked_for_is_passed_over() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(shards=2)
    first, second = story.active(topic, 0).key, story.active(topic, 1).key
    story.roll(first, 10)
    story.do(RollElsewhere((first, second, story.active(story.topic("other")).key)))
    assert asked(story, topic) == [1]
    version = story.table.snapshot().version
    story.do(RollElsewhere((second,)))
    assert story.table.snapshot().version == version


def test_rounds_of_requests_end_evenly_and_on_the_nodes_that_the_plan_chose() -> None:
    """As a rebalance does it; what was prepared before the node came is chosen again."""
    story = TableStory(nodes=2)
    topic = story.topic(shards=6, replicas=2)
    for shard in range(6):
        story.do(PrepareSegment(story.active(topic, shard).key))
    story.do(RegisterNode(NodeInfo(3, "storage-3", "host", 9092)))
    for _ in range(4):
        planned = plan_rebalance(story.table.snapshot())
        if planned.is_even:
            break
        story.do(RollElsewhere(tuple(move.segment.key for move in planned.moves)))
        for move in planned.moves:
            assert story.segment(move.segment.key).handed.prepared == move.successor
            opened = story.roll(move.segment.key, move.segment.base_offset + 1)
            assert (opened.leader, opened.replicas) == move.successor[:2]
    shares = plan_rebalance(story.table.snapshot()).shares
    assert [share.leaders for share in shares] == [2, 2, 2]


def test_internal_topics_and_those_that_are_gone_are_refused() -> None:
    story = TableStory()
    internal = story.do(CreateTopic("__consumer_offsets", 1, 1, {}, is_internal=True)).result
    with pytest.raises(Reserved, match="cannot be sealed"):
        story.do(SealTopic(internal.topic_id, ASKED_MS))
    assert story.active(internal).state is SegmentState.ACTIVE and not story.active(internal).handed.is_roll_asked
    with pytest.raises(NotFound):
        story.do(SealTopic(UUID(int=12_345), ASKED_MS))
