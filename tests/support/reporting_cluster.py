"""A real meta service with its HTTP port in this process, and nodes that are what a test says they told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stratalog.machines.plans.verification_turns import inventory_writer, node_on_turn
from stratalog.model.activity import Activity, UploadActivity
from stratalog.model.commands.mount_commands import TakeMount
from stratalog.model.commands.retirement_commands import ReportInventory, ReportSighting, RetireNode
from stratalog.model.commands.table_commands import CreateTopic, NoteLives, RegisterNode, RollSegment, SealSegment
from stratalog.model.metadata import Heartbeat, Life, NodeInfo, Vitals
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.retirements import VERIFY_INTERVAL_MS
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock, seal_record
from support.waiting import eventually

GIB = 1 << 30


@dataclass(slots=True)
class ReportingCluster:
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

    async def report(self, node_id: int, activity: Activity, free: int = 60 * GIB) -> None:
        vitals = Vitals(free, 100 * GIB, True, activity=activity)
        await self.service.heartbeat(Heartbeat(self.lives[node_id], vitals=vitals))

    async def report_for(self, rounds: int, *node_ids: int, rate: int = 1_000_000) -> None:
        """Two seconds pass before each round; each node produces its id times `rate` in each of them."""
        for at in range(rounds):
            self.clock.now_ms += 2_000
            for node_id in node_ids:
                produced = at * node_id * rate * 2
                uploads = UploadActivity(produced // 4, at, at * 1_000)
                await self.report(node_id, Activity(produced, produced // 2, uploads))

    async def lose(self, node_id: int) -> None:
        await self.service.perform(NoteLives(lost=(self.lives[node_id],)))

    async def sealed(self, name: str, *, records: int) -> None:
        """A topic of one shard and one copy, whose first segment is sealed."""
        await self.topic(name, 1, 1)
        (topic,) = [one for one in (await self.service.snapshot()).topics if one.name == name]
        (shard,) = [one for one in (await self.service.snapshot()).shards if one.key.topic_id == topic.topic_id]
        (first,) = shard.segments
        assert first.leader is not None
        leader = self.lives[first.leader]
        await self.service.perform(RollSegment(first.key, records, caller=leader))
        proof = seal_record(first.key, records, first.replicas, bytes(16))
        await self.service.perform(SealSegment(first.key, proof, caller=leader))

    # Nodes that leave -----------------------------------------------------------------------------------------------
    async def retire(self, node_id: int, mode: RetireMode = RetireMode.OFFLOAD) -> None:
        await self.service.perform(RetireNode(node_id, mode))

    async def until_step(self, node_id: int, step: RetireStep) -> None:
        """Waits for a step. The checking node finds everything, and writes the list of what the node held."""

        async def is_there() -> bool:
            nodes = (await self.service.snapshot()).nodes
            node = next(one for one in nodes if one.node_id == node_id)
            record = node.retirement
            assert record is not None
            if record.step is step:
                return True
            looks = node_on_turn(node, nodes) if record.step is RetireStep.VERIFY else inventory_writer(node, nodes)
            caller = None if looks is None else self.lives[looks]
            if record.step is RetireStep.VERIFY:
                self.clock.now_ms += VERIFY_INTERVAL_MS
                seen = record.storage_id, record.begun_ms, 0, (), 0, False, "", record.last_check_ms
                await self.service.perform(ReportSighting(node_id, *seen, caller=caller))
            elif record.step is RetireStep.SNAPSHOT:
                written = record.storage_id, record.begun_ms, f"inventory-{node_id}"
                await self.service.perform(ReportInventory(node_id, *written, caller=caller))
            elif record.step is RetireStep.MOUNT:
                await self.take_mount(f"tier/{node_id}")
            return False

        await eventually(is_there, timeout=40)

    async def take_mount(self, name: str) -> None:
        """The chosen holder can read the mount."""
        for mount in (await self.service.snapshot()).mounts:
            if mount.name == name and mount.holder is not None and mount.mode is not MountMode.VOLUME:
                await self.service.perform(TakeMount(name, mount.token, caller=self.lives[mount.holder]))


@asynccontextmanager
async def reporting_cluster() -> AsyncIterator[ReportingCluster]:
    clock = HandClock()
    service = MetaService(MemoryStore(), clock, lease_ms=600_000)
    await service.start()
    server = MetaServer(service)
    await server.start("127.0.0.1", 0)
    try:
        yield ReportingCluster(service, server, clock)
    finally:
        await server.close()
        await service.close()
