"""Whole passes (observe, plan, apply) in a real API server; the test is kubelet, provisioner and meta service."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.metadata import Node
from stratalog_operator.apply.perform import Performer
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.observe.objects import observe
from stratalog_operator.plan.observed import SeenMeta
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.kinds import CLUSTER, POOL
from support.api_server import MERGE, NO_API_SERVER, ApiServer, apiserver_binary
from support.kind_samples import sample
from support.kubernetes_client import kubernetes_of
from support.meta_requests import RecordedRequests
from support.pretended_machines import Machines

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
]
NOW = "2013-01-01T00:00:00Z"


class Members:
    """Nodes whose pods are ready are members."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.is_away = False

    async def observe(self) -> SeenMeta:
        if self.is_away:
            raise Unavailable("nobody answers: wait")
        return SeenMeta("cluster-1", tuple(self.nodes.values()))


class Place:
    """A namespace with a cluster of three, and what a Kubernetes with machines would do there."""

    def __init__(self, api: ApiServer, namespace: str, kubernetes: Kubernetes) -> None:
        self.api, self.namespace, self.kubernetes = api, namespace, kubernetes
        self.members, self.performer = Members(), Performer(kubernetes, RecordedRequests())
        self.machines = Machines(api, namespace)
        assert api.ask("POST", path_of("StorageCluster", namespace), sample(CLUSTER)).is_ok
        given = sample(POOL, {"spec.zones": ["a", "b"]})
        assert api.ask("POST", path_of("StorageNodePool", namespace), given).is_ok

    async def reconcile(self) -> list[Any]:
        seen = await observe(self.kubernetes, self.namespace, "main", self.members, NOW)
        made = plan(seen)
        assert (await self.performer.perform(seen, made)).failed == []
        return [*made.actions, *made.statuses]

    def kubelet(self) -> None:
        """Each set has its pods, and they are ready; claims are bound."""
        self.machines.round()
        for pod in self.api.ask("GET", path_of("Pod", self.namespace)).body["items"]:
            labels = pod["metadata"]["labels"]
            if labels["stratalog.dev/part"] == "node":
                node_id = int(labels["stratalog.dev/node-id"])
                self.members.nodes[node_id] = Node(node_id, f"disk-{node_id}", "host", 9092)

    async def settle(self) -> None:
        for _ in range(15):
            done = await self.reconcile()
            self.kubelet()
            if not done:
                return
        raise AssertionError(f"not settled: {done}")

    def condition(self, type_: str) -> Any:
        status = self.api.ask("GET", path_of("StorageCluster", self.namespace, "main")).body["status"]
        return next(one for one in status["conditions"] if one["type"] == type_)


async def test_a_cluster_comes_up_and_then_a_pass_writes_nothing(api: ApiServer) -> None:
    async with kubernetes_of(api) as kubernetes:
        place = Place(api, api.namespace("passes"), kubernetes)
        await place.settle()
        before = kubernetes.writes.total()
        await place.reconcile()

        assert place.condition("Ready")["status"] == "True"
        assert sorted(place.members.nodes) == [1, 2, 3]
        assert kubernetes.writes.total() == before > 0
        claim = api.ask("GET", path_of("PersistentVolumeClaim", place.namespace, "data-main-hot-1")).body["metadata"]
        assert claim["annotations"]["stratalog.dev/storage-id"] == "disk-1"
        assert "stratalog.dev/last-copy" in claim["finalizers"]


@pytest.mark.fault("kubernetes-refuses-object-taken")
async def test_a_port_that_is_taken_blocks_only_the_service_that_asks_for_it(api: ApiServer) -> None:
    """A roll and a retirement continue, and the object whose action is refused says so."""
    async with kubernetes_of(api) as kubernetes:
        place = Place(api, api.namespace("taken-port"), kubernetes)
        await place.settle()
        port = {"port": 9094, "nodePort": 31777}
        taken = {"metadata": {"name": "others"}, "spec": {"type": "NodePort", "ports": [port]}}
        answer = api.ask("POST", path_of("Service", place.namespace), taken)
        assert answer.is_ok, answer.message
        outside = {"name": "outside", "port": 9094, "type": "nodeport", "firstNodePort": 31775}
        spec = {"spec": {"listeners": [{"name": "internal", "port": 9092}, outside]}}
        assert api.ask("PATCH", path_of("StorageCluster", place.namespace, "main"), spec, kind=MERGE).is_ok
        for _ in range(20):
            await place.reconcile()
            place.kubelet()
        node = api.ask("GET", path_of("StorageNode", place.namespace, "main-hot-1")).body["status"]
        stalled = next(one for one in node["conditions"] if one["type"] == "Stalled")
        services = api.ask("GET", path_of("Service", place.namespace)).body["items"]
        quiet = kubernetes.writes.total()
        await place.reconcile()

        assert (stalled["status"], stalled["reason"]) == ("True", "Refused")
        assert "provided port is already allocated" in stalled["message"]
        assert place.condition("Stalled")["status"] == "True" and place.condition("Reconciled")["reason"] == "Error"
        assert place.condition("Rolling")["status"] == "False", "all pods were restarted"
        assert {"main-hot-2-outside", "main-hot-3-outside"} <= {one["metadata"]["name"] for one in services}
        assert kubernetes.writes.total() == quiet, "it is not asked for again at once"


async def test_a_meta_service_that_is_silent_is_unknown_and_a_deleted_cluster_goes_without_it(api: ApiServer) -> None:
    async with kubernetes_of(api) as kubernetes:
        place = Place(api, api.namespace("silent"), kubernetes)
        await place.settle()
        place.members.is_away = True
        await place.reconcile()
        unknown = place.condition("Ready")
        path = path_of("StorageCluster", place.namespace, "main")
        assert api.ask("DELETE", path).is_ok
        for _ in range(3):
            if not api.ask("GET", path).is_ok:
                break
            await place.reconcile()

        assert unknown["status"] == "Unknown"
        assert api.ask("GET", path).code == 404
        claims = api.ask("GET", path_of("PersistentVolumeClaim", place.namespace)).body["items"]
        assert not [one for one in claims if "stratalog.dev/last-copy" in one["metadata"]["finalizers"]]
        assert len(claims) == 3
