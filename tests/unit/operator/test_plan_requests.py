"""Requests that people make once, by a time: a topic is sealed, new writes are spread over the nodes."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.model.ids import SegmentKey
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.news import news
from stratalog_operator.plan.observed import Seen, SeenRebalance
from stratalog_operator.plan.requests import MOST_ROUNDS, Request, judge
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.requests import RebalanceStatus, SealStatus
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from support.operator_world import World, world

MADE = "2013-01-01T00:00:10Z"
FIRST, SECOND, EARLIER, LATER = (f"2013-01-01T00:{minute:02}:00Z" for minute in (1, 2, 0, 59))
SHARDS = tuple(SegmentKey(UUID(int=1), shard, 0, 0) for shard in range(3))


def _world() -> World:
    """At ten minutes, with a topic that is there."""
    made = world(3)
    made.seconds = 10
    made.cluster = replace(made.cluster, created=MADE)
    spec = TopicStorageSpec.model_validate({"clusterRef": "main", "topicName": "orders", "shards": 2})
    made.topics["orders"] = Seen("orders", "uid-of-orders", spec, TopicStorageStatus(), created=MADE)
    made.settle()
    made.seconds = 600
    made.settle()
    made.done.clear()
    return made


def _request_seal(one: World, at: str | None) -> None:
    topic = one.topics["orders"]
    spec = topic.spec.model_copy(update={"seal_requested_at": at})
    one.topics["orders"] = replace(topic, spec=spec, generation=topic.generation + 1)


def _request_rebalance(one: World, at: str | None) -> None:
    given = one.cluster.spec.model_dump(by_alias=True, exclude_none=True)
    given["rebalance"] = None if at is None else {"requestedAt": at}
    one.cluster = replace(
        one.cluster, spec=StorageClusterSpec.model_validate(given), generation=one.cluster.generation + 1
    )


def _seals(one: World) -> list[int]:
    return [action.asked_ms for action in one.done if isinstance(action, act.AskSeal)]


def _rounds(one: World) -> list[tuple[SegmentKey, ...]]:
    return [action.segments for action in one.done if isinstance(action, act.AskRolls)]


def _seal(one: World) -> SealStatus:
    status = one.topics["orders"].status.seal
    assert status is not None
    return status


def _rebalance(one: World) -> RebalanceStatus:
    status: RebalanceStatus | None = one.cluster.status.rebalance
    assert status is not None
    return status


# Judging --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wanted", "known", "is_over", "expected"),
    [
        (None, None, False, (Request.NOTHING, "")),
        (FIRST, None, False, (Request.NEW, FIRST)),
        ("2013-01-01T01:01:00+01:00", FIRST, True, (Request.NOTHING, "")),
        ("2013-01-01t00:01:00.000000001z", FIRST, True, (Request.NOTHING, "")),
        (FIRST, FIRST, False, (Request.UNDER_WAY, FIRST)),
        (FIRST, FIRST, True, (Request.NOTHING, "")),
        (FIRST, SECOND, True, (Request.NOTHING, "")),
        (FIRST, SECOND, False, (Request.UNDER_WAY, SECOND)),
        (None, SECOND, False, (Request.UNDER_WAY, SECOND)),
        (SECOND, FIRST, False, (Request.NEW, SECOND)),
        (LATER, FIRST, False, (Request.UNDER_WAY, FIRST)),
        (LATER, FIRST, True, (Request.NOTHING, "")),
        (EARLIER, None, False, (Request.TOO_OLD, EARLIER)),
    ],
)
def test_a_request_counts_once_and_only_in_its_time(
    wanted: str | None, known: str | None, is_over: bool, expected: tuple[Request, str]
) -> None:
    assert judge(wanted, MADE, "2013-01-01T00:10:00Z", known=known, is_over=is_over) == expected


# Seals ----------------------------------------------------------------------------------------------------------------
def test_a_topic_is_sealed_once_and_its_status_says_when_that_was_done() -> None:
    one = _world()
    _request_seal(one, FIRST)
    one.reconcile()
    assert _seals(one) == [1_356_998_460_000] and _seal(one).done_at is None
    one.reconcile()
    assert (_seal(one).pending_shards, _seal(one).done_at) == (2, None)
    one.rolls()
    before = one.observe()
    one.reconcile()
    assert _seal(one) == SealStatus(requested_at=FIRST, done_at=before.now)
    written = {("TopicStorage", "orders"): one.topics["orders"].status}
    assert [line.words for line in news(before, written) if line.reason == "Sealed"] == [f"the request of {FIRST}"]
    for at in (FIRST, EARLIER, None, FIRST):
        _request_seal(one, at)
        one.settle()
    assert len(_seals(one)) == 1 and one.is_quiet()
    _request_seal(one, SECOND)
    one.reconcile()
    assert len(_seals(one)) == 2


def test_an_object_that_was_made_again_from_a_backup_does_not_repeat_its_request() -> None:
    one = _world()
    topic = one.topics["orders"]
    one.topics["orders"] = replace(topic, status=topic.status.model_copy(update={"seal": None}), created=SECOND)
    _request_seal(one, FIRST)
    one.settle()
    assert _seals(one) == [] and _seal(one) == SealStatus(requested_at=FIRST, ignored=True)
    assert one.is_quiet()


def test_the_metadata_know_a_request_whose_status_was_lost() -> None:
    """The operator was killed after it asked, before it wrote the status: it asks no second time."""
    one = _world()
    _request_seal(one, FIRST)
    one.reconcile(killed_after=1)
    assert len(_seals(one)) == 1 and one.topics["orders"].status.seal is None
    one.rolls()
    one.settle()
    assert len(_seals(one)) == 1 and _seal(one).done_at is not None


def test_a_request_of_the_future_waits_and_one_of_a_paused_cluster_too() -> None:
    one = _world()
    _request_seal(one, LATER)
    one.settle()
    assert _seals(one) == [] and one.topics["orders"].status.seal is None
    _request_seal(one, FIRST)
    one.cluster = replace(one.cluster, annotations={"stratalog.dev/paused": "true"})
    one.settle()
    assert _seals(one) == []
    one.cluster = replace(one.cluster, annotations={})
    one.reconcile()
    assert len(_seals(one)) == 1


# Rebalances -----------------------------------------------------------------------------------------------------------
def test_new_writes_are_spread_in_rounds_until_they_are_even() -> None:
    one = _world()
    one.rebalance = SeenRebalance(SHARDS, is_even=False, pending_shards=0)
    _request_rebalance(one, FIRST)
    one.reconcile()
    one.reconcile()
    assert _rounds(one) == [SHARDS], "a round ends before the next one begins"
    assert (_rebalance(one).rounds, _rebalance(one).pending_shards) == (1, 3)
    one.rebalance = SeenRebalance(SHARDS[:1], is_even=False, pending_shards=0)
    one.reconcile()
    one.rebalance = SeenRebalance((), is_even=True, pending_shards=0)
    one.settle()
    assert _rounds(one) == [SHARDS, SHARDS[:1]]
    done = _rebalance(one)
    before = replace(one.observe(), cluster=replace(one.cluster, status=StorageClusterStatus()))
    (line,) = [
        line for line in news(before, {("StorageCluster", "main"): one.cluster.status}) if line.words[:3] == "the"
    ]
    assert (line.reason, line.words) == (
        "Rebalanced",
        f"the request of {FIRST}: 4 shards continue elsewhere, in 2 rounds",
    )
    assert (done.rounds, done.moved_shards, done.even, done.message) == (2, 4, True, "") and done.done_at
    one.rebalance = SeenRebalance(SHARDS, is_even=False, pending_shards=0)
    for at in (FIRST, EARLIER, None):
        _request_rebalance(one, at)
        one.settle()
    assert len(_rounds(one)) == 2 and one.is_quiet()


def test_nothing_moves_while_a_node_is_away() -> None:
    one = _world()
    one.rebalance = SeenRebalance(SHARDS, is_even=False, pending_shards=0)
    one.members[2] = replace(one.members[2], is_alive=False)
    _request_rebalance(one, FIRST)
    one.reconcile()
    assert _rounds(one) == [] and "node 2 is not alive" in _rebalance(one).message
    one.members[2] = replace(one.members[2], is_alive=True)
    one.reconcile()
    assert _rounds(one) == [SHARDS] and _rebalance(one).message == ""


def test_a_rebalance_that_does_not_become_even_ends_and_says_so() -> None:
    one = _world()
    one.rebalance = SeenRebalance(SHARDS, is_even=False, pending_shards=0)
    _request_rebalance(one, FIRST)
    for _ in range(MOST_ROUNDS + 1):
        one.reconcile()
        one.rolls()
    done = _rebalance(one)
    assert len(_rounds(one)) == MOST_ROUNDS and done.done_at and not done.even
    assert "3 shards would still have to move" in done.message


def test_shards_are_read_only_while_a_rebalance_is_due() -> None:
    one = _world()
    assert one.observe().rebalance is None
    _request_rebalance(one, EARLIER)
    one.settle()
    assert one.observe().rebalance is None and _rebalance(one).ignored
    _request_rebalance(one, FIRST)
    assert one.observe().rebalance is not None


def test_an_operator_that_is_killed_at_any_write_asks_for_no_seal_twice() -> None:
    for killed_after in range(4):
        one = _world()
        one.rebalance = SeenRebalance(SHARDS, is_even=False, pending_shards=0)
        _request_seal(one, FIRST)
        _request_rebalance(one, FIRST)
        one.reconcile(killed_after=killed_after)
        one.rebalance = SeenRebalance((), is_even=True, pending_shards=0) if _rounds(one) else one.rebalance
        one.reconcile()
        one.rolls()
        one.rebalance = SeenRebalance((), is_even=True, pending_shards=0)
        one.settle()
        assert len(_seals(one)) == 1 and _seal(one).done_at, killed_after
        assert len(_rounds(one)) == 1 and _rebalance(one).even, killed_after
