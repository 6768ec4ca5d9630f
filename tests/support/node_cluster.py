"""A few whole storage nodes over one meta service in this process, each with a disk of its own: they listen, follow
each other, are stopped, killed and lose their disks.

Nodes have no lease by default: a test says when one is held for lost, so that nothing waits for a clock.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import decode_records
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.model.commands.table_commands import CreateTopic, NoteLives
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, Life
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog.tls.identity import TlsIdentity
from stratalog_meta.bucket.backups import BackupPlace
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_meta.stores.meta_store import MetaStore
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.node import Listen, StorageNode, wall_ms
from stratalog_node.replication.replica import Replica
from stratalog_node.replication.replica_copy import ReplicaCopy
from stratalog_node.shards.log.internal_append import InternalAppend
from stratalog_node.shards.log.shard_log import ShardLog
from support.gated_meta import GatedMeta
from support.shard_rig import make_batch
from support.waiting import eventually


class NodeCluster:
    def __init__(
        self,
        root: Path,
        patch: pytest.MonkeyPatch,
        store: ObjectStore | None = None,
        *,
        metadata: MetaStore | None = None,
        backups: BackupPlace | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """With `lease_ms` nodes send heartbeats, and the service lets nodes leave by itself."""
        self.root = root
        self.store = store
        self.patch = patch
        self.meta = GatedMeta(MetaService(metadata or MemoryStore(), wall_ms, backups=backups, lease_ms=lease_ms))
        self.nodes: dict[int, StorageNode] = {}
        self.identities: dict[int, TlsIdentity] = {}
        """Certificates of nodes that have some."""
        self._boots: dict[int, int] = {}
        self._boot = "boot"
        self._full: set[int] = set()
        patch.setattr("stratalog_node.node.read_boot_id", lambda: self._boot)
        patch.setattr("stratalog_node.shards.copies.rolls_in_progress.PAUSE_S", 0.0)
        append = ReplicaCopy.append

        def refusing(copy: ReplicaCopy, batches: Any) -> None:
            if copy._context.node_id in self._full:
                raise Unavailable("this disk takes nothing now")
            append(copy, batches)

        patch.setattr(ReplicaCopy, "append", refusing)

    async def __aenter__(self) -> Self:
        await self.meta.service.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.meta.open_all()
        for node_id in list(self.nodes):
            await self.stop(node_id)
        await self.meta.service.close()

    # Nodes ----------------------------------------------------------------------------------------------------------
    async def start(self, *node_ids: int, **settings: Any) -> None:
        for node_id in node_ids:
            own = ProcessSettings(
                **({"node_id": node_id, "offsets_topic_num_partitions": 1, "flush_interval_ms": 60_000} | settings)
            )
            meta: Any = self.meta
            self._boot = f"boot-{node_id}-{self._boots.get(node_id, 0)}"
            memory = self._memory(node_id)
            memory.mkdir(parents=True, exist_ok=True)
            where = self.root / str(node_id)
            tls = self.identities.get(node_id)
            node = StorageNode(own, where, Listen("127.0.0.1", 0), meta, self.store, memory=memory, tls=tls)
            await node.start()
            self.nodes[node_id] = node

    async def stop(self, node_id: int) -> None:
        """In order."""
        await self.nodes.pop(node_id).close()

    async def kill(self, node_id: int) -> None:
        """The machine keeps running, so everything that the node wrote is there."""
        await self.stop(node_id)
        self.layout(node_id).clean_file.unlink(missing_ok=True)

    async def power_cut(self, node_id: int, key: SegmentKey | None = None, end_offset: int = 0) -> None:
        """Its machine starts again. Of `key` what lies below `end_offset` was on the disk."""
        await self.kill(node_id)
        self._boot_again(node_id)
        shutil.rmtree(self.layout(node_id).checkpoints)
        path = None if key is None else self.layout(node_id).segment(key)
        if key is not None and path is not None and path.exists():
            data = path.read_bytes()
            size = SEGMENT_HEADER_BYTES
            for at, header in walk(data[SEGMENT_HEADER_BYTES:], source=str(path), verify=False):
                if header.end_offset > end_offset:
                    break
                size = SEGMENT_HEADER_BYTES + at + header.size_bytes
            path.write_bytes(data[:size])

    async def reboot(self, node_id: int) -> None:
        """Stopped in order, and its machine starts again."""
        await self.stop(node_id)
        self._boot_again(node_id)

    def _boot_again(self, node_id: int) -> None:
        self._boots[node_id] = self._boots.get(node_id, 0) + 1
        self.forget_memory(node_id)

    def forget_memory(self, node_id: int) -> None:
        """What survives the process there: its next life runs on another machine."""
        shutil.rmtree(self._memory(node_id))

    def _memory(self, node_id: int) -> Path:
        """Of its machine."""
        return self.root / f"memory-{node_id}"

    async def wipe(self, node_id: int) -> None:
        if node_id in self.nodes:
            await self.kill(node_id)
        shutil.rmtree(self.root / str(node_id))

    async def lose(self, node_id: int) -> None:
        """Its lease is over, whether it runs or not."""
        await self.meta.service.perform(NoteLives(lost=(await self._life(node_id),)))

    async def restore_heartbeats(self, node_id: int) -> None:
        """It is there after all, in the same life."""
        await self.meta.service.perform(NoteLives(heard=(await self._life(node_id),)))

    async def _life(self, node_id: int) -> Life:
        return next(node.life for node in (await self.meta.service.snapshot()).nodes if node.node_id == node_id)

    def layout(self, node_id: int) -> NodeLayout:
        return NodeLayout(self.root / str(node_id))

    @contextmanager
    def full_disk(self, node_id: int) -> Iterator[None]:
        """What it follows does not grow."""
        self._full.add(node_id)
        try:
            yield
        finally:
            self._full.discard(node_id)

    @contextmanager
    def deaf(self, node_id: int) -> Iterator[None]:
        """Its view of the metadata stays as it is; it hears at the end what it missed, and answers meanwhile."""
        catalog = self.nodes[node_id].catalog
        apply, missed = catalog.apply_in_steps, list[ChangeSet]()

        def keep(change_set: ChangeSet) -> Iterator[None]:
            missed.append(change_set)
            return iter(())

        self.patch.setattr(catalog, "apply_in_steps", keep)
        try:
            yield
        finally:
            self.patch.setattr(catalog, "apply_in_steps", apply)
            for change_set in missed:
                catalog.apply(change_set)

    # Shards ---------------------------------------------------------------------------------------------------------
    async def shard(self, replicas: int, name: str = "flights", **settings: str) -> ShardKey:
        """Of a new topic with one shard; every node has heard of it."""
        overrides = {setting.replace("_", "."): value for setting, value in settings.items()}
        topic = await self.meta.service.perform(CreateTopic(name, 1, replicas, overrides))
        key = ShardKey(topic.topic_id, 0)
        await eventually(lambda: all(node.shards.get(key) is not None for node in self.nodes.values()))
        await eventually(lambda: self.led(key) is not None)
        followers = [number for number in self.segments(key)[0].replicas if number != self.leader(key)]
        await eventually(lambda: all(self.replica(number, key) is not None for number in followers))
        return key

    def led(self, key: ShardKey) -> ShardLog | None:
        shards = [node.shards.get(key) for node in self.nodes.values()]
        return next((shard for shard in shards if shard is not None and shard.is_leader and shard.stop is None), None)

    def leader(self, key: ShardKey) -> int:
        shard = self.led(key)
        assert shard is not None, "nobody leads"
        return shard.context.node_id

    def segments(self, key: ShardKey, at: int | None = None) -> list[Segment]:
        """As a node sees them, the first one by default."""
        node = self.nodes[at] if at is not None else next(iter(self.nodes.values()))
        return list(node.catalog.segments(key))

    def replica(self, node_id: int, key: ShardKey, epoch: int = 0) -> Replica | None:
        name = (key.topic_id, key.shard, epoch)
        return self.nodes[node_id].following.replicas.get(name)  # type: ignore[call-overload, no-any-return]

    async def leads_again(self, key: ShardKey) -> ShardLog:
        await eventually(lambda: self.led(key) is not None)
        shard = self.led(key)
        assert shard is not None
        return shard

    async def is_sealed(self, key: ShardKey, epoch: int = 0, copies: int | None = None) -> Segment:
        """Once it is, and as many nodes hold a copy."""

        def found() -> Segment | None:
            for one in self.segments(key):
                if one.epoch == epoch and one.seal is not None and len(one.local_nodes) >= (copies or 0):
                    return one
            return None

        await eventually(found)
        segment = found()
        assert segment is not None
        return segment

    # Data -----------------------------------------------------------------------------------------------------------
    async def append(self, key: ShardKey, *values: bytes, **options: Any) -> int:
        """Appends with acks=all at the leader, and retries as a client does. Returns: the offset."""
        async with asyncio.timeout(20):
            while True:
                shard = await self.leads_again(key)
                try:
                    return await shard.append([make_batch(values, **options)])
                except Unavailable:
                    await asyncio.sleep(0.01)

    def offer(self, key: ShardKey, *values: bytes, acks: int = -1, **options: Any) -> asyncio.Future[int]:
        """Appends at the leader. The future has the first offset, or the error."""
        shard = self.led(key)
        assert shard is not None, "nobody leads"
        data = make_batch(values, **options)
        request = InternalAppend(1)
        producer = options.get("producer_id", -1), options.get("producer_epoch", -1), options.get("base_sequence", -1)
        at_ms = wall_ms()
        shard.offer(
            OfferedBatch(memoryview(bytearray(data)), len(data), len(values), at_ms, *producer, acks, request, 0)
        )
        return request.first_offset

    async def values(self, key: ShardKey) -> list[bytes | None]:
        """All below the high watermark, as the leader serves it; None for an offset without a record."""
        shard = await self.leads_again(key)
        found: list[bytes | None] = []
        at = shard.log_start_offset
        while at < shard.high_watermark:
            for piece in await shard.read(at, 1 << 20):
                data = bytes(piece)
                for position, header in walk(data, source="log"):
                    by_offset = {one.offset: one.value for one in decode_records(data[position:][: header.size_bytes])}
                    found += [by_offset.get(offset) for offset in range(header.base_offset, header.end_offset)]
                    at = header.end_offset
        return found

    async def values_in_time(self, key: ShardKey) -> list[bytes | None]:
        """The same as a consumer reads it, which asks again while something cannot be read."""
        found: list[bytes | None] = []

        async def are_read() -> bool:
            try:
                found[:] = await self.values(key)
            except Unavailable:
                return False
            return True

        await eventually(are_read)
        return found

    async def until(self, predicate: Callable[[], object]) -> None:
        await eventually(predicate)
