"""A namespace in which operators work: a real API server, a real meta service, pretended machines and nodes.

async with operator_place(api, "name") as place:
    place.make(CLUSTER); place.make(POOL)
    async with place.operator():
        await place.until("Ready")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kubernetes.aio.client import Configuration

from stratalog_meta.api.server import MetaServer
from stratalog_meta.clocks import wall_ms
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_operator.kube.client import path_of
from stratalog_operator.lease import LeaseTimes
from stratalog_operator.metas import HttpMetaConnections
from stratalog_operator.process import Operator, OperatorSettings
from stratalog_operator.resources.kinds import Kind
from stratalog_operator.resources.names import LABEL_NODE_ID, LABEL_PART
from support.api_server import MERGE, OPERATOR_TOKEN, Answer, ApiServer
from support.kind_samples import sample
from support.pretended_machines import Machines
from support.pretended_members import Members
from support.waiting import eventually

LONG_S = 120.0
QUICK_LEASE = LeaseTimes(duration_s=12.0, renew_within_s=9.0, retry_s=1.0)
"""No quicker: on a machine that is busy a holder would lose it by that alone."""
LEASE_MS = 60_000
"""Of the nodes: a machine that is busy must not have them die."""
_ROUND_S = 0.2


class Place:
    def __init__(self, api: ApiServer, namespace: str, members: Members, meta_url: str) -> None:
        self.api, self.namespace, self.members, self.meta_url = api, namespace, members, meta_url
        self.machines = Machines(api, namespace)
        self.faults: list[BaseException] = []

    # What people do ---------------------------------------------------------------------------------------------------
    def make(self, kind: Kind, changes: Mapping[str, Any] | None = None) -> None:
        made = self.api.ask("POST", path_of(kind.name, self.namespace), sample(kind, changes or {}))
        assert made.is_ok, made.message

    def change(self, kind: str, name: str, body: Mapping[str, Any]) -> Answer:
        answer = self.api.ask("PATCH", path_of(kind, self.namespace, name), body, kind=MERGE)
        assert answer.is_ok, answer.message
        return answer

    def scale(self, replicas: int, pool: str = "hot") -> None:
        path = f"{path_of('StorageNodePool', self.namespace, pool)}/scale"
        assert self.api.ask("PATCH", path, {"spec": {"replicas": replicas}}, kind=MERGE).is_ok

    def delete(self, kind: str, name: str) -> None:
        assert self.api.ask("DELETE", path_of(kind, self.namespace, name)).is_ok

    # What is seen -----------------------------------------------------------------------------------------------------
    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Empty when it is not there."""
        answer = self.api.ask("GET", path_of(kind, self.namespace, name))
        return answer.body if answer.is_ok else {}

    def all(self, kind: str) -> list[dict[str, Any]]:
        answer = self.api.ask("GET", path_of(kind, self.namespace))
        assert answer.is_ok, answer.message
        return list(answer.body["items"])

    def names(self, kind: str) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.all(kind))

    def condition(self, type_: str, kind: str = "StorageCluster", name: str = "main") -> str:
        found = self.get(kind, name).get("status", {}).get("conditions") or []
        return next((str(one["status"]) for one in found if one["type"] == type_), "")

    async def until_ready(self, nodes: int) -> None:
        """Waits until the cluster matches its spec, with this many nodes, and none is leaving."""

        def is_so() -> bool:
            counts = self.get("StorageCluster", "main").get("status", {}).get("nodes", {})
            return self.condition("Ready") == "True" and counts == {"desired": nodes, "ready": nodes, "retiring": 0}

        await self.until(is_so)

    async def until(self, predicate: Any) -> None:
        def looked() -> object:
            if self.faults:
                raise self.faults[0]
            return predicate()

        await eventually(lambda: asyncio.to_thread(looked), timeout=LONG_S)

    # Operators --------------------------------------------------------------------------------------------------------
    def configuration(self) -> Configuration:
        """As the service account that the chart makes: with no right beyond the operator's."""
        found = Configuration(host=self.api.url, ssl_ca_cert=str(self.api.certificates.ca))
        found.api_key = {"BearerToken": f"Bearer {OPERATOR_TOKEN}"}
        return found

    def new_operator(self, identity: str = "one", times: LeaseTimes = QUICK_LEASE) -> Operator:
        settings = OperatorSettings(
            identity,
            (self.namespace,),
            self.namespace,
            lease_times=times,
            admin_listen="127.0.0.1:0",
            namespace="operators",
        )
        return Operator(settings, self.configuration(), HttpMetaConnections(lambda _: self.meta_url))

    @asynccontextmanager
    async def operator(self, identity: str = "one") -> AsyncIterator[Operator]:
        """Runs, and stops clean."""
        stopping, operator = asyncio.Event(), self.new_operator(identity)
        running = asyncio.create_task(operator.run(stopping))
        running.add_done_callback(lambda task: self._note(task))
        try:
            yield operator
        finally:
            stopping.set()
            assert await asyncio.wait_for(running, LONG_S)

    def _note(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.append(error)

    async def run_machines(self) -> None:
        while True:
            await asyncio.to_thread(self.machines.round)
            pods = await asyncio.to_thread(self.all, "Pod")
            ready = [
                int(pod["metadata"]["labels"][LABEL_NODE_ID])
                for pod in pods
                if pod["metadata"]["labels"].get(LABEL_PART) == "node"
                and pod["metadata"]["name"] not in self.machines.down
            ]
            await self.members.round(ready)
            await asyncio.sleep(_ROUND_S)


@asynccontextmanager
async def operator_place(api: ApiServer, namespace: str) -> AsyncIterator[Place]:
    service = MetaService(MemoryStore(), wall_ms, lease_ms=LEASE_MS, verify_interval_ms=200)
    await service.start()
    server = MetaServer(service)
    url = await server.start("127.0.0.1", 0)
    place = Place(api, api.namespace(namespace), Members(service), url)
    api.let_operate(namespace)
    machines = asyncio.create_task(place.run_machines())
    machines.add_done_callback(lambda task: place._note(task))
    try:
        yield place
    finally:
        machines.cancel()
        await asyncio.wait([machines])
        await server.close()
        await service.close()
