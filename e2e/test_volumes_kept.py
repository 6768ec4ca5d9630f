"""E16: what becomes of volumes is what the policy says: when a pool gets smaller, and when the cluster is deleted."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import CLUSTER, Place, remove_volumes

pytestmark = [pytest.mark.fast, pytest.mark.scenario("E16")]


@pytest.mark.parametrize("when_scaled", ["Delete", "Retain"])
@pytest.mark.parametrize("when_deleted", ["Retain", "Delete"])
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
    else:
        kept = stored.get("persistentvolumeclaim", gone) or {}
        assert kept["metadata"]["labels"]["stratalog.dev/released"] == "true"
        assert kept["spec"]["volumeName"] == volumes[gone]

    if when_deleted == "Delete":
        stored.kube.run("annotate", f"scl/{CLUSTER}", "stratalog.dev/allow-deletion=true", "-n", stored.name)
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
    else:
        kept = stored.get("persistentvolumeclaim", stayed) or {}
        assert kept["status"]["phase"] == "Bound"
        assert not kept["metadata"].get("finalizers", ["kubernetes.io/pvc-protection"])[1:], "a guard is left"
        assert "stratalog.dev/storage-id" in kept["metadata"]["annotations"]
    remove_volumes_of(stored, volumes)


def remove_volumes_of(place: Place, volumes: dict[str, str]) -> None:
    for name in volumes:
        place.kube.delete("persistentvolumeclaim", name, place.name)
    remove_volumes(place.kube, list(volumes.values()))
