"""E38: a paused cluster changes nothing, and what is deleted still goes: topics, mounts, a pool that a person
releases, the cluster, its namespace."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, EXAMPLES, Place, documents, remove_volumes
from stratalog_e2e.storage import topic_names

pytestmark = [
    pytest.mark.scenario("E38"),
    pytest.mark.without_traffic("it is about objects that are deleted, the cluster and its namespace among them"),
]
GOES_S = 120
ALONE = {"defaults": {"replicationFactor": 1, "minInsyncReplicas": 1}}


def test_what_is_deleted_goes_while_the_cluster_is_paused(stored: Place) -> None:
    stored.make_cluster(nodes=2, changes=ALONE)
    stored.make_topic(shards=2, replicationFactor=1, minInsyncReplicas=1, deletionPolicy="Delete")
    stored.make_topic("kept", shards=2, replicationFactor=1, minInsyncReplicas=1)
    stored.clients.write_sentinels(BOOTSTRAP, "kept")
    stored.stratalog("seal", "kept", "--admin", stored.admin())
    (mount,) = documents(EXAMPLES / "mount.yaml")
    mount["spec"]["source"] = {"topics": {"names": ["kept"]}}
    stored.apply(mount)
    stored.is_true("readonlymount", "january", "Ready", 120)
    uids = stored.pod_uids()

    _pause(stored)
    stored.scale(3)
    stored.kube.delete("topicstorage", "flights", stored.name, timeout=GOES_S)
    stored.kube.delete("readonlymount", "january", stored.name, timeout=GOES_S)
    assert topic_names(stored) == {"kept"}
    assert stored.node_ids() == [1, 2], "a paused pool makes no node"
    stored.kube.run("delete", "snp/hot", "--wait=false", "-n", stored.name)
    stored.kube.run("annotate", "snp/hot", "stratalog.dev/release-finalizer=true", "-n", stored.name)
    until(lambda: stored.get("storagenodepool", "hot"), lambda pool: pool is None, GOES_S, "the pool is released")
    assert stored.pod_uids() == uids, "and its nodes were not stopped"

    stored.kube.delete("storagecluster", CLUSTER, stored.name, timeout=GOES_S)
    until(lambda: stored.pods(), lambda pods: not pods, GOES_S, "its pods are gone")
    claims = stored.list("persistentvolumeclaims", f"stratalog.dev/cluster={CLUSTER}")
    assert claims and all("stratalog.dev/last-copy" not in one["metadata"].get("finalizers", ()) for one in claims)


def test_the_namespace_of_a_paused_cluster_goes(stored: Place) -> None:
    stored.make_cluster(nodes=2, changes=ALONE)
    stored.make_topic(shards=2, replicationFactor=1, minInsyncReplicas=1, deletionPolicy="Delete")
    volumes = [one["spec"]["volumeName"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")]
    _pause(stored)
    stored.kube.run("delete", "namespace", stored.name, "--wait=false")
    until(lambda: stored.kube.get("namespace", stored.name), lambda one: one is None, GOES_S, "the namespace is gone")
    for volume in volumes:
        assert stored.kube.get("persistentvolume", volume), "the volume with the data is gone as well"
    remove_volumes(stored.kube, volumes)
    stored.is_gone = True


def _pause(place: Place) -> None:
    place.kube.run("annotate", f"scl/{CLUSTER}", "stratalog.dev/paused=true", "-n", place.name)
    place.until_condition("storagecluster", CLUSTER, "Reconciled", "False", 60, "Paused")
