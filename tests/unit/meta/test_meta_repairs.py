"""A service with leases has the copies of a node that is gone made again by another, and says how many wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from stratalog.machines.table.records import TableWrite
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode, ReportReplica, RollSegment
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog.model.segment import Segment
from stratalog_meta import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock
from support.table_stories import record_of
from support.waiting import eventually

REPLACE_AFTER_MS = 400
"""Of the hand-moved clock; the service looks every 50 ms of real time."""


class SlowStore(MemoryStore):
    """Time passes while it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.takes_ms = 0
        self.passed_ms = 0

    async def write(self, commands: Sequence[Sequence[TableWrite]]) -> None:
        self.passed_ms += self.takes_ms
        await super().write(commands)


@dataclass
class World:
    service: MetaService
    store: SlowStore
    now_ms: int = 5_000

    def clock(self) -> int:
        return self.now_ms + self.store.passed_ms

    async def register(self, node_id: int) -> Life:
        registration = await self.service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "host", 9092)))
        return Life(node_id, registration.node_epoch)

    async def sealed(self, lives: list[Life]) -> SegmentKey:
        topic = await self.service.perform(CreateTopic("flights", 1, len(lives)))
        (active,) = (await self.service.shard(ShardKey(topic.topic_id, 0))).segments
        await self.service.perform(RollSegment(active.key, 10))
        for life in lives:
            await self.service.perform(ReportReplica(active.key, record_of(active.key, 10), caller=life))
        return active.key

    async def segment(self, key: SegmentKey) -> Segment:
        return await self.service.segment(key)

    async def pass_while_alive(self, *lives: Life) -> None:
        self.now_ms += REPLACE_AFTER_MS
        for life in lives:
            await self.service.heartbeat(Heartbeat(life))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made: list[World] = []
    store = SlowStore()
    service = MetaService(
        store,
        HandClock(),
        lease_ms=80,
        replace_after_ms=REPLACE_AFTER_MS,
        monotonic_ms=lambda: made[0].clock(),
    )
    made.append(World(service, store))
    await service.start()
    yield made[0]
    await service.close()


@pytest.mark.fault("node-lost-permanently-sealed")
async def test_a_node_that_is_gone_for_long_enough_is_replaced_and_one_that_is_back_has_its_place(world: World) -> None:
    lives = [await world.register(node_id) for node_id in (1, 2, 3)]
    key = await world.sealed(lives[:2])
    assert (await world.segment(key)).local_nodes == (1, 2)
    await world.service.heartbeat(Heartbeat(lives[1], is_last=True))
    await eventually(lambda: _is_dead(world, 2))
    assert world.service.repair_stats.copies_asked == 0
    await world.pass_while_alive(lives[0], lives[2])
    await eventually(lambda: world.service.repair_stats.copies_asked > 0)
    assert (await world.segment(key)).replicas == (1, 2, 3)
    version = (await world.segment(key)).isr_version
    await world.service.perform(ReportReplica(key, record_of(key, 10), version, caller=lives[2]))
    await world.service.heartbeat(Heartbeat(lives[1]))
    await eventually(lambda: _is_alive(world, 2))
    await world.pass_while_alive(*lives)
    await eventually(lambda: world.service.repair_stats.copies_dropped > 0)
    assert (await world.segment(key)).local_nodes == (1, 2)


@pytest.mark.fault("etcd-slow-service-searches")
async def test_a_store_that_was_slow_for_a_moment_does_not_keep_the_next_copies_waiting(world: World) -> None:
    lives = [await world.register(node_id) for node_id in (1, 2, 3)]
    key = await world.sealed(lives[:2])
    await world.service.heartbeat(Heartbeat(lives[1], is_last=True))
    await eventually(lambda: _is_dead(world, 2))
    world.store.takes_ms = 3_000
    await world.pass_while_alive(lives[0], lives[2])
    await eventually(lambda: world.service.repair_stats.copies_asked > 0)
    world.store.takes_ms = 0
    for life in lives:
        await world.service.heartbeat(Heartbeat(life))
    await eventually(lambda: _are_alive(world, 1, 2, 3))
    version = (await world.segment(key)).isr_version
    await world.service.perform(ReportReplica(key, record_of(key, 10), version, caller=lives[2]))
    await world.pass_while_alive(*lives)
    await eventually(lambda: world.service.repair_stats.copies_dropped > 0)


async def _are_alive(world: World, *node_ids: int) -> bool:
    return all([await _is_alive(world, node_id) for node_id in node_ids])


async def _is_dead(world: World, node_id: int) -> bool:
    return not await _is_alive(world, node_id)


async def _is_alive(world: World, node_id: int) -> bool:
    nodes = {node.node_id: node for node in (await world.service.snapshot()).nodes}
    return nodes[node_id].is_alive
