"""Several replicas report what they have, and the service writes the seal record (design rules 6 and 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.following.follower_events import ReportAccepted
from stratalog.machines.tiering.upload_duty import uploader_of
from stratalog.model.commands.table_commands import (
    AdvanceLogStart,
    ForgetLocal,
    ProposeIsr,
    ReportLostCopies,
    ReportReplica,
    SealSegment,
)
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import ReplicaReport, SegmentState
from stratalog.model.topic import Topic
from support.table_stories import TableStory, record_of, state_of


def ended_on(nodes: int = 3, settings: dict[str, str] | None = None) -> tuple[TableStory, Topic, SegmentKey]:
    """A segment on this many nodes, led by the first, that ended at 10."""
    story = TableStory(nodes=nodes)
    topic = story.topic(replicas=nodes, settings=settings)
    key = story.active(topic).key
    story.roll(key, 10)
    return story, topic, key


def test_equal_reports_of_all_that_are_in_sync_make_the_seal_record() -> None:
    story, _, key = ended_on()
    story.report(key, 2)
    assert story.report(key, 1).state is SegmentState.SEALING
    story.now_ms = 4_711
    sealed = story.report(key, 3)
    assert sealed.seal is not None and (sealed.seal.replicas, sealed.seal.sealed_ms) == ((1, 2, 3), 4_711)
    assert (sealed.leader, sealed.local_nodes, sealed.handover) == (None, (1, 2, 3), None)


def test_a_report_that_is_repeated_changes_nothing() -> None:
    story, _, key = ended_on()
    story.report(key, 1)
    before = state_of(story.table)
    story.report(key, 1)
    assert state_of(story.table) == before
    for node in (2, 3):
        story.report(key, node)
    before = state_of(story.table)
    story.report(key, 3)
    assert state_of(story.table) == before


def test_a_dead_member_is_not_waited_for_and_joins_when_it_is_back() -> None:
    story, _, key = ended_on()
    story.report(key, 1)
    story.report(key, 2)
    story.die(3)
    assert story.report(key, 2).state is SegmentState.SEALED, "the next repetition seals"
    story.is_heard(3)
    joined = story.report(key, 3)
    assert joined.local_nodes == (1, 2, 3)
    assert joined.seal is not None and joined.seal.replicas == (1, 2), "the record is written once"


def test_who_left_the_isr_is_not_waited_for() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    story.do(ProposeIsr(key, (1, 3), 0))
    story.roll(key, 10)
    story.report(key, 1)
    assert story.report(key, 3).local_nodes == (1, 3)


def test_a_copy_that_differs_from_most_is_dropped_and_named() -> None:
    story, _, key = ended_on()
    story.report(key, 1)
    story.report(key, 3, b"other")
    sealed = story.report(key, 2)
    assert (sealed.state, sealed.replicas, sealed.local_nodes) == (SegmentState.SEALED, (1, 2), (1, 2))
    assert [report.node_id for report in sealed.handed.reports] == [3]
    with pytest.raises(Conflict, match="differs from the sealed one"):
        story.report(key, 3, b"other")
    assert story.report(key, 3).local_nodes == (1, 2, 3), "healed, it is a copy like any other"


def test_the_one_that_differs_may_be_the_last_to_report() -> None:
    """Its report brings no record that could be written: one of the others repeats its own."""
    story, _, key = ended_on()
    story.report(key, 1)
    story.report(key, 2)
    dropped = story.report(key, 3, b"other")
    assert (dropped.state, dropped.replicas, dropped.isr) == (SegmentState.SEALING, (1, 2), (1, 2))
    with pytest.raises(Conflict, match="serve nothing of it"):
        story.report(key, 3)
    assert story.report(key, 1).state is SegmentState.SEALED


def test_of_two_that_differ_the_leaders_stands() -> None:
    story, _, key = ended_on(2)
    story.report(key, 2, b"other")
    sealed = story.report(key, 1)
    assert (sealed.replicas, sealed.local_nodes) == ((1,), (1,))


def test_a_leader_that_differs_from_most_is_dropped_like_any_other() -> None:
    story, _, key = ended_on()
    story.report(key, 2)
    story.report(key, 3)
    dropped = story.report(key, 1, b"other")
    assert (dropped.replicas, dropped.leader, dropped.handed.source) == ((2, 3), None, 2)
    assert story.report(key, 3).local_nodes == (2, 3)


def test_of_two_that_differ_after_a_recovery_the_sources_stands() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    story.die(1)
    story.promise(key, 2, 6)
    story.promise(key, 3, 7)
    story.report(key, 2, b"other")
    assert story.report(key, 3).local_nodes == (3,)


def test_an_old_leader_that_is_back_offers_its_copy() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3)).key
    story.die(1)
    for node in (2, 3):
        story.promise(key, node, 6)
    for node in (2, 3):
        story.report(key, node)
    story.is_heard(1)
    assert story.report(key, 1).local_nodes == (1, 2, 3)


def test_where_a_majority_acknowledges_a_majority_must_be_whole() -> None:
    story, _, key = ended_on(settings={"acks.policy": "quorum"})
    story.die(2, 3)
    assert story.report(key, 1).state is SegmentState.SEALING
    story.is_heard(2)
    assert story.report(key, 2).local_nodes == (1, 2)


def test_where_a_majority_acknowledges_every_living_replica_is_waited_for() -> None:
    story = TableStory(nodes=3)
    key = story.active(story.topic(replicas=3, settings={"acks.policy": "quorum"})).key
    story.do(ProposeIsr(key, (1, 2), 0))
    story.roll(key, 10)
    story.report(key, 1)
    assert story.report(key, 2).state is SegmentState.SEALING
    assert story.report(key, 3).local_nodes == (1, 2, 3)


def test_a_copy_on_a_disk_that_is_gone_proves_nothing() -> None:
    story, _, key = ended_on()
    story.report(key, 2)
    story.report(key, 3)
    story.start(3, is_wiped=True)
    assert story.report(key, 1).local_nodes == (1, 2)


def test_a_report_of_a_life_before_a_restart_counts_because_it_was_flushed() -> None:
    story, _, key = ended_on()
    story.report(key, 2)
    story.report(key, 3)
    story.start(3, is_clean=False)
    assert story.report(key, 1).local_nodes == (1, 2, 3)


def test_one_replica_alone_cannot_write_the_record_of_several() -> None:
    story, _, key = ended_on(2)
    with pytest.raises(Conflict, match="each of them reports"):
        story.do(SealSegment(key, record_of(key, 10)))


def test_a_single_replica_may_report_as_well() -> None:
    story, _, key = ended_on(1)
    assert story.report(key, 1).local_nodes == (1,)


def test_a_report_says_what_the_table_says_and_its_sender() -> None:
    story, topic, key = ended_on(2)
    proof = record_of(key, 10)
    for wrong in (replace(proof, end_offset=9), replace(proof, epoch=3), replace(proof, digest=b"")):
        with pytest.raises((Conflict, InvalidRequest)):
            story.do(ReportReplica(key, wrong, caller=story.life(1)))
    with pytest.raises(InvalidRequest):
        story.do(ReportReplica(key, proof))
    active = story.active(topic).key
    with pytest.raises(Conflict, match="roll first"):
        story.do(ReportReplica(active, record_of(active, 12), caller=story.life(1)))


def test_of_what_is_deleted_nothing_is_to_be_said() -> None:
    story, _, key = ended_on(2)
    story.do(AdvanceLogStart(key.shard_key, 10))
    before = state_of(story.table)
    proof = record_of(key, 10)
    assert story.do(ReportReplica(key, proof, caller=story.life(2))).result.state is SegmentState.DELETED
    assert state_of(story.table) == before


def test_a_holder_that_lost_its_copy_gives_way_to_another_and_may_come_back() -> None:
    story, _, key = ended_on()
    for node in (1, 2, 3):
        story.report(key, node)
    story.start(1, is_wiped=True)
    assert uploader_of(story.segment(key), story.table.state.is_alive, story.table.state.mount_of) == 1
    for _ in range(2):
        story.do(ReportLostCopies((key, key), caller=story.life(1)))
    segment = story.segment(key)
    assert segment.local_nodes == (2, 3)
    assert uploader_of(segment, story.table.state.is_alive, story.table.state.mount_of) == 2
    assert segment.seal is not None and segment.seal.replicas == (1, 2, 3), "the record is written once"
    assert story.report(key, 1).local_nodes == (1, 2, 3)


@pytest.mark.fault("two-nodes-lose-copies")
def test_a_copy_made_again_is_reported_until_it_is_listed_though_the_seal_names_its_node() -> None:
    """Its first report was older than what another node lost, so it was passed over."""
    story, _, key = ended_on()
    for node in (1, 2, 3):
        story.report(key, node)
    story.start(1, is_wiped=True)
    story.do(ReportLostCopies((key,), caller=story.life(1)))
    anew = ReportReplica(key, record_of(key, 10), story.segment(key).isr_version, caller=story.life(1))
    story.start(2, is_wiped=True)
    story.do(ReportLostCopies((key,), caller=story.life(2)))
    passed_over = story.do(anew).result
    assert passed_over.local_nodes == (3,) and 1 in passed_over.seal.replicas
    assert not ReportAccepted.answered(passed_over, 1).is_settled, "else nobody ever tells of it again"
    listed = story.do(replace(anew, isr_version=story.segment(key).isr_version)).result
    assert listed.local_nodes == (1, 3) and ReportAccepted.answered(listed, 1).is_settled


@pytest.mark.fault("node-reports-copy-completes")
def test_a_copy_that_is_reported_late_is_not_listed_once_the_object_store_has_all() -> None:
    """It may have been listed and freed before, and the one who says so has read the newest record."""
    story, _, key = ended_on()
    for node in (1, 2, 3):
        story.report(key, node)
    lock = story.lock()
    story.commit(lock, key, 0, 10)
    story.complete(lock, key)
    story.do(ForgetLocal((key,), 3))
    version = story.segment(key).isr_version
    late = ReportReplica(key, record_of(key, 10), version, caller=story.life(3))
    assert story.do(late).result.local_nodes == (1, 2)
    assert story.do(replace(late, isr_version=-1)).result.local_nodes == (1, 2)


def test_the_only_holder_of_what_is_nowhere_else_stays_listed() -> None:
    story, _, key = ended_on(1)
    story.seal(key)
    lost = ReportLostCopies((key,), caller=story.life(1))
    story.do(lost)
    assert story.segment(key).local_nodes == (1,)
    lock = story.lock()
    story.commit(lock, key, 0, 10)
    story.complete(lock, key)
    story.do(lost)
    assert story.segment(key).local_nodes == ()
    with pytest.raises(InvalidRequest):
        story.do(ReportLostCopies((key,)))


def test_reports_hold_one_entry_per_replica() -> None:
    story, _, key = ended_on()
    for digest in (b"a", b"b", b"c"):
        segment = story.report(key, 2, digest)
    assert segment.handed.reports == (ReplicaReport(2, 100, b"c"),)
