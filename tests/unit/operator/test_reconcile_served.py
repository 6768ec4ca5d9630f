"""Whole passes (observe, plan, apply) in a real API server; the test is kubelet, provisioner and meta service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.metadata import Node
from stratalog.model.mounts import Mount, MountMode, MountState, Volume
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.views.retirement_status import RetirementStatus, words_of
from stratalog_operator.apply.perform import Performer
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.observe.objects import observe
from stratalog_operator.plan.conditions import MAX_TOMBSTONES
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


class Members(RecordedRequests):
    """Nodes whose pods are ready are members. One that is retired in volume mode is released at once, and its volume is
    served once a pod reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[int, Node] = {}
        self.retired: dict[int, Retirement] = {}
        self.is_away = False

    async def observe(self) -> SeenMeta:
        if self.is_away:
            raise Unavailable("nobody answers: wait")
        statuses = tuple(
            RetirementStatus(node_id, False, record, 0, 0, 0, -1, words_of(record, 0, 0, 0, -1))
            for node_id, record in self.retired.items()
        )
        return SeenMeta(
            "cluster-1", tuple(self.nodes.values()), statuses, tuple(map(self._mount, self.retired.values()))
        )

    def _mount(self, record: Retirement) -> Mount:
        is_served = record.step is RetireStep.DONE
        state, volume = (MountState.SERVING, Volume("host", 9092, "a")) if is_served else (MountState.TAKING, None)
        node_id = int(record.storage_id.removeprefix("disk-"))
        return Mount(f"tier/{node_id}", MountMode.VOLUME, node_id, record.storage_id, state, 1, 1, volume=volume)

    async def retire(
        self, node_id: int, mode: RetireMode, force_storage_id: str | None, force_absence: int | None
    ) -> None:
        await super().retire(node_id, mode, force_storage_id, force_absence)
        assert mode is RetireMode.VOLUME
        self.nodes[node_id] = replace(self.nodes[node_id], is_alive=False)
        self.retired[node_id] = Retirement(f"disk-{node_id}", mode, RetireStep.MOUNT, 0, 0)

    def read_volume(self, node_id: int) -> None:
        self.retired[node_id] = replace(self.retired[node_id], step=RetireStep.DONE)


class Place:
    """A namespace with a cluster of three, and what a Kubernetes with machines would do there."""

    def __init__(
        self, api: ApiServer, namespace: str, kubernetes: Kubernetes, changes: Mapping[str, object] | None = None
    ) -> None:
        self.api, self.namespace, self.kubernetes = api, namespace, kubernetes
        self.members = Members()
        self.performer = Performer(kubernetes, self.members)
        self.machines = Machines(api, namespace)
        assert api.ask("POST", path_of("StorageCluster", namespace), sample(CLUSTER, changes)).is_ok
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
                if node_id not in self.members.retired:
                    self.members.nodes[node_id] = Node(node_id, f"disk-{node_id}", "host", 9092)
            elif pod["metadata"]["name"].endswith("-vol-0"):
                self.members.read_volume(int(pod["metadata"]["name"].split("-")[-3]))

    async def settle(self, passes: int = 15) -> None:
        for _ in range(passes):
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


@pytest.mark.fault("nodes-retired-mode-remountvolume")
async def test_more_retired_volumes_than_tombstones_come_to_rest(api: ApiServer) -> None:
    """Each stays mounted, and no StorageNode is made and deleted in turn."""
    count = MAX_TOMBSTONES + 2
    async with kubernetes_of(api) as kubernetes:
        place = Place(api, api.namespace("volumes"), kubernetes, {"spec.scaleIn": {"mode": "RemountVolume"}})
        scale = path_of("StorageNodePool", place.namespace, "hot")
        assert api.ask("PATCH", scale, {"spec": {"replicas": count + 1}}, kind=MERGE).is_ok
        await place.settle()
        assert api.ask("PATCH", scale, {"spec": {"replicas": 1}}, kind=MERGE).is_ok
        await place.settle(8 * count)
        quiet = kubernetes.writes.total()
        for _ in range(3):
            place.kubelet()
            assert await place.reconcile() == []

        def names(kind: str) -> set[str]:
            found = api.ask("GET", path_of(kind, place.namespace)).body["items"]
            return {one["metadata"]["name"] for one in found}

        retired = {f"main-hot-{node_id}" for node_id in range(2, count + 2)}
        cluster = api.ask("GET", path_of("StorageCluster", place.namespace, "main")).body
        assert kubernetes.writes.total() == quiet
        assert names("StorageNode") == {"main-hot-1"} and names("ReadOnlyMount") == retired
        assert len(cluster["status"]["retiredNodes"]) == MAX_TOMBSTONES
        assert {f"data-{name}" for name in retired} <= names("PersistentVolumeClaim")
        assert all(record.step is RetireStep.DONE for record in place.members.retired.values())
