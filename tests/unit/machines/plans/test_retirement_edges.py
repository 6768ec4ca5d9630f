"""Nodes that come back, nodes that are only away, and nodes that are counted on, while nodes leave and afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.plans.retirement import SIGHTING_LASTS_MS, EndOpen, Served
from stratalog.machines.plans.shard_troubles import troubles
from stratalog.machines.plans.verification_turns import inventory_writer, node_on_turn
from stratalog.model.commands.mount_commands import BeginMount, EndMount
from stratalog.model.commands.retirement_commands import GiveUpOpen, ReleaseNode, RetireNode
from stratalog.model.commands.table_commands import MoveReplicas, NoteLives, ProposeIsr, ReplicaMove, SealUnclean
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.ids import SegmentKey
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import LostRange, RetireMode, RetireStep, WaitReason
from stratalog.model.segment import GapReason, GivenUp, Segment
from support.retirement_story import INTERVAL_MS, RetirementStory

TIERED = {"remote.storage.enable": "true"}


def forced() -> tuple[RetirementStory, int]:
    """A dead node with the only copy of a sealed segment, given up by a person a moment ago."""
    story = RetirementStory(nodes=3)
    node_id = story.active(story.topic("plain")).replicas[0]
    story.do(RetireNode(node_id))
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.die(node_id)
    story.do(RetireNode(node_id, force_storage_id=f"storage-{node_id}"))
    return story, node_id


def one_given_up_and_one_in_doubt(settings: dict[str, str]) -> tuple[RetirementStory, SegmentKey, int, int]:
    """The two replicas of an open segment: one is dead, and was given up; the other came back from a power cut, and has
    not said yet how far its copy goes."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("orders", replicas=2, settings=TIERED | settings)).key
    dead, other = story.segment(key).replicas
    story.die(dead, other)
    story.start(other, is_clean=False, boot_id="after a power cut")
    story.recover(key)
    story.do(RetireNode(dead, force_storage_id=f"storage-{dead}"))
    return story, key, dead, other


# Force ----------------------------------------------------------------------------------------------------------
def test_each_loss_of_a_node_has_its_number_across_its_lives() -> None:
    story = RetirementStory(nodes=3)
    seen = [story.table.state.nodes[1].absences]
    for _ in range(2):
        story.die(1)
        seen.append(story.table.state.nodes[1].absences)
        story.start(1)
        seen.append(story.table.state.nodes[1].absences)

    assert seen == [0, 1, 1, 2, 2]
    assert story.table.snapshot().nodes[0].absences == 2, "watchers are told"


@pytest.mark.fault("gave-lost-node-annotation")
def test_a_force_is_about_one_absence_and_a_repeated_request_gives_up_nothing_in_the_next() -> None:
    """A node that is away for two seconds, later, has a healthy disk."""
    story, node_id = forced()
    ask = RetireNode(node_id, force_storage_id=f"storage-{node_id}", force_absence=1)
    story.do(ask)
    assert story.record(node_id).is_forced
    story.start(node_id)
    assert not story.record(node_id).is_forced
    story.die(node_id)

    with pytest.raises(InvalidRequest, match="absence 1, which the force is about; this is its absence 2"):
        story.do(ask)
    assert not story.record(node_id).is_forced
    story.do(replace(ask, force_absence=2))
    assert story.record(node_id).is_forced


# Looks ----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("report-check-arrives-twice")
def test_a_check_that_comes_once_more_does_not_count_twice_however_far_the_clock_was_set() -> None:
    story = RetirementStory(nodes=3)
    story.verifies(1)
    story.sight(1, by_node=2)
    first_ms = story.record(1).last_check_ms
    story.now_ms += 10 * INTERVAL_MS
    story.sight(1, by_node=2, seen_ms=0)
    story.run_passes(1)
    assert story.record(1).step is RetireStep.VERIFY and len(story.record(1).sightings) == 1
    story.sight(1, by_node=3, seen_ms=first_ms)
    story.run_passes(1, count=1)
    assert story.record(1).step is RetireStep.SNAPSHOT


