"""A segment without its leader: the nodes that the service asks, its conclusion, where the log continues (design rule
7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.copies.recovery_rule import Waiting, decide
from stratalog.model.commands.table_commands import (
    AdvanceLogStart,
    AlterTopic,
    BeginRecovery,
    CreateTopic,
    NoteLives,
    ProposeIsr,
    RegisterNode,
    SealUnclean,
)
from stratalog.model.errors import Conflict, Fenced, InvalidRequest
from stratalog.model.ids import MAX_OFFSET, SegmentKey
from stratalog.model.segment import Doubt, GapReason, GivenUp, Segment, SegmentState
from stratalog.model.topic import Topic
from support.table_stories import TableStory, promise, state_of

QUORUM = {"acks.policy": "quorum"}


def three_nodes(settings: dict[str, str] | None = None) -> tuple[TableStory, Topic, SegmentKey]:
    """One shard on three nodes, led by the first."""
    story = TableStory(nodes=3)
    topic = story.topic(replicas=3, settings=settings)
    assert story.active(topic).replicas == (1, 2, 3)
    return story, topic, story.active(topic).key


def waits_for(story: TableStory, key: SegmentKey, *, by_quorum: bool = False) -> tuple[int, ...]:
    decision = decide(story.segment(key), by_quorum=by_quorum, is_alive=story.table.state.is_alive)
    assert isinstance(decision, Waiting)
    return decision.nodes


def is_recovering(segment: Segment) -> bool:
    return segment.state is SegmentState.ACTIVE and segment.fence == segment.epoch + 1 and segment.leader is None


# How one begins -------------------------------------------------------------------------------------------------
def test_the_end_of_a_leaders_lease_takes_from_it_what_it_led_with_others() -> None:
    story = TableStory(nodes=3)
    shared = [story.active(story.topic(name, replicas=2)) for name in "abc"]
    alone = [story.active(story.topic(name)) for name in "def"]
    story.die(1)
    for segment in shared:
        assert is_recovering(story.segment(segment.key)) is (segment.leader == 1)
    assert [story.segment(segment.key) for segment in alone] == alone, "the only replica has nobody to hand it to"


def test_a_restarted_leader_of_several_replicas_leads_no_more_but_continues_where_it_is_alone() -> None:
    story, topic, key = three_nodes()
    alone = story.active(story.topic("alone"))
    assert alone.leader is not None
    story.start(1)
    assert is_recovering(story.segment(key))
    story.start(alone.leader)
    assert story.segment(alone.key) == alone
    assert story.active(topic).key == key


def test_a_follower_that_starts_again_in_time_changes_nothing_while_its_tail_is_whole() -> None:
    story, _, key = three_nodes()
    before = story.segment(key)
    story.start(3)
    assert story.segment(key) == before


@pytest.mark.fault("node-leads-thousands-shards")
def test_a_follower_that_dies_leaves_the_isr_until_the_leader_takes_it_back() -> None:
    story, _, key = three_nodes()
    story.die(2)
    left = story.segment(key)
    assert (left.leader, left.isr, left.isr_version, left.handover) == (1, (1, 3), 1, None)
    with pytest.raises(Conflict):
        story.do(ProposeIsr(key, (1, 2, 3), 0))
    story.is_heard(2)
    assert story.segment(key) == left, "whether it has all of it, the leader knows alone"
    assert story.do(ProposeIsr(key, (1, 2, 3), 1)).result.isr == (1, 2, 3)


@pytest.mark.fault("followers-die-with-leader")
@pytest.mark.parametrize("settings", [{}, {"acks.policy": "quorum"}], ids=["acks=all", "quorum"])
def test_the_last_two_in_the_isr_keep_their_say_however_they_die(settings: dict[str, str]) -> None:
    """Nodes that die together are not lost in one moment: which of them led, the service may hear last."""
    story, _, key = three_nodes(settings)
    story.die(2)
    before = story.segment(key)
    story.die(3)
    assert story.segment(key) == before, "its leader is alive, and proposes what it can answer for"
    story.die(1)
    assert story.segment(key).isr == (1, 3)


@pytest.mark.fault("followers-die-with-leader")
def test_followers_that_die_in_one_moment_with_their_leader_keep_their_say() -> None:
    story, _, key = three_nodes()
    story.die(2, 1)
    assert (story.segment(key).isr, story.segment(key).is_fenced) == ((1, 2, 3), True)
    story, _, key = three_nodes()
    story.die(2, 3)
    assert story.segment(key).isr == (1, 2, 3)


@pytest.mark.fault("power-cut-leases-end-apart")
def test_replicas_that_lose_power_together_keep_their_say_though_their_leases_end_apart() -> None:
    """The disk of node 2 has the batches that the page caches of the others lost."""
    story, _, key = three_nodes()
    story.do(NoteLives(lost=(story.life(2),), quiet=(story.life(1), story.life(3))))
    story.do(NoteLives(lost=(story.life(3),), quiet=(story.life(1),)))
    story.die(1)
    for node_id in (1, 3):
        story.start(node_id, is_clean=False)
        story.promise(key, node_id, 5)
    assert is_recovering(story.segment(key)), "node 2 is not there yet"
    story.start(2, is_clean=False)
    story.promise(key, 2, 12)
    assert story.segment(key).end_offset == 12


def test_no_fewer_than_acks_all_requires_are_left_in_the_isr_by_a_death() -> None:
    story, _, key = three_nodes({"min.insync.replicas": "3"})
    story.die(2)
    assert story.segment(key).isr == (1, 2, 3)


# What a new life does to the ISR --------------------------------------------------------------------------------
def test_a_follower_whose_tail_may_be_cut_leaves_the_isr_until_the_leader_takes_it_back() -> None:
    story, _, key = three_nodes()
    story.start(3, is_clean=False)
    left = story.segment(key)
    assert (left.isr, left.isr_version, left.handed.doubts) == ((1, 2), 1, (Doubt(3, is_lost=False),))
    back = story.do(ProposeIsr(key, (1, 2, 3), 1)).result
    assert (back.isr, back.handover) == ((1, 2, 3), None)


def test_the_same_boot_of_the_machine_or_flushed_confirmations_keep_a_tail_whole() -> None:
    story, _, key = three_nodes()
    before = story.segment(key)
    story.start(3, boot_id="boot-a")
    story.start(3, is_clean=False, boot_id="boot-a")
    assert story.segment(key) == before
    story.start(3, is_clean=False, boot_id="boot-b")
    assert story.segment(key).isr == (1, 2), "another boot: the page cache is gone"
    story, _, key = three_nodes({"flush.policy": "fsync"})
    story.start(3, is_clean=False)
    assert story.segment(key).isr == (1, 2, 3)
    story.start(3, is_wiped=True)
    assert story.segment(key).isr == (1, 2), "flushed on a disk that is gone"


def test_flushing_is_the_nodes_default_unless_the_topic_says_otherwise() -> None:
    for settings, isr in ((None, (1, 2, 3)), ({"flush.policy": "replicated"}, (1, 2))):
        story, _, key = three_nodes(settings)
        flushing = RegisterNode(story.table.state.nodes[3].info, is_flushed_by_default=True)
        story.do(replace(flushing, stopped_epoch=1))
        story.do(flushing)
        assert story.segment(key).isr == isr


@pytest.mark.fault("node-loses-page-cache")
def test_flushing_counts_as_the_life_did_it_that_wrote_and_not_the_one_that_comes() -> None:
    """Its settings were changed, and the power cut comes before it was started by them."""
    story, _, key = three_nodes()
    flushing = RegisterNode(story.table.state.nodes[3].info, is_flushed_by_default=True)
    story.do(flushing)
    assert story.segment(key).isr == (1, 2)
    story, _, key = three_nodes()
    story.do(replace(flushing, boot_id="boot-a", stopped_epoch=1))
    story.do(replace(flushing, is_flushed_by_default=False, boot_id="boot-b"))
    assert story.segment(key).isr == (1, 2, 3), "that life flushed"
    story.do(replace(flushing, boot_id="boot-b"))
    story.do(replace(flushing, boot_id="boot-c"))
    assert story.segment(key).isr == (1, 2), "killed and started by other settings it may have had no time to flush"


@pytest.mark.fault("topic-set-flush-policy-fsync")
@pytest.mark.parametrize(("before", "after"), [(None, "fsync"), ("replicated", "fsync"), ("replicated", None)])
def test_what_was_confirmed_before_a_topic_was_flushed_is_not_flushed_by_that(
    before: str | None, after: str | None
) -> None:
    """Its file may wait for the disk for as long as it did before, and the service cannot know when that is over."""
    was, now = ({} if policy is None else {"flush.policy": policy} for policy in (before, after))
    story, topic, key = three_nodes(was)
    story.now_ms -= 500  # a person set the clock back
    story.do(AlterTopic(topic.topic_id, now))
    flushing = RegisterNode(story.table.state.nodes[3].info, is_flushed_by_default=True)
    story.do(replace(flushing, stopped_epoch=1))
    story.do(flushing)
    assert story.segment(key).isr == (1, 2)
    story.do(ProposeIsr(key, (1, 2, 3), story.segment(key).isr_version))
    story.now_ms += 1_000
    opened = story.roll(key, 5)
    story.do(flushing)
    assert story.segment(opened.key).isr == (1, 2, 3), "what began since was flushed"


def test_a_topic_that_was_flushed_and_says_so_still_continues_as_it_is() -> None:
    story, topic, key = three_nodes({"flush.policy": "fsync"})
    story.do(AlterTopic(topic.topic_id, {"flush.policy": "fsync", "retention.ms": "1"}))
    story.start(3, is_clean=False)
    assert story.segment(key).isr == (1, 2, 3)


def test_a_proposal_that_rests_on_the_life_before_is_refused() -> None:
    """It had caught up, was to be taken in, and came back shorter meanwhile."""
    story, _, key = three_nodes()
    story.do(ProposeIsr(key, (1, 2), 0))
    story.start(3, is_clean=False)
    with pytest.raises(Conflict):
        story.do(ProposeIsr(key, (1, 2, 3), 1))


def test_the_last_member_of_an_isr_stays_listed_in_doubt() -> None:
    story, _, key = three_nodes()
    story.do(ProposeIsr(key, (1,), 0))
    story.start(1, is_clean=False)
    segment = story.segment(key)
    assert (segment.isr, segment.handed.doubts) == ((1,), (Doubt(1, is_lost=False),)) and is_recovering(segment)


# The decision, where all of the ISR acknowledges ----------------------------------------------------------------
def test_all_living_members_are_waited_for_and_the_longest_makes_the_end() -> None:
    story, topic, key = three_nodes()
    story.die(1)
    assert waits_for(story, key) == (1, 2, 3)
    story.promise(key, 2, 7)
    assert is_recovering(story.segment(key)) and waits_for(story, key) == (3,)
    ended = story.promise(key, 3, 9)
    assert (ended.state, ended.end_offset, ended.handed.source) == (SegmentState.SEALING, 9, 3)
    assert ended.handed.given_up == ()
    opened = story.active(topic)
    assert (opened.epoch, opened.base_offset, opened.leader) == (1, 9, 3), "the source knows the producers at the end"
    assert set(opened.replicas) == {2, 3} == set(opened.isr), "fewer living nodes than replicas: it opens with fewer"


def test_one_whole_voice_is_enough_when_the_others_are_dead() -> None:
    story, topic, key = three_nodes()
    story.die(1, 2)
    ended = story.promise(key, 3, 4)
    assert (ended.end_offset, story.active(topic).replicas) == (4, (3,))


def test_a_member_that_dies_meanwhile_is_waited_for_no_more() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    story.die(3)
    assert story.segment(key).end_offset == 7


def test_who_promised_and_died_counts_again_once_it_is_heard() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    story.die(2, 3)
    assert is_recovering(story.segment(key))
    story.is_heard(2)
    assert story.segment(key).end_offset == 7


def test_an_old_leader_that_is_back_in_time_is_asked_as_well() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.is_heard(1)
    story.promise(key, 2, 7)
    story.promise(key, 3, 7)
    assert waits_for(story, key) == (1,)
    ended = story.promise(key, 1, 11)
    assert (ended.end_offset, ended.handed.source) == (11, 1)


def test_who_is_not_in_the_isr_has_no_say() -> None:
    story, _, key = three_nodes()
    story.do(ProposeIsr(key, (1, 2), 0))
    story.die(1)
    story.promise(key, 3, 100)
    assert is_recovering(story.segment(key))
    assert story.promise(key, 2, 7).end_offset == 7


def test_a_new_life_has_to_promise_again() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    late = promise(story, key, 3, 9)
    story.start(2)
    story.start(3)
    with pytest.raises(Fenced, match="life 1 of node 3"):
        story.do(late)
    assert story.segment(key).handed.votes == () and waits_for(story, key) == (1, 2, 3)


# Doubt ----------------------------------------------------------------------------------------------------------
def test_a_doubtful_tail_alone_proves_nothing() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.start(2, is_clean=False)
    story.promise(key, 2, 5)
    assert is_recovering(story.segment(key))
    ended = story.promise(key, 3, 4)
    assert (ended.end_offset, ended.handed.source, ended.handed.given_up) == (5, 2, ()), (
        "a whole one says nothing is lost"
    )


def test_who_says_itself_that_its_tail_is_cut_proves_nothing_either() -> None:
    story, _, key = three_nodes()
    story.die(1, 3)
    story.promise(key, 2, 5, is_whole=False)
    assert is_recovering(story.segment(key)) and waits_for(story, key) == (1, 3)


def test_when_all_restarted_unclean_all_must_answer_and_a_possible_gap_is_reported() -> None:
    story, _, key = three_nodes()
    for node in (1, 2, 3):
        story.start(node, is_clean=False)
    story.promise(key, 3, 6, high_watermark=5)
    story.promise(key, 1, 4, high_watermark=9)
    assert waits_for(story, key) == (2,), "who left the ISR first may have kept the most"
    ended = story.promise(key, 2, 8)
    assert (ended.end_offset, ended.handed.source) == (8, 2)
    assert ended.handed.given_up == (GivenUp(8, 9, GapReason.RESTARTED),)


def test_a_possible_gap_is_reported_even_when_nothing_is_known_to_be_missing() -> None:
    story, _, key = three_nodes()
    story.do(ProposeIsr(key, (1,), 0))
    story.start(1, is_clean=False)
    story.promise(key, 1, 6, high_watermark=6)
    assert waits_for(story, key) == (2, 3), "who is alive may have more than what it lost"
    story.promise(key, 2, 5)
    assert story.promise(key, 3, 4).handed.given_up == (GivenUp(6, 6, GapReason.RESTARTED),)


@pytest.mark.fault("last-member-isr-lost")
def test_the_longest_copy_counts_where_the_only_member_lost_its_tail_though_another_has_it() -> None:
    story, _, key = three_nodes()
    story.do(ProposeIsr(key, (1,), 0))
    story.die(3)
    story.start(1, is_clean=False)
    story.promise(key, 1, 2, high_watermark=6)
    ended = story.promise(key, 2, 5)
    assert (ended.end_offset, ended.handed.source) == (5, 2)
    assert ended.handed.given_up == (GivenUp(5, 6, GapReason.RESTARTED),)


@pytest.mark.fault("copy-claims-whole-ends")
def test_who_ends_below_what_others_know_to_be_acknowledged_is_not_whole_whatever_it_says() -> None:
    story, _, key = three_nodes()
    story.do(BeginRecovery(key))
    story.promise(key, 3, 4)
    story.promise(key, 2, 7, high_watermark=6, is_whole=False)
    assert waits_for(story, key) == (1,)
    ended = story.promise(key, 1, 6)
    assert (ended.end_offset, ended.handed.source) == (7, 2)


def test_a_wiped_node_is_not_a_vote_that_data_does_not_exist() -> None:
    story, _, key = three_nodes()
    story.do(ProposeIsr(key, (1, 2), 0))
    story.die(1)
    story.start(2, is_wiped=True)
    with pytest.raises(Conflict, match="unknown"):
        story.promise(key, 2, 0)
    assert waits_for(story, key) == (1, 2)
    story.start(1, is_clean=False)
    story.promise(key, 1, 7)
    assert waits_for(story, key) == (2,), "what its old disk held nobody can tell: a person has to give it up"
    story.do(SealUnclean(key))
    assert story.segment(key).end_offset == 7


# Quorum ---------------------------------------------------------------------------------------------------------
def test_where_a_majority_acknowledges_a_majority_decides() -> None:
    story, _, key = three_nodes(QUORUM)
    story.do(ProposeIsr(key, (1,), 0))
    story.die(1)
    story.promise(key, 3, 6)
    assert waits_for(story, key, by_quorum=True) == (1, 2)
    ended = story.promise(key, 2, 4)
    assert (ended.end_offset, ended.handed.source, ended.handed.given_up) == (6, 3, ())


def test_a_topic_keeps_the_rule_by_which_it_acknowledges() -> None:
    """What a majority had acknowledged a member of the ISR need not have, and the other way round."""
    for settings in (QUORUM, {}):
        story, topic, _ = three_nodes(settings)
        before = state_of(story.table)
        with pytest.raises(InvalidRequest, match=r"keeps its acks\.policy"):
            story.do(AlterTopic(topic.topic_id, {} if settings else QUORUM))
        assert state_of(story.table) == before
        story.do(AlterTopic(topic.topic_id, {**settings, "retention.ms": "1"}))


def test_a_minority_waits_for_another_voice() -> None:
    story, _, key = three_nodes(QUORUM)
    story.die(1, 2)
    story.promise(key, 3, 6)
    assert is_recovering(story.segment(key))
    story.start(2, is_clean=False)
    story.promise(key, 2, 6)
    assert is_recovering(story.segment(key)), "a doubtful tail makes no majority"
    story.is_heard(1)
    assert story.promise(key, 1, 9).end_offset == 9


# The source, and what was sealing already ------------------------------------------------------------------------
def test_the_least_loaded_of_those_that_hold_all_leads_on() -> None:
    story = TableStory(nodes=3)
    topic = story.topic(shards=6, replicas=3)
    led = [story.active(topic, shard) for shard in range(6) if story.active(topic, shard).leader == 1]
    story.die(1)
    for segment in led:
        for node in (2, 3):
            story.promise(segment.key, node, 5)
    assert {story.active(topic, segment.key.shard).leader for segment in led} == {2, 3}


def test_when_its_source_dies_another_that_holds_all_takes_its_place() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    source = story.promise(key, 3, 7).handed.source
    assert source is not None
    story.die(source)
    (other,) = {2, 3} - {source}
    assert story.segment(key).handed.source == other


@pytest.mark.fault("source-dies-before-copies")
def test_what_only_the_dead_source_has_is_waited_for() -> None:
    """The leader of the next segment served it as committed, and acknowledged repeated batches in it."""
    story, topic, key = three_nodes()
    story.start(1)
    story.promise(key, 2, 7)
    story.promise(key, 3, 7)
    assert story.promise(key, 1, 9).handed.source == 1
    assert story.active(topic).key.base_offset == 9
    for _ in range(2):
        story.die(1)
        segment = story.segment(key)
        assert (segment.handed.source, segment.end_offset, segment.handed.given_up) == (1, 9, ())
        story.start(1)
        assert story.segment(key).handed.given_up == (), "its process was killed, and its machine keeps what it wrote"
    assert story.segment(key).handed.source == 1
    for node in (1, 2, 3):
        story.report(key, node)
    assert story.segment(key).state is SegmentState.SEALED


def test_a_source_that_comes_back_with_less_is_not_waited_for() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    assert story.promise(key, 3, 9).handed.source == 3
    story.start(3)
    segment = story.promise(key, 3, 8)
    assert (segment.handed.source, segment.end_offset) == (3, 9), "the end stands: the next segment begins there"
    assert segment.handed.given_up == (GivenUp(8, 9, GapReason.UNCONFIRMED),)


def test_a_source_that_lost_its_power_says_what_it_kept() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    assert story.promise(key, 3, 9).handed.source == 3
    story.start(3, is_clean=False)
    assert story.segment(key).handed.source is None
    assert story.promise(key, 3, 9).handed.source == 3


def test_what_only_the_dead_source_has_a_person_can_give_up() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    assert story.promise(key, 3, 9).handed.source == 3
    story.die(3)
    segment = story.do(SealUnclean(key)).result
    assert (segment.handed.source, segment.end_offset) == (2, 9), "the end stands: the next segment begins there"
    assert segment.handed.given_up == (GivenUp(7, 9, GapReason.UNCLEAN),)


def test_who_was_in_doubt_before_the_end_was_known_proves_nothing_after_it_either() -> None:
    story, _, key = three_nodes(QUORUM)
    story.start(1, is_wiped=True)
    story.promise(key, 2, 0)
    assert story.promise(key, 3, 13).handed.source == 3
    story.start(3, is_clean=False)
    story.start(2)
    story.promise(key, 2, 0)
    with pytest.raises(Conflict, match="unknown"):
        story.promise(key, 1, 0)
    assert story.segment(key).handed.source is None, "two of three, but one of them lost what it had confirmed"
    assert story.promise(key, 3, 13).handed.source == 3


def test_who_has_reported_its_copy_is_a_source() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    story.promise(key, 3, 9)
    story.is_heard(1)  # waited for from now on, so that nothing is sealed yet
    story.report(key, 2)
    story.die(3)
    segment = story.segment(key)
    assert (segment.handed.source, segment.handed.given_up) == (2, ())


def test_a_segment_that_was_sealing_keeps_its_end_and_gets_a_source() -> None:
    story, topic, key = three_nodes()
    second = story.roll(key, 10)
    story.die(1)
    story.promise(key, 2, 10)
    assert story.segment(key).handed.source == 2, "it reached the end: nobody else need be asked"
    assert story.active(topic).key == second.key and is_recovering(story.segment(second.key))


def test_what_only_the_leader_of_a_sealing_segment_had_was_never_confirmed() -> None:
    story, _, key = three_nodes()
    story.roll(key, 10)
    story.die(1)
    story.promise(key, 2, 8)
    segment = story.promise(key, 3, 6)
    assert (segment.end_offset, segment.handed.source) == (10, 2)
    assert segment.handed.given_up == (GivenUp(8, 10, GapReason.UNCONFIRMED),)


def test_the_end_is_never_below_what_is_in_the_object_store_or_deleted() -> None:
    story, _, key = three_nodes()
    story.commit(story.lock(), key, 0, 5)
    story.do(AdvanceLogStart(key.shard_key, 6))
    for node in (1, 2, 3):
        story.start(node, is_clean=False)
        story.promise(key, node, 3)
    ended = story.segment(key)
    assert (ended.end_offset, ended.handed.source) == (6, 1)
    assert ended.handed.given_up == (GivenUp(5, 6, GapReason.RESTARTED),)


# A person's word, and the topic's -------------------------------------------------------------------------------
def test_a_person_gives_up_what_no_node_answers_for_and_the_range_is_exact() -> None:
    story, topic, key = three_nodes()
    story.do(ProposeIsr(key, (1,), 0))
    story.die(1)
    story.promise(key, 2, 5, high_watermark=7)
    with pytest.raises(Conflict, match="has a leader"):
        story.do(SealUnclean(story.roll_new("other").key))
    ended = story.do(SealUnclean(key)).result
    assert (ended.end_offset, ended.handed.source) == (5, 2), "what a follower outside the ISR has is the best there is"
    assert ended.handed.given_up == (GivenUp(5, 7, GapReason.UNCLEAN),)
    again = state_of(story.table)
    assert story.do(SealUnclean(key)).result == ended and state_of(story.table) == again
    assert story.active(topic).leader in (2, 3)


def test_when_no_replica_answers_the_log_continues_behind_what_is_in_the_object_store() -> None:
    story, topic, key = three_nodes()
    story.do(ProposeIsr(key, (1,), 0))
    story.commit(story.lock(), key, 0, 5)
    story.die(1)
    ended = story.do(SealUnclean(key)).result
    assert (ended.end_offset, ended.handed.source) == (5, None)
    assert ended.handed.given_up == (GivenUp(5, 5, GapReason.UNCLEAN),) and story.active(topic).base_offset == 5
    story.is_heard(1)
    assert story.promise(key, 1, 9).handed.source == 1, "who comes back with more has all below the end"


def test_when_every_disk_is_gone_a_person_has_a_living_replica_make_it_up() -> None:
    story, _, key = three_nodes()
    story.roll(key, 10)
    for node in (1, 2, 3):
        story.start(node, is_wiped=True)
    assert waits_for(story, key) == (1, 2, 3)
    ended = story.do(SealUnclean(key)).result
    assert (ended.handed.source, ended.handed.given_up) == (1, (GivenUp(0, 10, GapReason.UNCLEAN),))
    for node in (1, 2, 3):
        story.report(key, node)
    assert story.segment(key).state is SegmentState.SEALED


def test_an_unclean_seal_takes_the_best_answered_end() -> None:
    story, _, key = three_nodes()
    for node in (1, 2):
        story.start(node, is_clean=False)
        story.promise(key, node, 5 + node, high_watermark=9)
    story.die(3)
    ended = story.do(SealUnclean(key)).result
    assert (ended.end_offset, ended.handed.source) == (7, 2)
    assert ended.handed.given_up == (GivenUp(7, 9, GapReason.UNCLEAN),)


def test_where_the_topic_allows_it_the_living_decide_as_soon_as_all_of_them_answered() -> None:
    story, _, key = three_nodes({"uncleanSeal": "allow"})
    story.start(2, is_clean=False)
    story.start(3, is_clean=False)
    story.die(1)
    assert is_recovering(story.segment(key)), "nobody has answered: there is nothing to seal at"
    story.promise(key, 2, 5)
    assert is_recovering(story.segment(key)), "one that lives can still say more"
    ended = story.promise(key, 3, 6, high_watermark=8)
    assert (ended.end_offset, ended.handed.given_up) == (6, (GivenUp(6, 8, GapReason.UNCLEAN),))


def test_without_a_source_nothing_that_was_sealing_is_given_up() -> None:
    story, _, key = three_nodes()
    story.roll(key, 10)
    story.die(1, 2, 3)
    with pytest.raises(Conflict, match=r"no living replica.*node 1, 2 or 3.*nodes retire ID --force"):
        story.do(SealUnclean(key))


def test_nothing_is_given_up_where_no_node_is_waited_for() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    story.promise(key, 3, 7)
    with pytest.raises(Conflict, match="nothing to give up"):
        story.do(SealUnclean(key))


# Promises -------------------------------------------------------------------------------------------------------
def test_a_promise_is_repeated_without_harm_and_never_changed() -> None:
    story, _, key = three_nodes()
    story.die(1)
    story.promise(key, 2, 7)
    before = state_of(story.table)
    story.promise(key, 2, 7)
    assert state_of(story.table) == before
    with pytest.raises(Conflict, match="took data after its promise"):
        story.promise(key, 2, 8)
    story.promise(key, 3, 7)
    story.promise(key, 3, 7)


def test_a_promise_is_a_replicas_and_under_the_segments_fence() -> None:
    story = TableStory(nodes=4)
    key = story.active(story.topic(replicas=3)).key
    with pytest.raises(Fenced):
        story.promise(key, 2, 7)
    story.die(1)
    with pytest.raises(Fenced):
        story.do(replace(promise(story, key, 2, 7), fence=2))
    with pytest.raises(Conflict, match="not a replica"):
        story.promise(key, 4, 7)
    with pytest.raises(InvalidRequest):
        story.do(replace(promise(story, key, 2, 7), caller=None))
    for end_offset in (-1, MAX_OFFSET + 1):
        with pytest.raises(InvalidRequest):
            story.promise(key, 2, end_offset)


def test_a_promise_that_comes_after_the_seal_or_the_deletion_says_nothing() -> None:
    story, _, key = three_nodes()
    story.die(1)
    for node in (2, 3):
        story.promise(key, node, 7)
    for node in (2, 3):
        story.report(key, node)
    story.is_heard(1)
    before = state_of(story.table)
    assert story.promise(key, 1, 9).state is SegmentState.SEALED
    assert state_of(story.table) == before
    story.do(AdvanceLogStart(key.shard_key, 7))
    assert story.promise(key, 1, 9).state is SegmentState.DELETED


def test_a_new_topic_waits_for_its_nodes_while_a_next_segment_does_not() -> None:
    story, _, _ = three_nodes()
    story.die(3)
    with pytest.raises(InvalidRequest, match="living nodes"):
        story.do(CreateTopic("more", 1, 3))


def the_only_member_saw_batches_behind_damage(
    *, is_clean: bool = True, settings: dict[str, str] | None = None
) -> tuple[TableStory, SegmentKey]:
    """The other replicas left the ISR, and are not alive."""
    story, _, key = three_nodes(settings)
    story.do(ProposeIsr(key, (1,), 0))
    story.die(2, 3)
    story.start(1, is_clean=is_clean)
    story.do(replace(promise(story, key, 1, 10, is_whole=False), seen_offset=20))
    return story, key


def test_what_is_known_to_lie_behind_damage_is_asked_of_replicas_that_are_away_before_it_is_given_up() -> None:
    story, key = the_only_member_saw_batches_behind_damage()
    assert waits_for(story, key) == (2, 3)
    story.is_heard(2)
    assert story.promise(key, 2, 15).state is SegmentState.ACTIVE, "node 3 may have more"
    story.is_heard(3)
    assert story.promise(key, 3, 12).end_offset == 15


def test_a_replica_that_has_all_that_was_seen_behind_damage_makes_the_others_needless() -> None:
    story, key = the_only_member_saw_batches_behind_damage()
    story.is_heard(2)
    assert story.promise(key, 2, 20).end_offset == 20


@pytest.mark.fault("copy-member-isr-damaged")
def test_what_a_power_cut_left_behind_is_not_damage_that_is_known() -> None:
    story, key = the_only_member_saw_batches_behind_damage(is_clean=False)
    assert story.segment(key).end_offset == 10


@pytest.mark.fault("copy-member-isr-damaged")
def test_a_person_or_the_topic_gives_up_what_lies_behind_damage() -> None:
    story, key = the_only_member_saw_batches_behind_damage()
    assert story.do(SealUnclean(key)).result.handed.given_up == (GivenUp(10, 20, GapReason.UNCLEAN),)
    story, key = the_only_member_saw_batches_behind_damage(settings={"uncleanSeal": "allow"})
    assert story.segment(key).handed.given_up == (GivenUp(10, 20, GapReason.UNCLEAN),)
