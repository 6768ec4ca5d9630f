"""The next segment is prepared before the end, and opens there (design rules 1 and 2, section 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.copies.placement import place_next
from stratalog.model.commands.table_commands import (
    BeginRecovery,
    NoteLives,
    PrepareSegment,
    ProposeIsr,
    RegisterNode,
    ReportReplica,
    RollSegment,
    ScarcityNoted,
)
from stratalog.model.errors import Conflict, Fenced, Unavailable
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.segment import NextReplicas, Segment, SegmentState
from support.table_stories import TableStory, record_of, state_of


def test_what_is_prepared_stays_and_asked_again_it_is_the_same() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    prepared = story.prepare(key)
    assert prepared == NextReplicas(1, (1, 2, 3))
    before = state_of(story.table)
    assert story.prepare(key) == prepared and state_of(story.table) == before


def test_the_next_segment_opens_as_it_was_prepared() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=2)).key
    prepared = story.prepare(key)
    opened = story.roll(key, 10)
    named = (opened.leader, opened.replicas, opened.policy, opened.isr, opened.isr_version)
    assert named == (*prepared, prepared.replicas, 0)
    ended = story.segment(key)
    assert (ended.state, ended.leader, ended.handover) == (SegmentState.SEALING, 1, None), (
        "it leads until all is proved"
    )
    assert story.roll(key, 10) == opened, "a lost answer is asked for again"


def test_it_is_chosen_again_when_one_of_the_chosen_is_not_alive() -> None:
    story = TableStory(nodes=4)
    key = story.active(story.topic(replicas=3)).key
    first = story.prepare(key)
    story.die(first.replicas[-1])
    second = story.prepare(key)
    assert first.replicas[-1] not in second.replicas and len(second.replicas) == 3


def test_whoever_died_since_it_was_prepared_is_not_in_the_isr_of_the_next() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    story.prepare(key)
    story.die(3)
    opened = story.roll(key, 10)
    assert (opened.replicas, opened.isr) == ((1, 2, 3), (1, 2))


def test_a_prepared_leader_that_is_not_alive_any_more_is_replaced_at_the_roll() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.die(2)
    story.topic("busy", shards=4)
    story.is_heard(2)
    assert story.segment(key).leader == 1 and story.prepare(key).leader == 2, "the other one has less to do"
    story.die(2)
    opened = story.roll(key, 3)
    assert (opened.leader, opened.isr) == (1, (1,))


def test_with_too_few_living_nodes_it_opens_with_fewer_and_is_complete_again_later() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    story.die(2, 3)
    assert story.prepare(key) == NextReplicas(1, (1,))
    degraded = story.roll(key, 10)
    assert degraded.replicas == (1,)
    assert story.prepare(degraded.key) == NextReplicas(1, (1,))
    story.is_heard(2)
    assert story.prepare(degraded.key).replicas == (1, 2)
    story.is_heard(3)
    assert story.roll(degraded.key, 20).replicas == (1, 2), "as prepared: the leader may have begun already"
    last = story.table.shard(key.shard_key).segments[-1].key
    story.prepare(last)
    assert story.roll(last, 30).replicas == (1, 2, 3)


def test_only_its_leader_ends_a_segment_or_changes_its_isr() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    for command in (PrepareSegment(key), RollSegment(key, 5), ProposeIsr(key, (1,), 0)):
        with pytest.raises(Fenced, match="node 1 leads it"):
            story.do(replace(command, caller=story.life(2)))
        story.do(replace(command, caller=story.life(1)))


def test_who_asks_for_the_isr_of_a_sealed_segment_is_not_fenced() -> None:
    """It may have been its leader, and lead what follows: to hear of a fence would take that from it."""
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.roll(key, 5)
    for node in (1, 2):
        story.do(ReportReplica(key, record_of(key, 5), caller=story.life(node)))
    assert story.segment(key).seal is not None
    with pytest.raises(Conflict, match="needs none any more"):
        story.do(replace(ProposeIsr(key, (1,), 0), caller=story.life(1)))


def test_after_the_end_nothing_is_prepared() -> None:
    story = TableStory(nodes=2)
    key = story.active(story.topic(replicas=2)).key
    story.roll(key, 5)
    with pytest.raises(Fenced):
        story.prepare(key)


def test_what_was_prepared_serves_a_recovery_too() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=2)
    first = story.active(topic)
    prepared = story.prepare(first.key)
    story.do(BeginRecovery(first.key))
    for node in first.replicas:
        story.promise(first.key, node, 4)
    opened = story.active(topic)
    assert (opened.leader, opened.replicas, opened.policy) == prepared


def test_new_segments_go_where_there_is_room_as_long_as_there_is() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=2)).key
    story.do(NoteLives(full=(story.life(1),)))
    assert set(story.prepare(key).replicas) == {2, 3}, "at its next roll the shard leaves the full disk"
    assert set(story.active(story.topic("more", replicas=2)).replicas) == {2, 3}
    story.do(NoteLives(full=(story.life(2),)))
    assert len(story.active(story.topic("still", replicas=2)).replicas) == 2, "nearly full is better than not at all"
    story.do(NoteLives(roomy=(story.life(1), story.life(2))))
    assert all(node.has_room for node in story.table.snapshot().nodes)


# Where it goes --------------------------------------------------------------------------------------------------
def a_segment(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...] | None = None) -> Segment:
    story = TableStory(nodes=1)
    return replace(story.active(story.topic()), leader=leader, replicas=replicas, isr=isr or replicas)


def some_nodes(*node_ids: int, racks: dict[int, str] | None = None) -> list[NodeInfo]:
    return [NodeInfo(node_id, "disk", "host", 1, (racks or {}).get(node_id)) for node_id in node_ids]


def test_a_segment_stays_where_it_is_while_the_load_is_even() -> None:
    before = a_segment(2, (2, 3))
    assert place_next(before, 2, some_nodes(1, 2, 3), {1: 3, 2: 4, 3: 3}, {2: 1}) == NextReplicas(2, (2, 3))


def test_a_new_node_comes_in_as_a_follower_and_may_lead_from_then_on() -> None:
    before = a_segment(2, (2, 3))
    nodes, load, led = some_nodes(1, 2, 3), {2: 12, 3: 12}, {2: 4, 3: 4}
    assert place_next(before, 2, nodes, load, led).leader == 2, "a leader knows the producers at the end"
    assert 1 in place_next(before, 2, nodes, load, led).replicas
    assert place_next(a_segment(2, (2, 1)), 2, nodes, {1: 1, 2: 12, 3: 11}, led).leader == 1


def test_the_leader_is_in_sync_with_the_segment_before() -> None:
    before = a_segment(2, (2, 3, 4), (2, 3))
    assert place_next(before, 3, some_nodes(1, 3, 4), {3: 100}, {3: 9}).leader == 3
    assert place_next(before, 3, some_nodes(1, 4), {1: 5}, {}).leader == 4, "nobody in sync is there"
    assert place_next(before, 3, some_nodes(1, 3, 4), {}, {}, holders=(4,)).leader == 4
    with pytest.raises(Unavailable):
        place_next(before, 3, [], {}, {})


def test_a_shard_leaves_a_disk_that_fills_unless_that_leads_and_holds_much_less() -> None:
    nodes, even = some_nodes(1, 2, 3), {1: 6, 2: 6, 3: 6}
    led = {1: 3, 2: 3, 3: 3}
    assert place_next(a_segment(2, (2, 3)), 2, nodes, even, led, (), {2: 1}) == NextReplicas(3, (3, 1))
    assert place_next(a_segment(2, (2, 3)), 2, nodes, even | {2: 2}, led | {2: 1}, (), {2: 1}).leader == 2


def test_how_scarce_room_is_outlives_a_start_but_not_another_disk() -> None:
    story = TableStory(nodes=2)
    story.do(NoteLives(scarce=(ScarcityNoted(story.life(1), 2), ScarcityNoted(Life(2, 9), 3))))
    assert [node.scarcity for node in story.table.snapshot().nodes] == [2, 0]
    story.start(1)
    assert story.table.snapshot().nodes[0].scarcity == 2
    assert story.active(story.topic()).leader == 2
    story.start(1, is_wiped=True)
    assert story.table.snapshot().nodes[0].scarcity == 0


def test_a_new_node_says_with_its_first_word_how_scarce_room_is() -> None:
    """Beside nodes that have told it would look emptier, and get all leaders."""
    story = TableStory(nodes=1)
    story.do(NoteLives(scarce=(ScarcityNoted(story.life(1), 2),)))
    story.do(RegisterNode(NodeInfo(2, "storage-2", "host", 9092), scarcity=2))
    story.do(RegisterNode(NodeInfo(3, "storage-3", "host", 9092), scarcity=99))
    assert [node.scarcity for node in story.table.snapshot().nodes] == [2, 2, 3]
    leaders = [story.active(story.topic(f"topic-{number}")).leader for number in range(4)]
    assert sorted(leaders)[:2] == [1, 1] and 2 in leaders


def test_racks_are_spread_before_the_load_is_evened() -> None:
    nodes = some_nodes(1, 2, 3, 4, racks={1: "a", 2: "a", 3: "b", 4: "b"})
    assert place_next(a_segment(1, (1, 2)), 2, nodes, {3: 50, 4: 60}, {}) == NextReplicas(1, (1, 3))
    assert len(place_next(a_segment(1, (1, 2)), 4, nodes, {}, {}).replicas) == 4, (
        "a rack comes twice when there is no other"
    )


def test_many_shards_that_prepare_at_once_do_not_all_choose_the_same_node() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(shards=12, replicas=2)
    story.do(RegisterNode(NodeInfo(3, "storage-3", "host", 9092)))
    keys = [story.active(topic, shard).key for shard in range(12)]
    for key in keys:
        story.prepare(key)
    for _ in range(3):
        opened = [story.roll(key, key.base_offset + 1) for key in keys]
        keys = [segment.key for segment in opened]
        for key in keys:
            story.prepare(key)
    load = story.table.state.load
    assert max(load.values()) - min(load.values()) <= 3, load
    assert {story.active(topic, shard).leader for shard in range(12)} == {1, 2, 3}
