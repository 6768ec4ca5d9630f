"""Under the address of a node's meta service other metadata appear: another cluster's, an emptied store's, an older
copy's. The node takes nothing of them over, says so and stops; what it has on its disk stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import AcquireLock, CreateTopic, RegisterNode
from stratalog.model.errors import Corrupt, Fenced, InvalidRequest
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog.settings.process import ProcessSettings
from stratalog_cli.services.meta_start import MetaProcess
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from support.shard_rig import make_batch
from support.waiting import eventually

POLICY = RetryPolicy(attempts=3, attempt_s=2.0, first_pause_s=0.01, longest_pause_s=0.05, silence_s=1.0)


class Address:
    """Implements `Serving`: passes on to the service that is set now."""

    def __init__(self, service: MetaService) -> None:
        self.service = service
        self.why_no_changes: str | None = None

    def leading(self) -> MetaService:
        return self.service

    def serve(self, other: MetaService) -> None:
        before, self.service = self.service, other
        before.end_watches()


async def started(store: MemoryStore) -> MetaService:
    service = MetaService(store, wall_ms, lease_ms=400)
    await service.start()
    return service


@pytest.fixture
async def address() -> AsyncIterator[tuple[Address, str]]:
    async with AsyncExitStack() as running:
        service = await started(MemoryStore())
        address = Address(service)
        server = MetaServer(address, heartbeat_s=0.2)
        url = await server.start("127.0.0.1", 0)
        running.push_async_callback(server.close)
        yield address, url


async def a_node(url: str, root: Path, running: AsyncExitStack) -> StorageNode:
    client = HttpMetaClient(url, POLICY)
    running.push_async_callback(client.close)
    settings = ProcessSettings(node_id=1, offsets_topic_num_partitions=1)
    node = StorageNode(settings, root, Listen("127.0.0.1", 0), client, None)
    await node.start()
    running.push_async_callback(node.close)
    return node


async def with_data(node: StorageNode) -> Path:
    """The file of a shard that has a record."""
    await node.meta.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings={}))
    await eventually(lambda: node.shards.by_name("flights", 0) is not None)
    shard = node.shards.by_name("flights", 0)
    assert shard is not None
    assert (await shard.append([make_batch([b"one", b"two"])])) is not None
    (file,) = node.layout.root.rglob("*.seg")
    return file


@pytest.mark.fault("meta-service-started-emptied")
async def test_requests_for_another_clusters_metadata_are_refused_and_change_nothing(
    address: tuple[Address, str],
) -> None:
    place, url = address
    client = HttpMetaClient(url, POLICY)
    await client.read_cluster_id()
    await client.perform(RegisterNode(NodeInfo(1, "disk", "host", 1)))
    other = await started(MemoryStore())
    await other.perform(RegisterNode(NodeInfo(1, "disk", "host", 1)))
    place.serve(other)
    before = await other.read_version()
    with pytest.raises(Fenced, match="metadata of cluster"):
        await client.heartbeat(Heartbeat(Life(1, 1)))
    with pytest.raises(Fenced):
        await client.snapshot()
    with pytest.raises(Fenced):
        await client.deleted_segments()
    with pytest.raises(Fenced):
        await anext(client.watch(0))
    with pytest.raises(Fenced):
        await client.perform(AcquireLock("mine", "me", 1_000))
    assert await other.read_version() == before
    await client.close()


@pytest.mark.fault("meta-service-started-emptied")
async def test_a_node_whose_meta_store_was_emptied_keeps_its_data_and_stops(
    address: tuple[Address, str], tmp_path: Path
) -> None:
    place, url = address
    async with AsyncExitStack() as running:
        node = await a_node(url, tmp_path / "node", running)
        file = await with_data(node)
        emptied = await started(MemoryStore())
        # It may even know a node of this number and life, and more versions than the one before.
        await emptied.perform(RegisterNode(NodeInfo(1, "other-disk", "host", 1)))
        for number in range(20):
            await emptied.perform(CreateTopic(f"other-{number}", shard_count=1, replication_factor=1, settings={}))
        place.serve(emptied)
        await asyncio.wait_for(node.is_over.wait(), 10)
        assert "metadata of cluster" in node.why_over
        assert [topic.name for topic in node.catalog.topics() if not topic.is_internal] == ["flights"]
        assert file.exists()
    async with AsyncExitStack() as running:
        with pytest.raises(InvalidRequest, match="belongs to cluster"):
            await a_node(url, tmp_path / "node", running)
        assert file.exists()


@pytest.mark.fault("meta-store-restored-copy")
async def test_a_node_whose_metadata_go_back_mixes_nothing_and_stops(
    address: tuple[Address, str], tmp_path: Path
) -> None:
    place, url = address
    async with AsyncExitStack() as running:
        node = await a_node(url, tmp_path / "node", running)
        store = place.service._store
        copy = MemoryStore()
        assert isinstance(store, MemoryStore)
        copy._items = dict(store._items)
        file = await with_data(node)
        older = await started(copy)
        assert await older.read_version() < node.catalog.version
        place.serve(older)
        await asyncio.wait_for(node.is_over.wait(), 10)
        assert "went back from version" in node.why_over
        assert [topic.name for topic in node.catalog.topics() if not topic.is_internal] == ["flights"]
        assert file.exists()


@pytest.mark.fault("meta-service-started-emptied")
async def test_a_meta_service_whose_store_was_removed_does_not_begin_a_new_cluster(tmp_path: Path) -> None:
    settings = ProcessSettings(metrics_listen="")

    async def start_and_stop() -> None:
        async with AsyncExitStack() as running:
            await MetaProcess(settings, running).start("127.0.0.1:0", tmp_path)

    await start_and_stop()
    await start_and_stop()
    (tmp_path / "meta").rename(tmp_path / "aside")
    with pytest.raises(Corrupt, match=r"meta\.json names a cluster"):
        await start_and_stop()
    (tmp_path / "aside").rename(tmp_path / "meta")
    await start_and_stop()
