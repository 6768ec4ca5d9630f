"""Nodes that leave together are released one after the other: few data are between two holders at a time."""

from __future__ import annotations

import pytest

from stratalog.machines.leaving import HANDOVER_MS
from stratalog.machines.retirement import Served
from stratalog.model.retirement import RetireStep, WaitReason
from stratalog.model.retirement_commands import ReleaseNode, RetireNode
from support.retirement_story import INTERVAL_MS, RetirementStory

TIERED = {"remote.storage.enable": "true"}


def both_ready() -> RetirementStory:
    """Nodes 1 and 2 of four leave, and nothing needs them any more."""
    story = RetirementStory(nodes=4)
    story.topic("orders", replicas=2, settings=TIERED)
    for node_id in (1, 2):
        story.do(RetireNode(node_id))
    story.looks(1, 2)
    for node_id in (1, 2):
        story.roll_away(node_id)
    story.report_all()
    story.upload_all()
    story.looks(1, 2)
    for by_node in (3, 4):
        story.now_ms += INTERVAL_MS
        for node_id in (1, 2):
            story.sight(node_id, by_node)
    for node_id in (1, 2):
        story.look(node_id)
        story.write_inventory(node_id, by_node=3)
    return story


@pytest.mark.parametrize("ends", ["served", "stuck"])
def test_the_second_is_released_once_the_first_is_served_or_has_had_its_time(ends: str) -> None:
    story = both_ready()
    story.mount = Served.PENDING
    story.looks(1, 2)
    assert story.record(1).step is RetireStep.MOUNT
    second = story.record(2)
    assert second.step is RetireStep.SNAPSHOT and story.node(2).is_alive
    assert second.wait is not None and second.wait.reason is WaitReason.RELEASE_IN_PROGRESS
    assert "node 1" in second.wait.words and f"{HANDOVER_MS // 1_000} s" in second.wait.words
    if ends == "served":
        story.mount = Served.SERVING
    else:
        story.now_ms += HANDOVER_MS - 1
        story.looks(2)
        assert story.record(2).step is RetireStep.SNAPSHOT
        story.now_ms += 1
    story.looks(1, 2)
    assert story.record(2).step.is_released
    assert story.record(1).step is (RetireStep.DONE if ends == "served" else RetireStep.MOUNT)


def test_of_two_releases_planned_in_one_pass_one_is_carried_out() -> None:
    story = both_ready()
    for node_id in (1, 2):
        story.do(ReleaseNode(node_id, story.record(node_id)))
    assert story.record(1).step is RetireStep.RELEASE
    assert story.record(2).step is RetireStep.SNAPSHOT and story.node(2).is_alive
