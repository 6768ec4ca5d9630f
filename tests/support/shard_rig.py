"""A node's shards on a bench: real files in a directory, the real meta service in this process, a clock moved by hand.

`ShardRig` is one data directory through many lives: `start`, then `stop` (clean), `crash` (kill -9: nothing is closed
in order) or `power_cut` (a crash that also loses what was not flushed). Use it as an async context manager.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from stratalog.formats.record_batch import walk
from stratalog.formats.records import NEXT_OFFSET, Record, decode_records, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands import CreateTopic, RegisterNode
from stratalog.model.errors import StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import NodeInfo
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.clean_stop import note_clean_stop, take_clean_stop
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.files import make_directories
from stratalog_node.disk.journal_file import list_journals, remove_journal
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.lost_flushes import LostFlushes
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.serve.buffers import BufferPool
from stratalog_node.serve.produce import offer
from stratalog_node.serve.server import pooled_reader
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.catalog import Catalog
from stratalog_node.shards.flusher import Flusher
from stratalog_node.shards.healing import Healing
from stratalog_node.shards.node_shards import NodeShards
from stratalog_node.shards.recovery import Recovery
from stratalog_node.shards.refill import RemoteBatches
from stratalog_node.shards.sealing import Sealing
from stratalog_node.shards.shard_log import ShardLog
from support.gated_meta import GatedMeta
from support.power import PowerRecord
from support.waiting import eventually

NODE_ID = 1
START_MS = 1_700_000_000_000


class HandClock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Answered(NamedTuple):
    error_code: int
    base_offset: int
    message: str | None


class Asked:
    """One produce request of a test: what each of its batches was answered."""

    def __init__(self) -> None:
        self.answers: dict[int, Answered] = {}
        self.times_settled = 0

    def settle(
        self,
        place: int,
        error_code: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        message: str | None = None,
    ) -> None:
        self.times_settled += 1
        assert place not in self.answers, f"answered twice: {self.answers[place]}, {error_code}"
        self.answers[place] = Answered(error_code, base_offset, message)

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def is_acknowledged(self) -> bool:
        return bool(self.answers) and all(answer.error_code == 0 for answer in self.answers.values())

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.answers[0].error_code)

    @property
    def offset(self) -> int:
        return self.answers[0].base_offset


def make_batch(values: Sequence[bytes], *, at_ms: int = START_MS, **options: Any) -> bytes:
    return encode_batch([Record(NEXT_OFFSET, at_ms + n, None, value) for n, value in enumerate(values)], **options)


class ShardRig:
    def __init__(self, root: Path, *, descriptor_limit: int = 1000, **settings: Any) -> None:
        self.root = root
        self.clock = HandClock()
        self.settings = ProcessSettings(**({"flush_interval_ms": 3_600_000} | settings))
        self.layout = NodeLayout(root / "node")
        self.layout.root.mkdir(parents=True, exist_ok=True)
        self.power = PowerRecord(self.layout.root)
        self.descriptor_limit = descriptor_limit
        self.shards: NodeShards
        self.catalog: Catalog
        self.flusher: Flusher
        self.sealing: Sealing
        self.threads: DiskThreads
        self.checkpoints: Checkpoints
        self.lives = 0
        self.remote: RemoteBatches | None = None
        """What the object store holds of unsealed segments; by default there is no store."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_alive = False
        self._is_tick_due = False

    async def __aenter__(self) -> Self:
        self.meta = GatedMeta(MetaService(MemoryStore(), self.clock))
        await self.meta.service.start()
        self.power.__enter__()
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.meta.open_all()
        if self._is_alive:
            await self.crash()
        self.power.__exit__()
        await self.meta.service.close()

    # Lives ------------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """As `StorageNode.start`, without network and tiers."""
        assert not self._is_alive
        self.lives += 1
        make_directories(self.layout.segments, self.layout.journal, self.layout.checkpoints)
        registration = await self.meta.service.perform(RegisterNode(NodeInfo(NODE_ID, "disk-1", "localhost", 9092)))
        snapshot = await self.meta.service.snapshot()
        self.catalog = Catalog(lambda overrides: TopicSettings.resolve(self.settings, overrides))
        self.catalog.load(snapshot)
        self.threads = DiskThreads()
        self.checkpoints = Checkpoints(self.layout.checkpoints)
        self.pool = BufferPool()
        lost = LostFlushes(self.layout.lost_flushes, self.layout.root)
        descriptors = Descriptors(self.descriptor_limit, flush_lost=lost.note)
        self.shards = NodeShards(
            node_id=NODE_ID,
            cluster_id=registration.cluster_id,
            settings=self.settings,
            catalog=self.catalog,
            meta=self.meta,  # type: ignore[arg-type]
            layout=self.layout,
            threads=self.threads,
            descriptors=descriptors,
            clock_ms=self.clock,
        )
        journals = list_journals(self.layout.journal)
        self.flusher = Flusher(
            self.layout,
            self.threads,
            self.checkpoints,
            cluster_id=registration.cluster_id,
            node_id=NODE_ID,
            first_journal=int(journals[-1].stem) + 1 if journals else 1,
            interval_ms=self.settings.flush_interval_ms,
            clock_ms=self.clock,
        )
        self.shards.flusher = self.flusher
        descriptors.on_crowded = self.flusher.flush_soon
        self.shards.on_written(self.flusher.note_written)
        self.sealing = self.shards.sealing = Sealing(  # type: ignore[arg-type]
            self.shards, self.meta, self._forget, self.flusher.make_durable
        )
        self.shards.reader = pooled_reader(self.pool, self.settings.fetch_max_bytes)
        self.shards.request_tick = self._request_tick
        self._is_alive = True
        await asyncio.to_thread(lost.mend)
        doubted = take_clean_stop(self.layout.clean_file, registration.node_epoch)
        self.node_epoch = registration.node_epoch
        recovery = Recovery(self.shards, self.checkpoints, doubted)
        if journals:
            await asyncio.to_thread(recovery.replay_journal)
        await recovery.recover_all()
        recovery.revoke_stale()
        for path in journals:
            remove_journal(path)
        recovery.hand_over(self.sealing)
        self.healing = Healing(self.shards, self.meta, recovery, self.sealing)  # type: ignore[arg-type]
        self.catalog.on_change(self.shards.follow)
        self._run(self._follow_meta(snapshot.version))
        self.flusher.start()
        self.healing.start(self.remote)

    def _forget(self, active: ActiveSegment) -> None:
        self.flusher.forget(active)
        if self._is_alive:
            self._run(self.threads.background(lambda: self.checkpoints.delete([active.key])))

    async def _follow_meta(self, version: int) -> None:
        async for change_set in self.meta.service.watch(version):
            self.catalog.apply(change_set)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """As `StorageNode.close`: flushes and checkpoints."""
        await self._end(self.healing.close, self.sealing.close, self._close_flusher)

    async def crash(self) -> None:
        """kill -9: no flush, no checkpoint, no answer. What a thread is doing just now, it still does."""
        await self._end(self.healing.close, self.sealing.close, self._drop_flusher)

    async def power_cut(self) -> None:
        await self.crash()
        self.power.cut()

    async def _close_flusher(self) -> None:
        if await self.flusher.close():
            note_clean_stop(self.layout.clean_file, self.node_epoch, self.shards.doubted())

    async def _drop_flusher(self) -> None:
        running = (self.flusher._background_task, self.flusher._group_task, self.flusher._retiring)
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, *steps: Any) -> None:
        self._is_alive = False
        self.shards.request_tick = lambda: None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for step in steps:
            await step()
        await asyncio.to_thread(self.threads.close)
        self.checkpoints.close()
        for file in list(self.shards.descriptors._open):
            file.close()
        if self.flusher._journal._file is not None:
            self.flusher._journal._file.close()

    async def restart(self, how: str = "crash") -> None:
        await getattr(self, how)()
        await self.start()

    # The turn -----------------------------------------------------------------------------------------------------
    def _request_tick(self) -> None:
        if not self._is_tick_due:
            self._is_tick_due = True
            asyncio.get_running_loop().call_soon(self.tick)

    def tick(self) -> None:
        self._is_tick_due = False
        self.shards.now_ms = self.clock.now_ms
        if self._is_alive:
            self.shards.tick()

    # Topics and shards ----------------------------------------------------------------------------------------------
    async def create_topic(self, name: str = "flights", shards: int = 1, **settings: Any) -> Topic:
        overrides = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = await self.meta.service.perform(
            CreateTopic(name, shard_count=shards, replication_factor=1, settings=overrides)
        )
        await eventually(lambda: self.shards.get(ShardKey(topic.topic_id, shards - 1)) is not None)
        return topic

    async def shard_of(self, name: str = "flights", **settings: Any) -> ShardLog:
        """A topic of one shard."""
        topic = await self.create_topic(name, **settings)
        return self.shard(topic)

    def shard(self, topic: Topic | ShardLog, index: int = 0) -> ShardLog:
        """The shard's object of this life."""
        key = topic.key if isinstance(topic, ShardLog) else ShardKey(topic.topic_id, index)
        shard = self.shards.get(key)
        assert shard is not None, f"no shard {key}"
        return shard

    # Data -----------------------------------------------------------------------------------------------------------
    def offer(self, shard: ShardLog, *values: bytes, acks: int = -1, at_ms: int | None = None, **options: Any) -> Asked:
        """Put one batch in line; the next turn appends it."""
        asked = Asked()
        data = make_batch(values, at_ms=self.clock.now_ms if at_ms is None else at_ms, **options)
        refusal = offer(shard, memoryview(bytearray(data)), 9, acks, asked, 0, self.clock.now_ms)
        if refusal is not None:
            asked.settle(0, refusal[0], -1, -1, -1, refusal[1])
        return asked

    def append(self, shard: ShardLog, *values: bytes, **options: Any) -> Asked:
        """One batch, and the turn that appends it."""
        asked = self.offer(shard, *values, **options)
        self.tick()
        return asked

    async def acknowledged(self, shard: ShardLog, *values: bytes, **options: Any) -> Asked:
        asked = self.append(shard, *values, **options)
        await eventually(lambda: asked.is_answered)
        assert asked.is_acknowledged, asked.answers
        return asked

    async def read_values(self, shard: ShardLog, offset: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
        """Every record below the high watermark, offsets checked to be without gap."""
        at = shard.log_start_offset if offset is None else offset
        found: list[bytes] = []
        first = at
        while at < shard.high_watermark:
            read = await self.shards.reader.read(shard, at, max_bytes)
            try:
                for buffer in read.buffers:
                    data = bytes(buffer)
                    for position, header in walk(data, source=f"{shard.topic.name} at {at}"):
                        assert header.base_offset <= at < header.end_offset, f"asked for {at}, got {header}"
                        for record in decode_records(data[position : position + header.size_bytes]):
                            if record.offset >= first:
                                assert record.value is not None
                                found.append(record.value)
                        at = header.end_offset
            finally:
                if read.release is not None:
                    read.release()
            assert at <= shard.high_watermark, "a read went past the high watermark"
        return found

    async def all_sealed(self) -> None:
        """Until every ended segment has its seal record and this node knows."""

        def is_done() -> bool:
            return self.sealing.unsealed_count == 0 and all(
                not shard.ended and all(s.seal is not None for s in shard.segments[:-1]) for shard in self.shards.all()
            )

        await eventually(is_done)

    def file_of(self, shard: ShardLog, epoch: int | None = None) -> Path:
        """The only file of that epoch (default: of the active segment)."""
        if epoch is None:
            assert shard.active is not None
            epoch = shard.active.key.epoch
        (path,) = self.layout.shard(shard.key).glob(f"*-{epoch}.seg")
        return path

    async def until(self, predicate: Any) -> None:
        await eventually(predicate)


def cut_file(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


__all__ = ["NODE_ID", "START_MS", "Asked", "HandClock", "ShardRig", "StratalogError", "cut_file", "make_batch"]
