"""A second node that only follows: real files in a directory of its own, over TCP to the node of a `ServeRig`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.formats.segments.index_points import IndexPoints
from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.listeners import INTERNAL, Listener
from stratalog.model.metadata import Life, NodeInfo
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_node.buffers import BufferPool
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import make_directories
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.replication.following import Following
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.replica import Replica
from stratalog_node.serve.connections.listeners import bind
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.turn import Turn
from support.serve_rig import ServeRig
from support.waiting import eventually

NODE_ID = 2
DEFAULTS = {"flush_interval_ms": 3_600_000, "replica_catchup_bytes_per_second": 1 << 30}


class LeadingRig(ServeRig):
    """Listens, so that others find it where it says it is."""

    async def start(self) -> None:
        listener = bind("127.0.0.1", 0)
        self.address = listener.getsockname()
        await super().start()
        self.server.open(listener, Listener(INTERNAL, *self.address))


async def led_shards(rig: LeadingRig, count: int = 1, **settings: str) -> list[ShardLog]:
    """Of a new topic, those that the rig leads."""
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    topic = await rig.meta.service.perform(
        CreateTopic("flights", shard_count=2 * count, replication_factor=2, settings=overrides)
    )
    await eventually(lambda: rig.shards.get(ShardKey(topic.topic_id, 2 * count - 1)) is not None)
    return [shard for n in range(2 * count) if (shard := rig.shard(topic, n)).is_leader][:count]


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class FollowerRig:
    """`start` and `stop` are one life."""

    def __init__(self, leader: ServeRig, root: Path, **settings: Any) -> None:
        self.leader = leader
        self.layout = NodeLayout(root)
        self.settings = ProcessSettings(**(DEFAULTS | settings))
        self.catalog: Catalog
        self.following: Following
        self.sealed: dict[SegmentKey, IndexPoints | None] = {}
        """Copies that are sealed and no longer followed, with their points if no index block has them."""
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()

    async def start(self, *, is_tail_whole: bool = True) -> None:
        make_directories(self.layout.root, self.layout.segments)
        self.meta = NodeMetaClient(self.leader.meta)  # type: ignore[arg-type]  # passes calls on, and may hold them
        registered = await self.meta.perform(RegisterNode(NodeInfo(NODE_ID, "disk-2", "127.0.0.1", 1)))
        self.meta.life = Life(NODE_ID, registered.node_epoch)
        snapshot = await self.leader.meta.service.snapshot()
        self.catalog = Catalog(lambda overrides: TopicSettings.resolve(self.settings, overrides))
        self.catalog.load(snapshot)
        self.threads = DiskThreads()
        self.context = ShardContext.of(
            node_id=NODE_ID,
            cluster_id=registered.cluster_id,
            settings=self.settings,
            catalog=self.catalog,
            meta=self.meta,
            layout=self.layout,
            threads=self.threads,
            descriptors=Descriptors(100, flush_lost=lambda path: None, on_crowded=lambda: None),
            clock_ms=self.leader.clock,
            turn=Turn(BufferPool(), self.leader.clock, steady_ms),
        )
        self.checkpoints = Checkpoints(self.layout.checkpoints)
        self.following = Following(
            self.context,
            Asker(NODE_ID, registered.token),
            self.checkpoints,
            is_tail_whole=is_tail_whole,
            steady_ms=steady_ms,
            sealed=lambda segment, points: self.sealed.update({segment.key: points}),
        )
        self.following.begin()
        self._watch = asyncio.create_task(self._follow(snapshot.version))

    async def _follow(self, version: int) -> None:
        async for change_set in self.leader.meta.service.watch(version):
            self.catalog.apply(change_set)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.following.close()
        self.checkpoints.close()
        self.context.turn.close()
        await self.context.spares.close()
        self.threads.close()
        self.context.descriptors.close()

    async def replica_of(self, shard: ShardLog, epoch: int = 0) -> Replica:
        name = (shard.key.topic_id, shard.key.shard, epoch)
        await eventually(lambda: name in self.following.replicas)
        return self.following.replicas[name]  # type: ignore[index]  # a name is a tuple
