"""Objects that only the definition of another version accepts: what rests on them stays, and all else continues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import pytest
from pydantic import model_validator

from stratalog_operator.announce import Announcer
from stratalog_operator.kube.client import path_of
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.observe import parse
from stratalog_operator.passes import Passes
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed, Unread
from stratalog_operator.plan.orphans import orphans
from stratalog_operator.plan.unreadable_cluster import plan_unreadable
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.resources.conditions import Condition
from stratalog_operator.resources.kinds import KINDS
from stratalog_operator.resources.names import (
    ANNOTATION_VOLUME_POLICY,
    FINALIZER,
    FINALIZER_LAST_COPY,
    LABEL_CLUSTER,
    LABEL_NODE_ID,
    LABEL_PART,
    LABEL_POOL,
)
from stratalog_operator.stats import OperatorStats
from support.api_server import MERGE, NO_API_SERVER, ApiServer, apiserver_binary
from support.kind_samples import sample
from support.kubernetes_client import kubernetes_of
from support.operator_world import World, kinds_of, settled

RELEASE = "stratalog.dev/release-finalizer"
REMOVES = {"UnguardClaim", "ReleaseClaim", "DeleteClaim", "StopSet", "DeleteObject", "DropFinalizer"}
BY_NAME = {kind.name: kind for kind in KINDS}
KINDS_OF_NODES = ["StorageNodePool", "StorageNode", "ReadOnlyMount"]


def _unread(kind: str, name: str = "strange", **more: Any) -> Unread:
    return Unread(kind, name, f"uid-of-{name}", "spec.mode: Input should be 'Offload'", **more)


def _status(seen: Observed) -> dict[str, Any]:
    status = plan(seen).statuses["StorageCluster", "main"]
    return {found.type: found for found in status.conditions}  # type: ignore[attr-defined]  # of a StorageCluster


@pytest.mark.parametrize(
    ("kind", "change", "place"),
    [
        ("StorageCluster", {"spec.scaleIn.mode": "Archive"}, "spec.scaleIn.mode"),
        ("StorageNodePool", {"spec.replicas": -1}, "spec.replicas"),
        ("StorageNode", {"status.retirement": {"step": "Archive"}}, "status.retirement.step"),
        ("TopicStorage", {"spec.deletionPolicy": "Archive"}, "spec.deletionPolicy"),
        ("ReadOnlyMount", {"spec.source.retiredNode": {"nodeId": "four"}}, "spec.source.retiredNode.nodeId"),
    ],
)
def test_an_object_that_cannot_be_read_is_refused_by_its_field(kind: str, change: dict[str, Any], place: str) -> None:
    of_kind, found = BY_NAME[kind], sample(BY_NAME[kind], change)
    found["metadata"].update(uid="u", deletionTimestamp="2013-01-01T00:00:00Z", finalizers=[FINALIZER])
    with pytest.raises(parse.Unreadable) as refused:
        parse.seen(kind, found, of_kind.spec, of_kind.status)
    about = refused.value.about

    assert about.why.startswith(f"{place}: ") and about.why in str(refused.value)
    assert (about.kind, about.name, about.is_deleting) == (kind, found["metadata"]["name"], True)
    assert about.finalizers == {FINALIZER} and not about.is_let_go


@pytest.mark.fault("kubernetes-object-other-version")
def test_a_topic_that_cannot_be_read_stops_nothing_but_its_topic() -> None:
    one = settled(3)
    one.scale(4)
    seen = replace(one.observe(), unread=(_unread("TopicStorage", topic_name="orders"),))
    told = _status(seen)["Reconciled"]

    assert ("StorageNode", "main-hot-4") in {made.key for made in plan(seen).actions if isinstance(made, act.Apply)}
    assert (told.status, told.reason) == ("False", "InvalidSpec")
    assert "TopicStorage strange cannot be read by this version of the operator: spec.mode" in told.message


@pytest.mark.fault("kubernetes-object-other-version")
@pytest.mark.parametrize("kind", KINDS_OF_NODES)
def test_nodes_and_volumes_stay_as_they_are_while_what_they_rest_on_cannot_be_read(kind: str) -> None:
    """A mount may need a volume, a node is counted, and a pool wants some: it is unknown."""
    one = settled(4)
    one.scale(3)
    while 4 not in one.records or not one.records[4].step.is_released:
        one.reconcile()
        one.retirements()
    seen = replace(one.observe(), unread=(_unread(kind),))
    made = plan(seen)

    assert made.actions == ()
    assert {key[0] for key in made.statuses} == {"StorageCluster"}, "what the others would say may be wrong"
    assert (_status(seen)["Ready"].status, _status(seen)["Ready"].reason) == ("Unknown", "ObjectUnreadable")
    assert made.statuses["StorageCluster", "main"].retired_nodes == ()  # type: ignore[attr-defined]


def _volume_left_by_its_mount() -> tuple[World, str]:
    """Node 4 has left in place, its mount has ended, and the ReadOnlyMount of it was deleted: its claim is next."""
    one = settled(4, spec={"scaleIn": {"mode": "RemountVolume"}, "storageRetention": {"whenScaled": "Delete"}})
    one.scale(3)
    one.settle()
    one.delete_mount("main-hot-4")
    one.needed.clear()
    one.meta_mounts.clear()
    return one, "data-main-hot-4"


@pytest.mark.fault("kubernetes-object-other-version")
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_deleted_mount_releases_no_claim_that_an_unreadable_mount_may_need(is_paused: bool) -> None:
    one, name = _volume_left_by_its_mount()
    if is_paused:
        one.annotate_cluster(paused="true")
    seen = one.observe()
    can_be_read = [action for action in plan(seen).actions if kinds_of([action])[0] in REMOVES]
    blind = plan(replace(seen, unread=(_unread("ReadOnlyMount"),)))

    assert [action.name for action in can_be_read if isinstance(action, act.UnguardClaim)] == [name]
    assert not REMOVES & set(kinds_of(blind.actions))


@pytest.mark.fault("kubernetes-object-other-version")
@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("kind", KINDS_OF_NODES)
def test_what_a_person_releases_goes_at_once_while_another_object_cannot_be_read(kind: str, is_paused: bool) -> None:
    one, name = _volume_left_by_its_mount()
    one.pools["hot"] = replace(one.pools["hot"], is_deleting=True, annotations={RELEASE: "true"})
    one.mounts["main-hot-4"] = replace(one.mounts["main-hot-4"], annotations={RELEASE: "true"})
    claim = one.claims[name]
    one.claims[name] = replace(claim, is_leaving=True, release_word=claim.storage_id)
    one.claims["data-main-hot-1"] = replace(one.claims["data-main-hot-1"], release_word="from before")
    if is_paused:
        one.annotate_cluster(paused="true")
    made = plan(replace(one.observe(), unread=(_unread(kind),)))
    dropped = {(one.kind, one.name) for one in made.actions if isinstance(one, act.DropFinalizer)}
    unguarded = [(one.name, one.keeps_volume) for one in made.actions if isinstance(one, act.UnguardClaim)]
    ignored = [one.name for one in made.actions if isinstance(one, act.DropDecision)]

    assert dropped == {("StorageNodePool", "hot"), ("ReadOnlyMount", "main-hot-4")}
    assert unguarded == [(name, True)] and ignored == ["data-main-hot-1"]
    assert len(made.actions) == 4


def test_everything_continues_once_the_object_can_be_read_again() -> None:
    one = settled(3)
    one.scale(4)
    assert plan(replace(one.observe(), unread=(_unread("StorageNode"),))).actions == ()
    one.settle()

    assert one.node_ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [*KINDS_OF_NODES, "TopicStorage"])
def test_a_person_releases_an_object_that_cannot_be_read(kind: str) -> None:
    one = settled(3)
    strange = _unread(kind, is_deleting=True, finalizers=frozenset({FINALIZER}))
    waits = plan(replace(one.observe(), unread=(strange,)))
    let_go = replace(strange, annotations={RELEASE: "true"})
    made = plan(replace(one.observe(), unread=(let_go,)))

    assert not REMOVES & set(kinds_of(waits.actions))
    assert [action for action in made.actions if kinds_of([action])[0] in REMOVES] == [
        act.DropFinalizer(kind, "strange", "a person said so")
    ]


@pytest.mark.parametrize("is_paused", [False, True])
def test_an_object_that_cannot_be_read_goes_with_its_cluster(is_paused: bool) -> None:
    one = settled(3)
    annotations = {"stratalog.dev/paused": "true"} if is_paused else {}
    one.cluster = replace(one.cluster, is_deleting=True, annotations=annotations)
    strange = _unread("StorageNodePool", finalizers=frozenset({FINALIZER}))
    made = plan(replace(one.observe(), unread=(strange,)))

    assert "strange" in {action.name for action in made.actions if isinstance(action, act.DropFinalizer)}


def test_the_oldest_object_keeps_its_topic_although_it_cannot_be_read() -> None:
    one = settled(3)
    strange = _unread("TopicStorage", created="2012-01-01T00:00:00Z", topic_name="orders")
    of_kind = BY_NAME["TopicStorage"]
    younger = sample(of_kind, {"spec.topicName": "orders", "spec.clusterRef": "main"})
    younger["metadata"].update(uid="u", creationTimestamp="2013-01-01T00:00:00Z")
    seen = parse.seen("TopicStorage", younger, of_kind.spec, of_kind.status)
    made = plan(replace(one.observe(), topics=(seen,), unread=(strange,)))  # type: ignore[arg-type]

    assert not {"MakeTopic", "ChangeTopic"} & set(kinds_of(made.actions))
    told = {found.type: found for found in made.statuses["TopicStorage", seen.name].conditions}  # type: ignore[attr-defined]
    assert told["Conflict"].status == "True" and "strange" in told["Conflict"].message


def test_an_object_without_a_cluster_goes_whether_it_can_be_read_or_not() -> None:
    strange = _unread("ReadOnlyMount", is_deleting=True, finalizers=frozenset({FINALIZER}))
    made = orphans("main", [("ReadOnlyMount", strange), ("TopicStorage", _unread("TopicStorage"))], (), "now")

    assert [action.name for action in made.actions if isinstance(action, act.DropFinalizer)] == ["strange"]
    assert made.statuses == {}


# The StorageCluster itself --------------------------------------------------------------------------------------------
def _strange_cluster(**more: Any) -> Unread:
    return replace(_unread("StorageCluster", "main"), **more)


def _condition(type_: str, status: Any, reason: str, message: str = "") -> Condition:
    return Condition(
        type=type_, status=status, reason=reason, message=message, last_transition_time="2012-01-01T00:00:00Z"
    )


@pytest.mark.fault("kubernetes-object-other-version")
def test_a_cluster_that_cannot_be_read_says_so_once_and_keeps_its_other_conditions() -> None:
    before = (_condition("Ready", "True", "Serving"), _condition("Rolling", "False", "NotRolling"))
    told = plan_unreadable(_strange_cluster(conditions=before), (), (), "2013-01-01T00:00:00Z").conditions
    assert told is not None
    by_type = {one.type: one for one in told}

    assert by_type["Rolling"] == before[1]
    assert (by_type["Ready"].status, by_type["Ready"].reason) == ("Unknown", "ObjectUnreadable")
    assert (by_type["Reconciled"].status, by_type["Reconciled"].reason) == ("False", "InvalidSpec")
    assert "StorageCluster main cannot be read by this version of the operator: spec.mode" in by_type["Ready"].message
    again = plan_unreadable(_strange_cluster(conditions=told), (), (), "2013-01-02T00:00:00Z")
    assert again.conditions is None
    assert plan_unreadable(_strange_cluster(conditions=None), (), (), "now").conditions is None


@pytest.mark.fault("kubernetes-object-other-version")
def test_claims_that_people_gave_up_go_beside_a_cluster_that_cannot_be_read_and_no_others() -> None:
    one = settled(4)
    for node_id, word in ((1, ""), (2, "another"), (3, None), (4, None)):
        name = f"data-main-hot-{node_id}"
        claim = one.claims[name]
        given = claim.storage_id if word is None else word
        one.claims[name] = replace(claim, is_leaving=node_id != 4, release_word=given)
    seen = one.observe()
    pools = [("StorageNodePool", pool) for pool in seen.pools]
    made = plan_unreadable(_strange_cluster(), pools, seen.claims, seen.now)
    assert made.conditions is not None

    assert [(a.name, a.keeps_volume) for a in made.actions if isinstance(a, act.UnguardClaim)] == [
        ("data-main-hot-3", True)
    ]
    assert len(made.actions) == 1
    word = one.claims["data-main-hot-1"].storage_id
    assert f"annotate pvc data-main-hot-1 --overwrite {RELEASE}={word}" in made.conditions[0].message


def test_objects_that_people_released_go_beside_a_cluster_that_cannot_be_read() -> None:
    one = settled(3)
    pool = replace(one.observe().pools[0], is_deleting=True, finalizers=frozenset({FINALIZER}))
    strange = _unread("ReadOnlyMount", is_deleting=True, finalizers=frozenset({FINALIZER}))
    words = {RELEASE: "true"}
    waits = plan_unreadable(_strange_cluster(), [("StorageNodePool", pool), ("ReadOnlyMount", strange)], (), "now")
    found = [
        ("StorageNodePool", replace(pool, annotations=words)),
        ("ReadOnlyMount", replace(strange, annotations=words)),
    ]
    cluster = _strange_cluster(is_deleting=True, finalizers=frozenset({FINALIZER}), annotations=words)
    made = plan_unreadable(cluster, found, (), "2013-01-01T00:00:00Z")

    assert not waits.actions
    assert [action.name for action in made.actions] == ["main", "hot", "strange"]


class _OlderSpec(StorageClusterSpec):
    """Of a version that knows one mode of leaving."""

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.scale_in.mode == "RemountVolume":
            raise ValueError("mode: Input should be 'Offload'")
        return self


@pytest.mark.real_apiserver
@pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER)
@pytest.mark.fault("kubernetes-object-other-version")
async def test_a_pass_over_a_cluster_that_cannot_be_read_writes_its_conditions_and_lets_a_claim_go(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, path = api.namespace("unreadable"), "PersistentVolumeClaim"
    spec = {"spec.scaleIn": {"mode": "RemountVolume"}}
    assert api.ask("POST", path_of("StorageCluster", namespace), sample(BY_NAME["StorageCluster"], spec)).is_ok
    kept = {ANNOTATION_VOLUME_POLICY: "Delete"}
    for number in (1, 2):
        labels = {LABEL_CLUSTER: "main", LABEL_POOL: "hot", LABEL_NODE_ID: str(number), LABEL_PART: "node"}
        claim = {
            "metadata": {
                "name": f"data-main-hot-{number}",
                "labels": labels,
                "finalizers": [FINALIZER_LAST_COPY],
                "annotations": kept,
            },
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        made = api.ask("POST", path_of(path, namespace), claim)
        assert made.is_ok, made.message
        assert api.ask("DELETE", path_of(path, namespace, f"data-main-hot-{number}")).is_ok
    word = {"metadata": {"annotations": {RELEASE: made.body["metadata"]["uid"]}}}
    assert api.ask("PATCH", path_of(path, namespace, "data-main-hot-2"), word, kind=MERGE).is_ok
    monkeypatch.setattr("stratalog_operator.observe.objects.StorageClusterSpec", _OlderSpec)
    async with kubernetes_of(api) as kubernetes:
        stats, metas = OperatorStats(), HttpMetaConnections()
        passes = Passes(kubernetes, metas, Announcer(kubernetes, stats, "one"), stats)
        for _ in range(2):
            with pytest.raises(parse.Unreadable):
                await passes.run_pass((namespace, "main"))
    status = api.ask("GET", path_of("StorageCluster", namespace, "main")).body["status"]
    left = {one["metadata"]["name"]: one for one in api.ask("GET", path_of(path, namespace)).body["items"]}

    told = {one["type"]: one["reason"] for one in status["conditions"]}
    assert told == {"Ready": "ObjectUnreadable", "Reconciled": "InvalidSpec"}
    assert FINALIZER_LAST_COPY in left["data-main-hot-1"]["metadata"]["finalizers"]
    gone = left.get("data-main-hot-2")
    assert gone is None or FINALIZER_LAST_COPY not in gone["metadata"]["finalizers"]
    assert kubernetes.writes["patch", "storageclusters/status"] == 1, "the second pass has nothing new to say"
