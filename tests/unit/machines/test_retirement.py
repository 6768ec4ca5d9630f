"""How a node leaves, step by step, over the real table: each reason to wait, what is taken back, and what is not."""

from __future__ import annotations

import pytest

from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.machines.plans.retirement import Release, Served
from stratalog.model.commands.retirement_commands import (
    AdvanceRetirement,
    CancelRetirement,
    ReleaseNode,
    ReportSighting,
    RetireNode,
)
from stratalog.model.commands.table_commands import AcquireLock, MoveReplicas, RegisterNode, ReplicaMove
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, NotFound
from stratalog.model.metadata import NodeInfo, Vitals
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog.model.segment import SegmentState
from support.retirement_story import INTERVAL_MS, RetirementStory, is_tiered

TIERED = {"remote.storage.enable": "true"}


def waits_for(story: RetirementStory, node_id: int = 1) -> WaitReason | None:
    wait = story.record(node_id).wait
    return None if wait is None else wait.reason


def words(story: RetirementStory, node_id: int = 1) -> str:
    wait = story.record(node_id).wait
    return "" if wait is None else wait.words


def leaving(nodes: int = 3, mode: RetireMode = RetireMode.OFFLOAD) -> RetirementStory:
    """Node 1 is wished to leave, and has a replica of a shard's open segment."""
    story = RetirementStory(nodes=nodes)
    story.topic("orders", replicas=2, settings=TIERED)
    story.do(RetireNode(1, mode))
    return story


def copy_again(story: RetirementStory, away: frozenset[int] = frozenset()) -> None:
    steps = plan_moves(story.table.snapshot(), away, frozenset(), is_tiered)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            story.do(MoveReplicas(tuple(done.value.moves)))
            return


# The way --------------------------------------------------------------------------------------------------------
def test_a_node_leaves_in_the_steps_of_the_page() -> None:
    story = leaving()
    seen = []

    def look() -> None:
        story.run_pass(1)
        seen.append(story.record(1).step)

    look()
    look()
    assert seen == [RetireStep.CORDON, RetireStep.SEAL]
    story.roll_away(1)
    story.report_all()
    look()
    assert seen[-1] is RetireStep.OFFLOAD and story.survey(1).uploads.count == 1
    story.upload_all()
    look()
    story.sight(1, by_node=2)
    look()
    assert seen[-2:] == [RetireStep.VERIFY, RetireStep.VERIFY], "one look is not two"
    story.now_ms += INTERVAL_MS
    story.sight(1, by_node=3)
    look()
    assert seen[-1] is RetireStep.SNAPSHOT
    story.write_inventory(1, by_node=2)
    look()
    assert seen[-1] is RetireStep.RELEASE and not story.node(1).is_alive
    look()
    assert seen[-1] is RetireStep.DONE


def test_a_cordoned_node_gets_no_segment_and_what_was_prepared_there_is_chosen_again() -> None:
    story = RetirementStory(nodes=3)
    topic = story.topic("orders", replicas=2, settings=TIERED)
    active = story.active(topic)
    leader = active.leader
    assert leader is not None and leader in story.prepare(active.key).replicas
    story.do(RetireNode(leader))
    story.run_pass(leader)
    assert leader not in story.prepare(active.key).replicas
    assert leader not in story.roll(active.key, 10).replicas
    for number in range(4):
        assert leader not in story.active(story.topic(f"new-{number}", replicas=2)).replicas


@pytest.mark.fault("die-node-cordoned")
def test_where_no_other_node_lives_a_cordoned_node_keeps_writing() -> None:
    story = RetirementStory(nodes=2)
    topic = story.topic("orders", settings=TIERED)
    leader = story.active(topic).leader
    assert leader is not None
    story.do(RetireNode(leader))
    story.run_pass(leader)
    story.die(3 - leader)
    assert story.prepare(story.active(topic).key).leader == leader


def test_topics_of_the_service_follow_the_nodes_down() -> None:
    from stratalog.machines.copies.internal_topics import GROUP_LOG
    from stratalog.model.commands.table_commands import CreateTopic

    story = RetirementStory(nodes=3)
    log = story.do(CreateTopic(GROUP_LOG, 1, 3, is_internal=True)).result
    story.do(RetireNode(3))
    story.run_pass(3)
    assert story.record(3).step is RetireStep.CORDON
    assert story.table.topic(log.topic_id).replication_factor == 2


