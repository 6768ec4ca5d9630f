"""E16: what becomes of volumes is what the policy says: when a pool gets smaller, and when the cluster is deleted."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import CLUSTER, Place, remove_volumes

pytestmark = [
    pytest.mark.scenario("E16"),
    pytest.mark.without_traffic("it is about claims, and the cluster goes; a pool gets smaller under traffic in E10"),
]


@pytest.mark.parametrize(
    ("when_scaled", "when_deleted"),
    [
        # These two have each value of both.
        pytest.param("Delete", "Retain", marks=pytest.mark.fast),
        pytest.param("Retain", "Delete", marks=pytest.mark.fast),
        ("Delete", "Delete"),
        ("Retain", "Retain"),
    ],
)
def test_claims_and_volumes_are_as_the_policy_says(stored: Place, when_scaled: str, when_deleted: str) -> None:
    policy = {"whenScaled": when_scaled, "whenDeleted": when_deleted}
    stored.make_cluster(
        nodes=2,
        changes={
            "storageRetention": policy,
            "defaults": {"replicationFactor": 1, "minInsyncReplicas": 1},
            "scaleIn": {"mode": "Offload", "verifyIntervalSeconds": 1},
        },
    )
    claims = {one["metadata"]["name"]: one for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")}
    volumes = {name: claim["spec"]["volumeName"] for name, claim in claims.items()}
    for volume in volumes.values():
        found = stored.kube.get("persistentvolume", volume) or {}
        assert found["spec"]["persistentVolumeReclaimPolicy"] == "Retain", "what guards the last copy"
    gone = f"data-{CLUSTER}-hot-2"
    stored.scale(1)
    stored.pool_has(1)
    if when_scaled == "Delete":
        until(lambda: stored.get("persistentvolumeclaim", gone), lambda claim: claim is None, 120, f"{gone} is deleted")
        _goes_with_its_claim(stored, volumes[gone])
    else:
        kept = stored.get("persistentvolumeclaim", gone) or {}
        assert kept["metadata"]["labels"]["stratalog.dev/released"] == "true"
        assert kept["spec"]["volumeName"] == volumes[gone]

    if when_deleted == "Delete":
        cluster = stored.get("storagecluster", CLUSTER) or {}
        allowed = f"stratalog.dev/allow-deletion={cluster['metadata']['uid']}"
        stored.kube.run("annotate", f"scl/{CLUSTER}", allowed, "-n", stored.name)
    stored.kube.delete("storagecluster", CLUSTER, stored.name)
    stayed = f"data-{CLUSTER}-hot-1"
    until(
        lambda: stored.list("pods", f"stratalog.dev/cluster={CLUSTER}"), lambda pods: not pods, 180, "its pods are gone"
    )
    if when_deleted == "Delete":
        until(
            lambda: stored.get("persistentvolumeclaim", stayed),
            lambda claim: claim is None,
            120,
            f"{stayed} is deleted",
        )
        _goes_with_its_claim(stored, volumes[stayed])
    else:
        kept = stored.get("persistentvolumeclaim", stayed) or {}
        assert kept["status"]["phase"] == "Bound"
        assert not kept["metadata"].get("finalizers", ["kubernetes.io/pvc-protection"])[1:], "a guard is left"
        assert "stratalog.dev/storage-id" in kept["metadata"]["annotations"]
    remove_volumes_of(stored, volumes)


def _goes_with_its_claim(place: Place, volume: str) -> None:
    """Nothing is needed of it any more, so that it has its class's policy again."""
    found = place.kube.get("persistentvolume", volume)
    if found is None:
        return
    of_class = place.kube.get("storageclass", found["spec"]["storageClassName"]) or {}
    assert found["spec"]["persistentVolumeReclaimPolicy"] == of_class["reclaimPolicy"], "the guard's policy is left"
    if of_class["reclaimPolicy"] == "Delete":
        until(lambda: place.kube.get("persistentvolume", volume), lambda one: one is None, 120, f"{volume} is deleted")


def remove_volumes_of(place: Place, volumes: dict[str, str]) -> None:
    for name in volumes:
        place.kube.delete("persistentvolumeclaim", name, place.name)
    remove_volumes(place.kube, list(volumes.values()))
