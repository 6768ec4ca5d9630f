"""A node reports a copy of an unsealed segment that cannot be relied on, and the others continue without it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stratalog.model.commands.table_commands import ProposeIsr, ReportFaultyCopies, ReportReplica
from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Doubt, Segment, SegmentState
from support.table_stories import TableStory, record_of, state_of

QUORUM = {"acks.policy": "quorum"}


def active_on(nodes: int = 3, settings: Mapping[str, str] | None = None) -> tuple[TableStory, SegmentKey]:
    story = TableStory(nodes=nodes)
    return story, story.active(story.topic(replicas=nodes, settings=settings)).key


def faulty(story: TableStory, key: SegmentKey, node_id: int) -> Segment:
    story.do(ReportFaultyCopies((key,), caller=story.life(node_id)))
    return story.segment(key)


def test_a_follower_leaves_the_isr_and_stays_in_doubt() -> None:
    story, key = active_on()
    segment = faulty(story, key, 3)
    assert (segment.leader, segment.isr, segment.isr_version) == (1, (1, 2), 1)
    assert segment.handed.doubts == (Doubt(3, is_lost=False, is_faulty=True),)


def test_said_again_it_changes_nothing() -> None:
    story, key = active_on()
    faulty(story, key, 3)
    before = state_of(story.table)
    faulty(story, key, 3)
    assert state_of(story.table) == before


def test_a_follower_that_was_repaired_is_let_in_again() -> None:
    story, key = active_on()
    faulty(story, key, 3)
    segment = story.do(ProposeIsr(key, (1, 2, 3), 1)).result
    assert segment.isr == (1, 2, 3) and not segment.handed.doubts


@pytest.mark.fault("leader-disk-fails-node")
def test_a_leader_gives_way_to_the_others() -> None:
    story, key = active_on()
    segment = faulty(story, key, 1)
    assert (segment.leader, segment.isr, segment.is_fenced) == (None, (2, 3), True)
    story.promise(key, 1, 15, is_whole=False)
    story.promise(key, 2, 10)
    ended = story.promise(key, 3, 12)
    assert (ended.state, ended.end_offset, ended.handed.source) == (SegmentState.SEALING, 12, 3)
    assert story.active(story.table.state.topic(key.topic_id)).leader == 3


def test_a_faulty_copy_counts_when_no_other_is_whole() -> None:
    story, key = active_on()
    faulty(story, key, 1)
    story.promise(key, 2, 10, is_whole=False)
    story.promise(key, 3, 12, is_whole=False)
    ended = story.promise(key, 1, 15, is_whole=False)
    assert (ended.end_offset, ended.handed.source) == (15, 1), "it may have kept what the others lost"


def test_a_faulty_copy_is_not_waited_for_while_another_is_whole() -> None:
    story, key = active_on()
    faulty(story, key, 1)
    story.promise(key, 2, 10)
    ended = story.promise(key, 3, 12)
    assert (ended.state, ended.end_offset, ended.handed.given_up) == (SegmentState.SEALING, 12, ())


def test_a_new_life_on_the_same_disk_is_in_doubt_and_no_longer_faulty() -> None:
    story, key = active_on()
    faulty(story, key, 3)
    story.start(3)
    assert story.segment(key).handed.doubts == (Doubt(3, is_lost=False),)


def test_no_node_replaces_the_last_member_of_an_isr() -> None:
    story, key = active_on(2)
    story.do(ProposeIsr(key, (1,), 0))
    before = state_of(story.table)
    faulty(story, key, 1)
    assert state_of(story.table) == before, "it has all that was acknowledged, and nobody else does"


@pytest.mark.parametrize("settings", [{}, QUORUM], ids=["isr", "quorum"])
def test_a_seal_does_not_wait_for_a_copy_that_cannot_be_proven(settings: Mapping[str, str]) -> None:
    story, key = active_on(3, settings)
    story.roll(key, 10)
    story.report(key, 1)
    assert story.report(key, 2).state is SegmentState.SEALING, "the third is alive, and may still bring its digest"
    faulty(story, key, 3)
    sealed = story.report(key, 2)
    assert (sealed.state, sealed.local_nodes) == (SegmentState.SEALED, (1, 2))
    assert story.report(key, 3).local_nodes == (1, 2, 3), "mended, it is a copy like any other"


@pytest.mark.fault("leader-copy-bad-end")
def test_what_a_copy_was_said_to_hold_before_it_failed_counts_no_more() -> None:
    story, key = active_on()
    story.roll(key, 10)
    word = ReportReplica(key, record_of(key, 10, (3,)), 0, caller=story.life(3))
    story.do(word)
    faulty(story, key, 3)
    story.do(word)  # late, and twice
    story.report(key, 1)
    assert story.report(key, 2).local_nodes == (1, 2), "the third has to be made again"


@pytest.mark.fault("leader-copy-bad-end")
def test_the_last_of_an_isr_gives_way_to_one_that_has_proven_all_of_it() -> None:
    """It came back, and reached the end: that the leader's own copy cannot be proven must not keep it from a seal."""
    story, key = active_on(2)
    story.do(ProposeIsr(key, (1,), 0))
    story.roll(key, 10)
    story.report(key, 2)
    segment = faulty(story, key, 1)
    assert (segment.isr, segment.leader, segment.handed.source) == ((2,), None, 2)
    sealed = story.report(key, 2)
    assert (sealed.state, sealed.local_nodes) == (SegmentState.SEALED, (2,))


def test_a_source_that_fails_gives_way_to_one_that_has_as_much() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    assert story.promise(key, 3, 12).handed.source == 2
    assert faulty(story, key, 2).handed.source == 3


def test_what_is_sealed_or_another_nodes_is_passed_over() -> None:
    story, key = active_on(2)
    story.roll(key, 10)
    for node in (1, 2):
        story.report(key, node)
    before = state_of(story.table)
    faulty(story, key, 2)
    assert state_of(story.table) == before
    with pytest.raises(InvalidRequest):
        story.do(ReportFaultyCopies((key,)))


def test_of_two_that_are_both_needed_the_good_one_makes_up_the_segment() -> None:
    """A majority of two is both of them; one that cannot vouch for its copy never proves it in this life."""
    story, key = active_on(2, QUORUM)
    faulty(story, key, 1)
    story.promise(key, 1, 11)
    ended = story.promise(key, 2, 11)
    assert (ended.end_offset, ended.handed.source) == (11, 2), "who has as much and is not faulty"
    sealed = story.report(key, 2)
    assert (sealed.state, sealed.local_nodes) == (SegmentState.SEALED, (2,))


def test_of_two_that_are_both_needed_the_longer_one_is_copied_before_the_seal() -> None:
    story, key = active_on(2, QUORUM)
    faulty(story, key, 1)
    story.promise(key, 1, 15)
    ended = story.promise(key, 2, 11)
    assert (ended.end_offset, ended.handed.source) == (15, 1), "what only it has may have been acknowledged"
    assert story.report(key, 2).state is SegmentState.SEALED
