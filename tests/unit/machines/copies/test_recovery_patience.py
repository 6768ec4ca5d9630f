"""A recovery does not wait without limit for a replica whose node sends heartbeats and does not promise."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stratalog.machines.copies.recovery_patience import CHECKS_PER_PATIENCE, RecoveryPatience
from stratalog.model.commands.table_commands import (
    ContinueWithout,
    NoteLives,
    ProposeIsr,
    ReportReplica,
    SilentReplicas,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life
from stratalog.model.segment import Doubt, GapReason, GivenUp, SegmentState
from support.table_stories import TableStory, record_of, state_of

QUORUM = {"acks.policy": "quorum"}
PATIENCE_MS = 5_000
POLL_MS = PATIENCE_MS // CHECKS_PER_PATIENCE


def active_on(nodes: int = 3, settings: Mapping[str, str] | None = None) -> tuple[TableStory, SegmentKey]:
    story = TableStory(nodes=nodes)
    return story, story.active(story.topic(replicas=nodes, settings=settings)).key


def without(story: TableStory, key: SegmentKey, *node_ids: int) -> None:
    story.do(ContinueWithout((SilentReplicas(key, tuple(map(story.life, node_ids))),)))


# The table ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("replica-node-alive-disk")
def test_one_whole_promise_decides_once_the_silent_replica_is_left_out() -> None:
    story, key = active_on()
    story.die(1)
    assert story.promise(key, 2, 12).state is SegmentState.ACTIVE, "node 3 is alive, and may have more"
    without(story, key, 3)
    ended = story.segment(key)
    assert (ended.state, ended.end_offset, ended.handed.source) == (SegmentState.SEALING, 12, 2)
    assert ended.isr == (1, 2) and ended.handed.doubts == (Doubt(3, is_lost=False, is_faulty=True),)


@pytest.mark.fault("replica-node-alive-disk")
def test_the_next_segment_and_the_seal_do_not_wait_for_the_replica_that_was_left_out() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    without(story, key, 3)
    opened = story.active(story.table.state.topic(key.topic_id))
    assert (opened.leader, opened.isr) == (2, (2,)) and 3 in opened.replicas, "it follows, and is not in sync yet"
    sealed = story.report(key, 2)
    assert (sealed.state, sealed.local_nodes) == (SegmentState.SEALED, (2,))


@pytest.mark.fault("replica-node-alive-disk")
def test_who_was_left_out_proves_its_copy_and_is_in_sync_again_when_it_returns() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    without(story, key, 3)
    story.promise(key, 3, 15)  # too late: what only it had was not acknowledged
    assert story.segment(key).end_offset == 12
    opened = story.active(story.table.state.topic(key.topic_id))
    assert story.do(ProposeIsr(opened.key, (2, 3), opened.isr_version)).result.isr == (2, 3)
    story.report(key, 2)
    word = ReportReplica(key, record_of(key, 12, (3,)), story.segment(key).isr_version, caller=story.life(3))
    assert story.do(word).result.local_nodes == (2, 3)


def test_without_any_promise_nothing_is_decided() -> None:
    story, key = active_on()
    story.die(1)
    before = state_of(story.table)
    without(story, key, 2, 3)
    assert state_of(story.table) == before


def test_a_promise_of_a_doubtful_copy_waits_for_the_others() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12, is_whole=False)
    before = state_of(story.table)
    without(story, key, 3)
    assert state_of(story.table) == before, "node 3 may have kept what node 2 lost"


@pytest.mark.fault("replica-node-alive-disk")
def test_a_majority_is_needed_where_a_majority_acknowledges() -> None:
    story, key = active_on(3, QUORUM)
    story.die(1)
    story.promise(key, 2, 12)
    before = state_of(story.table)
    without(story, key, 3)
    assert state_of(story.table) == before


def test_an_ended_segment_gets_a_source_without_the_silent_replica() -> None:
    story, key = active_on()
    story.roll(key, 12)
    story.die(1)
    assert story.promise(key, 2, 9).handed.source is None, "node 3 may have all of it"
    without(story, key, 3)
    segment = story.segment(key)
    assert (segment.state, segment.end_offset, segment.handed.source) == (SegmentState.SEALING, 12, 2)


@pytest.mark.parametrize("what", ["promised", "begun again", "led", "unknown"])
def test_what_is_not_true_any_more_changes_nothing(what: str) -> None:
    story, key = active_on()
    life = story.life(3)
    if what != "led":
        story.die(1)
        story.promise(key, 2, 12, is_whole=what != "promised")
    if what == "promised":
        story.promise(key, 3, 9, is_whole=False)
    elif what == "begun again":
        story.start(3)
    elif what == "unknown":
        life = Life(9, 1)
    before = state_of(story.table)
    story.do(ContinueWithout((SilentReplicas(key, (life,)), SilentReplicas(key._replace(epoch=7), (life,)))))
    assert state_of(story.table) == before


# Silent replicas ------------------------------------------------------------------------------------------------------
def patience_of(story: TableStory, now_ms: int = 0) -> RecoveryPatience:
    segments = [segment for shard in story.table.snapshot().shards for segment in shard.segments]
    return RecoveryPatience(PATIENCE_MS, story.table.snapshot().nodes, segments, now_ms)


def look(patience: RecoveryPatience, from_ms: int, until_ms: int) -> ContinueWithout | None:
    """Check the time as often as required. Returns what is due at the last check."""
    due = None
    for now_ms in (*range(from_ms, until_ms, POLL_MS), until_ms):
        due = patience.due(now_ms)
    return due


def test_a_replica_is_silent_when_it_has_promised_nothing_for_long_enough() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    patience = patience_of(story)
    assert look(patience, 0, PATIENCE_MS - 1) is None
    due = patience.due(PATIENCE_MS)
    assert due == ContinueWithout((SilentReplicas(key, (story.life(3),)),)), "node 1 is not alive: it is not waited for"
    patience.not_performed(due)
    assert patience.due(PATIENCE_MS) == due, "the table may not have heard it"
    assert look(patience, PATIENCE_MS, 2 * PATIENCE_MS) is None


def test_time_in_which_no_promise_could_arrive_does_not_count() -> None:
    story, key = active_on()
    story.die(1)
    patience = patience_of(story)
    assert look(patience, 0, PATIENCE_MS - 1) is None
    assert patience.due(10 * PATIENCE_MS) is None, "the process was suspended"
    patience.excuse_silence(11 * PATIENCE_MS)
    due = patience.due(11 * PATIENCE_MS + 1)
    assert due is not None and due.silent[0].segment == key


def test_a_node_that_promises_for_other_segments_is_not_silent() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3, shards=2)
    first, second = (story.active(topic, shard).key for shard in (0, 1))
    for key in (first, second):
        story.recover(key)
        story.promise(key, 2, 12)
    patience = patience_of(story)
    patience.segment_changed(story.promise(first, 3, 9, is_whole=False), PATIENCE_MS - 1)
    due = look(patience, 0, PATIENCE_MS)
    assert due is not None
    assert {one.segment: one.lives for one in due.silent} == {first: (story.life(1),), second: (story.life(1),)}
    due = look(patience, PATIENCE_MS, 2 * PATIENCE_MS - 1)
    assert due == ContinueWithout((SilentReplicas(second, (story.life(1), story.life(3))),))


@pytest.mark.fault("disk-follower-hangs-takes")
def test_a_node_whose_disk_makes_no_progress_is_silent_at_once() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    patience = patience_of(story)
    story.do(NoteLives(stuck=(story.life(3),)))
    patience.node_changed(story.table.state.nodes[3].node, 0)
    assert patience.due(0) == ContinueWithout((SilentReplicas(key, (story.life(3),)),))
    story.do(NoteLives(working=(story.life(3),)))
    patience.node_changed(story.table.state.nodes[3].node, 0)
    assert patience.due(0) is None


def test_a_new_life_gets_the_whole_time() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    patience = patience_of(story)
    story.start(3)
    patience.node_changed(story.table.state.nodes[3].node, 4_000)
    assert look(patience, 0, PATIENCE_MS) is None
    due = look(patience, PATIENCE_MS, 4_000 + PATIENCE_MS)
    assert due is not None and due.silent[0].lives == (story.life(3),)


@pytest.mark.fault("node-leads-thousands-shards")
def test_nodes_that_are_not_alive_are_never_silent_until_they_are_heard_of_again() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    patience = patience_of(story)
    story.die(3)
    patience.node_changed(story.table.state.nodes[3].node, 0)
    assert look(patience, 0, 2 * PATIENCE_MS) is None
    before = state_of(story.table)
    without(story, key, 1, 3)
    assert state_of(story.table) == before, "nor does the table count them as faulty"
    story.is_heard(3)
    patience.node_changed(story.table.state.nodes[3].node, 2 * PATIENCE_MS)
    assert look(patience, 2 * PATIENCE_MS, 3 * PATIENCE_MS - 1) is None
    due = patience.due(3 * PATIENCE_MS)
    assert due is not None and due.silent[0].lives == (story.life(3),)


def test_a_recovery_that_is_decided_or_gone_waits_for_no_node() -> None:
    story, key = active_on()
    story.die(1)
    patience = patience_of(story)
    assert not patience.is_idle
    story.promise(key, 2, 12)
    patience.segment_changed(story.promise(key, 3, 12), 10)
    assert patience.is_idle and look(patience, 10, PATIENCE_MS) is None
    other, other_key = active_on()
    other.die(1)
    patience.segment_changed(other.segment(other_key), 0)
    patience.segment_gone(other_key)
    assert patience.is_idle


def test_the_table_gets_the_report_again_when_the_record_changed() -> None:
    story, key = active_on()
    story.die(1)
    patience = patience_of(story)
    due = look(patience, 0, PATIENCE_MS)
    assert due is not None
    story.do(due)
    patience.segment_changed(story.promise(key, 2, 12), PATIENCE_MS)
    due = patience.due(PATIENCE_MS)
    assert due is not None and story.life(3) in due.silent[0].lives
    story.do(due)
    assert story.segment(key).state is SegmentState.SEALING


@pytest.mark.fault("silent-report-before-promise")
def test_a_report_that_the_table_performs_just_before_a_promise_is_made_again() -> None:
    """Both are in one write of the meta service: the promises become known before the answer to the report."""
    story, key = active_on()
    story.do(NoteLives(stuck=(story.life(1),)))
    story.recover(key)
    patience = patience_of(story)
    due = patience.due(0)
    assert due == ContinueWithout((SilentReplicas(key, (story.life(1),)),))
    story.do(due)
    for node_id in (2, 3):
        patience.segment_changed(story.promise(key, node_id, 12), 0)
    assert story.segment(key).state is SegmentState.ACTIVE, "node 1 is alive, and its promise never comes"
    assert patience.due(POLL_MS) == due
    story.do(due)
    assert story.segment(key).state is SegmentState.SEALING


@pytest.mark.fault("replica-silent-node-replica")
def test_what_could_not_be_decided_is_looked_at_again_once_other_nodes_are_alive() -> None:
    story, key = active_on()
    story.die(1)
    story.promise(key, 2, 12)
    story.die(2)
    nodes = [entry.node for entry in story.table.state.nodes.values()]
    patience = RecoveryPatience(PATIENCE_MS, nodes, [story.segment(key)], 0)
    for now_ms in range(POLL_MS, 2 * PATIENCE_MS, POLL_MS):
        due = patience.due(now_ms)
        if due is not None:
            story.do(due)
    assert story.segment(key).state is SegmentState.ACTIVE, "node 2 is away"
    assert patience.due(now_ms) is None
    story.is_heard(2)
    patience.node_changed(story.table.state.nodes[2].node, now_ms)
    due = patience.due(now_ms + POLL_MS)
    assert due is not None
    story.do(due)
    assert story.segment(key).end_offset == 12


def all_doubtful_but_one_that_had_no_say() -> tuple[TableStory, SegmentKey]:
    """The power fails on nodes 1 and 2, the only ones that confirmed writes; node 3 is alive."""
    story, key = active_on()
    story.do(ProposeIsr(key, (1, 2), 0))
    story.die(1, 2)
    story.start(1, is_clean=False)
    story.start(2, is_clean=False)
    story.promise(key, 1, 12, is_whole=False, high_watermark=14)
    return story, key


@pytest.mark.fault("replica-isr-alive-promises")
def test_a_silent_replica_that_had_no_say_does_not_hold_up_a_recovery_that_all_others_answered() -> None:
    story, key = all_doubtful_but_one_that_had_no_say()
    without(story, key, 3)
    assert story.segment(key).state is SegmentState.ACTIVE, "node 2 may have kept what node 1 lost"
    story.promise(key, 2, 11, is_whole=False)
    assert story.segment(key).state is SegmentState.ACTIVE, "node 3 is alive, and may have more"
    without(story, key, 3)
    ended = story.segment(key)
    assert (ended.state, ended.end_offset, ended.handed.source) == (SegmentState.SEALING, 12, 1)
    assert ended.handed.given_up == (GivenUp(12, 14, GapReason.RESTARTED),)


def test_what_a_replica_that_had_no_say_has_counts_where_it_answers() -> None:
    story, key = all_doubtful_but_one_that_had_no_say()
    story.promise(key, 2, 11, is_whole=False)
    assert story.promise(key, 3, 13, is_whole=False).end_offset == 13


@pytest.mark.fault("replica-isr-alive-promises")
def test_a_doubtful_member_that_is_silent_is_waited_for() -> None:
    story, key = all_doubtful_but_one_that_had_no_say()
    story.promise(key, 3, 13, is_whole=False)
    before = state_of(story.table)
    without(story, key, 2)
    assert state_of(story.table) == before
