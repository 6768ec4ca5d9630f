"""The messages to people about shards that need attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.plans.shard_troubles import Trouble, TroubleKind, troubles
from stratalog.model.commands.table_commands import ProposeIsr, ReportLostCopies, SealUnclean
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import GapReason, GivenUp, Segment
from support.table_stories import TableStory


def told(story: TableStory, after_ms: int = 0) -> list[Trouble]:
    return list(troubles(story.table.snapshot(), story.now_ms + after_ms))


def a_shard() -> tuple[TableStory, SegmentKey]:
    story = TableStory(nodes=3)
    return story, story.active(story.topic(replicas=3)).key


def test_of_what_is_well_nothing_is_reported() -> None:
    story, key = a_shard()
    story.prepare(key)
    story.roll(key, 10)
    for node in (1, 2, 3):
        story.report(key, node)
    assert told(story) == []


def test_a_segment_that_is_not_sealed_in_time_names_the_nodes_that_have_not_reported_a_copy() -> None:
    story, key = a_shard()
    story.prepare(key)
    story.roll(key, 10)
    story.report(key, 2)
    assert told(story, after_ms=59_000) == []
    (trouble,) = told(story, after_ms=60_000)
    assert (trouble.kind, trouble.segment, trouble.nodes) == (TroubleKind.NOT_SEALED, key, (1, 3))
    assert trouble.words == (
        "a segment ended over 60 s ago and is not sealed, 1 of 3 replicas reported a copy; nodes 1 and 3 will try "
        "again: wait; if it lasts, `stratalog status` and the log there say why"
    )
    story.die(3)
    assert [one.nodes for one in told(story, after_ms=60_000) if one.kind is TroubleKind.NOT_SEALED] == [(1,)]
    story.report(key, 1)
    assert not [one for one in told(story, after_ms=60_000) if one.kind is TroubleKind.NOT_SEALED]


def test_replicas_that_are_not_in_sync_are_named_and_whether_writes_are_refused() -> None:
    story, key = a_shard()
    strict = story.topic("strict", replicas=3, settings={"min.insync.replicas": "3"})
    story.do(ProposeIsr(key, (1, 2), 0))
    story.do(ProposeIsr(story.active(strict).key, (1, 2), 0))
    kinds = {(one.topic, one.kind, one.nodes) for one in told(story)}
    assert kinds == {
        ("orders", TroubleKind.NOT_IN_SYNC, (3,)),
        ("strict", TroubleKind.BELOW_MIN_IN_SYNC, (3,)),
    }

    assert {one.words for one in told(story)} == {
        "2 of 3 replicas in sync; node 3 is behind: wait; if it lasts, its log says why",
        "2 of 3 replicas in sync, min.insync.replicas is 3, so acks=all is refused; node 3 is behind: wait; if it "
        "lasts, its log says why",
    }


@pytest.mark.fault("topic-inherits-cluster-min-insync-replicas")
def test_a_topic_that_does_not_say_how_many_must_be_in_sync_has_the_default_of_the_processes() -> None:
    story, key = a_shard()
    story.do(ProposeIsr(key, (1,), 0))
    (inherited,) = troubles(story.table.snapshot(), story.now_ms, 2)
    (lower,) = troubles(story.table.snapshot(), story.now_ms, 1)

    assert (inherited.kind, inherited.nodes) == (TroubleKind.BELOW_MIN_IN_SYNC, (2, 3))
    assert lower.kind is TroubleKind.NOT_IN_SYNC


def test_a_replica_that_is_not_in_sync_is_to_be_started_or_waited_for() -> None:
    story, key = a_shard()
    story.do(ProposeIsr(key, (1,), 0))
    story.die(3)
    (trouble,) = told(story)
    assert trouble.words == (
        "1 of 3 replicas in sync; node 3 is not alive: start it; node 2 is behind: wait; if it lasts, its log says why"
    )
    story.die(2)
    (trouble,) = told(story)
    assert trouble.words == "1 of 3 replicas in sync; nodes 2 and 3 are not alive: start them"


def test_more_replicas_that_must_be_in_sync_than_a_topic_has_are_reported_as_its_settings() -> None:
    story = TableStory(nodes=3)
    story.topic(replicas=1, settings={"min.insync.replicas": "2"})
    (trouble,) = told(story)
    assert (trouble.kind, trouble.words) == (
        TroubleKind.BELOW_MIN_IN_SYNC,
        "1 of 1 replica in sync, min.insync.replicas is 2, so acks=all is refused; no other replica can join them: "
        "give the topic more replicas, or set a lower min.insync.replicas",
    )


def test_a_majority_that_does_not_live_is_reported_though_the_leader_does() -> None:
    story = TableStory(nodes=3)
    active = story.active(story.topic(replicas=2, settings={"acks.policy": "quorum"}))
    follower = next(node for node in active.replicas if node != active.leader)
    assert told(story) == []
    story.die(follower)
    (trouble,) = told(story)
    assert (trouble.kind, trouble.nodes) == (TroubleKind.BELOW_MIN_IN_SYNC, (follower,))
    assert "1 of 2 replicas alive, and acks=all waits for a majority of 2" in trouble.words
    three = TableStory(nodes=3)
    active = three.active(three.topic(replicas=3, settings={"acks.policy": "quorum"}))
    three.die(next(node for node in active.replicas if node != active.leader))
    assert not [one for one in told(three) if one.kind is TroubleKind.BELOW_MIN_IN_SYNC], "two of three are one"


def test_fewer_replicas_than_must_be_in_sync_is_reported_beside_their_number() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3, settings={"min.insync.replicas": "2"})
    key = story.active(topic).key
    story.do(ProposeIsr(key, (1,), 0))
    assert [(one.kind, one.nodes) for one in told(story)] == [(TroubleKind.BELOW_MIN_IN_SYNC, (2, 3))]


@pytest.mark.fault("topic-setting-number-parts")
def test_a_topic_whose_settings_cannot_be_read_hides_no_trouble_of_another() -> None:
    story, key = a_shard()
    story.topic("odd", replicas=3, settings={"min.insync.replicas": "2.0"})
    story.do(ProposeIsr(key, (1, 2), 0))
    assert [(one.topic, one.kind) for one in told(story)] == [("orders", TroubleKind.NOT_IN_SYNC)]


def test_a_shard_without_a_leader_names_the_nodes_that_it_waits_for_and_why() -> None:
    story, key = a_shard()
    story.do(ProposeIsr(key, (1, 2), 0))
    story.die(1)
    story.start(2, is_wiped=True)
    (trouble,) = told(story)
    assert (trouble.topic, trouble.segment, trouble.kind, trouble.nodes) == (
        "orders",
        key,
        TroubleKind.NO_LEADER,
        (1, 2),
    )
    assert trouble.words == (
        "no leader; waiting for node 1 (not alive) and node 2 (its disk is new): start node 1; if a disk is lost for "
        "good, give up what it held with `stratalog recover TOPIC --shard N --unclean`"
    )


def test_a_shard_whose_only_replica_is_not_alive_is_reported_and_can_be_given_up() -> None:
    story = TableStory(nodes=2)
    topic = story.topic()
    key = story.active(topic).key
    story.die(1)
    (trouble,) = told(story)
    assert (trouble.segment, trouble.kind, trouble.nodes) == (key, TroubleKind.NO_LEADER, (1,))
    assert trouble.words == (
        "no leader; node 1 has the only replica and is not alive: start it; if a disk is lost for good, give up what "
        "it held with `stratalog recover TOPIC --shard N --unclean`"
    )
    story.recover(key)
    story.do(SealUnclean(key))
    assert story.active(topic).leader == 2
    kinds = [one.kind for one in told(story)]
    assert kinds == [TroubleKind.NO_SOURCE, TroubleKind.GIVEN_UP]
    assert told(story)[0].words.endswith(  # repeated, seal-unclean would be refused: no node could be its source
        "waiting for node 1 (not alive): start node 1; if a disk is lost for good, give up its node with `stratalog "
        "nodes retire ID --force STORAGE-ID` (docs/operate.md)"
    )
    story.is_heard(1)
    assert story.promise(key, 1, 0).handed.source == 1


def test_a_segment_that_ended_without_a_source_is_reported_too() -> None:
    story, key = a_shard()
    story.roll(key, 10)
    story.die(1, 2, 3)
    found = told(story)
    assert {one.segment.epoch: one.kind for one in found} == {0: TroubleKind.NO_SOURCE, 1: TroubleKind.NO_LEADER}
    assert found[0].words == (
        "no node that answers has the last records of an ended segment; waiting for node 1 (not alive), node 2 (not "
        "alive) and node 3 (not alive): start nodes 1, 2 and 3; if a disk is lost for good, give up its node with "
        "`stratalog nodes retire ID --force STORAGE-ID` (docs/operate.md)"
    )


def test_a_segment_with_too_few_replicas_is_reported_until_the_next_roll() -> None:
    story, key = a_shard()
    story.die(3)
    story.prepare(key)
    second = story.roll(key, 10)
    (trouble,) = told(story)
    assert (trouble.kind, trouble.nodes) == (TroubleKind.TOO_FEW_REPLICAS, (1, 2))
    assert trouble.words == "2 of 3 replicas; no free node: start another node"
    story.is_heard(3)
    assert told(story)[0].words == "2 of 3 replicas; a node that is free gets the next one: wait"
    story.prepare(second.key)
    story.roll(second.key, 20)
    assert told(story) == []


def test_a_copy_that_differs_and_a_range_that_was_given_up_stay_reported() -> None:
    story, key = a_shard()
    story.do(ProposeIsr(key, (1,), 0))
    story.die(1)
    story.promise(key, 2, 5, high_watermark=7)
    story.do(SealUnclean(key))
    story.promise(key, 3, 4)
    story.is_heard(1)
    story.report(key, 2)
    story.report(key, 3, b"other")
    story.report(key, 1)
    few, gap, differs = sorted(
        (one for one in told(story) if one.segment == key), key=lambda one: one.kind, reverse=True
    )
    assert (few.kind, few.words) == (
        TroubleKind.TOO_FEW_COPIES,
        "1 sealed segment has fewer than 3 copies on nodes that are alive (at least 2); others make the copies once a "
        "node has been away for replica.replace.after.ms: start it, or wait",
    )
    assert (gap.given_up, gap.words) == (
        GivenUp(5, 7, GapReason.UNCLEAN),
        "2 offsets, 5 to 6, are lost (given up by command, or by uncleanSeal=allow); tell the owners of the data, and "
        "with a backup, produce the records again",
    )
    assert (differs.kind, differs.nodes) == (TroubleKind.COPY_DIFFERS, (3,))
    assert differs.words == (
        "the copy on node 3 differs from the sealed segment, and no reader gets it: check the disk there, then run "
        "`stratalog verify orders` there"
    )


def test_nodes_that_hold_a_copy_already_are_not_called_free_for_another() -> None:
    story, key = a_shard()
    story.prepare(key)
    story.roll(key, 10)
    for node in (1, 2, 3):
        story.report(key, node)
    story.die(3)
    (few,) = [one for one in told(story) if one.kind is TroubleKind.TOO_FEW_COPIES]
    assert few.words == (
        "1 sealed segment has fewer than 3 copies on nodes that are alive (at least 2); only 2 nodes can hold one now: "
        "start another node"
    )


@pytest.mark.fault("index-block-table-producers")
def test_a_table_of_producers_that_no_living_node_has_is_reported_and_the_nodes_to_start() -> None:
    story = TableStory(nodes=3)
    first = story.active(story.topic(replicas=2))
    story.prepare(first.key)
    story.roll(first.key, 10)
    for node in first.replicas:
        story.report(first.key, node, producers=ProducerTally(1, b"t", 10, 10))
    assert TroubleKind.NO_PRODUCERS not in {one.kind for one in told(story)}
    for node in first.replicas:
        story.die(node)
    (trouble,) = [one for one in told(story) if one.kind is TroubleKind.NO_PRODUCERS]
    assert (trouble.segment, trouble.nodes) == (first.key, first.replicas)
    assert trouble.words == (
        "the table of 1 idempotent producer is on no node that is alive, so a new leader may refuse writes: start node "
        "1 or 2"
    )


def test_behind_a_segment_without_a_batch_the_table_before_it_is_what_counts() -> None:
    story = TableStory(nodes=3)
    first = story.active(story.topic(replicas=2))
    tally = ProducerTally(1, b"t", 10, 10)

    def end(segment: Segment, at: int) -> Segment:
        story.prepare(segment.key)
        story.roll(segment.key, at)
        for node in segment.replicas:
            story.report(segment.key, node, producers=tally)
        return story.active(story.table.topic(first.key.topic_id))

    empty = end(first, 10)
    end(empty, 10)
    assert story.segment(empty.key).local_nodes
    snapshot = story.table.snapshot()
    shards = tuple(
        replace(shard, segments=tuple(_nowhere(one) if one.key == empty.key else one for one in shard.segments))
        for shard in snapshot.shards
    )

    def kinds() -> list[TroubleKind]:
        return [one.kind for one in troubles(replace(story.table.snapshot(), shards=shards), story.now_ms)]

    assert TroubleKind.NO_PRODUCERS not in kinds(), "it follows from the table of the first one"
    story.die(*first.replicas)
    assert TroubleKind.NO_PRODUCERS in kinds()


def _nowhere(segment: Segment) -> Segment:
    return replace(segment, local_nodes=(), replicas=())


@pytest.mark.fault("node-leaves-empty-segment")
def test_the_table_behind_an_empty_segment_is_that_of_the_segment_before_it() -> None:
    """It asked for a start of nodes that are not alive, though no node that left had to leave an empty one behind."""
    story = TableStory(nodes=2)
    topic, tally = story.topic(replicas=2), ProducerTally(1, b"t", 10, 10)
    first = empty = story.active(topic)
    for _ in range(2):
        empty = story.active(topic)
        story.prepare(empty.key)
        story.roll(empty.key, 10)
        for node_id in (1, 2):
            story.report(empty.key, node_id, producers=tally)
    story.do(ReportLostCopies((empty.key,), caller=story.life(2)))
    story.die(1)
    assert story.segment(empty.key).local_nodes == (1,)
    assert TroubleKind.NO_PRODUCERS not in {one.kind for one in told(story)}
    story.die(2)
    (trouble,) = [one for one in told(story) if one.kind is TroubleKind.NO_PRODUCERS]
    assert (trouble.segment, trouble.nodes) == (first.key, (1, 2))


def test_a_replica_that_went_before_it_reported_its_copy_is_named_beside_those_that_have_one() -> None:
    story, key = a_shard()
    story.prepare(key)
    story.roll(key, 10)
    story.die(3)
    story.report(key, 1)
    story.report(key, 2)
    story.die(1, 2)
    (trouble,) = (one for one in told(story) if one.kind is TroubleKind.NO_COPY)
    assert trouble.nodes == (1, 2, 3)
    assert trouble.words == "1 sealed segment has no copy on a node that is alive: start nodes 1, 2 and 3"
