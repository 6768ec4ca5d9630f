"""Copies that are missing are made again somewhere else, and go when they are more than enough."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest

from stratalog.machines.copies.copy_repair import MOST_UNDER_WAY, Plan, Presence, plan_moves
from stratalog.machines.plans.shard_troubles import TroubleKind, troubles
from stratalog.model.commands.table_commands import (
    ForgetLocal,
    MoveReplicas,
    NoteLives,
    ProposeIsr,
    RegisterNode,
    ReplicaMove,
    ReportLostCopies,
    ReportReplica,
)
from stratalog.model.errors import Conflict
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import Segment
from support.table_stories import TableStory, record_of

NOBODY: frozenset[int] = frozenset()


def plan(story: TableStory, away: frozenset[int] = NOBODY, steady: frozenset[int] = NOBODY) -> Plan:
    return planned(plan_moves(story.table.snapshot(), away, steady))


def planned(steps: Generator[None, None, Plan]) -> Plan:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Plan = done.value
            return found


def repair(story: TableStory, away: frozenset[int] = NOBODY, steady: frozenset[int] = NOBODY) -> Plan:
    found = plan(story, away, steady)
    if found.moves:
        story.do(MoveReplicas(tuple(found.moves)))
    return found


def sealed(
    story: TableStory, replicas: int = 3, shards: int = 1, by: tuple[int, ...] | None = None
) -> list[SegmentKey]:
    """The first segment of each shard; `by`: who proves it, all that are listed when left out."""
    topic = story.topic(f"orders-{len(story.table.snapshot().topics)}", replicas=replicas, shards=shards)
    keys = []
    for shard in range(shards):
        active = story.active(topic, shard)
        story.roll(active.key, 10)
        for node_id in by or active.replicas:
            story.report(active.key, node_id)
        keys.append(active.key)
    return keys


def join(story: TableStory, node_id: int) -> TableStory:
    story.do(RegisterNode(NodeInfo(node_id, f"storage-{node_id}", "host", 9092)))
    return story


def copy_of(story: TableStory, key: SegmentKey, replicas: tuple[int, ...], holders: tuple[int, ...]) -> None:
    segment = story.segment(key)
    assert (segment.replicas, segment.local_nodes) == (replicas, holders)


@pytest.mark.fault("node-lost-permanently-sealed")
def test_a_copy_is_made_elsewhere_once_its_node_is_gone_for_good() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    join(story, 4)
    story.die(3)
    repair(story)
    copy_of(story, key, (1, 2, 3), (1, 2, 3))  # a node that is briefly away is not a reason
    repair(story, away=frozenset({3}))
    copy_of(story, key, (1, 2, 3, 4), (1, 2, 3))
    repair(story, away=frozenset({3}))
    copy_of(story, key, (1, 2, 3, 4), (1, 2, 3))  # it is under way
    assert story.report(key, 4).local_nodes == (1, 2, 3, 4)


def test_a_node_that_comes_back_counts_again_and_the_copy_in_its_place_goes_once_all_have_stayed() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    join(story, 4)
    story.die(3)
    repair(story, away=frozenset({3}))
    story.report(key, 4)
    story.is_heard(3)
    repair(story, steady=frozenset({1, 2, 4}))
    copy_of(story, key, (1, 2, 3, 4), (1, 2, 3, 4))
    repair(story, steady=frozenset({1, 2, 3, 4}))
    copy_of(story, key, (1, 2, 3), (1, 2, 3))


def test_a_copy_that_is_not_made_yet_is_let_go_of_when_the_lost_one_is_back() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    join(story, 4)
    story.die(3)
    repair(story, away=frozenset({3}))
    story.is_heard(3)
    repair(story, steady=frozenset({1, 2, 3, 4}))
    copy_of(story, key, (1, 2, 3), (1, 2, 3))


@pytest.mark.fault("lost-node-copies")
def test_a_copy_is_never_let_go_of_while_the_others_are_too_few() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    join(story, 4)
    story.die(3)
    repair(story, away=frozenset({3}))
    story.report(key, 4)
    story.do(MoveReplicas((ReplicaMove(key, (1, 2, 3, 4), dropped=(4, 1)),)))
    copy_of(story, key, (1, 2, 3, 4), (1, 2, 3, 4))


def test_who_was_listed_and_never_came_gives_its_place_to_another() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3)
    key = story.active(topic).key
    story.roll(key, 10)
    story.die(3)
    story.report(key, 1)
    story.report(key, 2)
    copy_of(story, key, (1, 2, 3), (1, 2))
    join(story, 4)
    assert not [move for move in plan(story).moves if move.segment == key], "it may still come"
    repair(story, away=frozenset({3}))
    copy_of(story, key, (1, 2, 3, 4), (1, 2))  # and once another has it, it need not
    story.report(key, 4)
    repair(story, away=frozenset({3}))
    copy_of(story, key, (1, 2, 4), (1, 2, 4))


def test_a_node_that_never_came_stays_listed_while_no_holder_is_alive() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=2)
    key = story.active(topic).key
    story.roll(key, 10)
    story.die(2)
    story.report(key, 1)
    copy_of(story, key, (1, 2), (1,))
    story.die(1)
    assert not [move for move in plan(story, away=frozenset({1, 2})).moves if move.segment == key]
    stale = ReplicaMove(key, (1, 2), dropped=(2,))
    story.do(MoveReplicas((stale,)))
    copy_of(story, key, (1, 2), (1,))  # the last that may have it
    story.is_heard(1)
    repair(story, away=frozenset({2}))
    copy_of(story, key, (1, 2, 3), (1,))
    story.report(key, 3)
    repair(story, away=frozenset({2}))
    copy_of(story, key, (1, 3), (1, 3))


def test_a_copy_that_was_lost_is_made_again_by_the_node_that_lost_it() -> None:
    story = TableStory(nodes=4)
    (key,) = sealed(story)
    story.do(ReportLostCopies((key,), caller=story.life(2)))
    assert not repair(story).moves, "it is a replica without the digest: it copies"
    copy_of(story, key, (1, 2, 3), (1, 3))


@pytest.mark.fault("copy-differed-sealed-segment")
def test_a_node_with_another_copy_makes_it_again_where_no_other_node_can() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3)
    key = story.active(topic).key
    story.roll(key, 10)
    for node_id, digest in ((3, b"other"), (1, b"digest"), (2, b"digest")):
        story.report(key, node_id, digest)
    copy_of(story, key, (1, 2), (1, 2))
    assert [report.node_id for report in story.segment(key).handed.reports] == [3]
    join(story, 4)
    (move,) = [move for move in plan(story).moves if move.segment == key]
    assert move.added == (4,)
    story.die(4)
    repair(story)
    copy_of(story, key, (1, 2, 3), (1, 2))
    assert story.segment(key).handover is None, "what was said of the former copy is over"
    with pytest.raises(Conflict, match="differs"):
        story.report(key, 3, b"other")
    copy_of(story, key, (1, 2, 3), (1, 2))
    assert story.report(key, 3).local_nodes == (1, 2, 3)


def test_what_the_object_store_has_whole_needs_no_copy() -> None:
    story = TableStory(nodes=4)
    (key,) = sealed(story)
    lock = story.lock()
    story.commit(lock, key, 0, 10)
    story.complete(lock, key)
    story.die(2, 3)
    assert not [move for move in plan(story, away=frozenset({2, 3})).moves if move.segment == key]


@pytest.mark.fault("node-lost-permanently-sealed")
def test_without_a_living_copy_nothing_is_begun_and_the_trouble_is_reported() -> None:
    story = TableStory(nodes=2)
    (key,) = sealed(story, replicas=2)
    join(join(story, 3), 4)
    story.die(1, 2)
    assert not [move for move in plan(story, away=frozenset({1, 2})).moves if move.segment == key]
    kinds = [trouble.kind for trouble in troubles(story.table.snapshot(), story.now_ms) if trouble.segment == key]
    assert kinds == [TroubleKind.NO_COPY]


@pytest.mark.fault("node-lost-permanently-sealed")
def test_ten_thousand_copies_that_are_due_are_not_a_storm() -> None:
    story = TableStory(nodes=2)
    keys = sealed(story, replicas=2, shards=100)
    join(story, 3)
    story.die(2)
    found = repair(story, away=frozenset({2}))
    assert sum(move.segment in keys for move in found.moves) <= MOST_UNDER_WAY
    assert found.waiting >= 100 - MOST_UNDER_WAY
    assert not repair(story, away=frozenset({2})).moves
    made = [key for key in keys if 3 in story.segment(key).replicas]
    for key in made[:5]:
        story.report(key, 3)
    assert len(repair(story, away=frozenset({2})).moves) == 5


def test_copies_that_cannot_be_made_now_hold_up_no_other() -> None:
    story = TableStory(nodes=2)
    sealed(story, replicas=2, shards=2 * MOST_UNDER_WAY)
    join(story, 3)
    story.die(2)
    assert repair(story, away=frozenset({2})).is_bounded, "as many as node 3 makes at a time"
    story.die(1)  # no node has them any more
    join(join(story, 4), 5)
    story.die(3)
    (key,) = sealed(story, replicas=2)
    story.is_heard(3)
    story.die(5)
    copy_of(story, key, (4, 5), (4, 5))
    repair(story, away=frozenset({1, 2, 5}))
    copy_of(story, key, (4, 5, 3), (4, 5))


def test_who_is_full_makes_no_copy_and_another_does() -> None:
    story = TableStory(nodes=2)
    (key,) = sealed(story, replicas=2)
    story.do(ReportLostCopies((key,), caller=story.life(2)))
    join(story, 3)
    assert not repair(story).moves, "node 2 copies it again"
    story.do(NoteLives(full=(story.life(2),)))
    repair(story)
    copy_of(story, key, (1, 2, 3), (1,))
    story.report(key, 3)
    repair(story)
    copy_of(story, key, (1, 2, 3), (1, 3))  # the seal names it


def test_as_many_copies_as_replicas_are_not_enough_if_they_lie_elsewhere() -> None:
    """One in a directory that stays, and a replica that leaves has none: two nodes that stay are to have it."""
    story = TableStory(nodes=3)
    (key,) = sealed(story, replicas=2)
    one, _, of_directory = (story.table.state.nodes[node_id].node for node_id in (1, 2, 3))
    offload = Retirement("storage-2", RetireMode.OFFLOAD, RetireStep.OFFLOAD, 0, 0)
    kept = Retirement("storage-4", RetireMode.VOLUME, RetireStep.DONE, 0, 0)
    nodes = (
        one,
        replace(one, node_id=2, retirement=offload),
        of_directory,
        replace(one, node_id=4, is_alive=False, retirement=kept),
    )
    snapshot = story.table.snapshot()
    shards = tuple(
        replace(
            shard,
            segments=tuple(
                replace(segment, replicas=(1, 2), local_nodes=(1, 4)) if segment.key == key else segment
                for segment in shard.segments
            ),
        )
        for shard in snapshot.shards
    )
    found = planned(plan_moves(replace(snapshot, nodes=nodes, shards=shards), NOBODY, NOBODY, lambda _: False))
    assert [move for move in found.moves if move.segment == key] == [ReplicaMove(key, (1, 2), added=(3,))]


def test_copies_that_are_due_are_spread_over_nodes_and_racks() -> None:
    story = TableStory(nodes=0)
    for node_id, rack in enumerate("aabbcc", 1):
        story.do(RegisterNode(NodeInfo(node_id, f"s{node_id}", "host", 9092, rack)))
    keys = sealed(story, replicas=2, shards=8)
    story.die(1)
    repair(story, away=frozenset({1}))
    for key in keys:
        segment = story.segment(key)
        if 1 in segment.local_nodes:
            (other,) = set(segment.local_nodes) - {1}
            (added,) = set(segment.replicas) - set(segment.local_nodes)
            assert "aabbcc"[other - 1] != "aabbcc"[added - 1]


def test_an_active_segment_that_was_opened_with_too_few_is_filled_where_it_is() -> None:
    story = TableStory(nodes=2)
    topic = story.topic(replicas=2)
    story.die(2)
    key = story.active(topic).key
    story.do(ProposeIsr(key, (1,), story.segment(key).isr_version, caller=story.life(1)))
    story.prepare(key)
    opened = story.roll(key, 5)
    assert opened.replicas == (1,)
    join(story, 3)
    repair(story)
    filled = story.segment(opened.key)
    assert (filled.leader, filled.replicas, filled.isr) == (1, (1, 3), (1,))
    story.do(ProposeIsr(opened.key, (1, 3), filled.isr_version, caller=story.life(1)))


def test_a_replica_of_an_active_segment_that_is_gone_for_good_is_replaced_once_it_is_out_of_the_isr() -> None:
    story = TableStory(nodes=4)
    topic = story.topic(replicas=3, settings={"min.insync.replicas": "3"})
    segment = story.active(topic)
    gone = segment.replicas[-1]
    (spare,) = {1, 2, 3, 4} - {*segment.replicas}
    story.die(gone)
    assert not repair(story).moves
    repair(story, away=frozenset({gone}))
    assert set(story.segment(segment.key).replicas) == {1, 2, 3, 4}, "it is in the ISR still, and stays"
    story = TableStory(nodes=4)
    topic = story.topic(replicas=3)
    segment = story.active(topic)
    story.die(gone)
    isr = story.segment(segment.key).isr
    assert gone not in isr
    repair(story, away=frozenset({gone}))
    assert set(story.segment(segment.key).replicas) == {*isr, spare}


@pytest.mark.fault("segment-opened-fewer-replicas")
def test_of_a_quorum_topic_one_replica_is_added_at_a_time_and_once_the_leader_knows_the_others() -> None:
    story = TableStory(nodes=1)
    topic = story.topic(replicas=1, settings={"acks.policy": "quorum"})
    key = story.active(topic).key
    story.do(RegisterNode(NodeInfo(2, "s2", "host", 9092)))
    story.do(RegisterNode(NodeInfo(3, "s3", "host", 9092)))
    story.do(MoveReplicas((ReplicaMove(key, (1,), added=(2, 3)),)))
    assert story.segment(key).replicas == (1, 2)
    story.do(MoveReplicas((ReplicaMove(key, (1, 2), added=(3,)),)))
    assert story.segment(key).replicas == (1, 2)
    story.do(ProposeIsr(key, (1, 2), story.segment(key).isr_version, caller=story.life(1)))
    story.do(MoveReplicas((ReplicaMove(key, (1, 2), added=(3,)),)))
    assert story.segment(key).replicas == (1, 2, 3)


def test_who_is_let_go_of_and_listed_again_is_seen_by_a_leader_that_heard_of_neither() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    story.do(ProposeIsr(key, (1, 2), 0, caller=story.life(1)))
    replicas = story.segment(key).replicas
    story.do(MoveReplicas((ReplicaMove(key, replicas, dropped=(3,)),)))
    assert (story.segment(key).replicas, story.segment(key).isr_version) == ((1, 2), 2)
    story.do(MoveReplicas((ReplicaMove(key, (1, 2), added=(3,)),)))
    assert (story.segment(key).replicas, story.segment(key).isr_version) == ((1, 2, 3), 2)


def test_a_move_that_rests_on_other_replicas_or_names_a_dead_node_is_passed_over() -> None:
    story = TableStory(nodes=4)
    (key,) = sealed(story)
    story.die(4)
    story.do(MoveReplicas((ReplicaMove(key, (1, 2), added=(4,)), ReplicaMove(key, (1, 2, 3), added=(4, 9)))))
    copy_of(story, key, (1, 2, 3), (1, 2, 3))


# Which word of a node is newer --------------------------------------------------------------------------------------
def report_seen_at(story: TableStory, key: SegmentKey, node_id: int, version: int) -> Segment:
    proof = replace(record_of(key, 10, (node_id,)))
    return story.do(ReportReplica(key, proof, version, caller=story.life(node_id))).result


@pytest.mark.fault("report-message-copy-gone")
def test_a_report_that_comes_after_the_copy_was_freed_lists_nothing() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    before = story.segment(key).isr_version
    lock = story.lock()
    story.commit(lock, key, 0, 10)
    story.complete(lock, key)
    story.do(ForgetLocal((key,), 2, caller=story.life(2)))
    assert report_seen_at(story, key, 2, before).local_nodes == (1, 3)


@pytest.mark.fault("report-message-copy-gone")
def test_a_report_that_comes_after_the_copy_was_lost_lists_nothing_and_one_of_the_next_copy_does() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    before = story.segment(key).isr_version
    story.do(ReportLostCopies((key,), caller=story.life(2)))
    assert report_seen_at(story, key, 2, before).local_nodes == (1, 3)
    assert report_seen_at(story, key, 2, story.segment(key).isr_version).local_nodes == (1, 2, 3)


def test_a_report_of_other_bytes_is_refused_however_old_it_is() -> None:
    story = TableStory(nodes=3)
    (key,) = sealed(story)
    story.do(ReportLostCopies((key,), caller=story.life(2)))
    with pytest.raises(Conflict, match="differs from the sealed one"):
        story.do(ReportReplica(key, replace(record_of(key, 10), digest=b"other"), 0, caller=story.life(2)))


# Time ---------------------------------------------------------------------------------------------------------------
def test_presence_tells_gone_from_blinking_by_time_and_a_new_leader_begins_again() -> None:
    story = TableStory(nodes=2)
    presence = Presence(100, story.table.snapshot().nodes, 0)
    assert (presence.away(99), presence.steady(99)) == (NOBODY, NOBODY)
    assert presence.steady(100) == {1, 2}
    story.die(2)
    dead = story.table.snapshot().nodes[1]
    presence.node_changed(dead, 150)
    presence.node_changed(dead, 200)
    assert (presence.away(249), presence.away(250)) == (NOBODY, {2})
    story.do(NoteLives(heard=(story.life(2),)))
    presence.node_changed(story.table.snapshot().nodes[1], 260)
    assert (presence.away(300), presence.steady(300)) == (NOBODY, {1})
    assert Presence(100, story.table.snapshot().nodes, 300).away(399) == NOBODY


@pytest.mark.fault("node-replica-segment-restarts")
def test_a_segment_with_one_replica_gets_others_only_once_its_leader_has_opened_it() -> None:
    story = TableStory(nodes=1)
    topic = story.topic(replicas=1)
    story.do(RegisterNode(NodeInfo(2, "storage-2", "host", 9092)))
    snapshot = story.table.snapshot()
    wider = replace(snapshot, topics=tuple(replace(one, replication_factor=2) for one in snapshot.topics))
    first, second = story.life(1), story.life(2)
    assert planned(plan_moves(wider, NOBODY, NOBODY, started=frozenset((second,)))).moves == []
    before = frozenset((Life(1, first.epoch - 1), second))
    assert planned(plan_moves(wider, NOBODY, NOBODY, started=before)).moves == [], "what was read is of another life"
    (move,) = planned(plan_moves(wider, NOBODY, NOBODY, started=frozenset((first, second)))).moves
    assert (move.segment, move.added, move.leader) == (story.active(topic).key, (2,), first)


@pytest.mark.fault("node-replica-segment-restarts")
def test_replicas_planned_for_an_earlier_life_of_the_leader_are_not_added() -> None:
    """The start of the next life may have read the segment with its one replica, and opens it by itself."""
    story = TableStory(nodes=1)
    topic = story.topic(replicas=1)
    story.do(RegisterNode(NodeInfo(2, "storage-2", "host", 9092)))
    key = story.active(topic).key
    planned_for = story.life(1)
    story.do(RegisterNode(NodeInfo(1, "storage-1", "host", 9092)))
    assert story.life(1) != planned_for
    story.do(MoveReplicas((ReplicaMove(key, (1,), added=(2,), leader=planned_for),)))
    assert story.active(topic).replicas == (1,)
    story.do(MoveReplicas((ReplicaMove(key, (1,), added=(2,), leader=story.life(1)),)))
    assert story.active(topic).replicas == (1, 2)
