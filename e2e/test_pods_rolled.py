"""E14: pods restart one at a time, when that is asked for and when it is needed, and for nothing else."""

from __future__ import annotations

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place

pytestmark = pytest.mark.scenario("E14")
ROLLS_S = 600
PARTS = ("etcd", "meta", "node")


def uids(place: Place) -> set[str]:
    return {uid for part in PARTS for uid in place.pod_uids(part).values()}


def test_what_changes_no_process_restarts_nobody_and_a_restart_takes_one_after_the_other(stored: Place) -> None:
    stored.expects_restarts = True  # one at a time, which the place still checks
    stored.expected_warnings |= {"Troubles"}  # while one is away
    stored.make_cluster()
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    before = uids(stored)

    rules = {
        "scaleIn": {"mode": "RemountVolume", "verifyIntervalSeconds": 5},
        "rollingUpdate": {"readinessTimeoutSeconds": 300},
    }
    stored.kube.patch("scl", CLUSTER, stored.name, {"spec": rules})
    stored.cluster_is_ready()
    assert uids(stored) == before, "rules of leaving and rolling are the operator's alone"

    stored.kube.run("annotate", f"scl/{CLUSTER}", "stratalog.dev/restart=once", "-n", stored.name)
    until(lambda: uids(stored) & before, lambda left: not left, ROLLS_S, "every pod is another one")
    stored.cluster_is_ready(ROLLS_S)
    traffic.flows()

    rolled = {uid for part in ("meta", "node") for uid in stored.pod_uids(part).values()}
    etcd = stored.pod_uids("etcd")
    stored.kube.patch("scl", CLUSTER, stored.name, {"spec": {"config": {"log.level": "debug"}}})
    until(lambda: uids(stored) & rolled, lambda left: not left, ROLLS_S, "settings are read at a start")
    stored.cluster_is_ready(ROLLS_S)
    assert stored.pod_uids("etcd") == etcd, "etcd reads none of our settings"
    traffic.judge()


def test_a_port_that_is_taken_holds_up_neither_the_roll_nor_a_node_that_leaves(stored: Place) -> None:
    stored.expects_restarts = True
    stored.expected_warnings |= {"Troubles", "Refused", "Error"}
    stored.make_cluster(nodes=4)
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    before = set(stored.pod_uids("node").values())
    taken = {"type": "NodePort", "ports": [{"port": 9094, "nodePort": 31777}]}
    meta = {"name": "others", "namespace": stored.name}
    stored.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": taken})

    outside = {"name": "outside", "port": 9094, "type": "nodeport", "firstNodePort": 31775}
    listeners = [{"name": "internal", "port": 9092}, outside]
    stored.kube.patch("scl", CLUSTER, stored.name, {"spec": {"listeners": listeners}})
    stored.until_condition("storagenode", f"{CLUSTER}-hot-1", "Stalled", "True", 60, reason="Refused")
    until(lambda: set(stored.pod_uids("node").values()) & before, lambda left: not left, ROLLS_S, "all are other ones")
    stored.scale(3)
    stored.pool_has(3)
    assert "31777" in stored.condition("storagecluster", CLUSTER, "Stalled")["message"]

    stored.kube.delete("service", "others", stored.name)
    stored.until_condition("storagecluster", CLUSTER, "Stalled", "False", 400)
    traffic.judge()