# Copies ---------------------------------------------------------------------------------------------------------
@pytest.mark.fault("node-leaves-data-directory")
def test_what_a_retired_directory_has_is_copied_once_another_holder_leaves_too() -> None:
    story = RetirementStory(nodes=4)
    story.mount = Served.SERVING
    topic = story.topic("plain", replicas=2, settings={"remote.storage.enable": "false"})
    volume, leaving = story.active(topic).replicas
    story.do(RetireNode(volume, RetireMode.VOLUME))
    story.run_passes(volume)
    story.roll_away(volume)
    story.report_all()
    story.leave(volume, by_node=volume)
    story.do(RetireNode(leaving))
    for _ in range(6):
        story.run_passes(leaving)
        story.roll_away(leaving)
        story.repair()
        story.report_all()
    assert story.record(leaving).step is RetireStep.VERIFY, story.record(leaving).wait


def sealed_without_one_that_differs(replicas: int = 2) -> tuple[RetirementStory, SegmentKey, tuple[int, ...], int]:
    """Of a sealed segment all replicas but one have proven their copies. That one was away meanwhile and leaves with
    its volume: it is back, and its copy is another than the sealed one."""
    story = RetirementStory(nodes=5)
    story.mount = Served.SERVING
    key = story.active(story.topic("plain", replicas=replicas, settings={"remote.storage.enable": "false"})).key
    *holders, differing = story.segment(key).replicas
    story.do(RetireNode(differing, RetireMode.VOLUME))
    story.run_passes(differing)
    story.roll_away(differing)
    story.die(differing)
    for holder in holders:
        story.report(key, holder)
    story.is_heard(differing)
    with pytest.raises(Conflict, match="this copy differs"):
        story.report(key, differing, digest=b"another")
    assert story.segment(key).local_nodes == tuple(holders)
    return story, key, tuple(holders), differing


def goes_on(story: RetirementStory, *node_ids: int, differing: int) -> None:
    """Nodes leave, others copy and report; whose copy differs proves none."""
    for _ in range(6):
        story.run_passes(*node_ids)
        for node_id in node_ids:
            story.roll_away(node_id)
        story.repair()
        story.report_all(only={1, 2, 3, 4, 5} - {differing})


def test_what_a_volume_that_leaves_never_proved_is_copied_to_staying_nodes() -> None:
    story, key, (holder,), differing = sealed_without_one_that_differs()
    story.run_passes(differing)
    wait = story.record(differing).wait
    assert wait is not None and wait.reason is WaitReason.UNDER_REPLICATED
    goes_on(story, differing, differing=differing)
    assert holder in story.segment(key).local_nodes and len(story.segment(key).local_nodes) == 2
    assert differing in story.segment(key).replicas, "it may prove it until it has left"
    story.leave(differing, by_node=differing)
    story.repair()
    assert sorted(story.segment(key).replicas) == sorted(story.segment(key).local_nodes)


def test_another_volume_that_leaves_is_not_a_copy_for_one_that_has_none() -> None:
    story, key, (holder,), differing = sealed_without_one_that_differs()
    story.do(RetireNode(holder, RetireMode.VOLUME))
    goes_on(story, differing, holder, differing=differing)
    assert not story.node(holder).is_retired and len({*story.segment(key).local_nodes} - {holder}) == 2
    assert story.record(differing).step is RetireStep.VERIFY, story.record(differing).wait


def test_nor_is_a_retired_directory() -> None:
    story, key, (_, volume), differing = sealed_without_one_that_differs(replicas=3)
    story.do(RetireNode(volume, RetireMode.VOLUME))
    story.run_passes(volume)
    story.roll_away(volume)
    story.report_all(only={1, 2, 3, 4, 5} - {differing})
    story.leave(volume, by_node=volume)
    goes_on(story, differing, differing=differing)
    assert len({*story.segment(key).local_nodes} - {volume}) == 3
    assert story.record(differing).step is RetireStep.VERIFY, story.record(differing).wait


def test_what_a_volume_has_that_is_about_to_leave_is_copied_for_another_that_leaves() -> None:
    story = RetirementStory(nodes=5)
    topic = story.topic("plain", replicas=2, settings={"remote.storage.enable": "false"})
    volume, leaving = story.active(topic).replicas
    story.do(RetireNode(volume, RetireMode.VOLUME))
    story.do(RetireNode(leaving))
    for _ in range(6):
        story.run_passes(volume, leaving)
        story.roll_away(leaving)
        story.repair()
        story.report_all()
    assert story.record(leaving).step is RetireStep.VERIFY, story.record(leaving).wait
    assert not story.node(volume).is_retired


