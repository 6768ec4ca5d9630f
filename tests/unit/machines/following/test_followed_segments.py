"""Which segments a node follows, what their followers hear, and which copies a node drops."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from stratalog.machines.following.followed_segments import must_copy_again, news_of, should_drop, should_follow
from stratalog.machines.following.follower_events import FollowerLife, SegmentGone, SegmentNamed
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteCopy, RemoteState, Segment, SegmentState
from support.replicated_segment import replicated_segment

KEY = SegmentKey(uuid.UUID(int=1), 0, 3, 100)
LEADER, NODE, OTHER = 1, 2, 3
REPLICAS = (LEADER, NODE, OTHER)
ACTIVE = replicated_segment(KEY, LEADER, REPLICAS, REPLICAS)
ENDED = replicated_segment(KEY, LEADER, REPLICAS, REPLICAS, end_offset=200)
SEALED = replicated_segment(KEY, None, REPLICAS, REPLICAS, end_offset=200, holders=(LEADER, OTHER))
AT_ITS_END = (FollowerLife.PROVING, FollowerLife.PROVEN, FollowerLife.SEALED)
BELOW_ITS_END = (FollowerLife.FOLLOWING, FollowerLife.PROMISED, FollowerLife.COPYING, FollowerLife.FAULTY)


def deleted(segment: Segment) -> Segment:
    return replace(segment, state=SegmentState.DELETED, deleted_ms=5)


def stored(segment: Segment) -> Segment:
    return replace(segment, remote=RemoteCopy(RemoteState.COMPLETE))


def named(segment: Segment, *, has_store: bool = True, away: tuple[int, ...] = ()) -> SegmentNamed:
    return SegmentNamed.of(segment, lambda node_id: node_id not in away, has_store=has_store)


def follows(segment: Segment, node_id: int = NODE, *, may_read_bucket: bool = True) -> bool:
    return should_follow(segment, node_id, may_read_bucket=may_read_bucket)


def drops(segment: Segment, life: FollowerLife, node_id: int = NODE, *, may_read_bucket: bool = True) -> bool:
    return should_drop(segment, node_id, life, may_read_bucket=may_read_bucket)


# What a follower hears ------------------------------------------------------------------------------------------------
def test_an_active_segment_has_no_end_and_no_holders() -> None:
    assert named(ACTIVE) == SegmentNamed(LEADER, REPLICAS, REPLICAS)


def test_an_ended_segment_has_its_end() -> None:
    assert named(ENDED) == SegmentNamed(LEADER, REPLICAS, REPLICAS, end_offset=200)


def test_a_sealed_segment_names_its_holders_and_those_that_are_not_alive() -> None:
    heard = named(SEALED, away=(NODE, OTHER))
    assert heard.is_sealed and heard.proven == (LEADER, OTHER)
    assert heard.away == (OTHER,), "only nodes that hold a copy could be asked"


def test_a_deleted_segment_keeps_its_end_its_seal_and_its_holders() -> None:
    """It does not become open again: a copy above the end would fetch from a leader that no longer has the segment."""
    assert named(deleted(SEALED)) == named(SEALED)
    assert named(deleted(ENDED)) == named(ENDED)


def test_holders_without_a_seal_prove_nothing() -> None:
    assert named(replace(ENDED, local_nodes=(OTHER,))).proven == ()


def test_the_object_store_counts_where_this_node_reads_it() -> None:
    assert named(stored(SEALED)).is_stored and not named(stored(SEALED), has_store=False).is_stored
    assert not named(SEALED).is_stored, "it is not whole there"


# What a node follows --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("segment", [ACTIVE, ENDED, SEALED], ids=lambda segment: segment.state.value)
def test_only_a_replica_follows(segment: Segment) -> None:
    assert follows(segment) and not follows(segment, 4)


def test_a_leader_follows_its_segment_once_others_seal_it() -> None:
    assert not follows(ACTIVE, LEADER) and follows(ENDED, LEADER)
    alone = replace(ENDED, replicas=(LEADER,), isr=(LEADER,))
    assert not follows(alone, LEADER), "no other node has anything of it: the leader seals it"


def test_a_sealed_segment_is_followed_by_the_replica_that_has_not_proven_it() -> None:
    assert follows(SEALED) and not follows(SEALED, OTHER)


def test_a_segment_in_the_object_store_is_followed_where_consumers_may_not_read_there() -> None:
    assert not follows(stored(SEALED)) and follows(stored(SEALED), may_read_bucket=False)


def test_a_segment_that_was_deleted_before_its_seal_is_not_followed() -> None:
    assert not follows(deleted(ENDED)) and not follows(deleted(ACTIVE))


# What a node drops ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("life", [*AT_ITS_END, *BELOW_ITS_END])
@pytest.mark.parametrize("segment", [ACTIVE, ENDED, SEALED], ids=lambda segment: segment.state.value)
def test_a_copy_of_a_deleted_segment_is_dropped_in_each_life(segment: Segment, life: FollowerLife) -> None:
    assert drops(deleted(segment), life)
    heard = news_of(deleted(segment), NODE, life, lambda _: True, has_store=True, may_read_bucket=True)
    assert heard == SegmentGone()


@pytest.mark.parametrize("life", [*AT_ITS_END, *BELOW_ITS_END])
def test_a_copy_that_is_needed_stays(life: FollowerLife) -> None:
    for segment in (ACTIVE, ENDED, SEALED):
        assert not drops(segment, life)
        heard = news_of(segment, NODE, life, lambda _: True, has_store=False, may_read_bucket=True)
        assert heard == named(segment, has_store=False)


def test_a_copy_that_the_object_store_replaces_is_dropped_unless_consumers_may_not_read_there() -> None:
    for life in (*AT_ITS_END, *BELOW_ITS_END):
        assert drops(stored(SEALED), life) and not drops(stored(SEALED), life, OTHER)
        assert not drops(stored(SEALED), life, may_read_bucket=False)


def test_an_unlisted_node_drops_what_is_not_at_its_end_and_keeps_what_it_may_have_reported() -> None:
    for life in AT_ITS_END:
        assert not drops(SEALED, life, 4), "the report that adds it may be on its way"
    for life in BELOW_ITS_END:
        assert drops(SEALED, life, 4)


def test_a_faulty_copy_is_made_again_once_others_have_the_sealed_segment() -> None:
    assert must_copy_again(SEALED, NODE)
    assert not must_copy_again(SEALED, OTHER), "the metadata count on it"
    assert not must_copy_again(ENDED, NODE), "it is not known which copies are right"