@pytest.mark.fault("topics-remote-tier")
def test_without_a_remote_tier_other_nodes_copy_what_it_has_and_with_one_none_do() -> None:
    story = RetirementStory(nodes=4)
    plain, tiered = story.topic("plain", replicas=2), story.topic("tiered", replicas=2, settings=TIERED)
    for topic in (plain, tiered):
        story.roll(story.active(topic).key, 10)
    story.report_all()
    first = story.table.snapshot().shards[0].segments[0]
    node_id = first.local_nodes[0]
    story.do(RetireNode(node_id))
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.run_pass(node_id)
    assert waits_for(story, node_id) is WaitReason.UNDER_REPLICATED and "2 segments" in words(story, node_id)
    before = {shard.key: shard.segments[0].replicas for shard in story.table.snapshot().shards}
    copy_again(story)
    changed = {s.key for s in story.table.snapshot().shards if s.segments[0].replicas != before[s.key]}
    assert {key.topic_id for key in changed} == {plain.topic_id}, "with a tier no byte moves between nodes"
    assert all(node_id not in s.segments[-1].replicas for s in story.table.snapshot().shards)
    story.report_all()
    story.upload_all()
    story.leave(node_id, by_node=next(n for n in (1, 2, 3, 4) if n != node_id))
    for shard in story.table.snapshot().shards:
        for segment in shard.segments:
            assert node_id not in segment.local_nodes


@pytest.mark.fault("segment-turns-node-offload")
def test_what_turns_up_after_the_offload_is_gone_back_for() -> None:
    story = leaving()
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.upload_all()
    story.run_pass(1)
    story.sight(1, by_node=2)
    assert story.record(1).sightings
    story.die(2, 3)
    late = story.topic("late", replicas=1, settings=TIERED)
    assert story.active(late).replicas == (1,), "nobody else lived when it was made"
    story.is_heard(2)
    story.is_heard(3)
    story.run_pass(1)
    assert story.record(1).step is RetireStep.SEAL
    assert not story.record(1).sightings, "what was seen before counts no more"


# Reasons --------------------------------------------------------------------------------------------------------
@pytest.mark.fault("last-node-leave-nodes")
def test_the_last_node_stays() -> None:
    story = RetirementStory(nodes=2)
    story.do(RetireNode(1))
    story.die(2)
    story.run_pass(1)
    assert waits_for(story) is WaitReason.LAST_NODE and story.record(1).step is RetireStep.PREFLIGHT
    assert not story.node(1).is_leaving, "nothing is cordoned before the checks have passed"
    story.is_heard(2)
    story.run_pass(1)
    assert story.record(1).step is RetireStep.CORDON and waits_for(story) is None


@pytest.mark.fault("last-node-leave-nodes")
def test_as_many_nodes_stay_as_a_topic_has_replicas_or_asks_for_in_sync() -> None:
    story = RetirementStory(nodes=3)
    story.topic("wide", replicas=3)
    story.do(RetireNode(1))
    story.run_pass(1)
    assert waits_for(story) is WaitReason.REPLICATION_FACTOR
    assert "2 nodes stay" in words(story) and "'wide' with 3" in words(story)
    picky = RetirementStory(nodes=2)
    picky.topic("picky", settings={"min.insync.replicas": "2"})
    picky.do(RetireNode(1))
    picky.run_pass(1)
    assert waits_for(picky) is WaitReason.REPLICATION_FACTOR and "min.insync.replicas=2" in words(picky)


@pytest.mark.fault("last-node-leave-nodes")
def test_as_many_zones_stay_as_a_topic_spreads_over() -> None:
    story = RetirementStory(nodes=0)
    for node_id, rack in ((1, "a"), (2, "b"), (3, "b")):
        story.do(RegisterNode(NodeInfo(node_id, f"storage-{node_id}", "host", 9092, rack)))
    story.topic("orders", replicas=2)
    story.do(RetireNode(1))
    story.run_pass(1)
    assert waits_for(story) is WaitReason.ZONE_SPREAD
    assert "1 zone stays of 2" in words(story) and "in zone a" in words(story)
    story.do(RetireNode(2))
    story.do(CancelRetirement(1))
    story.run_pass(2)
    assert story.record(2).step is RetireStep.CORDON, "another node is in its zone"


def _has_to_be_copied(story: RetirementStory) -> int:
    """Returns: a node with 100 bytes of a sealed segment that has no remote tier."""
    story.roll(story.active(story.topic("plain", replicas=2)).key, 10)
    story.report_all()
    return story.table.snapshot().shards[0].segments[0].local_nodes[0]


