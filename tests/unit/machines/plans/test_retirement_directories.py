"""A node leaves, and what it is listed for is in another retired node's directory alone, or on a node that is away: the
wait says so, with what helps, and nothing of it is given up with the node that leaves."""

from __future__ import annotations

import pytest

from stratalog.machines.plans.retirement import Served
from stratalog.model.commands.mount_commands import BeginMount, EndMount, OpenVolume
from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import AdvanceLogStart, MoveReplicas, ReplicaMove, ReportLostCopies
from stratalog.model.ids import SegmentKey
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import RetireMode, RetireStep, Wait, WaitReason
from support.retirement_story import RetirementStory


def in_one_directory(tier: str = "false") -> tuple[RetirementStory, SegmentKey, int, int]:
    """A sealed segment that the first node's directory has, and the second node, its other replica, has not."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2, settings={"remote.storage.enable": tier})).key
    first, second = story.segment(key).replicas
    story.do(RetireNode(first, RetireMode.VOLUME))
    story.run_passes(first)
    story.roll_away(first)
    story.report_all()
    story.do(ReportLostCopies((key,), caller=story.life(second)))
    story.leave(first, by_node=first)
    story.do(BeginMount(first, f"storage-{first}", MountMode.VOLUME))
    assert story.segment(key).local_nodes == (first,)
    return story, key, first, second


def waits(story: RetirementStory, node_id: int, key: SegmentKey) -> Wait:
    """Once nothing else is in the way. It makes no copy of that segment."""
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.do(ReportLostCopies((key,), caller=story.life(node_id)))
    if story.record(node_id).mode is RetireMode.OFFLOAD:
        story.repair()
        story.report_all(only={one for one in range(1, 5) if one != node_id})
    story.run_passes(node_id, count=2)
    record = story.record(node_id)
    assert record.step is RetireStep.OFFLOAD and record.wait is not None
    return record.wait


@pytest.mark.fault("node-leaves-listed-retired")
@pytest.mark.parametrize("mode", list(RetireMode))
@pytest.mark.parametrize("is_read", [False, True])
def test_what_only_another_retired_directory_has_is_waited_for_in_true_words(mode: RetireMode, is_read: bool) -> None:
    """They said that the node is not alive, which it is, and that a start of it helps, which it does not."""
    story, key, first, second = in_one_directory()
    if is_read:
        story.do(OpenVolume(first, f"storage-{first}", "host", 9, "start"))
    story.do(RetireNode(second, mode))
    wait = waits(story, second, key)
    assert wait.reason is WaitReason.UNDER_REPLICATED
    assert f"only the directories of retired nodes [{first}] have 1 sealed segment" in wait.words
    assert f"{key.base_offset}-{key.epoch} of shard" in wait.words and "is not alive" not in wait.words
    assert ("node start --read-only" in wait.words) is not is_read
    assert "set remote.storage.enable=true" in wait.words
    assert story.survey(second).unheld == ()


@pytest.mark.parametrize("mode", list(RetireMode))
def test_a_dead_node_is_let_go_of_by_force_with_what_a_directory_has(mode: RetireMode) -> None:
    story, key, first, second = in_one_directory()
    story.do(RetireNode(second, mode))
    waits(story, second, key)
    story.die(second)
    story.run_pass(second)
    why = story.planned(second).why
    assert why is not None and "or start node" not in why.words
    assert f"nodes retire {second} --force storage-{second}` lets it go" in why.words
    story.do(RetireNode(second, mode, f"storage-{second}"))
    story.run_passes(second, count=6)
    assert story.record(second).step.is_released and story.record(second).given_up_count == 0
    assert story.segment(key).local_nodes == (first,)


def test_a_dead_node_that_has_a_copy_of_its_own_is_to_be_started() -> None:
    story, key, first, second = in_one_directory()
    story.report(key, second)
    story.do(RetireNode(second))
    story.run_passes(second)
    story.roll_away(second)
    story.report_all()
    story.die(second)
    why = story.planned(second).why
    assert why is not None and why.reason is WaitReason.UNDER_REPLICATED
    assert f"[{first}] have 1 sealed segment" in why.words
    assert f"or start node {second}, which has 1 of them" in why.words


def test_of_a_topic_with_a_remote_tier_the_upload_from_the_directory_is_waited_for() -> None:
    story, key, first, second = in_one_directory("true")
    story.do(OpenVolume(first, f"storage-{first}", "host", 9, "start"))
    story.do(RetireNode(second, RetireMode.VOLUME))
    wait = waits(story, second, key)
    assert wait.reason is WaitReason.UNDER_REPLICATED
    assert "the holders of their mounts upload them" in wait.words and "remote.storage.enable" not in wait.words


@pytest.mark.fault("node-leaves-listed-retired")
def test_what_a_node_that_is_away_has_is_waited_for_by_the_name_of_that_node() -> None:
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2)).key
    away, leaves = story.segment(key).replicas
    story.roll_away(away)
    story.report_all()
    story.do(ReportLostCopies((key,), caller=story.life(leaves)))
    story.do(RetireNode(leaves, RetireMode.VOLUME))
    story.run_passes(leaves)
    story.roll_away(leaves)
    story.report_all()
    story.do(ReportLostCopies((key,), caller=story.life(leaves)))
    story.die(away)
    story.run_passes(leaves, count=2)
    wait = story.record(leaves).wait
    assert wait is not None
    assert wait.reason is WaitReason.LAST_COPY_LOST
    assert f"on no node that is alive: 1 sealed segment (100 bytes), such as {key.base_offset}" in wait.words
    assert f"start nodes [{away}]" in wait.words and "--force" not in wait.words
    assert story.survey(leaves).unheld == ()


def test_a_directory_of_a_node_that_was_given_up_is_to_be_read_or_given_up_as_well() -> None:
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2)).key
    first, second = story.segment(key).replicas
    story.do(RetireNode(first, RetireMode.VOLUME))
    story.run_passes(first)
    story.roll_away(first)
    story.report_all()
    story.do(ReportLostCopies((key,), caller=story.life(second)))
    story.die(first)
    story.do(RetireNode(first, RetireMode.VOLUME, f"storage-{first}"))
    story.run_passes(first, count=6)
    story.do(BeginMount(first, f"storage-{first}", MountMode.VOLUME))
    story.do(RetireNode(second, RetireMode.VOLUME))
    wait = waits(story, second, key)
    assert wait.reason is WaitReason.LAST_COPY_LOST and "start nodes" not in wait.words
    assert f"where the directories of nodes [{first}] are, run `stratalog node start --read-only" in wait.words


@pytest.mark.parametrize("mode", list(RetireMode))
def test_what_was_given_up_with_a_directory_is_said_to_be_gone(mode: RetireMode) -> None:
    """They asked for a start of who never comes back."""
    story, key, first, second = in_one_directory()
    story.do(EndMount(f"tier/{first}", f"storage-{first}"))
    story.do(RetireNode(second, mode))
    wait = waits(story, second, key)
    assert wait.reason is WaitReason.LAST_COPY_LOST
    assert wait.words.startswith("no node has 1 sealed segment") and "start node" not in wait.words
    assert f"given up by force with nodes [{first}]: once DeleteRecords or retention" in wait.words
    story.do(AdvanceLogStart(key.shard_key, 10))
    assert story.survey(second).gone.count == 0


@pytest.mark.fault("node-leaves-listed-retired")
@pytest.mark.parametrize("mode", list(RetireMode))
@pytest.mark.parametrize("is_mounted", [False, True])
def test_what_another_directory_has_is_not_given_up_with_a_dead_node(mode: RetireMode, is_mounted: bool) -> None:
    """The record said that it is lost."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2)).key
    first, second = story.segment(key).replicas
    story.do(RetireNode(first, RetireMode.VOLUME))
    story.run_passes(first)
    story.roll_away(first)
    story.report_all()
    if is_mounted:
        story.leave(first, by_node=first)
        story.do(BeginMount(first, f"storage-{first}", MountMode.VOLUME))
    else:
        story.mount = Served.PENDING
        with pytest.raises(AssertionError, match="it does not end"):
            story.leave(first, by_node=first)
    story.do(RetireNode(second, mode))
    story.run_passes(second)
    story.roll_away(second)
    story.report_all()
    story.die(second)
    story.do(RetireNode(second, mode, f"storage-{second}"))
    for _ in range(12):
        story.run_pass(second)
        story.report_all()
    record = story.record(second)
    assert record.step.is_released and record.given_up == () and record.given_up_count == 0
    assert first in story.segment(key).local_nodes


def test_a_directory_that_has_a_copy_is_let_go_of_only_while_other_living_nodes_are_enough() -> None:
    """A plan may be older than the death of those who made it needless."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2)).key
    provers = story.segment(key).replicas
    story.roll_away(provers[0])
    story.report_all()
    left = next(node for node in (1, 2, 3, 4) if node not in provers)
    story.do(MoveReplicas((ReplicaMove(key, provers, added=(left,)),)))
    story.report(key, left)
    story.do(RetireNode(left, RetireMode.VOLUME))
    for _ in range(2):
        story.run_passes(left)
        story.roll_away(left)
        story.report_all()
    story.leave(left, by_node=left)
    story.do(BeginMount(left, f"storage-{left}", MountMode.VOLUME))
    drop = MoveReplicas((ReplicaMove(key, (*provers, left), dropped=(left,)),))
    story.die(*provers)
    story.do(drop)
    assert story.segment(key).local_nodes == (*provers, left)
    story.is_heard(provers[0])
    story.do(drop)
    assert left in story.segment(key).local_nodes, "one is too few"
    story.is_heard(provers[1])
    story.do(drop)
    assert story.segment(key).local_nodes == provers
