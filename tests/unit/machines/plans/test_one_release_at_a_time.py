"""Nodes that leave together are released one after the other: few data are between two holders at a time."""

from __future__ import annotations

import pytest

from stratalog.machines.copies.leaving import HANDOVER_MS
from stratalog.machines.plans.retirement import STALL_MS, Release, Served
from stratalog.machines.plans.retirement_input import mark_of
from stratalog.model.commands.retirement_commands import AdvanceRetirement, ReleaseNode, RetireNode
from stratalog.model.retirement import Retirement, RetireStep, Wait, WaitReason
from support.retirement_story import INTERVAL_MS, RetirementStory

TIERED = {"remote.storage.enable": "true"}


def both_ready() -> RetirementStory:
    """Nodes 1 and 2 of four leave, and nothing needs them any more."""
    return ready(2)


def ready(count: int) -> RetirementStory:
    """So many nodes leave, and two stay."""
    leaving = range(1, count + 1)
    story = RetirementStory(nodes=count + 2)
    story.topic("orders", replicas=2, settings=TIERED)
    for node_id in leaving:
        story.do(RetireNode(node_id))
    story.run_passes(*leaving)
    for node_id in leaving:
        story.roll_away(node_id)
    story.report_all()
    story.upload_all()
    story.run_passes(*leaving)
    for by_node in (count + 1, count + 2):
        story.now_ms += INTERVAL_MS
        for node_id in leaving:
            story.sight(node_id, by_node)
    for node_id in leaving:
        story.run_pass(node_id)
        story.write_inventory(node_id, by_node=count + 1)
    return story


@pytest.mark.fault("several-nodes-leave-released")
@pytest.mark.parametrize("ends", ["served", "stuck"])
def test_the_second_is_released_once_the_first_is_served_or_has_had_its_time(ends: str) -> None:
    story = both_ready()
    story.mount = Served.PENDING
    story.run_passes(1, 2)
    assert story.record(1).step is RetireStep.MOUNT
    second = story.record(2)
    assert second.step is RetireStep.SNAPSHOT and story.node(2).is_alive
    assert second.wait is not None and second.wait.reason is WaitReason.RELEASE_IN_PROGRESS
    assert f"{HANDOVER_MS // 1_000} s" in second.wait.words
    if ends == "served":
        story.mount = Served.SERVING
    else:
        story.now_ms += HANDOVER_MS - 1
        story.run_passes(2)
        assert story.record(2).step is RetireStep.SNAPSHOT
        story.now_ms += 1
    story.run_passes(1, 2)
    assert story.record(2).step.is_released
    assert story.record(1).step is (RetireStep.DONE if ends == "served" else RetireStep.MOUNT)


@pytest.mark.fault("several-nodes-leave-released")
def test_of_two_releases_planned_in_one_pass_one_is_carried_out() -> None:
    story = both_ready()
    for node_id in (1, 2):
        story.do(ReleaseNode(node_id, story.record(node_id)))
    assert story.record(1).step is RetireStep.RELEASE
    assert story.record(2).step is RetireStep.SNAPSHOT and story.node(2).is_alive


@pytest.mark.fault("thousands-nodes-leave-once")
def test_those_that_wait_for_their_turn_are_written_once_however_many_turns_there_are() -> None:
    count = 12
    story = ready(count)
    story.mount = Served.SERVING
    written: dict[int, set[Retirement]] = {node_id: set() for node_id in range(1, count + 1)}
    for _ in range(20 * count):
        for node_id in written:
            story.run_pass(node_id)
            if story.record(node_id).step is RetireStep.SNAPSHOT:
                written[node_id].add(story.record(node_id))
    assert all(story.record(node_id).step is RetireStep.DONE for node_id in written)
    assert max(map(len, written.values())) <= 3, "as it was, as it waits, and as its turn has come"


@pytest.mark.fault("thousands-nodes-leave-once")
def test_who_waited_long_for_its_turn_is_released_and_not_said_to_be_needed() -> None:
    """Its minute begins with its turn."""
    story = both_ready()
    story.mount = Served.PENDING
    story.run_passes(1, 2)
    waits = story.record(2)
    assert waits.wait is not None and waits.wait.reason is WaitReason.RELEASE_IN_PROGRESS
    story.mount, story.stalled_ms = Served.SERVING, 60 * STALL_MS
    story.run_pass(1)
    assert story.record(1).step is RetireStep.DONE
    turn = story.run_pass(2)
    assert turn.why is None and turn.actions == (Release(),)
    assert mark_of(story.record(2), story.survey(2)) != mark_of(waits, story.survey(2)), "something has moved"
    story.stalled_ms = 0
    story.run_pass(2)
    assert story.record(2).step.is_released


@pytest.mark.fault("thousands-nodes-leave-once")
def test_who_is_refused_at_its_turn_keeps_no_other_waiting() -> None:
    story = both_ready()
    first = story.record(1)
    story.do(AdvanceRetirement(1, first, first.step, Wait(WaitReason.UNKNOWN_SEGMENTS, "something needs it", 1)))
    story.stalled_ms = STALL_MS
    refused = story.planned(1)
    assert refused.why is not None and refused.why.reason is WaitReason.UNKNOWN_SEGMENTS
    story.stalled_ms = 0
    story.run_passes(2)
    assert story.record(2).step.is_released
    assert story.planned(1).actions == (Release(),), "it is tried again, and by that it is refused"


@pytest.mark.fault("thousands-nodes-leave-once")
def test_a_node_that_waits_for_a_check_by_a_busy_node_learns_it() -> None:
    story = RetirementStory(nodes=4)
    story.topic("orders", replicas=2, settings=TIERED)
    for node_id in (1, 2):
        story.do(RetireNode(node_id))
    story.run_passes(1, 2)
    for node_id in (1, 2):
        story.roll_away(node_id)
    story.report_all()
    story.upload_all()
    story.run_passes(1, 2)
    told = []
    for story.stalled_ms in (STALL_MS, STALL_MS + 2 * INTERVAL_MS, 60 * STALL_MS):
        why = story.planned(2).why
        told.append((None, "") if why is None else (why.reason, why.words))
    assert [reason for reason, _ in told] == [None, *[WaitReason.CHECK_IN_PROGRESS] * 2]
    assert told[1] == told[2], "nothing is written again while it waits"
    story.sight(1, by_node=3)  # node 4 is next there, so node 3 has one left
    why = story.planned(2).why
    assert why is not None and why.reason is WaitReason.UNKNOWN_SEGMENTS and "node 3" in why.words