# Force ----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("node-gave-force-disk")
@pytest.mark.parametrize("is_started", [True, False], ids=["in a new life", "in the same life"])
def test_who_came_back_is_not_given_up_when_it_is_away_again(is_started: bool) -> None:
    story, node_id = forced()
    if is_started:
        story.start(node_id)
    else:
        story.is_heard(node_id)
    story.die(node_id)
    story.run_passes(node_id)
    record = story.record(node_id)
    assert record.step is RetireStep.OFFLOAD and not record.is_forced
    assert record.wait is not None and record.wait.reason is WaitReason.LAST_COPY_LOST


@pytest.mark.fault("node-gave-force-disk")
def test_another_disk_under_the_same_id_is_not_what_was_to_leave() -> None:
    story, node_id = forced()
    story.start(node_id, is_wiped=True)
    assert story.node(node_id).retirement is None
    story.die(node_id)
    asked = story.do(RetireNode(node_id)).result
    assert asked.storage_id == f"storage-{node_id}'" and not asked.is_forced


@pytest.mark.fault("node-given-force-replicas")
def test_force_of_one_node_does_not_give_up_what_another_that_is_away_may_have() -> None:
    story = RetirementStory(nodes=3)
    key = story.active(story.topic("orders", replicas=2, settings=TIERED)).key
    first, second = story.segment(key).replicas
    story.die(first, second)
    story.do(RetireNode(first, force_storage_id=f"storage-{first}"))
    story.run_passes(first, count=6)
    assert not story.segment(key).handed.given_up
    wait = story.record(first).wait
    assert wait is not None and wait.reason is WaitReason.SHARD_UNAVAILABLE
    story.start(second)
    story.promise(key, second, 40)
    assert story.segment(key).end_offset == 40, "all that was acknowledged"
    assert not any(gap.reason is GapReason.UNCLEAN for gap in story.segment(key).handed.given_up)


@pytest.mark.fault("node-given-force-replicas")
def test_what_all_replicas_had_is_given_up_when_all_of_them_are() -> None:
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("orders", replicas=2, settings=TIERED)).key
    first, second = story.segment(key).replicas
    story.die(first, second)
    for node_id in (first, second):
        story.do(RetireNode(node_id, force_storage_id=f"storage-{node_id}"))
    story.run_passes(first, second)
    assert [gap.reason for gap in story.segment(key).handed.given_up] == [GapReason.UNCLEAN]


@pytest.mark.fault("node-given-force-open-segments")
@pytest.mark.parametrize("settings", [{}, {"acks.policy": "quorum"}], ids=["isr", "quorum"])
def test_what_waits_only_for_nodes_that_were_given_up_is_ended_where_the_others_ended(settings: dict[str, str]) -> None:
    story, key, dead, other = one_given_up_and_one_in_doubt(settings)
    story.run_passes(dead)
    assert not story.segment(key).handed.given_up, "the other one has not answered"
    story.promise(key, other, 40, is_whole=False)
    assert story.segment(key).end_offset is None
    story.run_passes(dead)
    ended = story.segment(key)
    assert (ended.end_offset, [gap.reason for gap in ended.handed.given_up]) == (40, [GapReason.UNCLEAN])
    assert (story.record(dead).given_up, story.record(dead).given_up_count) == ((LostRange(key, 40, 40),), 1)


@pytest.mark.fault("node-dies-permanently-segment")
def test_what_the_only_replica_rolled_and_did_not_seal_is_made_up_by_another_once_it_is_given_up() -> None:
    story = RetirementStory(nodes=3)
    key = story.active(story.topic("orders", settings=TIERED)).key
    (dead,) = story.segment(key).replicas
    story.roll(key, 40)
    story.die(dead)
    story.do(RetireNode(dead, force_storage_id=f"storage-{dead}"))
    story.run_passes(dead)
    segment = story.segment(key)
    assert segment.handed.given_up == (GivenUp(0, 40, GapReason.UNCLEAN),)
    assert segment.handed.source not in (None, dead), story.record(dead).wait
    lost = {LostRange(key, 0, 40), LostRange(SegmentKey(key.topic_id, 0, key.epoch + 1, 40), 40, 40)}
    assert (set(story.record(dead).given_up), story.record(dead).given_up_count) == (lost, 2)


