"""What becomes an Event, what is told of errors, and what of objects without a cluster."""

from __future__ import annotations

from typing import Any

from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog_operator.plan.actions import DropFinalizer, MakeToken, UnguardClaim
from stratalog_operator.plan.failures import Failure, told_with
from stratalog_operator.plan.news import News, news
from stratalog_operator.plan.observed import Observed, Seen, SeenClaim
from stratalog_operator.plan.orphans import orphans
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from support.operator_world import World, world


def _settled() -> tuple[World, Observed]:
    one = world()
    one.settle()
    return one, one.observe()


def _told(seen: Observed) -> list[tuple[bool, str, str]]:
    return [(one.is_warning, one.name, one.reason) for one in news(seen, plan(seen).statuses)]


def test_a_pass_over_what_is_as_it_should_be_tells_nothing() -> None:
    _, seen = _settled()

    assert _told(seen) == []


def test_a_cluster_that_is_looked_at_for_the_first_time_makes_no_noise() -> None:
    seen = world().observe()

    assert plan(seen).statuses
    assert [one for one in _told(seen) if not one[0]] == []


def test_steps_of_a_retirement_are_told_once_each() -> None:
    one, _ = _settled()
    one.scale(2)
    heard: list[Any] = []
    for _ in range(60):
        seen = one.observe()
        heard += [line for line in news(seen, plan(seen).statuses) if line.reason.startswith("Retire")]
        one.turn()
    steps = [line.reason for line in heard]

    assert {"RetireWished", "RetireSeal", "RetirePodStop", "RetireVolume"} <= set(steps)
    assert len(steps) == len(set(steps))
    assert not [line for line in heard if line.is_warning]


def test_a_refusal_that_stays_is_told_and_one_that_passes_is_not() -> None:
    _, seen = _settled()
    action = MakeToken("main-token")
    passing = [Failure(action, Unavailable("nobody answers")), Failure(action, Conflict("somebody was faster"))]
    lasting = told_with(seen, {}, [*passing, Failure(action, InvalidRequest("no such class"))])
    (status,) = lasting.values()
    (reconciled,) = [one for one in status.conditions if one.type == "Reconciled"]  # type: ignore[attr-defined]

    assert told_with(seen, {}, passing) == {}
    assert (reconciled.status, reconciled.reason, reconciled.message) == ("False", "Error", "no such class")
    assert news(seen, lasting) == [
        News("StorageCluster", "main", seen.cluster.uid, True, "Error", "Reconciled is False: no such class")
    ]


def test_a_refusal_that_was_told_is_not_written_again() -> None:
    _, seen = _settled()
    failed = [Failure(MakeToken("main-token"), InvalidRequest("no such class"))]
    (status,) = told_with(seen, {}, failed).values()
    later = Observed(seen.namespace, seen.now, Seen("main", seen.cluster.uid, seen.cluster.spec, status))  # type: ignore[arg-type]

    assert told_with(later, {}, failed) == {}


def _pool(**more: Any) -> Seen[Any, Any]:
    spec = StorageNodePoolSpec.model_validate({"clusterRef": "gone", "storage": {"size": "1Gi"}})
    return Seen("hot", "uid-of-hot", spec, StorageNodePoolStatus(), **more)


def test_an_object_whose_cluster_is_gone_is_let_go_and_a_living_one_says_what_it_waits_for() -> None:
    leaving = _pool(finalizers=frozenset({FINALIZER}), is_deleting=True)
    claims = [
        SeenClaim("data-a", "1", "hot", 1, is_guarded=True, is_leaving=True),
        SeenClaim("data-b", "2", "hot", 2, is_guarded=True),
    ]
    gone = orphans("gone", [("StorageNodePool", leaving)], claims, "2013-01-01T00:00:00Z")
    living = orphans("gone", [("StorageNodePool", _pool())], [], "2013-01-01T00:00:00Z")
    (status,) = living.statuses.values()

    assert [type(action) for action in gone.actions] == [DropFinalizer, UnguardClaim]
    assert gone.actions[1].name == "data-a"
    assert gone.statuses == {}
    assert {one.reason for one in status.conditions} == {"NoCluster", "Waiting"}  # type: ignore[attr-defined]
