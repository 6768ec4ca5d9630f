"""E18: what people do around a retirement releases no volume: a mount of a node that lives, a claim deleted with its
object, a decision from before its event."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place

pytestmark = [
    pytest.mark.scenario("E18"),
    pytest.mark.without_traffic("it is about claims and objects; nodes leave under traffic in E10"),
]
LEAVES_S = 600
LAST_COPY = "stratalog.dev/last-copy"


def test_a_mount_of_a_node_that_lives_is_refused_and_its_deletion_releases_nothing(stored: Place) -> None:
    stored.make_cluster(nodes=4, changes={"scaleIn": {"mode": "RemountVolume", "verifyIntervalSeconds": 2}})
    disk = _disk(stored, 4)
    stored.apply(_mount("mine", 4, disk))
    stored.until_condition("readonlymount", "mine", "Ready", "False", 120, "NotRetired")
    stored.scale(3)
    until(lambda: _step(stored, 4), lambda step: step not in ("", "Wished", "Preflight"), 300, "node 4 is leaving")
    stored.kube.delete("readonlymount", "mine", stored.name)
    until(lambda: stored.get("readonlymount", "mine"), lambda one: one is None, 120, "it never mounted anything")
    assert _is_guarded(stored, 4)

    until(stored.node_ids, lambda ids: ids == [1, 2, 3], LEAVES_S, "node 4 has left")
    stored.until_condition("readonlymount", f"{CLUSTER}-hot-4", "Ready", "True", 180)
    assert _is_guarded(stored, 4), "its volume is read in place"
    stored.cluster_is_ready()
    assert stored.condition("storagecluster", CLUSTER, "Healthy")["status"] == "True"


def test_a_claim_and_its_object_deleted_in_one_command_leave_a_node_that_can_retire(stored: Place) -> None:
    stored.expected_warnings |= {"VolumeLost", "NeedsAPerson", "DecisionIgnored", "WaitingForNodes"}
    stored.make_cluster(nodes=3, changes={"defaults": {"replicationFactor": 1, "minInsyncReplicas": 1}})
    uids, name = stored.pod_uids(), f"{CLUSTER}-hot-2"
    early = ("annotate", f"pvc/data-{name}", "stratalog.dev/release-finalizer=true", "-n", stored.name)
    stored.kube.run(*early)
    until(lambda: _notes(stored, 2), lambda notes: "stratalog.dev/release-finalizer" not in notes, 120, "it is removed")
    stored.kube.run("delete", f"pvc/data-{name}", f"snode/{name}", "--wait=false", "-n", stored.name)
    stored.until_condition("storagenode", name, "StorageBound", "False", 180, "VolumeLost")
    assert stored.node_ids() == [1, 2, 3] and stored.pod_uids() == uids
    assert _is_guarded(stored, 2)

    stored.kube.patch("snode", name, stored.name, {"spec": {"retire": True}})
    until(stored.node_ids, lambda ids: ids == [1, 3, 4], LEAVES_S, "another node is there, and node 2 has left")
    until(lambda: stored.get("persistentvolumeclaim", f"data-{name}"), lambda one: one is None, 180, "and its claim")
    stored.pool_has(3)


def test_a_reader_of_a_retired_volume_gets_the_image_that_was_corrected(stored: Place) -> None:
    stored.expects_restarts = True
    stored.expected_warnings |= {"Failed", "BackOff", "ErrImagePull", "ImagePullBackOff", "PodNotBack", "Troubles"}
    changes = {"scaleIn": {"mode": "RemountVolume", "verifyIntervalSeconds": 2}}
    stored.make_cluster(nodes=3, changes={**changes, "defaults": {"replicationFactor": 1, "minInsyncReplicas": 1}})
    stored.make_topic("alone", shards=6, replicationFactor=1, minInsyncReplicas=1, tiering={"enabled": False})
    stored.clients.write_sentinels(BOOTSTRAP, "alone")
    stored.scale(2)
    until(stored.node_ids, lambda ids: ids == [1, 2], LEAVES_S, "node 3 has left")
    reader = f"{CLUSTER}-hot-3-vol-0"
    image = (stored.get("storagecluster", CLUSTER) or {})["spec"]["image"]
    stored.kube.patch(
        "scl", CLUSTER, stored.name, {"spec": {"paused": False, "image": {**image, "tag": "no-such-tag"}}}
    )
    until(
        lambda: _image(stored, f"{CLUSTER}-hot-3-vol"), lambda found: found.endswith("no-such-tag"), 120, "it is wanted"
    )
    stored.kube.run("delete", f"pod/{reader}", "-n", stored.name)
    stored.kube.patch("scl", CLUSTER, stored.name, {"spec": {"image": image}})
    stored.until_condition("readonlymount", f"{CLUSTER}-hot-3", "Ready", "True", 600)
    stored.until_condition("storagecluster", CLUSTER, "Rolling", "False", 600)
    assert (stored.get("storagecluster", CLUSTER) or {})["status"]["image"].endswith(image["tag"])


def _mount(name: str, node_id: int, disk: str) -> dict[str, object]:
    source = {"retiredNode": {"nodeId": node_id, "storageId": disk, "mode": "RemountVolume"}}
    return {
        "apiVersion": "stratalog.dev/v1alpha1",
        "kind": "ReadOnlyMount",
        "metadata": {"name": name},
        "spec": {"clusterRef": CLUSTER, "source": source},
    }


def _disk(place: Place, node_id: int) -> str:
    found = place.get("storagenode", f"{CLUSTER}-hot-{node_id}") or {}
    return str(found["status"]["identity"]["storageId"])


def _step(place: Place, node_id: int) -> str:
    found = place.get("storagenode", f"{CLUSTER}-hot-{node_id}") or {}
    return str(found.get("status", {}).get("retirement", {}).get("step", ""))


def _claim(place: Place, node_id: int) -> dict[str, dict[str, object]]:
    return (place.get("persistentvolumeclaim", f"data-{CLUSTER}-hot-{node_id}") or {}).get("metadata", {})


def _is_guarded(place: Place, node_id: int) -> bool:
    return LAST_COPY in _claim(place, node_id).get("finalizers", [])


def _notes(place: Place, node_id: int) -> dict[str, object]:
    return _claim(place, node_id).get("annotations", {})


def _image(place: Place, name: str) -> str:
    found = place.get("statefulset", name) or {}
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"])
