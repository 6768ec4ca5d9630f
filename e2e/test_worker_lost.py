"""E22: a machine stops for minutes and comes back. Producers continue, no volume is touched, and the node catches up.

Only in kind, whose machines are containers that the test may stop.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.surroundings import kind_name

pytestmark = pytest.mark.scenario("E22")
AWAY_S = 180
PER_S = 60


def test_a_worker_stops_for_three_minutes(stored: Place, machines: Callable[[str], None]) -> None:
    if kind_name(stored.kube) is None:
        pytest.skip("the machines are none of kind's, and so not ours to stop")
    stored.expects_restarts = True
    stored.expected_warnings |= {"NodeNotReady", "TaintManagerEviction", "Troubles"}
    stored.make_cluster(changes={"meta": {"replicas": 3, "etcd": {"replicas": 3, "storage": "256Mi"}}})
    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3, per_s=PER_S)
    store = next(pod for pod in stored.list("pods", "app=store"))["spec"]["nodeName"]
    pods = stored.pods()
    lost = next(pod["spec"]["nodeName"] for pod in pods.values() if pod["spec"]["nodeName"] != store)
    claims = {one["metadata"]["uid"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")}

    machines(f"docker start {lost} >/dev/null")
    subprocess.run(["docker", "kill", lost], check=True, capture_output=True, timeout=60)
    stored.kube.run("wait", "--for=condition=Ready=unknown", f"node/{lost}", "--timeout=120s", timeout=150)
    traffic.flows()
    stored.until_condition("storagecluster", CLUSTER, "Ready", "False", 180)
    counted = traffic.acknowledged()
    until(
        traffic.acknowledged,
        lambda now: all(now[shard] > counted[shard] + PER_S // 3 * AWAY_S for shard in counted),
        3 * AWAY_S,
        "three minutes' worth of records are taken without the machine",
    )
    assert {
        one["metadata"]["uid"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")
    } == claims

    subprocess.run(["docker", "start", lost], check=True, capture_output=True, timeout=60)
    stored.kube.run("wait", "--for=condition=Ready", f"node/{lost}", "--timeout=180s", timeout=200)
    stored.cluster_is_ready(600)
    for node in stored.node_ids():
        stored.until_condition("storagenode", f"{CLUSTER}-hot-{node}", "InSync", "True", 180)
    assert {
        one["metadata"]["uid"] for one in stored.list("persistentvolumeclaims", "stratalog.dev/part=node")
    } == claims
    traffic.judge()
