"""A running meta service as its callers see it: in this process, or over HTTP on loopback, over any store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.client import MetaClient
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import AcquireLock, CreateTopic, RegisterNode
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet, Lock, NodeInfo
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import RemotePart, SealRecord, Segment
from stratalog.model.topic import Topic
from stratalog_meta import MetaService
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.stores.meta_store import MetaStore
from stratalog_meta.stores.rocksdb import RocksStore

START_MS = 1_700_000_000_000
IMPATIENT = RetryPolicy(
    attempts=3,
    attempt_s=20.0,
    connect_s=10.0,
    first_pause_s=0.001,
    longest_pause_s=0.01,
    silence_s=10.0,
    watch_gap_s=0.5,
)


class HandClock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass(slots=True)
class MetaWorld:
    """A service and one client of it."""

    service: MetaService
    client: MetaClient
    clock: HandClock
    url: str | None

    async def node(self, node_id: int = 1, rack: str | None = None) -> NodeInfo:
        node = NodeInfo(node_id, f"storage-{node_id}", "127.0.0.1", 9092 + node_id, rack)
        await self.client.perform(RegisterNode(node))
        return node

    async def topic(self, name: str = "orders", shard_count: int = 1, replication_factor: int = 1) -> Topic:
        return await self.client.perform(
            CreateTopic(name, shard_count=shard_count, replication_factor=replication_factor, settings={})
        )

    async def active(self, topic: Topic, shard: int = 0) -> Segment:
        """The shard's ACTIVE segment."""
        for known in (await self.client.snapshot()).shards:
            if known.key == (topic.topic_id, shard):
                return known.segments[-1]
        raise AssertionError(f"{topic.name} has no shard {shard}")

    async def ready_topic(self, name: str = "orders", shard_count: int = 1) -> Segment:
        """A node, a topic, its first shard's ACTIVE segment."""
        await self.node()
        return await self.active(await self.topic(name, shard_count))

    async def lock(self) -> Lock:
        return await self.client.perform(AcquireLock("tier/1", "node-1/1", 60_000))


def make_store(kind: str, directory: Path) -> MetaStore:
    """Stores by name; one that joins is added here, and every suite runs on it. `etcd:PORT` is one at that port."""
    match kind.partition(":"):
        case "memory", _, _:
            return MemoryStore()
        case "rocksdb", _, _:
            return RocksStore(directory / "meta")
        case "etcd", _, port:
            from support.etcd_stores import LedStore  # the others need no gRPC

            return LedStore([f"127.0.0.1:{port}"], f"/{uuid4().hex}/".encode())
    raise AssertionError(f"no store is called {kind}")


STORE_KINDS = ("memory", "rocksdb", pytest.param("etcd", marks=pytest.mark.real_etcd))
CLIENT_KINDS = (
    "in-process/memory",
    "in-process/rocksdb",
    pytest.param("in-process/etcd", marks=pytest.mark.real_etcd),
    "http/memory",
    "http/rocksdb",
)


def placed(request: pytest.FixtureRequest, kind: str) -> str:
    """A kind of store, or of client, with the port of its server where it needs one (the fixture `etcd`)."""
    if not kind.endswith("etcd"):
        return kind
    return f"{kind}:{request.getfixturevalue('etcd').endpoints[0].rpartition(':')[2]}"


@asynccontextmanager
async def running(kind: str, directory: Path, *, max_history_changes: int = 16_384) -> AsyncIterator[MetaWorld]:
    """A started service, reached as `kind` says (see CLIENT_KINDS)."""
    way, store_kind = kind.split("/")
    clock = HandClock()
    service = MetaService(make_store(store_kind, directory), clock, max_history_changes=max_history_changes)
    await service.start()
    if way == "in-process":
        try:
            yield MetaWorld(service, service, clock, None)
        finally:
            await service.close()
        return
    server = MetaServer(service, heartbeat_s=0.2)
    url = await server.start("127.0.0.1", 0)
    client = HttpMetaClient(url, IMPATIENT, with_credentials=True)
    try:
        yield MetaWorld(service, client, clock, url)
    finally:
        await client.close()
        await server.close()
        await service.close()


def part(base_offset: int, end_offset: int, key: str = "") -> RemotePart:
    return RemotePart(
        key or f"data/{base_offset}-{end_offset}.chunk", 0, end_offset - base_offset, base_offset, end_offset
    )


def seal_record(
    segment: SegmentKey, end_offset: int, replicas: tuple[int, ...] = (1,), digest: bytes = b"\xd1\x9e"
) -> SealRecord:
    size = end_offset - segment.base_offset
    return SealRecord(
        segment.epoch,
        segment.base_offset,
        end_offset,
        START_MS,
        START_MS,
        size,
        digest,
        NO_PRODUCERS,
        replicas,
        START_MS,
    )


async def collect(watch: AsyncIterator[ChangeSet], count: int) -> list[ChangeSet]:
    """The next change sets of a watch."""
    sets: list[ChangeSet] = []
    async for change_set in watch:
        sets.append(change_set)
        if len(sets) == count:
            break
    return sets
