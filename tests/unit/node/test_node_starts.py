"""A start that fails gives back all that it took, so that the same process can start a node on the same data."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.objects.opening import open_store
from stratalog.objects.settings import StoreSettings
from stratalog.settings.process import ProcessSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from support.gated_meta import GatedMeta
from support.open_resources import open_resources, wait_until_closed
from support.shard_rig import make_batch
from support.waiting import eventually

SETTINGS = ProcessSettings(offsets_topic_num_partitions=1)


class Bench:
    """One data folder with a topic of one record, its meta service and its bucket; nodes come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.meta = GatedMeta(MetaService(MemoryStore(), wall_ms))
        self.store = open_store(str(root / "bucket"), StoreSettings(threads=1))

    def node(self, port: int = 0) -> StorageNode:
        meta: object = self.meta
        return StorageNode(SETTINGS, self.root / "node", Listen("127.0.0.1", port), meta, self.store)  # type: ignore[arg-type]

    async def write_first_record(self) -> None:
        # The bucket is the bench's, and so are its threads: all of them run from here on, whatever a node asks for.
        await self.store.put("before", [b"all"])
        assert await self.store.get("before") == b"all"
        node = self.node()
        await node.start()
        await self.meta.service.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings={}))
        await eventually(lambda: node.shards.by_name("flights", 0) is not None)
        shard = node.shards.by_name("flights", 0)
        assert shard is not None and await shard.append([make_batch([b"kept"])]) == 0
        await node.close()

    async def starts_and_has_the_record(self) -> None:
        node = self.node()
        await node.start()
        try:
            shard = node.shards.by_name("flights", 0)
            assert shard is not None and shard.stop is None and shard.high_watermark == 1
            _, writer = await asyncio.open_connection(*node.address)
            writer.close()
        finally:
            await node.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.meta.service.start()
    await bench.write_first_record()
    yield bench
    await bench.meta.service.close()
    await bench.store.close()


@pytest.mark.fault("start-fails-midway-address")
async def test_a_port_that_is_taken_leaves_nothing_behind(bench: Bench) -> None:
    before = open_resources()
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Unavailable, match="cannot listen"):
        await bench.node(other.getsockname()[1]).start()
    await wait_until_closed(before)
    await bench.starts_and_has_the_record()


def names_taken(bench: Bench, node: StorageNode) -> None:
    """The last step but one of a start: everything runs by then."""
    node.metrics.register("stratalog_disk_free_bytes", "gauge", "Somebody else's.", lambda: 0)


def meta_away(bench: Bench, node: StorageNode) -> None:
    bench.meta.fail("snapshot", Unavailable("the meta service is away"))


@pytest.mark.fault("start-fails-midway-address")
@pytest.mark.parametrize(("prepare", "error"), [(meta_away, Unavailable), (names_taken, ValueError)])
async def test_a_start_that_fails_at_any_step_leaves_nothing_behind(
    bench: Bench, prepare: Callable[[Bench, StorageNode], None], error: type[Exception]
) -> None:
    before = open_resources()
    node = bench.node()
    prepare(bench, node)
    with pytest.raises(error):
        await node.start()
    await wait_until_closed(before)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*node.address)
    await bench.starts_and_has_the_record()


@pytest.mark.fault("metadata-store-emptied-cut")
async def test_metadata_of_another_cluster_are_refused_and_not_written_to(bench: Bench) -> None:
    before = open_resources()
    other = MetaService(MemoryStore(), wall_ms)
    await other.start()
    node = StorageNode(SETTINGS, bench.root / "node", Listen("127.0.0.1", 0), other, bench.store)
    with pytest.raises(InvalidRequest, match=f"belongs to cluster {bench.meta.service.cluster_id}, .*from a backup"):
        await node.start()
    snapshot = await other.snapshot()
    assert (snapshot.version, snapshot.nodes) == (0, ())
    await other.close()
    await wait_until_closed(before)
    await bench.starts_and_has_the_record()


async def test_a_start_that_is_cancelled_leaves_nothing_behind(bench: Bench) -> None:
    before = open_resources()
    bench.meta.hold(RegisterNode)
    starting = asyncio.create_task(bench.node().start())
    await eventually(lambda: bench.meta.calls[RegisterNode] == 2)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    bench.meta.release(RegisterNode)
    await wait_until_closed(before)
    await bench.starts_and_has_the_record()


async def test_a_node_that_was_closed_holds_nothing(bench: Bench) -> None:
    before = open_resources()
    await bench.starts_and_has_the_record()
    await wait_until_closed(before)
