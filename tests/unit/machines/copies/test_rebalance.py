"""Which shards would go elsewhere, and that a few rounds make new writes even."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.copies.rebalance import Plan, plan_rebalance
from stratalog.model.commands.table_commands import NoteLives, PrepareSegment, RegisterNode, ScarcityNoted
from stratalog.model.errors import Fenced
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import SegmentState
from support.table_stories import TableStory


def joins(story: TableStory, node_id: int) -> None:
    story.do(RegisterNode(NodeInfo(node_id, f"storage-{node_id}", "host", 9092)))


def rolls_as_planned(story: TableStory, plan: Plan) -> None:
    """As `--seal` does: the next leader is chosen again, then the shard rolls."""
    for move in plan.moves:
        known = story.segment(move.segment.key)
        story.do(PrepareSegment(known.key, known.handed.prepared))
        story.roll(known.key, known.base_offset + 1)


def until_even(story: TableStory, rounds: int = 8) -> int:
    for number in range(rounds):
        plan = plan_rebalance(story.table.snapshot())
        if plan.is_even or not plan.moves:
            return number
        rolls_as_planned(story, plan)
    raise AssertionError("it never becomes even")


def test_a_new_node_follows_first_and_leads_in_the_next_round() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(shards=6, replicas=2)
    joins(story, 3)
    plan = plan_rebalance(story.table.snapshot())
    assert not plan.is_even and plan.moves
    assert all(move.successor.leader != 3 for move in plan.moves), "it does not know the producers yet"
    assert until_even(story) == 2
    shares = plan_rebalance(story.table.snapshot()).shares
    assert [share.leaders for share in shares] == [2, 2, 2]
    assert all(abs(share.load - 6) <= 1 for share in shares)
    assert all(story.active(topic, shard).state is SegmentState.ACTIVE for shard in range(6))


def test_what_was_prepared_before_the_node_came_is_prepared_again_and_only_once() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(shards=3, replicas=2)
    segments = [story.active(topic, shard).key for shard in range(3)]
    first = [story.prepare(key) for key in segments]
    joins(story, 3)
    assert [story.prepare(key) for key in segments] == first, "asked again it is the same"
    again = story.do(PrepareSegment(segments[0], first[0])).result.handed.prepared
    assert again is not None and 3 in again.replicas
    assert story.do(PrepareSegment(segments[0], first[0])).result.handed.prepared == again, "said twice it is done once"
    story.roll(segments[0], 5)
    with pytest.raises(Fenced):
        story.do(PrepareSegment(segments[0], first[0]))


def test_a_shard_that_is_prepared_and_does_not_roll_counts_where_it_will_be() -> None:
    """As the service counts it: planned otherwise, another shard rolled again and again and stayed where it was."""
    story = TableStory(nodes=3)
    topic = story.topic(shards=2, replicas=2)
    joins(story, 4)
    story.prepare(story.active(topic, 1).key)
    until_even(story)


def test_an_even_cluster_and_one_without_living_nodes_move_nothing() -> None:
    story = TableStory(nodes=3)
    story.topic(shards=6, replicas=1)
    assert plan_rebalance(story.table.snapshot()).is_even and not plan_rebalance(story.table.snapshot()).moves
    story.die(1, 2, 3)
    assert not plan_rebalance(story.table.snapshot()).moves


def test_a_full_disk_is_left_and_one_that_fills_gets_less() -> None:
    story = TableStory(nodes=3)
    story.topic(shards=12, replicas=1)
    story.topic("wide", shards=12, replicas=2)
    story.do(NoteLives(full=(story.life(1),), scarce=(ScarcityNoted(story.life(2), 1),)))
    plan = plan_rebalance(story.table.snapshot())
    assert not plan.is_even and [share.takes_new for share in plan.shares] == [False, True, True]
    until_even(story)
    shares = plan_rebalance(story.table.snapshot()).shares
    assert shares[0].load == 0 and shares[1].leaders < shares[2].leaders


@settings(max_examples=25, deadline=None)
@given(
    nodes=st.integers(1, 4),
    new=st.integers(1, 2),
    topics=st.lists(st.tuples(st.integers(1, 8), st.integers(2, 3)), min_size=1, max_size=3),
    prepared=st.sets(st.integers(0, 23)),
)
def test_rounds_come_to_an_end_and_leave_no_node_far_from_even(
    nodes: int, new: int, topics: list[tuple[int, int]], prepared: set[int]
) -> None:
    """Also while idle shards have a prepared successor: the service counts them at the successor's node."""
    story = TableStory(nodes=max(nodes, 2))
    for number, (shards, replicas) in enumerate(topics):
        story.topic(f"topic-{number}", shards, min(replicas, max(nodes, 2)))
    for number in range(new):
        joins(story, 10 + number)
    shards_of = story.table.snapshot().shards
    for place in prepared & set(range(len(shards_of))):
        story.prepare(shards_of[place].segments[-1].key)
    until_even(story, rounds=12)
    plan = plan_rebalance(story.table.snapshot())
    leaders = [share.leaders for share in plan.shares]
    assert plan.is_even or max(leaders) - min(leaders) <= 2
