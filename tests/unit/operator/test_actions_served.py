"""Each action of the plan in a real API server: what it does, that it may be repeated, and that it spares namesakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from stratalog.model.errors import Conflict, InvalidRequest, NotFound
from stratalog.model.retirement import RetireMode
from stratalog_operator.apply.perform import Performer
from stratalog_operator.kube.client import MERGE, Kubernetes, path_of
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.plan.pools import free_id
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.kinds import CLUSTER
from stratalog_operator.resources.kinds import NODE as NODE_KIND
from stratalog_operator.resources.names import ANNOTATION_VOLUME_POLICY, FIELD_MANAGER, FINALIZER, FINALIZER_LAST_COPY
from stratalog_operator.specs.node import NodeIdentity, node_claim, node_set
from support.api_server import LIMITED_TOKEN, NO_API_SERVER, ApiServer, apiserver_binary
from support.golden_specs import pool
from support.kind_samples import sample
from support.kubernetes_client import kubernetes_of
from support.meta_requests import RecordedRequests

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
]
_NUMBERS = count()
NODE = NodeIdentity(7, "hot")


@pytest.fixture
def namespace(api: ApiServer) -> Iterator[str]:
    yield api.namespace(f"actions-{next(_NUMBERS)}")


def _observed(namespace: str) -> Observed:
    spec = StorageClusterSpec.model_validate({"meta": {"etcd": {}}})
    return Observed(namespace, "2013-01-01T00:00:00Z", Seen("main", "uid-of-main", spec, StorageClusterStatus()))


def _metadata(api: ApiServer, kind: str, namespace: str, name: str) -> dict[str, Any]:
    answer = api.ask("GET", path_of(kind, namespace, name))
    return dict(answer.body["metadata"]) if answer.is_ok else {}


async def _with_claim(
    api: ApiServer, kubernetes: Kubernetes, namespace: str, volume: str
) -> tuple[Performer, Any, str]:
    """A claim that is bound to a volume, as a provisioner would have left it."""
    seen, performer = _observed(namespace), Performer(kubernetes, RecordedRequests())
    await performer.do(seen, act.Apply(node_claim(cluster_of(seen), pool(), NODE), "a test"))
    path = path_of("PersistentVolumeClaim", namespace, "data-main-hot-7")
    uid = api.ask("GET", path).body["metadata"]["uid"]
    made = api.ask(
        "POST",
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/nowhere"},
                "persistentVolumeReclaimPolicy": "Delete",
            },
        },
    )
    assert made.is_ok, made.message
    bound = api.ask("PATCH", path, {"spec": {"volumeName": volume}}, kind="application/merge-patch+json")
    assert bound.is_ok, bound.message
    return performer, seen, uid


def _policy(api: ApiServer, volume: str) -> str:
    return str(api.ask("GET", f"/api/v1/persistentvolumes/{volume}").body["spec"]["persistentVolumeReclaimPolicy"])


async def test_a_guarded_claim_outlives_its_deletion_and_its_volume_is_kept(api: ApiServer, namespace: str) -> None:
    async with kubernetes_of(api) as kubernetes:
        performer, seen, uid = await _with_claim(api, kubernetes, namespace, f"{namespace}-a")
        for _ in range(2):
            await performer.do(seen, act.GuardClaim("data-main-hot-7", uid))
        assert _policy(api, f"{namespace}-a") == "Retain"
        await performer.do(seen, act.DeleteClaim("data-main-hot-7", uid, "a test"))
        held = _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7")
        assert held["deletionTimestamp"] and FINALIZER_LAST_COPY in held["finalizers"]
        for _ in range(2):
            await performer.do(seen, act.UnguardClaim("data-main-hot-7", uid, keeps_volume=False, why="a test"))

    left = _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7")
    assert left["finalizers"] == ["kubernetes.io/pvc-protection"], (
        "what is not ours stays: the claim is in use as far as anybody knows"
    )
    assert _policy(api, f"{namespace}-a") == "Delete", "as it was before"


async def test_a_volume_that_is_kept_stays_kept_when_the_guard_goes(api: ApiServer, namespace: str) -> None:
    async with kubernetes_of(api) as kubernetes:
        performer, seen, uid = await _with_claim(api, kubernetes, namespace, f"{namespace}-a")
        await performer.do(seen, act.NoteDisk("data-main-hot-7", uid, "disk-1", "cluster-1"))
        await performer.do(seen, act.GuardClaim("data-main-hot-7", uid))
        await performer.do(seen, act.ReleaseClaim("data-main-hot-7", uid))
        await performer.do(seen, act.UnguardClaim("data-main-hot-7", uid, keeps_volume=True, why="a test"))
        applied = act.Apply(node_claim(cluster_of(seen), pool(), NODE), "again")
        await performer.do(seen, applied)

    found = _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7")
    assert _policy(api, f"{namespace}-a") == "Retain"
    assert found["labels"]["stratalog.dev/released"] == "true"
    assert found["annotations"]["stratalog.dev/storage-id"] == "disk-1", "an apply takes no note away"


async def test_nothing_is_done_to_another_object_of_the_same_name(api: ApiServer, namespace: str) -> None:
    async with kubernetes_of(api) as kubernetes:
        performer, seen, _ = await _with_claim(api, kubernetes, namespace, f"{namespace}-a")
        before = _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7")
        for action in (
            act.GuardClaim("data-main-hot-7", "another"),
            act.ReleaseClaim("data-main-hot-7", "another"),
            act.NoteDisk("data-main-hot-7", "another", "disk-1", "cluster-1"),
            act.UnguardClaim("data-main-hot-7", "another", keeps_volume=False, why="a test"),
            act.DeleteClaim("data-main-hot-7", "another", "a test"),
        ):
            await performer.do(seen, action)

    assert _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7") == before
    assert _policy(api, f"{namespace}-a") == "Delete"


async def test_what_is_not_there_is_taken_away_already_and_nothing_is_made_of_it(
    api: ApiServer, namespace: str
) -> None:
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        for action in (
            act.StopPod("gone", "uid", "a test"),
            act.StopSet("gone", "uid", "a test"),
            act.DeleteClaim("gone", "uid", "a test"),
            act.DeleteObject("StorageNode", "gone", "uid", "a test"),
            act.UnguardClaim("gone", "uid", keeps_volume=False, why="a test"),
            act.DropFinalizer("StorageCluster", "gone", "a test"),
            act.AddFinalizer("StorageCluster", "gone"),
        ):
            await performer.do(seen, action)

    assert api.ask("GET", path_of("StorageCluster", namespace)).body["items"] == []
    assert api.ask("GET", path_of("PersistentVolumeClaim", namespace)).body["items"] == []


async def test_a_decision_is_removed_and_what_else_stands_beside_it_stays(api: ApiServer, namespace: str) -> None:
    """Whoever wrote it owns that field; the operator takes away this one annotation."""
    path = path_of("StorageNode", namespace, "main-hot-7")
    theirs = {"stratalog.dev/force-retire-ack": "disk-7@1", "example.com/theirs": "kept"}
    made = api.ask("POST", path_of("StorageNode", namespace), sample(NODE_KIND, {"metadata.annotations": theirs}))
    assert made.is_ok, made.message
    drop = act.DropDecision(
        "StorageNode",
        "main-hot-7",
        made.body["metadata"]["uid"],
        "stratalog.dev/force-retire-ack",
        is_used=True,
        why="a test",
    )
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        await performer.do(seen, replace(drop, uid="another"))
        assert api.ask("GET", path).body["metadata"]["annotations"] == theirs
        for _ in range(2):
            await performer.do(seen, drop)

    assert api.ask("GET", path).body["metadata"]["annotations"] == {"example.com/theirs": "kept"}


async def test_a_users_object_gets_our_finalizer_and_nothing_else_of_it_is_ours(api: ApiServer, namespace: str) -> None:
    path = path_of("StorageCluster", namespace, "main")
    given = sample(CLUSTER, {"metadata.finalizers": ["example.com/theirs"]})
    assert api.ask("POST", path_of("StorageCluster", namespace), given).is_ok
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        await performer.do(seen, act.AddFinalizer("StorageCluster", "main"))
        held = api.ask("GET", path).body
        await performer.do(seen, act.DropFinalizer("StorageCluster", "main", "a test"))

    assert set(held["metadata"]["finalizers"]) == {"example.com/theirs", FINALIZER}
    (ours,) = [one for one in held["metadata"]["managedFields"] if one["manager"] == FIELD_MANAGER]
    assert list(ours["fieldsV1"]) == ["f:metadata"]
    assert api.ask("GET", path).body["metadata"]["finalizers"] == ["example.com/theirs"]


async def test_a_stopped_set_has_no_replicas_and_what_else_is_wanted_of_it_stays(
    api: ApiServer, namespace: str
) -> None:
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        wanted = node_set(cluster_of(seen), pool(), NODE)
        await performer.do(seen, act.Apply(wanted, "a test"))
        path = path_of("StatefulSet", namespace, "main-hot-7")
        made = api.ask("GET", path).body
        await performer.do(seen, act.StopSet("main-hot-7", made["metadata"]["uid"], "a test"))

    stopped = api.ask("GET", path).body
    assert (made["spec"]["replicas"], stopped["spec"]["replicas"]) == (1, 0)
    assert stopped["spec"]["template"] == made["spec"]["template"]


async def test_a_first_pass_is_taken_whole_and_the_token_is_never_made_twice(api: ApiServer, namespace: str) -> None:
    made = api.ask("POST", path_of("StorageCluster", namespace), sample(CLUSTER))
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        spec = StorageClusterSpec.model_validate(made.body["spec"])
        uid = made.body["metadata"]["uid"]
        seen = Observed(namespace, seen.now, Seen("main", uid, spec, StorageClusterStatus()))
        assert free_id(seen) == 1
        assert (await performer.perform(seen, plan(seen))).failed == []
        token = api.ask("GET", path_of("Secret", namespace, "main-token")).body["data"]
        await performer.perform(seen, plan(seen))
        assert kubernetes.writes["patch", "statefulsets"] > 0

    told = api.ask("GET", path_of("StorageCluster", namespace, "main")).body["status"]
    assert api.ask("GET", path_of("Secret", namespace, "main-token")).body["data"] == token
    assert {one["type"]: one["status"] for one in told["conditions"]}["Ready"] == "Unknown"
    assert len(api.ask("GET", path_of("StatefulSet", namespace)).body["items"]) == 2


@pytest.mark.fault("kubernetes-refuses-object-taken")
async def test_what_fails_freezes_nothing_but_what_needs_it(api: ApiServer, namespace: str) -> None:
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        wanted = node_set(cluster_of(seen), pool(), NODE)
        await performer.do(seen, act.Apply(wanted, "a test"))
        uid = _metadata(api, "StatefulSet", namespace, "main-hot-7")["uid"]
        bad = {**node_claim(cluster_of(seen), pool(), NODE), "spec": {"accessModes": ["NoSuchMode"]}}
        actions = (act.Apply(bad, "a test"), act.MakeToken("main-token"), act.StopSet("main-hot-7", uid, "a test"))
        failed = (await performer.perform(seen, act.Plan(actions, {}, 5))).refused

    assert len(failed) == 1 and "NoSuchMode" in str(failed[0])
    assert _metadata(api, "Secret", namespace, "main-token")
    assert api.ask("GET", path_of("StatefulSet", namespace, "main-hot-7")).body["spec"]["replicas"] == 0, (
        "a claim that is refused keeps no node from leaving"
    )


@pytest.mark.fault("kubernetes-refuses-object-taken")
async def test_a_pod_whose_set_is_refused_is_not_stopped_and_the_next_one_is(api: ApiServer, namespace: str) -> None:
    """It would come back as it was, and be stopped again without end."""
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        uids = {}
        for name in ("main-hot-7-0", "main-hot-8-0"):
            body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
            made = api.ask("POST", path_of("Pod", namespace), body)
            assert made.is_ok, made.message
            uids[name] = made.body["metadata"]["uid"]
        wanted = node_set(cluster_of(seen), pool(), NODE)
        bad = {**wanted, "spec": {**wanted["spec"], "selector": {}}}  # type: ignore[dict-item]
        stops = [act.StopPod(name, uid, "a test") for name, uid in uids.items()]
        made = act.Plan((act.Apply(bad, "a test"), stops[0]), {}, 5, (stops[1],))
        for _ in range(2):
            await performer.perform(seen, made)

    left = {one["metadata"]["name"] for one in api.ask("GET", path_of("Pod", namespace)).body["items"]}
    assert left == {"main-hot-7-0"}


@pytest.mark.fault("kubernetes-refuses-object-taken")
async def test_a_disruptive_action_that_is_refused_gives_its_place_to_the_next_in_a_later_pass(
    api: ApiServer, namespace: str
) -> None:
    """Never two in one pass: the one that failed may have been done."""
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, RecordedRequests()), _observed(namespace)
        await performer.do(seen, act.Apply(node_set(cluster_of(seen), pool(), NODE), "a test"))
        uid = _metadata(api, "StatefulSet", namespace, "main-hot-7")["uid"]
        refused, other = act.DeleteClaim("No-Such Name", "uid", "a test"), act.StopSet("main-hot-7", uid, "a test")

        async def refuse(observed: Observed, action: act.Action) -> None:
            if action == refused:
                raise InvalidRequest("a policy of the cluster forbids it")
            await Performer.do(performer, observed, action)

        performer.do = refuse  # type: ignore[method-assign]
        made = act.Plan((refused,), {}, 5, (other,))
        await performer.perform(seen, made)
        after_one = api.ask("GET", path_of("StatefulSet", namespace, "main-hot-7")).body["spec"]["replicas"]
        await performer.perform(seen, made)

    assert after_one == 1
    assert api.ask("GET", path_of("StatefulSet", namespace, "main-hot-7")).body["spec"]["replicas"] == 0


async def test_wishes_go_to_the_meta_service(api: ApiServer, namespace: str) -> None:
    requests = RecordedRequests()
    async with kubernetes_of(api) as kubernetes:
        performer, seen = Performer(kubernetes, requests), _observed(namespace)
        await performer.do(seen, act.AskRetire(3, RetireMode.OFFLOAD, "disk-3", 2))
        await performer.do(seen, act.CancelRetire(3))
        await performer.do(seen, act.EndMount("tier/3"))
        assert not kubernetes.writes

    assert requests.wishes == [("retire", 3, RetireMode.OFFLOAD, "disk-3", 2), ("cancel", 3), ("end", "tier/3")]


async def test_refusals_say_what_the_caller_can_do(api: ApiServer, namespace: str) -> None:
    async with kubernetes_of(api) as kubernetes:
        secret = {"metadata": {"name": "main-token"}, "stringData": {"token": "a"}}
        path = path_of("Secret", namespace)
        with pytest.raises(NotFound, match="main"):
            await kubernetes.ask("GET", path_of("StorageCluster", namespace, "main"))
        with pytest.raises(InvalidRequest, match="exactly one of etcd and external"):
            body = {"spec": {"meta": {"external": {"endpoints": ["etcd-0:2379"]}}}}
            made = api.ask("POST", path_of("StorageCluster", namespace), sample(CLUSTER))
            assert made.is_ok, made.message
            await kubernetes.ask("PATCH", path_of("StorageCluster", namespace, "main"), body, content_type=MERGE)
        await kubernetes.ask("POST", path, secret)
        with pytest.raises(Conflict):
            await kubernetes.ask("POST", path, secret)


async def test_what_no_role_has_is_not_even_asked_for(api: ApiServer, namespace: str) -> None:
    async with kubernetes_of(api) as kubernetes:
        with pytest.raises(AssertionError, match="no role has them"):
            await kubernetes.ask("GET", path_of("Secret", namespace))


@pytest.mark.fault("claim-last-copy-deleted")
async def test_without_a_right_in_volumes_the_finalizer_alone_guards_a_claim(api: ApiServer, namespace: str) -> None:
    api.let_operate(namespace, with_volumes=False)
    async with kubernetes_of(api) as kubernetes:
        _, seen, uid = await _with_claim(api, kubernetes, namespace, f"{namespace}-volume")
    async with kubernetes_of(api, LIMITED_TOKEN) as limited:
        performer = Performer(limited, RecordedRequests())
        await performer.do(seen, act.GuardClaim("data-main-hot-7", uid))
        guarded = _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7")
        await performer.do(seen, act.UnguardClaim("data-main-hot-7", uid, keeps_volume=False, why="a test"))

    assert FINALIZER_LAST_COPY in guarded["finalizers"]
    assert guarded["annotations"][ANNOTATION_VOLUME_POLICY] == "not-ours"
    assert _policy(api, f"{namespace}-volume") == "Delete"
    after = _metadata(api, "PersistentVolumeClaim", namespace, "data-main-hot-7")["finalizers"]
    assert FINALIZER_LAST_COPY not in after
