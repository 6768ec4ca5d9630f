"""What becomes an Event, and how errors and objects without a cluster are reported."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog_operator.announce import event_name
from stratalog_operator.plan.actions import Apply, DropFinalizer, GuardClaim, MakeToken, StopPod, UnguardClaim
from stratalog_operator.plan.failures import Failure, is_needed_by, told_with
from stratalog_operator.plan.news import News, news
from stratalog_operator.plan.observed import Observed, Seen, SeenClaim
from stratalog_operator.plan.orphans import orphans
from stratalog_operator.plan.scope import cluster_of, identity_of
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from stratalog_operator.specs.node import node_claim, node_set
from stratalog_operator.specs.settings_file import config_map
from support.operator_world import World, world


def _settled() -> tuple[World, Observed]:
    one = world()
    one.settle()
    return one, one.observe()


def _told(seen: Observed) -> list[tuple[bool, str, str]]:
    return [(one.is_warning, one.name, one.reason) for one in news(seen, plan(seen).statuses)]


@pytest.mark.parametrize("name", ["a", "a" * 253, "a" * 235 + "-" + "b" * 17, "a." * 126 + "a"])
def test_an_event_about_an_object_with_the_longest_name_has_a_name_that_kubernetes_takes(name: str) -> None:
    of = event_name(News("StorageUser", name, "uid", False, "Ready", "words"))
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"

    assert len(of) <= 253 and re.fullmatch(rf"{label}(\.{label})*", of) and of.startswith(name[:200])
    assert of != event_name(News("StorageUser", name, "uid", False, "Ready", "other words"))


def test_a_pass_over_what_is_as_it_should_be_tells_nothing() -> None:
    _, seen = _settled()

    assert _told(seen) == []


def test_a_cluster_that_is_looked_at_for_the_first_time_makes_no_noise() -> None:
    seen = world().observe()

    assert plan(seen).statuses
    assert [one for one in _told(seen) if not one[0]] == []


def test_steps_of_a_retirement_are_reported_once_each() -> None:
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


def _conditions(status: Any) -> dict[str, tuple[str, str, str]]:
    return {one.type: (one.status, one.reason, one.message) for one in status.conditions}


def test_a_refusal_that_stays_needs_a_person_and_one_that_passes_is_waited_for() -> None:
    _, seen = _settled()
    action = MakeToken("main-token")
    passing = [Failure(action, Unavailable("nobody answers")), Failure(action, Conflict("somebody was faster"))]
    lasting = told_with(seen, {}, [*passing, Failure(action, InvalidRequest("no such class"))])
    (stays,) = map(_conditions, lasting.values())
    (passes,) = map(_conditions, told_with(seen, {}, passing).values())

    assert passes["Reconciled"] == ("False", "Waiting", "nobody answers; it is tried again")
    assert passes["Stalled"][0] == "False"
    assert stays["Reconciled"] == ("False", "Error", "no such class")
    assert stays["Stalled"][:2] == ("True", "Refused") and "everything else continues" in stays["Stalled"][2]
    assert News(
        "StorageCluster", "main", seen.cluster.uid, True, "Error", "Reconciled is False: no such class"
    ) in news(seen, lasting)


def test_what_may_pass_and_applies_nothing_of_the_spec_is_not_told() -> None:
    _, seen = _settled()

    assert told_with(seen, {}, [Failure(GuardClaim("data-main-hot-1", "uid"), Unavailable("nobody answers"))]) == {}


def test_a_refusal_is_reported_by_the_object_that_it_is_about_and_those_above_it() -> None:
    _, seen = _settled()
    node = next(iter(seen.nodes))
    cluster = cluster_of(seen)
    claim = Apply(node_claim(cluster, seen.pools[0].spec, identity_of(node)), "a test")
    told = told_with(seen, {}, [Failure(claim, InvalidRequest("class fast cannot expand"))])

    assert set(told) == {("StorageNode", node.name), ("StorageNodePool", "hot"), ("StorageCluster", "main")}
    for status in told.values():
        assert _conditions(status)["Stalled"][:2] == ("True", "Refused")
        assert "class fast cannot expand" in _conditions(status)["Stalled"][2]


def test_a_pod_is_not_stopped_that_would_come_back_as_it_was() -> None:
    _, seen = _settled()
    node = next(iter(seen.nodes))
    cluster = cluster_of(seen)
    of_node = Apply(node_set(cluster, seen.pools[0].spec, identity_of(node)), "a test")
    claim = Apply(node_claim(cluster, seen.pools[0].spec, identity_of(node)), "a test")
    stop = StopPod(f"{node.name}-0", "uid", "a test")

    assert is_needed_by(stop, of_node) and is_needed_by(stop, Apply(config_map(cluster), "a test"))
    assert not is_needed_by(stop, claim) and not is_needed_by(StopPod("main-hot-99-0", "uid", "a test"), of_node)


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
