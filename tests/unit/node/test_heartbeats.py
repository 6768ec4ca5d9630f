"""A node tells the meta service that it lives, and learns when its life is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratalog.machines.plans.node_leases import NodeLeases
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import AllocateProducerIds, RegisterNode
from stratalog.model.errors import Conflict, Fenced, LeaseHeld, Unavailable
from stratalog.model.metadata import Life, Node, NodeInfo
from stratalog.settings.process import ProcessSettings
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.clocks import monotonic_ms, wall_ms
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node import heartbeats
from stratalog_node.disk.boot_id import read_boot_id
from stratalog_node.disk.life_record import seat_of
from stratalog_node.heartbeats import Heartbeats, register
from stratalog_node.node import Listen, StorageNode
from support.gated_meta import GatedMeta
from support.waiting import eventually

NODE = NodeInfo(1, "disk-a", "host", 9092)
ELSEWHERE = NodeInfo(1, "disk-b", "host", 9092)
AN_HOUR_MS = 3_600_000


@asynccontextmanager
async def service(lease_ms: int | None) -> AsyncIterator[MetaService]:
    running = MetaService(MemoryStore(), wall_ms, lease_ms=lease_ms)
    await running.start()
    yield running
    await running.close()


@asynccontextmanager
async def beating(meta: MetaService | GatedMeta, life: Life) -> AsyncIterator[tuple[Heartbeats, list[str]]]:
    over: list[str] = []
    beats = Heartbeats(meta, life, monotonic_ms, over.append)  # type: ignore[arg-type]
    beats.start()
    yield beats, over
    await beats.close()


async def begin(meta: MetaService, info: NodeInfo = NODE) -> Life:
    registration = await meta.perform(RegisterNode(info, seat=f"the directory of {info.storage_id}"))
    return Life(info.node_id, registration.node_epoch)


async def test_heartbeats_keep_a_node_alive_and_the_last_one_ends_its_lease() -> None:
    async with service(AN_HOUR_MS) as meta:
        async with beating(meta, await begin(meta)):
            await eventually(lambda: meta.life_stats.heartbeats == 1)
        await eventually(lambda: meta.life_stats.lost == 0 and meta.life_stats.heartbeats == 2)


async def test_a_node_keeps_sending_heartbeats_a_part_of_a_lease_apart() -> None:
    async with service(2_000) as meta, beating(meta, await begin(meta)) as (beats, _):
        before_ms = beats.heard_ms
        await eventually(lambda: meta.life_stats.heartbeats == 4)
        assert beats.heard_ms > before_ms and meta.life_stats.lost == 0


async def test_a_node_whose_life_is_over_learns_it_once_and_sends_no_goodbye() -> None:
    async with service(2_000) as meta:
        life = await begin(meta)
        async with beating(meta, life) as (_, over):
            await begin(meta)
            await eventually(lambda: over)
        assert len(over) == 1 and "life 1 of node 1" in over[0]
        assert (await meta.snapshot()).nodes[0].is_alive, "the goodbye of the old life would have been the new one's"


async def test_a_service_that_keeps_no_leases_is_asked_once() -> None:
    async with service(None) as inner:
        meta = GatedMeta(inner)
        async with beating(meta, await begin(inner)) as (beats, _):
            await eventually(lambda: beats._task is not None and beats._task.done())
        assert meta.calls["heartbeat"] == 1


async def test_a_service_that_is_away_is_asked_again_until_it_hears() -> None:
    async with service(400) as inner:
        meta = GatedMeta(inner)
        meta.fail("heartbeat", Unavailable("away"), RuntimeError("a fault of ours"), Unavailable("away"))
        async with beating(meta, await begin(inner)):
            await eventually(lambda: inner.life_stats.heartbeats >= 1)
            assert meta.calls["heartbeat"] >= 4


@pytest.mark.fault("process-node-keeps-running")
async def test_a_node_on_a_new_disk_waits_for_the_end_of_its_earlier_life(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(300) as meta:
        await begin(meta)
        assert (await register(meta, RegisterNode(ELSEWHERE))).node_epoch == 2
    monkeypatch.setattr(heartbeats, "LONGEST_WAIT_S", 0.0)
    async with service(AN_HOUR_MS) as meta:
        await begin(meta)
        with pytest.raises(Conflict, match=r"choose another node\.id"):
            await register(meta, RegisterNode(ELSEWHERE))


@pytest.mark.fault("process-node-keeps-running")
async def test_a_storage_node_keeps_its_lease_over_http_and_stops_being_ready_when_another_life_begins(
    tmp_path: Path,
) -> None:
    async with service(2_000) as meta:
        server = MetaServer(meta)
        client = HttpMetaClient(await server.start("127.0.0.1", 0))
        listen = Listen("127.0.0.1", 0)
        node = StorageNode(ProcessSettings(), tmp_path / "node", listen, client, None, heartbeat_client=client.another)
        await node.start()
        await eventually(lambda: meta.life_stats.heartbeats >= 2)
        begun_ms = monotonic_ms()
        await eventually(lambda: node._heartbeats.sure_ms >= begun_ms)
        assert node.readiness() == {}
        (known,) = (await meta.snapshot()).nodes
        info = NodeInfo(known.node_id, known.storage_id, known.host, known.port)
        with pytest.raises(LeaseHeld, match="one of the two is a copy"):
            await meta.perform(RegisterNode(info))
        assert meta.life_stats.refused == 1 and node.readiness() == {}
        with (node.layout.root / "lock").open() as lock:
            seat = seat_of(lock.fileno(), read_boot_id())
        await meta.perform(RegisterNode(info, seat=seat))
        await asyncio.wait_for(node.is_over.wait(), 10)
        assert "is in its life 2" in node.readiness()["life"]
        with pytest.raises(Fenced):
            await node.meta.perform(AllocateProducerIds(1))
        await node.close()
        await client.close()
        await server.close()


@pytest.mark.fault("coordinator-cut-taken-place")
async def test_a_node_counts_on_no_more_of_its_lease_than_is_left_to_one_whose_connection_was_cut() -> None:
    lease_ms = AN_HOUR_MS
    leases = NodeLeases(lease_ms, [], 0)
    leases.node_changed(Node(1, "disk-a", "host", 9092, None, 1), 0)
    lost_ms = next(now_ms for now_ms in range(0, 2 * lease_ms, lease_ms // 16) if leases.due(now_ms, cut=[1]))
    async with service(lease_ms) as meta, beating(meta, await begin(meta)) as (beats, _):
        await eventually(lambda: meta.life_stats.heartbeats == 1)
        await eventually(lambda: beats.takeover_delay_ms > 500)
        assert beats.takeover_delay_ms <= lost_ms
