"""Every right that the roles give is used in the life of a cluster, and no other is missed: nothing is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stratalog_operator.announce import Announcer
from stratalog_operator.handlers import LABELLED
from stratalog_operator.kube.client import path_of
from stratalog_operator.kube.rights import RIGHTS, Right
from stratalog_operator.plan.news import News
from stratalog_operator.resources.kinds import ARCHIVE_JOB, CLUSTER, KINDS, POOL, TOPIC, USER
from stratalog_operator.resources.names import ANNOTATION_FORCE_RETIRE, GROUP
from support.api_server import MERGE, NO_API_SERVER, ApiServer, apiserver_binary
from support.operator_place import Place, operator_place

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(600),
]


def _watched() -> set[Right]:
    """What kopf asks for, which goes past our client."""
    kinds = [(GROUP, kind.plural) for kind in KINDS] + [(group, plural) for group, _, plural in LABELLED]
    return {Right(verb, group, plural) for verb in ("list", "watch") for group, plural in kinds}


def _pods(place: Place) -> set[str]:
    """UIDs of the pods that a restart request restarts. etcd reads no setting of Stratalog."""
    found = [pod["metadata"] for pod in place.all("Pod") if pod["metadata"]["labels"]["stratalog.dev/part"] != "etcd"]
    return {metadata["uid"] for metadata in found}


def _decisions(place: Place, node: str) -> list[str]:
    """Of people, on a StorageNode; this one is about no event, and is removed."""
    found = place.get("StorageNode", node)["metadata"].get("annotations", {})
    return [key for key in found if key == ANNOTATION_FORCE_RETIRE]


def _certificates(place: Place) -> set[str]:
    return set(place.get("Secret", "main-certificates").get("data", {}))


def _end(place: Place, job: dict[str, Any]) -> None:
    """As Kubernetes ends a Job that succeeded."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("SuccessCriteriaMet", "Complete")]
    status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": ended}
    path = f"{path_of('Job', place.namespace, job['metadata']['name'])}/status"
    answer = place.api.ask("PATCH", path, {"status": status}, kind=MERGE)
    assert answer.is_ok, answer.message


async def _live(place: Place) -> None:
    """All that a cluster can go through."""
    listeners = [{"name": "internal", "port": 9092}]
    outside = {"name": "far", "port": 9094, "type": "nodeport", "firstNodePort": 31_000}
    secure = {"name": "users", "port": 9093, "tls": True, "authentication": {"type": "scram-sha-512"}}
    place.make(
        CLUSTER,
        {
            "spec.scaleIn": {"mode": "RemountVolume"},
            "spec.listeners": [*listeners, outside, secure],
            "spec.networkPolicy": {"enabled": True},
        },
    )
    place.make(POOL, {"spec.zones": [], "spec.replicas": 2})
    topic = {"clusterRef": "main", "topicName": "orders", "deletionPolicy": "Delete", "replicationFactor": 1,
             "minInsyncReplicas": 1}  # fmt: skip
    place.make(TOPIC, {"metadata.name": "orders", "spec": topic})
    await place.until_ready(2)
    let_in = place.get("NetworkPolicy", "main-meta")["spec"]["ingress"][0]["from"]
    assert {"matchLabels": {"kubernetes.io/metadata.name": "operators"}} in [
        one.get("namespaceSelector") for one in let_in
    ]
    assert {"node-1.crt", "node-2.key"} <= _certificates(place)
    await place.until(lambda: place.condition("Ready", "TopicStorage", "orders") == "True")
    place.make(USER)
    await place.until(lambda: place.condition("Ready", "StorageUser", "alice") == "True")
    words = {"annotations": {"stratalog.dev/rotate": "june"}}
    first = place.get("Secret", "alice")["data"]["password"]
    place.change("StorageUser", "alice", {"metadata": words})
    await place.until(lambda: place.get("Secret", "alice")["data"]["password"] != first)
    place.delete("StorageUser", "alice")
    await place.until(lambda: not place.names("StorageUser"))
    place.make(ARCHIVE_JOB)
    await place.until(lambda: place.names("CronJob") == ["nightly"])
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    place.change("ArchiveJob", "nightly", {"spec": {"schedule": None, "runRequestedAt": now}})
    await place.until(lambda: not place.names("CronJob") and place.names("Job"))
    _end(place, *place.all("Job"))
    await place.until(lambda: place.condition("Ready", "ArchiveJob", "nightly") == "True")
    place.delete("ArchiveJob", "nightly")
    place.delete("TopicStorage", "orders")
    await place.until(lambda: not place.names("TopicStorage"))
    place.change("StorageNode", "main-hot-1", {"metadata": {"annotations": {ANNOTATION_FORCE_RETIRE: "disk-1@1"}}})
    await place.until(lambda: not _decisions(place, "main-hot-1"))
    place.scale(1)
    await place.until_ready(1)
    await place.until(lambda: place.names("ReadOnlyMount") == ["main-hot-2"])
    await place.until(lambda: "node-2.crt" not in _certificates(place))
    place.delete("ReadOnlyMount", "main-hot-2")
    await place.until(lambda: place.names("PersistentVolumeClaim")[-1] == "data-main-hot-1")
    pods = _pods(place)
    changed = {"listeners": listeners, "podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}}
    words = {"annotations": {"stratalog.dev/restart": "monday"}}
    place.change("StorageCluster", "main", {"spec": changed, "metadata": words})
    await place.until(lambda: pods.isdisjoint(_pods(place)))
    await place.until_ready(1)
    place.delete("StorageCluster", "main")
    await place.until(lambda: not place.names("StorageCluster"))
    place.delete("StorageNodePool", "hot")
    await place.until(lambda: not place.names("StorageNodePool"))


@pytest.mark.fault("ends-mount-pod-claim")
async def test_a_cluster_lives_and_dies_by_just_the_rights_that_the_roles_give(api: ApiServer) -> None:
    async with operator_place(api, "rights") as place, place.operator() as operator:
        await _live(place)
        kubernetes = operator.kubernetes
        assert kubernetes is not None
        told = News("StorageCluster", "main", "uid-of-main", False, "Told", "the same twice")
        for _ in range(2):
            announcer = Announcer(kubernetes, operator.stats, "one")
            announcer.announce(place.namespace, [told])
            await announcer.write_all()
        refused = {key: number for key, number in kubernetes.answers.items() if key[1] in ("401", "403")}
        asked = kubernetes.asked | _watched()
    given = frozenset().union(*RIGHTS.values())

    assert [event["count"] for event in place.all("Event") if event["reason"] == "Told"] == [2]
    assert refused == {}
    assert asked <= given
    assert sorted(given - asked) == [], "given, and used by nothing"
