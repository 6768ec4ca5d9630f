"""A real meta service with its HTTP door in this process, and nodes that are what a test says they told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stratalog.model.activity import Activity, UploadActivity
from stratalog.model.commands import CreateTopic, NoteLives, RegisterNode
from stratalog.model.metadata import Heartbeat, Life, NodeInfo, Vitals
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock

GIB = 1 << 30


@dataclass(slots=True)
class ToldCluster:
    service: MetaService
    server: MetaServer
    clock: HandClock
    lives: dict[int, Life] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.server.address

    async def node(self, node_id: int, rack: str | None = None, host: str = "127.0.0.1") -> None:
        info = NodeInfo(node_id, f"storage-{node_id}", host, 9090 + node_id, rack)
        self.lives[node_id] = Life(node_id, (await self.service.perform(RegisterNode(info))).node_epoch)

    async def topic(self, name: str, shards: int, replicas: int) -> None:
        await self.service.perform(CreateTopic(name, shards, replicas, {}))

    async def tell(self, node_id: int, activity: Activity, free: int = 60 * GIB) -> None:
        vitals = Vitals(free, 100 * GIB, True, activity=activity)
        await self.service.heartbeat(Heartbeat(self.lives[node_id], vitals=vitals))

    async def tell_for(self, rounds: int, *node_ids: int, rate: int = 1_000_000) -> None:
        """Two seconds pass before each round; each node produces its id times `rate` in each of them."""
        for at in range(rounds):
            self.clock.now_ms += 2_000
            for node_id in node_ids:
                produced = at * node_id * rate * 2
                uploads = UploadActivity(produced // 4, at, at * 1_000)
                await self.tell(node_id, Activity(produced, produced // 2, uploads))

    async def lose(self, node_id: int) -> None:
        await self.service.perform(NoteLives(lost=(self.lives[node_id],)))


@asynccontextmanager
async def told_cluster() -> AsyncIterator[ToldCluster]:
    clock = HandClock()
    service = MetaService(MemoryStore(), clock, lease_ms=600_000)
    await service.start()
    server = MetaServer(service)
    await server.start("127.0.0.1", 0)
    try:
        yield ToldCluster(service, server, clock)
    finally:
        await server.close()
        await service.close()
