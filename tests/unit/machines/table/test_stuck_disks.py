"""A node whose disk makes no progress keeps no lead that another replica can take, and gets nothing new."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stratalog.machines.plans.node_leases import STUCK_AGAIN_AFTER, NodeLeases
from stratalog.machines.table.records import PutHeader, PutNode, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import NoteLives, ProposeIsr
from stratalog.model.errors import Conflict
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life
from stratalog.model.segment import Segment, SegmentState
from stratalog.stored import encoding
from support.table_stories import CLUSTER_ID, TableStory, state_of

QUORUM = {"acks.policy": "quorum"}


def active_on(nodes: int = 3, settings: Mapping[str, str] | None = None) -> tuple[TableStory, SegmentKey]:
    story = TableStory(nodes=nodes)
    return story, story.active(story.topic(replicas=nodes, settings=settings)).key


def stuck(story: TableStory, *node_ids: int) -> None:
    story.do(NoteLives(stuck=tuple(map(story.life, node_ids))))


def last_of(story: TableStory, key: SegmentKey) -> Segment:
    return story.active(story.table.state.topic(key.topic_id))


@pytest.mark.fault("leader-disk-fails-write")
@pytest.mark.parametrize("settings", [{}, QUORUM], ids=["isr", "quorum"])
def test_a_leader_hands_over_to_replicas_whose_disks_work(settings: Mapping[str, str]) -> None:
    story, key = active_on(3, settings)
    stuck(story, 1)
    assert story.segment(key).is_fenced
    story.promise(key, 2, 10)
    story.promise(key, 3, 12)
    if story.segment(key).state is SegmentState.ACTIVE:
        story.leave_out(key, 1)
    opened = last_of(story, key)
    assert (opened.epoch, opened.leader, {*opened.isr}) == (1, 3, {2, 3})


@pytest.mark.fault("disk-progress-node-replica")
def test_a_leader_stays_where_no_other_replica_in_sync_works() -> None:
    story, key = active_on()
    story.do(ProposeIsr(key, (1, 3), 0))
    stuck(story, 3)
    before = story.segment(key)
    stuck(story, 1)
    assert story.segment(key) == before, "node 2 has not all of it, and the disk of node 3 makes no progress either"


@pytest.mark.fault("leader-disk-progress-replica")
def test_a_leader_hands_over_once_another_replica_in_sync_works() -> None:
    story, key = active_on()
    story.do(ProposeIsr(key, (1, 3), 0))
    stuck(story, 3)
    stuck(story, 1)
    story.do(ProposeIsr(key, (1, 2, 3), 1))
    assert not story.segment(key).is_fenced
    stuck(story, 1)  # it is noted again while it lasts
    assert story.segment(key).is_fenced


@pytest.mark.fault("leader-disk-progress-replica")
def test_a_leader_stays_where_too_few_others_work_for_acks_all() -> None:
    story, key = active_on(3, {"min.insync.replicas": "2"})
    stuck(story, 3)
    stuck(story, 1)
    assert story.segment(key).leader == 1, "node 2 alone takes no batch"
    story.do(NoteLives(working=(story.life(3),)))
    stuck(story, 1)
    assert story.segment(key).is_fenced


@pytest.mark.fault("disk-progress-node-replica")
def test_a_topic_without_its_own_min_isr_goes_by_the_default_of_the_processes() -> None:
    story, key = active_on(3)
    story.table.min_in_sync = 2
    stuck(story, 3)
    stuck(story, 1)
    assert story.segment(key).leader == 1, "node 2 alone takes no batch"
    story.table.min_in_sync = 1
    stuck(story, 1)
    assert story.segment(key).is_fenced


@pytest.mark.fault("disk-progress-node-replica")
def test_the_only_replica_stays() -> None:
    story, key = active_on(1)
    stuck(story, 1)
    segment = story.segment(key)
    assert (segment.leader, segment.is_fenced) == (1, False)


def test_a_leader_stays_without_a_majority_whose_disks_work() -> None:
    story, key = active_on(3, QUORUM)
    stuck(story, 2)
    stuck(story, 1)
    assert story.segment(key).leader == 1


@pytest.mark.fault("disk-progress-node-replica")
def test_of_nodes_that_stick_at_once_none_hands_over_to_another() -> None:
    story, key = active_on()
    stuck(story, 1, 2, 3)
    assert story.segment(key).leader == 1


def test_a_follower_that_sticks_keeps_its_place_and_no_seal_waits_for_it() -> None:
    story, key = active_on()
    stuck(story, 3)
    assert story.segment(key).isr == (1, 2, 3), "its leader finds out whether it still takes data"
    story.roll(key, 10)
    story.report(key, 1)
    sealed = story.report(key, 2)
    assert (sealed.state, sealed.local_nodes) == (SegmentState.SEALED, (1, 2))
    assert story.report(key, 3).local_nodes == (1, 2, 3)


@pytest.mark.fault("replica-disk-progress-fetches")
def test_it_joins_no_isr_before_its_disk_works() -> None:
    story, key = active_on()
    story.do(ProposeIsr(key, (1, 2), 0))
    stuck(story, 3)
    with pytest.raises(Conflict, match="node 3 cannot join the ISR"):
        story.do(ProposeIsr(key, (1, 2, 3), 1))
    story.do(NoteLives(working=(story.life(3),)))
    assert story.do(ProposeIsr(key, (1, 2, 3), 1)).result.isr == (1, 2, 3)


def test_nothing_new_is_placed_on_it_while_enough_others_work() -> None:
    story = TableStory(nodes=3)
    stuck(story, 2)
    placed = [story.active(story.topic(f"t{number}", replicas=2)) for number in range(6)]
    assert {node for segment in placed for node in segment.replicas} == {1, 3}


def test_where_it_is_needed_as_a_replica_it_never_leads_and_is_not_in_sync_from_the_start() -> None:
    story = TableStory(nodes=3)
    stuck(story, 2)
    placed = [story.active(story.topic(f"t{number}", replicas=3)) for number in range(6)]
    assert {segment.leader for segment in placed} == {1, 3}
    assert {frozenset(segment.isr) for segment in placed} == {frozenset({1, 3})}
    rolled = story.roll(placed[0].key, 5)
    assert rolled.leader != 2


def test_a_prepared_leader_that_sticks_is_replaced() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(replicas=2, shards=2)
    led_by_2 = next(one.key for one in (story.active(topic, 0), story.active(topic, 1)) if one.leader == 2)
    story.die(2)
    story.promise(led_by_2, 1, 5)
    story.is_heard(2)
    first = story.active(topic, 1 - led_by_2.shard).key
    assert story.prepare(first).leader == 2, "node 1 leads both"
    stuck(story, 2)
    assert story.roll(first, 5).leader == 1
    second = story.active(topic, led_by_2.shard).key
    chosen = story.prepare(second)
    assert chosen.leader == 1
    version = story.table.version
    assert (story.prepare(second), story.table.version) == (chosen, version), "asked again, it changes nothing"


def test_a_disk_that_works_again_gets_its_share_and_a_new_life_begins_as_working() -> None:
    story = TableStory(nodes=2)
    stuck(story, 2)
    story.do(NoteLives(working=(story.life(2),)))
    assert {story.active(story.topic(f"t{number}")).leader for number in range(2)} == {1, 2}
    stuck(story, 2)
    story.start(2)
    assert story.table.state.nodes[2].can_write


def test_it_is_noted_once_and_outlives_the_service() -> None:
    story, _ = active_on()
    stuck(story, 2)
    before = state_of(story.table)
    stuck(story, 2)
    story.do(NoteLives(stuck=(Life(2, 9), Life(7, 1))))
    assert state_of(story.table) == before
    assert not story.table.snapshot().nodes[1].can_write
    header = PutHeader(TableHeader(CLUSTER_ID, 0, 1))
    nodes = [PutNode(entry) for entry in story.table.state.nodes.values()]
    items = [(key, value or b"") for key, value in encoding.encode([header, *nodes])]
    loaded = ShardTable.load(encoding.decode(sorted(items), "items"), "items")
    assert loaded is not None
    assert [node.can_write for node in loaded.snapshot().nodes] == [True, False, True]


def test_leases_have_it_noted_when_a_heartbeat_says_otherwise_than_the_metadata() -> None:
    story, _ = active_on(1)
    leases = NodeLeases(2_000, story.table.snapshot().nodes, 0)
    life = story.life(1)
    leases.heartbeat_received(life, 10, can_write=False)
    due = leases.due(20)
    assert due is not None and (due.stuck, due.working) == ((life,), ())
    story.do(due)
    leases.node_changed(story.table.state.nodes[1].node, 30)
    assert leases.due(40) is None
    for now_ms in range(100, 20 + STUCK_AGAIN_AFTER * 2_000, 100):
        leases.heartbeat_received(life, now_ms, can_write=False)
        assert leases.due(now_ms) is None
    leases.heartbeat_received(life, 10_050, can_write=False)
    due = leases.due(10_050)
    assert due is not None and due.stuck == (life,), "others may be able to lead by now what they could not"
    leases.heartbeat_received(life, 10_060)
    due = leases.due(10_070)
    assert due is not None and (due.stuck, due.working) == ((), (life,))


def test_the_next_segment_does_not_stay_with_a_replica_whose_disk_stuck_after_its_promise() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    stuck(story, 2)
    story.promise(key, 3, 10)
    assert story.segment(key).end_offset == 12
    opened = last_of(story, key)
    stuck(story, 2)  # the service looks again
    assert story.segment(opened.key).is_fenced
    story.promise(opened.key, 3, 12)
    story.leave_out(opened.key, 2)
    opened = last_of(story, key)
    assert (opened.key.base_offset, opened.epoch, opened.leader) == (12, 2, 3)