@pytest.mark.fault("node-died-permanently")
def test_what_was_given_up_while_it_was_open_counts_once_although_its_last_copy_is_lost_later() -> None:
    """Another node replaced the data that no node has, and died as well."""
    story = RetirementStory(nodes=3)
    key = story.active(story.topic("plain")).key
    (dead,) = story.segment(key).replicas
    story.roll(key, 40)
    story.die(dead)
    story.do(RetireNode(dead, force_storage_id=f"storage-{dead}"))
    story.run_passes(dead)
    known = story.record(dead)
    assert known.given_up_count == len(known.given_up) == 2
    story.do(GiveUpOpen(key))
    assert story.record(dead) == known
    other = story.segment(key).handed.source
    assert other is not None
    story.report(key, other)
    story.report_all()
    story.die(other)
    story.do(RetireNode(other, force_storage_id=f"storage-{other}"))
    story.run_passes(dead, other, count=8)
    record = story.record(dead)
    assert record.step is RetireStep.DONE and LostRange(key, 0, 40) in record.given_up
    assert record.given_up_count == len(record.given_up) == len({one.segment for one in record.given_up})


def test_a_long_list_of_open_segments_is_cut_and_their_number_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.machines.table.given_up.MAX_OPEN_LISTED", 3)
    story = RetirementStory(nodes=2)
    topics = [story.topic(f"orders-{number}", settings=TIERED) for number in range(10)]
    (dead,) = story.segment(story.active(topics[0]).key).replicas
    keys = [key for topic in topics if story.segment(key := story.active(topic).key).replicas == (dead,)]
    story.die(dead)
    story.do(RetireNode(dead, force_storage_id=f"storage-{dead}"))
    for key in keys:
        story.do(GiveUpOpen(key))
    record = story.record(dead)
    assert record.given_up_count == len(keys) > len(record.given_up) == 3


@pytest.mark.fault("node-given-force-open")
@pytest.mark.parametrize("settings", [{}, {"acks.policy": "quorum"}], ids=["isr", "quorum"])
def test_a_node_that_comes_back_between_the_check_and_the_command_keeps_what_it_has(settings: dict[str, str]) -> None:
    """The check found no other node to wait for; the command checks again whether that is still so."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("orders", replicas=2, settings=TIERED | settings)).key
    first, second = story.segment(key).replicas
    story.die(first, second)
    for node_id in (first, second):
        story.do(RetireNode(node_id, force_storage_id=f"storage-{node_id}"))
        story.run_passes(node_id, count=1)
    story.run_pass(first)
    (found,) = story.planned(first).actions
    assert found == EndOpen((key,))
    story.is_heard(second)
    before = story.segment(key)
    story.do(GiveUpOpen(key))
    assert story.segment(key) == before
    story.promise(key, second, 40)
    assert story.segment(key).end_offset in (40, None)
    assert not any(gap.reason is GapReason.UNCLEAN for gap in story.segment(key).handed.given_up)


@pytest.mark.fault("node-given-force-open")
def test_what_was_ended_by_word_waits_for_the_answer_of_one_that_came_back() -> None:
    """It was ended without any vote; the node that is back has all of it, and has not reported so yet."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("orders", replicas=2, settings=TIERED)).key
    first, second = story.segment(key).replicas
    story.commit(story.lock("tier/uploads", "uploader/1"), key, 0, 30)
    story.die(first, second)
    story.do(SealUnclean(key))
    assert (story.segment(key).end_offset, story.segment(key).handed.source) == (30, None)
    story.do(RetireNode(first, force_storage_id=f"storage-{first}"))
    story.is_heard(second)
    story.run_passes(first, count=6)
    assert story.segment(key).handed.source is None
    story.promise(key, second, 40)
    assert story.segment(key).handed.source == second


