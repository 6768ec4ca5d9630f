"""A service with leases hears who lives, has it noted, and keeps a second process from passing for a living node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import AllocateProducerIds, RegisterNode
from stratalog.model.errors import Conflict, Fenced, LeaseHeld, NotLeader, OutcomeUnknown, Unavailable
from stratalog.model.metadata import Heard, Heartbeat, Life, NodeInfo
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.stores.meta_store import MetaStore
from support.elections import instances
from support.failing_meta_store import FailingStore
from support.meta_worlds import IMPATIENT, HandClock
from support.waiting import eventually

LEASE_MS = 80
"""Of the hand-moved clock; the service looks at it every 10 ms of real time."""
NODE = NodeInfo(1, "disk-a", "host", 9092)
NOTE_LIVES = "/v1/commands/note-lives"
ELSEWHERE = NodeInfo(1, "disk-b", "host", 9092)


@dataclass
class Monotonic:
    now_ms: int = 5_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Lives:
    service: MetaService
    clock: Monotonic

    async def alive(self) -> dict[int, bool]:
        return {node.node_id: node.is_alive for node in (await self.service.snapshot()).nodes}

    async def register(self, info: NodeInfo = NODE, seat: str = "the lock of its directory") -> Life:
        return Life(info.node_id, (await self.service.perform(RegisterNode(info, seat=seat))).node_epoch)

    async def until_lost(self, node_id: int = 1) -> int:
        """Let time pass, a little at a time, until the node is lost; how much did."""
        began_ms = self.clock.now_ms

        async def is_lost_a_moment_later() -> bool:
            self.clock.now_ms += 1
            return not (await self.alive())[node_id]

        await eventually(is_lost_a_moment_later)
        return self.clock.now_ms - began_ms


@pytest.fixture
async def lives() -> AsyncIterator[Lives]:
    clock = Monotonic()
    service = MetaService(MemoryStore(), HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock)
    await service.start()
    yield Lives(service, clock)
    await service.close()


@pytest.mark.fault("node-sends-heartbeats-meta")
async def test_a_node_that_falls_silent_is_lost_and_a_heartbeat_brings_it_back(lives: Lives) -> None:
    life = await lives.register()
    assert await lives.until_lost() >= LEASE_MS
    assert lives.service.life_stats.lost == 1
    await lives.service.heartbeat(Heartbeat(life))
    assert lives.service.life_stats.heartbeats == 1
    await eventually(lambda: lives.service.stats.changes == 3)
    assert await lives.alive() == {1: True}


async def test_watchers_hear_of_a_lost_node(lives: Lives) -> None:
    life = await lives.register()
    watch = lives.service.watch(1)
    await lives.service.heartbeat(Heartbeat(life, is_last=True))
    (told,) = (await anext(watch)).changes
    assert told.node.life == life and not told.node.is_alive  # type: ignore[union-attr]


async def test_an_earlier_life_learns_it_by_its_heartbeat(lives: Lives) -> None:
    first = await lives.register()
    second = await lives.register()
    with pytest.raises(Fenced, match="life 1 of node 1"):
        await lives.service.heartbeat(Heartbeat(first))
    assert await lives.service.heartbeat(Heartbeat(second)) == Heard(LEASE_MS, version=2)


@pytest.mark.fault("copy-living-node-directory")
async def test_a_heartbeat_of_an_earlier_life_is_counted_for_two_may_run_on_copies_of_one_directory(
    lives: Lives,
) -> None:
    first = await lives.register()
    await lives.register()
    with pytest.raises(Fenced):
        await lives.service.heartbeat(Heartbeat(first))
    assert lives.service.life_stats.superseded == 1


@pytest.mark.fault("copy-living-node-directory")
@pytest.mark.parametrize("seat", ["another lock", ""])
async def test_a_copy_of_a_directory_is_let_in_only_once_the_lease_of_its_node_is_over(lives: Lives, seat: str) -> None:
    life = await lives.register()
    for _ in range(3):
        with pytest.raises(LeaseHeld, match="one of the two is a copy"):
            await lives.register(seat=seat)
    await lives.service.heartbeat(Heartbeat(life))
    assert lives.service.life_stats.refused == 3
    await lives.until_lost()
    assert await lives.register(seat=seat) == Life(1, 2)
    with pytest.raises(LeaseHeld):
        await lives.register()


async def test_another_storage_begins_only_once_the_old_lifes_lease_is_over(lives: Lives) -> None:
    await lives.register()
    with pytest.raises(Conflict, match="runs on storage disk-a"):
        await lives.register(ELSEWHERE, "another lock")
    await lives.until_lost()
    assert await lives.register(ELSEWHERE, "another lock") == Life(1, 2)


async def test_of_two_storages_that_ask_at_once_one_begins(lives: Lives) -> None:
    answers = await asyncio.gather(
        lives.register(NODE), lives.register(ELSEWHERE, "another lock"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Life, LeaseHeld]


async def test_a_new_leader_of_the_same_store_grants_one_whole_lease() -> None:
    store, clock = MemoryStore(), Monotonic()
    first = Lives(MetaService(store, HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock), clock)
    await first.service.start()
    life = await first.register()
    clock.now_ms += LEASE_MS // 2 - 1
    await first.service.close()
    second = Lives(MetaService(store, HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock), clock)
    await second.service.start()
    assert await second.until_lost() >= LEASE_MS
    await second.service.heartbeat(Heartbeat(life))
    await second.service.close()


async def test_what_could_not_be_noted_while_the_store_was_full_is_noted_then() -> None:
    clock, store = Monotonic(), FailingStore(MemoryStore())
    lives = Lives(MetaService(store, HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock), clock)
    await lives.service.start()
    life = await lives.register()
    store.is_full = True
    with pytest.raises(OutcomeUnknown):
        await lives.service.perform(AllocateProducerIds(1))
    await lives.service.heartbeat(Heartbeat(life, is_last=True))
    store.is_full = False
    await eventually(lambda: lives.service.life_stats.lost == 1)
    assert await lives.alive() == {1: False}
    await lives.service.close()


@pytest.mark.fault("node-suspended-cut-longer")
async def test_a_heartbeat_is_not_answered_while_the_loss_of_its_node_is_being_written() -> None:
    """The answer would name a version from before the node lost its leadership, and the node would continue as the
    leader."""
    clock, store = Monotonic(), FailingStore(MemoryStore())
    lives = Lives(MetaService(store, HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock), clock)
    await lives.service.start()
    life = await lives.register()
    store.hold()
    before = store.writes

    async def is_loss_being_written_a_moment_later() -> bool:
        clock.now_ms += 1
        return store.writes > before

    await eventually(is_loss_being_written_a_moment_later)
    with pytest.raises(Unavailable, match="just being noted as lost"):
        await lives.service.heartbeat(Heartbeat(life))
    store.let_go()
    await eventually(lambda: lives.service.life_stats.lost == 1)
    assert (await lives.service.heartbeat(Heartbeat(life))).version >= 2
    await eventually(lambda: lives.service.stats.changes == 3)
    assert await lives.alive() == {1: True}, "the heartbeat that was not answered counts"
    await lives.service.close()


@pytest.mark.fault("meta-store-slow-write")
async def test_a_store_that_is_slow_to_note_one_node_keeps_no_dead_one_alive() -> None:
    """The service receives heartbeats meanwhile: a node that sends none is lost, however often something is written."""
    clock, store = Monotonic(), FailingStore(MemoryStore())
    lives = Lives(MetaService(store, HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock), clock)
    await lives.service.start()
    full = await lives.register(NodeInfo(2, "disk-b", "host", 9093))
    await lives.register()
    store.hold()
    before, began_ms = store.writes, clock.now_ms
    await lives.service.heartbeat(Heartbeat(full, has_room=False))
    await eventually(lambda: store.writes > before)
    keeper = lives.service._lives
    assert keeper is not None

    while clock.now_ms < began_ms + LEASE_MS - 5:
        clock.now_ms += 5
        await lives.service.heartbeat(Heartbeat(full, has_room=False))
        await eventually(lambda: keeper._leases._looked_ms == clock.now_ms)
    store.let_go()
    assert clock.now_ms - began_ms + await lives.until_lost(1) <= LEASE_MS + 10
    assert (await lives.alive())[2]
    await lives.service.close()


async def test_without_leases_every_heartbeat_is_welcome_and_no_node_is_lost() -> None:
    """One process: the service lives and dies with its node, so a new disk has nothing to wait for."""
    service = MetaService(MemoryStore(), HandClock())
    await service.start()
    await service.perform(RegisterNode(NODE))
    assert await service.heartbeat(Heartbeat(Life(1, 1))) == Heard(0, version=1)
    assert (await service.perform(RegisterNode(ELSEWHERE))).node_epoch == 2
    await service.close()


async def test_heartbeats_go_over_http_and_only_the_service_itself_says_which_nodes_are_lost(lives: Lives) -> None:
    server = MetaServer(lives.service)
    client = HttpMetaClient(await server.start("127.0.0.1", 0), IMPATIENT)
    life = await lives.register()
    assert await client.heartbeat(Heartbeat(life)) == Heard(LEASE_MS, version=1)
    with pytest.raises(Fenced):
        await client.heartbeat(Heartbeat(Life(1, 9)))
    await client.close()
    async with aiohttp.ClientSession(server.address) as http:
        for path, body in (("/v1/heartbeat", {"life": {"node_id": 1, "epoch": 1, "until": 5}}), (NOTE_LIVES, {})):
            async with http.post(path, json=body) as response:
                assert response.status in (400, 404), await response.text()
    await server.close()


@pytest.mark.fault("node-killed")
async def test_a_node_whose_connection_is_closed_is_lost_after_half_a_lease(lives: Lives) -> None:
    """A process that is killed closes its connections; one that lives is heard on another."""
    server = MetaServer(lives.service)
    url = await server.start("127.0.0.1", 0)
    first, second = HttpMetaClient(url, IMPATIENT), HttpMetaClient(url, IMPATIENT)
    silent, moved, killed = [await lives.register(NodeInfo(n, f"disk-{n}", "host", 9_000 + n)) for n in (1, 2, 3)]
    await second.heartbeat(Heartbeat(silent))
    await first.heartbeat(Heartbeat(moved))
    await first.heartbeat(Heartbeat(killed))
    await second.heartbeat(Heartbeat(moved))
    await first.close()
    assert await lives.until_lost(3) >= LEASE_MS // 2
    assert await lives.alive() == {1: True, 2: True, 3: False}
    await lives.until_lost(1)
    await second.close()
    await server.close()


@pytest.mark.fault("node-sends-heartbeats-meta")
async def test_while_an_instance_cannot_tell_whether_it_leads_no_node_is_lost_for_not_being_heard() -> None:
    """It sends heartbeats away then: a pause of etcd would take every shard from its leader."""
    clock = Monotonic()

    def service(led: MetaStore) -> MetaService:
        return MetaService(led, HandClock(), lease_ms=LEASE_MS, monotonic_ms=clock)

    async with instances(1, service) as running:
        running.elect(0)
        await eventually(lambda: running.leads(0))
        instance = running.instances[0]
        led = instance.leading()
        life = Life(1, (await led.perform(RegisterNode(NODE))).node_epoch)
        running.election.is_in_doubt = True
        for _ in range(3 * LEASE_MS):
            clock.now_ms += 1
            await asyncio.sleep(0.001)
        with pytest.raises(NotLeader):
            instance.leading()
        running.election.is_in_doubt = False
        await instance.leading().heartbeat(Heartbeat(life))
        assert led.life_stats.lost == 0 and (await led.snapshot()).nodes[0].is_alive

        async def is_lost_a_moment_later() -> bool:
            clock.now_ms += 1
            return not (await led.snapshot()).nodes[0].is_alive

        await eventually(is_lost_a_moment_later)
        assert led.life_stats.lost == 1, "a silent one is lost again"
