"""Each wait of a retirement has a reason: in every state that a pass may find, and for topics that acknowledge by a
majority, where a living leader misses a dead replica."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from stratalog.machines.copies.leaving_survey import Found, Survey
from stratalog.machines.plans.retirement import Observed, Release, Served, Why, plan
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Sighting, WaitReason
from stratalog.model.segment import GapReason, SegmentState
from support.retirement_story import INTERVAL_MS, RetirementStory

QUORUM = {"remote.storage.enable": "true", "acks.policy": "quorum"}
HOUR_MS = 3_600_000


def majority_lost(replicas: int = 2) -> tuple[RetirementStory, SegmentKey, int, int]:
    """A leader lives, and of its followers as many are gone as make a majority of the replicas impossible."""
    story = RetirementStory(nodes=replicas + 1)
    active = story.active(story.topic("orders", replicas=replicas, settings=QUORUM))
    leader = active.leader
    assert leader is not None
    dead = [node for node in active.replicas if node != leader][: replicas // 2 + replicas % 2]
    story.die(*dead)
    return story, active.key, leader, dead[0]


def reason(story: RetirementStory, node_id: int) -> tuple[WaitReason | None, str]:
    wait = story.record(node_id).wait
    return (None, "") if wait is None else (wait.reason, wait.words)


# A majority that the dead node is needed for ---------------------------------------------------------------------
@pytest.mark.fault("dead-node-leave-topic")
def test_an_open_segment_whose_leader_lives_and_has_no_majority_is_waited_for_by_name() -> None:
    story, key, leader, dead = majority_lost()
    story.do(RetireNode(dead))
    story.run_passes(dead)
    assert story.record(dead).step is RetireStep.SEAL
    why, words = reason(story, dead)
    assert why is WaitReason.SHARD_UNAVAILABLE
    assert "1 of 1 open segment" in words and f"nodes [{dead}] are not alive" in words
    assert f"--force storage-{dead}" in words, "what a person does when the disk is lost"
    story.is_heard(dead)
    story.run_passes(dead)
    assert reason(story, dead)[0] is None and story.segment(key).leader == leader


@pytest.mark.parametrize("is_rolled", [False, True])
def test_force_ends_it_where_its_leader_ended_and_nothing_is_lost(is_rolled: bool) -> None:
    story, key, leader, dead = majority_lost()
    if is_rolled:
        story.prepare(key)
        story.roll(key, 40)
    story.do(RetireNode(dead))
    story.run_passes(dead)
    story.do(RetireNode(dead, force_storage_id=f"storage-{dead}"))
    story.run_passes(dead, count=2)
    if not is_rolled:
        assert story.segment(key).is_fenced and story.segment(key).end_offset is None, "its leader has not answered"
        story.promise(key, leader, 40)
        story.run_passes(dead, count=2)
    assert story.segment(key).end_offset == 40
    story.report(key, leader)
    assert story.segment(key).state is SegmentState.SEALED
    story.run_passes(dead)
    record = story.record(dead)
    assert record.step is RetireStep.DONE and record.given_up_count == 0
    told = story.segment(key).handed.given_up
    assert all(gap.base_offset == gap.end_offset == 40 and gap.reason is GapReason.UNCLEAN for gap in told)


@pytest.mark.fault("dead-node-leave-topic")
def test_what_has_ended_is_sealed_without_a_dead_node_that_is_to_leave_and_without_force() -> None:
    story, key, leader, dead = majority_lost()
    story.prepare(key)
    story.roll(key, 40)
    story.report(key, leader)
    assert story.segment(key).state is SegmentState.SEALING, "the other one may come back"
    story.do(RetireNode(dead))
    story.run_passes(dead)
    story.report(key, leader)
    assert story.segment(key).state is SegmentState.SEALED
    story.upload_all()
    story.leave(dead, by_node=leader)
    assert story.record(dead).given_up_count == 0


def test_a_dead_node_that_is_to_leave_and_comes_back_is_heard_before_the_seal() -> None:
    story, key, leader, dead = majority_lost()
    story.prepare(key)
    story.roll(key, 40)
    story.do(RetireNode(dead))
    story.run_passes(dead)
    story.is_heard(dead)
    story.report(key, leader)
    assert story.segment(key).state is SegmentState.SEALING
    story.report(key, dead)
    assert story.segment(key).state is SegmentState.SEALED


def test_force_of_one_gives_up_no_other_that_a_majority_is_waited_for_of() -> None:
    story, key, leader, dead = majority_lost(replicas=3)
    other = next(node for node in story.segment(key).replicas if node not in (leader, dead))
    story.do(RetireNode(dead, force_storage_id=f"storage-{dead}"))
    story.run_passes(dead, count=6)
    assert not story.segment(key).is_fenced
    why, words = reason(story, dead)
    assert why is WaitReason.SHARD_UNAVAILABLE and str(other) in words
    story.is_heard(other)
    story.run_passes(dead)
    assert reason(story, dead)[0] is None, "two of three are a majority"


# All steps -------------------------------------------------------------------------------------------------------
KEY = SegmentKey(RetirementStory(nodes=1).topic().topic_id, 0, 3, 100)
CLEAN = Sighting(2, HOUR_MS - 2 * INTERVAL_MS, 10)
SURVEYS = {
    "nothing is left": Survey(),
    "open": Survey(segments=1, open=Found(1, 0, [KEY])),
    "open and led by nobody": Survey(segments=1, open=Found(1, 0, [KEY]), stuck=Found(1, 0, [KEY])),
    "open and without a majority": Survey(
        segments=1, open=Found(1, 0, [KEY]), short=Found(1, 0, [KEY]), short_nodes={3}
    ),
    "to be uploaded": Survey(segments=1, to_see=1, uploads=Found(1, 100)),
    "to be copied": Survey(segments=1, to_see=1, copies=Found(1, 100)),
    "in a directory": Survey(segments=1, to_see=1, kept=Found(1, 100, [KEY]), directories={3}),
    "with one who is away": Survey(segments=1, to_see=1, away=Found(1, 100, [KEY]), away_nodes={3}),
    "given up with another": Survey(segments=1, to_see=1, gone=Found(1, 100, [KEY]), gone_nodes={3}),
    "kept elsewhere": Survey(segments=10, to_see=10),
    "more than was looked at": Survey(segments=11, to_see=11),
}
SIGHTINGS = {
    "nobody looked": (),
    "one clean look": (CLEAN,),
    "two clean looks": (CLEAN, Sighting(3, HOUR_MS - INTERVAL_MS, 10)),
    "two too close": (CLEAN, Sighting(3, CLEAN.at_ms + 1, 10)),
    "one that was not clean": (Sighting(2, CLEAN.at_ms, 10, (KEY,), 1, False, "what was wrong"),),
}


def every_state() -> Iterator[Observed]:
    blocks = ((), (Why(WaitReason.LAST_NODE, "no other node"),))
    for step, mode, is_forced, is_alive, survey, seen in product(
        RetireStep, RetireMode, (False, True), (False, True), SURVEYS.values(), SIGHTINGS.values()
    ):
        for blocked, has_store, away_ms, key, mount in product(
            blocks, (False, True), (0, 5_000), (None, "inventory"), Served
        ):
            record = Retirement("storage-1", mode, step, 1, 1, None, seen, key, is_forced)
            node = Node(1, 1, 0, "host", 9092, None, is_alive, retirement=record)
            yield Observed(
                node, survey, blocked, HOUR_MS, INTERVAL_MS, has_store, away_ms, HOUR_MS, mount, next_check_by=2
            )


@pytest.mark.fault("retirement-whatever-cause-leader")
def test_where_nothing_has_moved_for_an_hour_each_step_continues_or_says_why_it_waits() -> None:
    silent = []
    for seen in every_state():
        record = seen.node.retirement
        assert record is not None
        planned = plan(seen)
        goes_on = planned.step is not record.step or planned.step is RetireStep.DONE
        if not goes_on and planned.why is None:
            silent.append((record.step, planned))
        if planned.why is not None:
            assert planned.why.words, planned
    assert not silent, silent[:3]


def test_a_release_that_the_table_refuses_again_and_again_is_reported_too() -> None:
    """The plan found nothing that needs the node, its transaction does."""
    record = Retirement("storage-1", RetireMode.OFFLOAD, RetireStep.SNAPSHOT, 1, 1, None, SIGHTINGS["two clean looks"])
    node = Node(1, 1, 0, "host", 9092, None, True, retirement=record)
    seen = Observed(node, SURVEYS["kept elsewhere"], (), HOUR_MS, INTERVAL_MS, has_store=False)
    assert plan(seen).why is None and plan(seen).actions == (Release(),)
    stuck = plan(Observed(node, SURVEYS["kept elsewhere"], (), HOUR_MS, INTERVAL_MS, False, 0, HOUR_MS))
    assert stuck.why is not None and stuck.why.reason is WaitReason.UNKNOWN_SEGMENTS
    assert stuck.actions == (Release(),), "it is asked for all the same"


def test_no_node_is_reported_as_waiting_while_it_continues() -> None:
    """A minute has not passed: an open segment, a check, an inventory and a mount take their time."""
    for step, survey, sightings in (
        (RetireStep.SEAL, SURVEYS["open"], ()),
        (RetireStep.OFFLOAD, SURVEYS["to be uploaded"], ()),
        (RetireStep.VERIFY, SURVEYS["kept elsewhere"], ()),
        (RetireStep.VERIFY, SURVEYS["kept elsewhere"], SIGHTINGS["one clean look"]),
        (RetireStep.SNAPSHOT, SURVEYS["kept elsewhere"], SIGHTINGS["two clean looks"]),
    ):
        record = Retirement("storage-1", RetireMode.OFFLOAD, step, 1, 1, None, sightings)
        node = Node(1, 1, 0, "host", 9092, None, True, retirement=record)
        planned = plan(Observed(node, survey, (), HOUR_MS, INTERVAL_MS, stalled_ms=59_999, next_check_by=2))
        assert (planned.step, planned.why) == (step, None)
