"""E01: the charts are installed, and a minimal cluster in a restricted namespace is ready within minutes."""

from __future__ import annotations

import pytest

from stratalog_e2e.install import RELEASE, Operator
from stratalog_e2e.place import BOOTSTRAP, CLUSTER, Place
from stratalog_e2e.storage import answer, image_bytes, start_seconds
from stratalog_operator.resources.conditions import OF_KIND

pytestmark = [pytest.mark.fast, pytest.mark.scenario("E01")]


def test_the_chart_proves_itself(operator: Operator) -> None:
    assert "Succeeded" in operator.helm("test", RELEASE, "--timeout", "3m")


def test_a_minimal_cluster_in_a_restricted_namespace_takes_records(stored: Place) -> None:
    stored.make_cluster(changes={"meta": {"etcd": {"storage": "256Mi"}}}, waits=False)
    cluster = stored.cluster_is_ready()

    told = {one["type"] for one in cluster["status"]["conditions"]}
    assert told == {one.value for one in OF_KIND["StorageCluster"]}
    assert cluster["status"]["nodes"] == {"desired": 3, "ready": 3, "retiring": 0}
    for part, count in (("etcd", 3), ("meta", 3), ("node", 3)):
        assert len(stored.pods(part)) == count
    stored.notes.append(f"image {image_bytes(stored) / 1e6:.0f} MB, ready after {start_seconds(stored)} s")
    # One in each zone: a machine that is lost takes one of them along.
    machines = {pod["spec"]["nodeName"] for pod in stored.pods().values()}
    assert len(machines) == 3

    stored.make_topic()
    traffic = stored.clients.start(BOOTSTRAP, "flights", shards=3)
    traffic.flows()
    traffic.judge()
    assert stored.condition("storagecluster", CLUSTER, "Healthy")["status"] == "True"
    for url in (
        f"http://{CLUSTER}-meta-0.{CLUSTER}-meta.{stored.name}.svc.cluster.local:9100/v1/nodes",
        f"http://{CLUSTER}-hot-2-0.{CLUSTER}-nodes.{stored.name}.svc.cluster.local:9644/v1/status",
    ):
        got = {token: answer(stored, url, token) for token in ("right", "wrong", "none")}
        # An instance of the meta service that does not lead redirects authorized clients.
        assert (got["wrong"], got["none"]) == (401, 401) and got["right"] != 401, f"{url}: {got}"
