"""Objects of other people under the operator's names, in a real API server: none is changed, used or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stratalog_operator.apply.perform import Performer
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.observe.objects import observe
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.kinds import CLUSTER, POOL
from support.api_server import NO_API_SERVER, ApiServer, apiserver_binary
from support.kind_samples import sample
from support.kubernetes_client import kubernetes_of
from support.meta_requests import RecordedRequests

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
]
NOW = "2013-01-01T00:00:00Z"


def _make(api: ApiServer, kind: str, namespace: str, made: Mapping[str, Any]) -> dict[str, Any]:
    answer = api.ask("POST", path_of(kind, namespace), made)
    assert answer.is_ok, answer.message
    return answer.body


def _make_cluster(api: ApiServer, namespace: str, cluster: str = "main", pool: str = "hot") -> None:
    _make(api, CLUSTER.name, namespace, sample(CLUSTER, {"metadata.name": cluster}))
    given = {"metadata.name": pool, "spec.clusterRef": cluster, "spec.replicas": 2}
    _make(api, POOL.name, namespace, sample(POOL, given))


async def _passes(kubernetes: Kubernetes, namespace: str, performer: Performer, cluster: str = "main") -> None:
    for _ in range(4):
        seen = await observe(kubernetes, namespace, cluster, None, NOW)
        assert (await performer.perform(seen, plan(seen))).failed == []


def _get(api: ApiServer, kind: str, namespace: str, name: str) -> dict[str, Any]:
    answer = api.ask("GET", path_of(kind, namespace, name))
    return answer.body if answer.is_ok else {}


def _told(api: ApiServer, kind: str, namespace: str, name: str, type_: str) -> tuple[str, str, str]:
    conditions = _get(api, kind, namespace, name)["status"]["conditions"]
    found = next(one for one in conditions if one["type"] == type_)
    return found["status"], found["reason"], found["message"]


@pytest.mark.fault("object-of-others-under-name")
@pytest.mark.parametrize(
    "labels", [{}, {"app.kubernetes.io/instance": "main"}], ids=["bare", "of a Helm release called main"]
)
async def test_a_config_map_of_another_program_is_not_taken_over(api: ApiServer, labels: dict[str, str]) -> None:
    namespace = api.namespace(f"others-{len(labels)}")
    theirs = {"metadata": {"name": "main-config", "labels": labels}, "data": {"theirs": "yes"}}
    before = _make(api, "ConfigMap", namespace, theirs)
    _make_cluster(api, namespace)
    async with kubernetes_of(api) as kubernetes:
        await _passes(kubernetes, namespace, Performer(kubernetes, RecordedRequests()))
        told = _told(api, "StorageCluster", namespace, "main", "Reconciled")
        after = _get(api, "ConfigMap", namespace, "main-config")
        assert api.ask("DELETE", path_of("ConfigMap", namespace, "main-config")).is_ok
        await _passes(kubernetes, namespace, Performer(kubernetes, RecordedRequests()))

    assert after == before
    assert told[:2] == ("False", "Error")
    assert "ConfigMap main-config is there and does not belong to StorageCluster main" in told[2]
    assert _get(api, "StatefulSet", namespace, "main-hot-1"), "everything else continues"
    assert "theirs" not in _get(api, "ConfigMap", namespace, "main-config")["data"]
    assert _told(api, "StorageCluster", namespace, "main", "Reconciled")[0] == "True"


@pytest.mark.fault("object-of-others-under-name")
async def test_a_volume_claim_of_a_person_becomes_no_disk_until_the_person_gives_it(api: ApiServer) -> None:
    """It had the size that the pool asks for: the node would have written to it, and `whenScaled: Delete` deleted
    it."""
    namespace = api.namespace("others-claim")
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
    theirs = {"metadata": {"name": "data-main-hot-1", "labels": {"app": "photos"}}, "spec": asked}
    _make(api, "PersistentVolumeClaim", namespace, theirs)
    _make_cluster(api, namespace)
    async with kubernetes_of(api) as kubernetes:
        await _passes(kubernetes, namespace, Performer(kubernetes, RecordedRequests()))
        untouched = _get(api, "PersistentVolumeClaim", namespace, "data-main-hot-1")["metadata"]
        told = _told(api, "StorageNode", namespace, "main-hot-1", "Stalled")
        given = {"metadata": {"labels": {"stratalog.dev/cluster": "main"}}}
        path = path_of("PersistentVolumeClaim", namespace, "data-main-hot-1")
        assert api.ask("PATCH", path, given, kind="application/merge-patch+json").is_ok
        await _passes(kubernetes, namespace, Performer(kubernetes, RecordedRequests()))

    assert untouched["labels"] == {"app": "photos"} and "annotations" not in untouched
    assert told[:2] == ("True", "Refused") and "does not belong to StorageCluster main" in told[2]
    assert "stratalog.dev/cluster=main" in told[2]
    assert _get(api, "PersistentVolumeClaim", namespace, "data-main-hot-2"), "the other node comes up"
    labels = _get(api, "PersistentVolumeClaim", namespace, "data-main-hot-1")["metadata"]["labels"]
    assert (labels["app"], labels["stratalog.dev/node-id"]) == ("photos", "1")


@pytest.mark.fault("names-of-two-clusters-meet")
async def test_two_clusters_whose_names_meet_do_not_take_each_others_nodes(api: ApiServer) -> None:
    """Pool `a-b` of cluster `x` and pool `b` of cluster `x-a` have nodes of the same names."""
    namespace = api.namespace("others-names")
    _make_cluster(api, namespace, "x", "a-b")
    _make_cluster(api, namespace, "x-a", "b")
    async with kubernetes_of(api) as kubernetes:
        first, second = (Performer(kubernetes, RecordedRequests()) for _ in range(2))
        for _ in range(2):
            await _passes(kubernetes, namespace, first, "x")
            await _passes(kubernetes, namespace, second, "x-a")
        quiet = kubernetes.writes.total()
        await _passes(kubernetes, namespace, first, "x")
        await _passes(kubernetes, namespace, second, "x-a")

    for kind, name in (("StatefulSet", "x-a-b-1"), ("PersistentVolumeClaim", "data-x-a-b-1")):
        assert _get(api, kind, namespace, name)["metadata"]["labels"]["stratalog.dev/cluster"] == "x"
    nodes = api.ask("GET", path_of("StorageNode", namespace)).body["items"]
    assert sorted((one["metadata"]["name"], one["spec"]["clusterRef"]) for one in nodes) == [
        ("x-a-b-1", "x"), ("x-a-b-2", "x"), ("x-a-b-3", "x-a"), ("x-a-b-4", "x-a"),
    ]  # fmt: skip
    assert kubernetes.writes.total() == quiet, "they do not write over each other"


@pytest.mark.fault("status-of-namesake")
async def test_a_status_is_not_written_to_another_object_of_the_name(api: ApiServer) -> None:
    """A TopicStorage that was deleted and made again would have owned the topic of its predecessor, and deleted it."""
    namespace = api.namespace("others-status")
    _make_cluster(api, namespace)
    async with kubernetes_of(api) as kubernetes:
        seen = await observe(kubernetes, namespace, "main", None, NOW)
        made = plan(seen)
        assert api.ask("DELETE", path_of(POOL.name, namespace, "hot")).is_ok
        again = _make(api, POOL.name, namespace, sample(POOL, {"metadata.name": "hot"}))
        done = await Performer(kubernetes, RecordedRequests()).perform(seen, made)
        after = _get(api, POOL.name, namespace, "hot")

    assert (POOL.name, "hot") in made.statuses and (POOL.name, "hot") not in done.written
    assert after["metadata"]["uid"] == again["metadata"]["uid"] and "status" not in after