@pytest.mark.fault("data-copied-fit-unknown")
def test_what_must_be_copied_has_to_fit_on_those_that_stay() -> None:
    story = RetirementStory(nodes=3)
    node_id = _has_to_be_copied(story)
    story.vitals = {other: Vitals(4_000, 100_000, True) for other in (1, 2, 3)}
    story.do(RetireNode(node_id))
    story.run_pass(node_id)
    assert waits_for(story, node_id) is WaitReason.INSUFFICIENT_CAPACITY and "100 bytes" in words(story, node_id)
    story.vitals = {}
    assert "have not said" in (story.planned(node_id).why or pytest.fail("it goes on")).words, "unknown is no room"
    story.vitals = {other: Vitals(20_060, 100_000, True) for other in (1, 2, 3)}
    story.run_pass(node_id)
    assert story.record(node_id).step is RetireStep.CORDON


def test_what_hardly_fills_a_disk_is_copied_to_a_full_one() -> None:
    """A laptop that is nine tenths full, and 100 bytes: no one has to free 20 % of it first."""
    story = RetirementStory(nodes=3)
    node_id = _has_to_be_copied(story)
    story.vitals = {other: Vitals(10_000, 100_000, True) for other in (1, 2, 3)}
    story.do(RetireNode(node_id))
    story.run_pass(node_id)
    assert story.record(node_id).step is RetireStep.CORDON


@pytest.mark.fault("shards-leader-node-leave")
def test_a_shard_without_leader_is_waited_for_and_never_forced_by_a_retirement() -> None:
    story = RetirementStory(nodes=3)
    replicas = story.active(story.topic("orders", replicas=2, settings=TIERED)).replicas
    story.do(RetireNode(replicas[1]))
    story.run_passes(replicas[1])
    story.die(*replicas)
    story.is_heard(replicas[1])
    story.run_passes(replicas[1])
    assert waits_for(story, replicas[1]) is WaitReason.SHARD_UNAVAILABLE
    assert "1 of 1 open segment without a living leader" in words(story, replicas[1])


@pytest.mark.fault("object-store-unavailable-during")
def test_a_store_that_is_away_is_said_with_what_is_still_to_come() -> None:
    story = leaving()
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.store_away_ms = 90_000
    story.run_pass(1)
    assert waits_for(story) is WaitReason.STORE_UNREACHABLE and "90 s" in words(story) and "100 bytes" in words(story)
    story.store_away_ms = 0
    story.upload_all()
    story.leave(1, by_node=2)


@pytest.mark.fault("check-finds-cannot-read")
@pytest.mark.parametrize(
    ("is_differing", "reason"), [(False, WaitReason.UNKNOWN_SEGMENTS), (True, WaitReason.DIGEST_MISMATCH)]
)
def test_what_cannot_be_confirmed_counts_as_still_here(is_differing: bool, reason: WaitReason) -> None:
    story = leaving()
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.upload_all()
    story.run_pass(1)
    story.sight(1, by_node=2)
    story.now_ms += INTERVAL_MS
    story.sight(1, by_node=2, unconfirmed=1, is_differing=is_differing)
    story.run_pass(1)
    assert story.record(1).step is RetireStep.VERIFY and waits_for(story) is reason
    assert "could not confirm 1 of 10" in words(story)
    story.now_ms += INTERVAL_MS
    story.sight(1, by_node=2)
    story.run_pass(1)
    assert story.record(1).step is RetireStep.VERIFY, "one that was not clean begins again"
    story.now_ms += INTERVAL_MS
    story.sight(1, by_node=2)
    story.run_pass(1)
    assert story.record(1).step is RetireStep.SNAPSHOT


@pytest.mark.fault("check-finds-cannot-read")
def test_a_sighting_counts_of_staying_nodes_alone_and_of_the_present_retirement() -> None:
    story = leaving()
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.upload_all()
    story.run_pass(1)
    story.sight(1, by_node=1)
    assert not story.record(1).sightings, "the leaving node's own word is not enough"
    old = story.record(1)
    story.do(CancelRetirement(1))
    story.now_ms += 1
    story.do(RetireNode(1))
    story.run_passes(1)
    late = ReportSighting(1, old.storage_id, old.begun_ms, 10, caller=story.life(2))
    story.do(late)
    assert not story.record(1).sightings
    with pytest.raises(InvalidRequest):
        story.do(ReportSighting(1, old.storage_id, old.begun_ms, 10))


