"""Several storage nodes in one process, each in a rack of its own, over one meta service; clients reach them by their
real ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Life
from stratalog.model.segment import Segment, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode, wall_ms
from stratalog_node.shards.log.shard_log import ShardLog
from support.gated_meta import GatedMeta
from support.shard_rig import START_MS, make_batch
from support.waiting import eventually

TOPIC = "flights"


class SeveralNodes:
    def __init__(self, root: Path, store: ObjectStore | None = None) -> None:
        self._root = root
        self._store = store
        self.meta = GatedMeta(MetaService(MemoryStore(), wall_ms))
        self.nodes: dict[int, StorageNode] = {}

    async def start(self, node_id: int, **settings: object) -> StorageNode:
        chosen: dict[str, object] = {
            "node_id": node_id,
            "broker_rack": f"rack-{node_id}",
            "offsets_topic_num_partitions": 1,
            "flush_interval_ms": 60_000,
            "read_replica_min_bytes": 1,
        }
        settings_ = ProcessSettings.model_validate(chosen | settings)
        meta: object = self.meta
        where = self._root / f"node-{node_id}"
        node = StorageNode(settings_, where, Listen("127.0.0.1", 0), meta, self._store)  # type: ignore[arg-type]
        self.nodes[node_id] = node
        await node.start()
        return node

    async def stop(self, node_id: int) -> None:
        await self.nodes.pop(node_id).close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.address[0]}:{node.address[1]}" for node in self.nodes.values())

    async def topic(self, shards: int = 1, replicas: int | None = None, **settings: str) -> ShardKey:
        """The first shard of `flights`, known to all nodes."""
        overrides = {name.replace("_", "."): value for name, value in settings.items()}
        made = await self.meta.service.perform(
            CreateTopic(TOPIC, shard_count=shards, replication_factor=replicas or len(self.nodes), settings=overrides)
        )
        for node in self.nodes.values():
            await eventually(lambda node=node: node.shards.by_name(TOPIC, shards - 1) is not None)
        return ShardKey(made.topic_id, 0)

    def meta_life(self, node_id: int) -> Life:
        """The present one, as the nodes know it."""
        known = next(iter(self.nodes.values())).catalog.node(node_id)
        assert known is not None
        return known.life

    def leader(self, key: ShardKey) -> ShardLog:
        (found,) = [shard for node in self.nodes.values() if (shard := node.shards.get(key)) and shard.is_leader]
        return found

    def shard_at(self, node_id: int, key: ShardKey) -> ShardLog:
        found = self.nodes[node_id].shards.get(key)
        assert found is not None
        return found

    def others(self, key: ShardKey) -> list[int]:
        return [node_id for node_id in self.nodes if node_id != self.leader(key).context.node_id]

    async def append(self, key: ShardKey, *values: bytes, at_ms: int = START_MS) -> int:
        """One batch; returns its offset once it is acknowledged."""
        return await self.leader(key).append([make_batch(values, at_ms=at_ms)])

    async def seal(self, key: ShardKey) -> Segment:
        """End the active segment; returns it once each replica has proved its copy and every node knows."""
        shard = self.leader(key)
        ended = shard.context.catalog.active_segment(key)
        assert ended is not None
        await eventually(lambda: shard.ask_roll(wall_ms()) or shard.epoch > ended.epoch)

        def is_told() -> bool:
            told = [node.catalog.segment(ended.key) for node in self.nodes.values()]
            return all(
                one is not None and one.state is SegmentState.SEALED and set(one.local_nodes) == set(one.replicas)
                for one in told
            ) and all(
                node.shards.get(key).copies.get(ended.epoch) is not None  # type: ignore[union-attr]
                for node in self.nodes.values()
                if node.settings.node_id in ended.replicas
            )

        await eventually(is_told)
        segment = shard.context.catalog.segment(ended.key)
        assert segment is not None
        return segment

    async def filled(self, segments: int = 2, batches: int = 4, **settings: str) -> tuple[ShardKey, int]:
        """A shard with `segments` sealed segments, and one batch in the active one. Record `n` is at offset `n`, has
        the time START_MS + n, and says its offset. Returns: the shard, and its end."""
        key = await self.topic(**settings)
        count = 0
        for number in range(segments + 1):
            for _ in range(batches if number < segments else 1):
                await self.append(key, b"%d" % count, b"%d" % (count + 1), at_ms=START_MS + count)
                count += 2
            if number < segments:
                await self.seal(key)
        return key, count


@asynccontextmanager
async def several_nodes(
    root: Path, count: int = 3, store: ObjectStore | None = None, **settings: object
) -> AsyncIterator[SeveralNodes]:
    found = SeveralNodes(root, store)
    await found.meta.service.start()
    try:
        for node_id in range(1, count + 1):
            await found.start(node_id, **settings)
        yield found
    finally:
        for node_id in list(found.nodes):
            await found.stop(node_id)
        await found.meta.service.close()
