"""E45: the Secret with the cluster's token is unusable. What needs no token continues; the cluster can be deleted."""

from __future__ import annotations

import base64

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import CLUSTER, Place
from stratalog_e2e.storage import topic_names

pytestmark = [
    pytest.mark.scenario("E45"),
    pytest.mark.without_traffic("no process of the cluster may use its token while the Secret is wrong"),
]
SECRET = f"{CLUSTER}-token"
GOES_S = 90


def test_a_token_that_cannot_be_used_stops_only_what_needs_it(stored: Place) -> None:
    stored.expects_restarts = True
    stored.make_cluster(nodes=2, changes={"defaults": {"replicationFactor": 1, "minInsyncReplicas": 1}})
    stored.make_topic(shards=2, replicationFactor=1, minInsyncReplicas=1, deletionPolicy="Delete")
    token = (stored.get("secret", SECRET) or {})["data"]["token"]

    _write(stored, base64.b64encode("zu kurz für ein Token".encode()).decode())
    told = stored.until_condition("storagecluster", CLUSTER, "Ready", "Unknown", 120, "TokenUnusable")
    assert f"Secret {stored.name}/{SECRET}" in told["message"]
    stored.scale(3)
    until(lambda: stored.get("statefulset", f"{CLUSTER}-hot-3"), bool, 120, "the third node is made")
    stored.kube.run("delete", "ts/flights", "--wait=false", "-n", stored.name)
    stored.kube.run("annotate", "ts/flights", "stratalog.dev/release-finalizer=true", "-n", stored.name)
    until(lambda: stored.get("topicstorage", "flights"), lambda one: one is None, GOES_S, "the object is released")

    _write(stored, token)
    stored.cluster_is_ready()
    stored.pool_has(3)
    # The files in the pods follow the Secret within a minute.
    until(lambda: topic_names(stored), lambda names: names == {"flights"}, 180, "the topic itself was kept")

    _write(stored, base64.b64encode(b"short").decode())
    stored.until_condition("storagecluster", CLUSTER, "Ready", "Unknown", 120, "TokenUnusable")
    stored.kube.run("delete", f"scl/{CLUSTER}", "snp/hot", "--wait=false", "-n", stored.name)
    kinds = ("storageclusters", "storagenodepools", "storagenodes")
    left = lambda: [one["metadata"]["name"] for kind in kinds for one in stored.list(kind)]  # noqa: E731
    until(left, lambda found: not found, GOES_S, "the cluster is deleted")
    until(lambda: stored.pods(), lambda pods: not pods, GOES_S, "its pods are gone")
    claims = stored.list("persistentvolumeclaims", f"stratalog.dev/cluster={CLUSTER}")
    assert all("stratalog.dev/last-copy" not in one["metadata"].get("finalizers", ()) for one in claims)


def _write(place: Place, token: str) -> None:
    place.kube.patch("secret", SECRET, place.name, {"data": {"token": token}})