@pytest.mark.fault("node-released-last-readable")
def test_a_volume_is_looked_at_by_its_own_node_and_needs_no_copy_elsewhere() -> None:
    story = RetirementStory(nodes=3)
    topic = story.topic("plain", replicas=1)
    node_id = story.active(topic).replicas[0]
    other = next(n for n in (1, 2, 3) if n != node_id)
    story.do(RetireNode(node_id, RetireMode.VOLUME))
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.run_pass(node_id)
    assert story.record(node_id).step is RetireStep.VERIFY
    story.sight(node_id, by_node=other)
    assert not story.record(node_id).sightings
    story.leave(node_id, by_node=node_id)
    (sealed, _) = story.table.snapshot().shards[0].segments
    assert sealed.local_nodes == (node_id,), "it is listed: its directory is read by another"


def test_no_node_can_check_the_volume_of_a_node_that_is_not_alive() -> None:
    story = RetirementStory(nodes=3)
    node_id = story.active(story.topic("plain", replicas=1)).replicas[0]
    story.do(RetireNode(node_id, RetireMode.VOLUME))
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.die(node_id)
    story.run_passes(node_id)
    assert story.record(node_id).step is RetireStep.VERIFY
    assert waits_for(story, node_id) is WaitReason.UNKNOWN_SEGMENTS and "is not alive" in words(story, node_id)


def test_who_is_retired_with_its_volume_makes_no_copy_that_others_wait_for() -> None:
    story = RetirementStory(nodes=4)
    ended = story.active(story.topic("plain", replicas=2)).key
    first, second = story.segment(ended).replicas
    gone, fourth = (node_id for node_id in (1, 2, 3, 4) if node_id not in (first, second))
    story.roll(ended, 10)
    story.report_all()
    story.do(MoveReplicas((ReplicaMove(ended, (first, second), (gone,)),)))
    story.do(RetireNode(gone, RetireMode.VOLUME))
    story.run_passes(gone)
    story.roll_away(gone)
    story.report_all(only={first, second, fourth})
    story.leave(gone, by_node=gone)
    assert gone in story.segment(ended).replicas and gone not in story.segment(ended).local_nodes
    story.die(second)
    copy_again(story, away=frozenset({second}))
    assert fourth in story.segment(ended).replicas, "nobody waits for the copy of who has left"


@pytest.mark.fault("node-takes-data-released")
@pytest.mark.parametrize(("mode", "sees"), [(RetireMode.OFFLOAD, 2), (RetireMode.VOLUME, 1)])
def test_the_mount_is_waited_for_and_says_whether_a_node_has_it(mode: RetireMode, sees: int) -> None:
    story = leaving(mode=mode)
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.upload_all()
    story.mount = Served.NO_HOLDER
    for _ in range(2):
        story.run_pass(1)
        story.now_ms += INTERVAL_MS
        story.sight(1, by_node=sees)
    story.run_pass(1)
    story.write_inventory(1, by_node=2)
    story.run_passes(1)
    assert story.record(1).step is RetireStep.MOUNT and waits_for(story) is WaitReason.NO_MOUNT_HOLDER
    story.mount = Served.PENDING
    why = story.planned(1).why or pytest.fail("it goes on")
    assert why.reason is WaitReason.MOUNT_PENDING
    assert ("stratalog node start --read-only" in why.words) is (mode is RetireMode.VOLUME), "a person has to start it"
    story.mount = Served.SERVING
    story.run_pass(1)
    assert story.record(1).step is RetireStep.DONE


# Taking back, and not -------------------------------------------------------------------------------------------
@pytest.mark.fault("retirement-cancelled-retired-node")
def test_until_the_release_a_retirement_is_taken_back_and_after_it_never() -> None:
    story = leaving()
    story.run_passes(1)
    assert story.node(1).is_leaving
    story.do(CancelRetirement(1))
    story.do(CancelRetirement(1))
    assert story.node(1).retirement is None and story.table.state.is_host(1)
    story.do(RetireNode(1))
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.upload_all()
    story.leave(1, by_node=2)
    with pytest.raises(Conflict, match="released"):
        story.do(CancelRetirement(1))
    assert story.do(RetireNode(1)).result.step is RetireStep.DONE, "asked again it is the same"


@pytest.mark.fault("retirement-cancelled-retired-node")
def test_a_retired_node_is_refused_and_learns_why_and_its_lock_is_free() -> None:
    story = leaving()
    life = story.life(1)
    story.do(AcquireLock("tier/1", "node-1/1", 3_600_000))
    story.run_passes(1)
    story.roll_away(1)
    story.report_all()
    story.upload_all()
    story.leave(1, by_node=2)
    with pytest.raises(Fenced, match="was retired"):
        story.do(RegisterNode(NodeInfo(1, "storage-1", "host", 9092)))
    with pytest.raises(Fenced, match="was retired"):
        story.do(RegisterNode(NodeInfo(1, "another-disk", "host", 9092)))
    with pytest.raises(Fenced, match="was retired"):
        story.do(AcquireLock("tier/1", "node-1/1", 1_000, caller=life))
    taken = story.do(AcquireLock("tier/1", "node-2/1", 1_000, caller=story.life(2))).result
    assert taken.epoch == 2, "its lease lasted an hour, and ends with the release"