@pytest.mark.parametrize("settings", [{}, {"acks.policy": "quorum"}], ids=["isr", "quorum"])
def test_the_only_one_that_has_what_was_ended_by_word_is_waited_for_while_it_reboots(settings: dict[str, str]) -> None:
    story, key, dead, other = one_given_up_and_one_in_doubt(settings)
    story.promise(key, other, 40, is_whole=False)
    story.run_passes(dead)
    assert (story.segment(key).end_offset, story.segment(key).handed.source) == (40, other)
    story.die(other)
    story.run_passes(dead, count=6)
    segment = story.segment(key)
    assert segment.replicas == (dead, other), "nobody makes up what the other has"
    wait = story.record(dead).wait
    assert wait is not None and wait.reason is WaitReason.SHARD_UNAVAILABLE
    story.start(other, is_clean=False, boot_id="after another")
    story.promise(key, other, 40, is_whole=False)
    story.run_passes(dead)
    assert story.segment(key).handed.source == other


def test_a_longer_copy_outside_the_isr_is_waited_for_while_it_is_only_away() -> None:
    """Once it was in the ISR, and had what was acknowledged then."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("orders", replicas=3, settings=TIERED)).key
    leader = story.segment(key).leader
    assert leader is not None
    shorter, longer = (node for node in story.segment(key).replicas if node != leader)
    story.do(replace(ProposeIsr(key, (leader,), 0), caller=story.life(leader)))
    story.die(leader, longer)
    story.recover(key)
    story.promise(key, shorter, 10)
    story.do(RetireNode(leader, force_storage_id=f"storage-{leader}"))
    story.run_passes(leader, count=6)
    assert story.segment(key).end_offset is None
    (trouble,) = (one for one in troubles(story.table.snapshot(), story.now_ms) if one.segment == key)
    assert trouble.nodes == (longer,), "it is said who is waited for, not who was given up"
    story.start(longer)
    story.promise(key, longer, 40)
    story.run_passes(leader)
    assert story.segment(key).end_offset == 40


# What was prepared ----------------------------------------------------------------------------------------------
@pytest.mark.fault("node-leaves-prepared-replica")
@pytest.mark.parametrize("settings", [{}, {"acks.policy": "quorum"}], ids=["isr", "quorum"])
def test_a_successor_prepared_before_a_node_left_opens_without_it(settings: dict[str, str]) -> None:
    story = RetirementStory(nodes=3)
    active = story.active(story.topic("orders", replicas=2, settings=TIERED | settings))
    follower = next(node for node in active.replicas if node != active.leader)
    story.die(follower)
    prepared = story.prepare(active.key).replicas
    story.is_heard(follower)
    leaves = next(node for node in prepared if node not in active.replicas)
    story.do(RetireNode(leaves))
    story.run_passes(leaves)
    story.leave(leaves, by_node=next(node for node in active.replicas if node != leaves))
    opened = story.roll(active.key, 10)
    assert leaves not in opened.replicas and opened.leader in opened.isr
    added = next(node for node in active.replicas if node not in opened.replicas)
    story.do(MoveReplicas((ReplicaMove(opened.key, opened.replicas, (added,)),)))
    assert story.segment(opened.key).replicas == (*opened.replicas, added), "its copies are made good"


# Mounts of two that counted on each other -----------------------------------------------------------------------
def two_volumes() -> tuple[RetirementStory, Segment, int, int]:
    """Both replicas of a sealed segment without a remote tier are gone, and their directories are read."""
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2)).key
    first, second = story.segment(key).replicas
    for node_id in (first, second):
        story.do(RetireNode(node_id, RetireMode.VOLUME))
        story.run_passes(node_id)
        story.roll_away(node_id)
        story.report_all()
        story.leave(node_id, by_node=node_id)
        story.do(BeginMount(node_id, f"storage-{node_id}", MountMode.VOLUME))
    return story, story.segment(key), first, second


@pytest.mark.fault("ends-mount-segments-exist-nowhere")
def test_of_two_directories_with_the_same_data_one_stays_mounted() -> None:
    story, sealed, first, second = two_volumes()
    assert set(sealed.local_nodes) == {first, second}
    story.do(EndMount(f"tier/{first}"))
    assert story.segment(sealed.key).local_nodes == (second,), "nobody reads the other one any more"
    with pytest.raises(Conflict, match="nothing else has"):
        story.do(EndMount(f"tier/{second}"))


@pytest.mark.fault("ends-mount-segments-exist-nowhere")
def test_a_mount_does_not_end_while_it_is_unknown_whether_another_has_it() -> None:
    story = RetirementStory(nodes=4)
    key = story.active(story.topic("plain", replicas=2)).key
    first, second = story.segment(key).replicas
    story.do(RetireNode(first, RetireMode.VOLUME))
    story.run_passes(first)
    story.roll_away(first)
    story.report_all()
    story.leave(first, by_node=first)
    story.do(BeginMount(first, f"storage-{first}", MountMode.VOLUME))
    story.die(second)
    with pytest.raises(Conflict, match="nothing else has"):
        story.do(EndMount(f"tier/{first}"))
    story.is_heard(second)
    story.do(EndMount(f"tier/{first}"))
    assert story.segment(key).local_nodes == (second,)


# Looks that did not see all -------------------------------------------------------------------------------------
def seen_twice() -> tuple[RetirementStory, int]:
    """A node whose ten segments two checks have confirmed, as far as those went."""
    story = RetirementStory(nodes=3)
    node_id = story.active(story.topic("orders", replicas=2, settings=TIERED)).replicas[1]
    for number in range(11):
        story.topic(f"more-{number}", shards=3, replicas=2, settings=TIERED)
    story.do(RetireNode(node_id))
    story.run_passes(node_id)
    story.roll_away(node_id)
    story.report_all()
    story.upload_all()
    story.run_pass(node_id)
    for by_node in (other for other in (1, 2, 3) if other != node_id):
        story.now_ms += INTERVAL_MS
        story.sight(node_id, by_node)  # of ten segments
    return story, node_id


@pytest.mark.fault("check-knew-fewer-segments")
def test_checks_that_report_too_few_segments_release_no_node() -> None:
    story, node_id = seen_twice()
    assert story.survey(node_id).to_see > 10
    story.run_passes(node_id)
    assert story.record(node_id).step is RetireStep.VERIFY
    assert not story.do(ReleaseNode(node_id, story.record(node_id))).result


@pytest.mark.fault("check-knew-fewer-segments")
def test_a_check_that_sees_more_than_the_one_before_is_a_first_one() -> None:
    story, node_id = seen_twice()
    count, other = story.survey(node_id).to_see, next(one for one in (1, 2, 3) if one != node_id)
    for _ in range(2):
        story.run_pass(node_id)
        assert story.record(node_id).step is RetireStep.VERIFY
        story.now_ms += INTERVAL_MS
        story.sight(node_id, other, segments=count)
    story.run_pass(node_id)
    assert story.record(node_id).step is RetireStep.SNAPSHOT


@pytest.mark.parametrize("waits_ms", [SIGHTING_LASTS_MS, SIGHTING_LASTS_MS + 1])
def test_what_was_seen_before_a_long_wait_is_looked_at_again(waits_ms: int) -> None:
    """The store was away when the inventory was due; who released then would rest on what was seen long before."""
    story, node_id = seen_twice()
    count, other = story.survey(node_id).to_see, next(one for one in (1, 2, 3) if one != node_id)
    for _ in range(2):
        story.now_ms += INTERVAL_MS
        story.sight(node_id, other, segments=count)
    story.run_pass(node_id)
    story.write_inventory(node_id, other)
    story.now_ms += waits_ms
    story.run_pass(node_id)
    is_new_enough = waits_ms <= SIGHTING_LASTS_MS
    assert story.record(node_id).step is (RetireStep.RELEASE if is_new_enough else RetireStep.VERIFY)
    if not is_new_enough:
        assert story.record(node_id).inventory_key is None
        story.sight(node_id, other, segments=count)
        story.run_pass(node_id)
        story.write_inventory(node_id, other)
        story.run_pass(node_id)
        assert story.record(node_id).step is RetireStep.RELEASE


# Room -----------------------------------------------------------------------------------------------------------
def test_full_disks_of_all_that_stay_are_said_with_their_number_until_one_has_room() -> None:
    story = RetirementStory(nodes=4)
    story.topic("orders", replicas=2, settings=TIERED)
    others = tuple(story.life(other) for other in (2, 3, 4))
    story.do(NoteLives(full=others))
    story.do(RetireNode(1))
    story.run_pass(1)
    wait = story.record(1).wait
    assert wait is not None and wait.reason is WaitReason.INSUFFICIENT_CAPACITY and "on the 3 nodes" in wait.words
    story.do(NoteLives(roomy=others[:1]))
    story.run_pass(1)
    assert story.record(1).step is RetireStep.CORDON


# Data that no node has -------------------------------------------------------------------------------------------
@pytest.mark.fault("node-died-permanently")
def test_an_open_segment_that_no_living_node_has_is_listed_without_an_end() -> None:
    story = RetirementStory(nodes=3)
    segment = story.active(story.topic("open", replicas=2))
    first, second = segment.replicas
    story.do(RetireNode(first))
    story.die(first)
    assert story.survey(first).unheld == () and story.survey(first).unheld_count == 0, (
        "the other one may have all of it"
    )
    story.die(second)
    (unheld,) = story.survey(first).unheld
    assert unheld == ("open", segment.key, 0, None)
    story.is_heard(first)
    assert story.survey(first).unheld_count == 0, "it is back, and has it"


@pytest.mark.parametrize(("most", "shown"), [(3, 3), (6, 6), (99, 8)])
def test_the_list_is_cut_where_it_is_long_and_says_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch, most: int, shown: int
) -> None:
    monkeypatch.setattr("stratalog.machines.copies.leaving_survey.MAX_UNHELD_LISTED", most)
    story = RetirementStory(nodes=1)
    for number in range(4):
        story.roll(story.active(story.topic(f"flights-{number}")).key, 10)
    story.report_all()
    story.do(RetireNode(1))
    story.die(1)
    survey = story.survey(1)
    assert (survey.unheld_count, survey.lost.count, survey.lost_open.count) == (8, 4, 4)
    assert [one.end_offset for one in survey.unheld] == ([10] * 4 + [None] * 4)[:shown]


def _looks(story: RetirementStory, node_id: int, blind: int, most: int = 12) -> list[int]:
    """The nodes that check a leaving node until the step is over; one of them never sees everything."""
    by_nodes: list[int] = []
    while story.record(node_id).step is RetireStep.VERIFY and len(by_nodes) < most:
        by_node = node_on_turn(story.node(node_id), story.table.snapshot().nodes)
        assert by_node is not None
        by_nodes.append(by_node)
        story.now_ms += INTERVAL_MS
        story.sight(node_id, by_node, unconfirmed=1 if by_node == blind else 0)
        story.run_passes(node_id)
    return by_nodes


@pytest.mark.fault("nodes-stay-cannot-see")
@pytest.mark.parametrize(
    ("nodes", "leaving", "blind", "looked"),
    [(4, 4, 2, [1, 2, 3, 1]), (4, 4, 1, [1, 2, 3]), (4, 4, 3, [1, 2]), (3, 3, 2, [1, 2, 1, 1]), (3, 3, 1, [1, 2, 2])],
)
def test_a_node_that_cannot_see_passes_its_turn_to_the_others(
    nodes: int, leaving: int, blind: int, looked: list[int]
) -> None:
    """Node 1 saw all, node 2 could not, and then only node 2 was asked again: 1, 2, 2, 2, and so on for ever."""
    story = RetirementStory(nodes=nodes)
    story.verifies(leaving)

    assert _looks(story, leaving, blind) == looked
    assert story.record(leaving).step is RetireStep.SNAPSHOT
    assert inventory_writer(story.node(leaving), story.table.snapshot().nodes) == looked[-1], "it saw all"


def test_what_differs_is_not_passed_over() -> None:
    story = RetirementStory(nodes=3)
    story.verifies(3)
    story.sight(3, by_node=1)
    story.now_ms += INTERVAL_MS
    story.sight(3, by_node=2, unconfirmed=1, is_differing=True)
    story.now_ms += INTERVAL_MS
    story.sight(3, by_node=1)

    assert node_on_turn(story.node(3), story.table.snapshot().nodes) == 2
    assert story.record(3).step is RetireStep.VERIFY
