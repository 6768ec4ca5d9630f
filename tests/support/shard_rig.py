"""A node's shards on a bench: real files in a directory, the real meta service in this process, a clock that the test
moves.

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

from stratalog.formats.batches.offered_batch import BatchFault
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import NEXT_OFFSET, Record, decode_records, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.producer_table import SequenceFault
from stratalog.model.append import AppendFailure
from stratalog.model.commands.table_commands import CreateTopic, RegisterNode
from stratalog.model.data_directories import DirectorySpec
from stratalog.model.errors import StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.buffers import BufferPool
from stratalog_node.disk.further_directories import NodeMark, close_directories, open_directories
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.serve.producing.produce import CODES, offer
from stratalog_node.shards.assembly import LocalShards, open_shards
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.cold_reads import ColdReads, RemoteBatches
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.moves.copy_mover import NO_MOVES, MovePolicy
from stratalog_node.turn import Turn
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

    def appended(self, slot: int, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        self._settle(slot, Answered(0, base_offset, None))

    def refused(
        self, slot: int, why: BatchFault | SequenceFault | AppendFailure, message: str, log_start_offset: int
    ) -> None:
        """As the clients hear it, in Kafka's codes."""
        self._settle(slot, Answered(CODES[why], -1, message))

    def _settle(self, slot: int, answered: Answered) -> None:
        self.times_settled += 1
        assert slot not in self.answers, f"answered twice: {self.answers[slot]}, {answered}"
        self.answers[slot] = answered

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
    def __init__(
        self,
        root: Path,
        *,
        descriptor_limit: int = 1000,
        cold: Any = None,
        further: Sequence[Path] = (),
        moves: MovePolicy = NO_MOVES,
        **settings: Any,
    ) -> None:
        """`cold`: what reads sealed segments from the object store; none by default. `further`: data directories
        besides the first, each of which is there already."""
        self.root = root
        self.clock = HandClock()
        """The wall clock."""
        self.steady = HandClock()
        """The monotonic one."""
        self.settings = ProcessSettings(**({"flush_interval_ms": 3_600_000} | settings))
        self.layout = NodeLayout(root / "node")
        self.layout.root.mkdir(parents=True, exist_ok=True)
        self.power = PowerRecord(root if further else self.layout.root)
        self.descriptor_limit = descriptor_limit
        self.further = further
        self.moves = moves
        self.address = ("localhost", 9092)
        self.turn: Turn
        self.local: LocalShards
        self.shards: ShardDirectory
        self.catalog: Catalog
        self.lives = 0
        self.cold: ColdReads | None = cold
        self.remote: RemoteBatches | None = None
        """What the object store holds of unsealed segments; by default there is no store."""
        self.service_heard_ms = 0
        """When the meta service answered a heartbeat last."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_alive = False

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
        registration = await self.meta.service.perform(RegisterNode(NodeInfo(NODE_ID, "disk-1", *self.address)))
        self.meta.life = Life(NODE_ID, registration.node_epoch)
        snapshot = await self.meta.service.snapshot()
        self.catalog = Catalog(lambda overrides: TopicSettings.resolve(self.settings, overrides))
        self.catalog.load(snapshot)
        self.pool = BufferPool()
        self.turn = Turn(self.pool, self.clock, self.steady)
        self.node_epoch = registration.node_epoch
        mark = NodeMark(NODE_ID, "disk-1", registration.cluster_id)
        self.layout = NodeLayout(self.root / "node")
        specs = [DirectorySpec("hdd", str(root)) for root in self.further]
        opened = await asyncio.to_thread(open_directories, self.layout, specs, mark)
        self.local = await open_shards(
            node_id=NODE_ID,
            node_epoch=registration.node_epoch,
            cluster_id=registration.cluster_id,
            settings=self.settings,
            layout=self.layout,
            catalog=self.catalog,
            meta=self.meta,  # type: ignore[arg-type]  # passes calls on, and may hold them
            turn=self.turn,
            pool=self.pool,
            clock_ms=self.clock,
            descriptor_limit=self.descriptor_limit,
            answer_bytes=self.settings.fetch_max_bytes,
            cold=self.cold,
            remote=self.remote,
            service_heard_ms=lambda: self.service_heard_ms,
            opened=opened,
            moves=self.moves,
        )
        self._is_alive = True
        self._is_alive = True
        self.shards, self.context, self.reader = self.local.directory, self.local.context, self.local.reader
        self.flusher, self.sealing, self.healing = self.local.flusher, self.local.sealing, self.local.healing
        self.threads, self.checkpoints = self.context.threads, self.local.checkpoints
        self.stats, self.copies, self.events = self.context.stats, self.local.copies, self.context.events
        self._run(self._follow_meta(snapshot.version))
        self.flusher.start()
        self.healing.start()

    async def _follow_meta(self, version: int) -> None:
        async for change_set in self.meta.service.watch(version):
            self.catalog.apply(change_set)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """As `StorageNode.close`: flushes and checkpoints."""
        await self._end_tasks()
        await self.local.close()
        self.turn.close()
        close_directories(self.layout)

    async def crash(self) -> None:
        """kill -9: no flush, no checkpoint, no answer. What a thread is doing just now, it still does."""
        self.turn.close()
        await self._end_tasks()
        await self.healing.close()
        await self.sealing.close()
        await self.context.tables.close()
        flusher = self.flusher
        running = (flusher._background_task, flusher._group_task, flusher._retiring, *flusher._forgetting)
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.threads.close)
        self.checkpoints.close()
        for file in list(self.context.descriptors._open):
            file.close()
        if flusher._journal._file is not None:
            flusher._journal._file.close()
        close_directories(self.layout)

    async def power_cut(self) -> None:
        await self.crash()
        self.power.cut()

    async def _end_tasks(self) -> None:
        self._is_alive = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def restart(self, how: str = "crash") -> None:
        await getattr(self, how)()
        await self.start()

    # The turn -----------------------------------------------------------------------------------------------------
    def tick(self) -> None:
        self.turn.run()

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
        faulty = offer(shard, memoryview(bytearray(data)), 9, acks, asked, 0, self.clock.now_ms)
        if faulty is not None:
            asked.refused(0, faulty.fault, faulty.message, -1)
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
            read = await self.reader.read(shard, at, max_bytes)
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