@pytest.mark.fault("node-released-last-readable")
def test_a_release_that_rests_on_an_older_record_does_nothing() -> None:
    story = leaving()
    seen = story.record(1)
    story.run_passes(1)
    assert not story.do(ReleaseNode(1, seen)).result
    assert not story.do(ReleaseNode(1, story.record(1))).result, "an open segment needs it"
    step = story.record(1).step
    story.do(AdvanceRetirement(1, seen, RetireStep.VERIFY))
    story.do(AdvanceRetirement(1, story.record(1), RetireStep.DONE))
    assert story.record(1).step is step, "only a release goes beyond it"


def test_who_is_not_known_cannot_be_retired_and_a_mode_is_not_changed_on_the_way() -> None:
    story = leaving()
    with pytest.raises(NotFound):
        story.do(RetireNode(9))
    with pytest.raises(Conflict, match="offload mode already"):
        story.do(RetireNode(1, RetireMode.VOLUME))


# A node that died for good ----------------------------------------------------------------------------------------
def dead() -> tuple[RetirementStory, int]:
    """A node that is gone has the only copy of a sealed segment."""
    story = RetirementStory(nodes=3)
    topic = story.topic("plain", replicas=1)
    node_id = story.active(topic).replicas[0]
    story.do(RetireNode(node_id))
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.die(node_id)
    return story, node_id


@pytest.mark.fault("node-died-permanently")
def test_what_no_node_has_of_a_dead_node_is_listed_and_given_up_by_its_disks_name_alone() -> None:
    story, node_id = dead()
    story.run_passes(node_id)
    assert waits_for(story, node_id) is WaitReason.LAST_COPY_LOST
    assert f"--force storage-{node_id}" in words(story, node_id) and "no other node has 1 sealed segment" in words(
        story, node_id
    )
    (unheld,) = story.survey(node_id).unheld
    assert (unheld.topic, unheld.base_offset, unheld.end_offset) == ("plain", 0, 10)
    assert not any(isinstance(action, Release) for action in story.planned(node_id).actions)
    with pytest.raises(InvalidRequest, match="spelled out"):
        story.do(RetireNode(node_id, force_storage_id="storage-of-another"))
    story.do(RetireNode(node_id, force_storage_id=f"storage-{node_id}"))
    story.run_passes(node_id)
    record = story.record(node_id)
    assert record.step is RetireStep.DONE and record.is_forced and record.given_up_count == 1
    assert [(lost.base_offset, lost.end_offset) for lost in record.given_up] == [(0, 10)]


@pytest.mark.fault("node-died-permanently")
def test_force_is_nothing_for_a_node_that_lives_or_comes_back() -> None:
    story, node_id = dead()
    story.is_heard(node_id)
    with pytest.raises(InvalidRequest, match="is alive"):
        story.do(RetireNode(node_id, force_storage_id=f"storage-{node_id}"))
    story.die(node_id)
    story.do(RetireNode(node_id, force_storage_id=f"storage-{node_id}"))
    story.is_heard(node_id)
    story.run_passes(node_id)
    assert story.record(node_id).step is RetireStep.OFFLOAD, "it is back, so nothing is given up"


@pytest.mark.fault("node-died-permanently")
def test_a_dead_node_leaves_without_force_where_others_have_all_of_it() -> None:
    story = RetirementStory(nodes=3)
    topic = story.topic("orders", replicas=2, settings=TIERED)
    node_id = story.active(topic).replicas[1]
    other = story.active(topic).replicas[0]
    story.do(RetireNode(node_id))
    story.die(node_id)
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    assert story.table.snapshot().shards[0].segments[0].state is SegmentState.SEALED
    story.upload_all()
    story.leave(node_id, by_node=other)
    assert story.record(node_id).given_up_count == 0


# Several ----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("segment-turns-node-offload")
def test_two_at_once_do_not_count_on_each_other() -> None:
    story = RetirementStory(nodes=3)
    story.topic("orders", replicas=2, settings=TIERED)
    story.do(RetireNode(1))
    story.do(RetireNode(2))
    story.run_passes(1, 2)
    assert story.node(1).is_leaving and not story.node(2).is_leaving
    assert waits_for(story, 2) is WaitReason.REPLICATION_FACTOR and "1 node stays" in words(story, 2)
