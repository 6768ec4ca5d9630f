"""A bench for control handlers: the real meta service and catalog, shards in memory, kafka-python at both ends.

`ask` sends a request as kafka-python encodes it through our decoder, handler and encoder, and gives back what
kafka-python reads from the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from stratalog.kafka import messages
from stratalog.kafka.frames import decode_request_header
from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.model.commands.table_commands import AdvanceLogStart, CreateTopic, RegisterNode, RollSegment
from stratalog.model.errors import StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.connections.client_rights import UNLIMITED, ClientRights
from stratalog_node.serve.connections.context import ConnectionInfo, NodeServices, RequestContext
from stratalog_node.serve.connections.control_state import ControlState
from stratalog_node.serve.connections.registry import Api, Registry
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.flush.shard_lookup import DiskUsage, FoundOffset, FurtherUsage
from stratalog_node.topic_changes import TopicChanges
from support.kafka_oracle import decode_response, frame_of, request_class
from support.no_groups import NoGroups
from support.waiting import eventually

NODE_ID = 1


class MemoryShard:
    """A shard whose records are only times: what `ShardLookup` promises, without files."""

    def __init__(self, bench: ControlBench, key: ShardKey, topic: Topic) -> None:
        self._bench = bench
        self.key = key
        self.topic = topic
        self.times: list[int] = []
        self.unacknowledged = 0
        self.open_transaction_at: int | None = None
        self.tiered_upto = -1
        self.freed_upto = 0
        self.moved: dict[str, int] = {}
        self.error: StratalogError | None = None
        self.is_end_known = True
        self.led_since_epoch = 0

    @property
    def log_start_offset(self) -> int:
        return self._bench.catalog.log_start_offset(self.key)

    @property
    def high_watermark(self) -> int:
        self._fail()
        return len(self.times) - self.unacknowledged

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.open_transaction_at is None else self.open_transaction_at

    @property
    def end_offset(self) -> int:
        return len(self.times)

    @property
    def segments(self) -> Sequence[Segment]:
        return self._bench.catalog.segments(self.key)

    @property
    def epoch(self) -> int:
        return self.segments[-1].epoch

    @property
    def is_leader(self) -> bool:
        return True

    def compare_epoch(self, epoch: int) -> int:
        return 1 if epoch > self.epoch else 0 if epoch >= self.led_since_epoch else -1

    async def offset_for_time(self, timestamp_ms: int) -> FoundOffset | None:
        self._fail()
        for offset in range(self.log_start_offset, self.high_watermark):
            if self.times[offset] >= timestamp_ms:
                return FoundOffset(offset, self.times[offset], self._epoch_at(offset))
        return None

    async def offset_of_max_timestamp(self) -> FoundOffset | None:
        self._fail()
        if not self.times:
            return None
        offset = max(range(self.high_watermark), key=lambda at: (self.times[at], -at))
        return FoundOffset(offset, self.times[offset], self._epoch_at(offset))

    def _epoch_at(self, offset: int) -> int:
        return max(s.epoch for s in self.segments if s.base_offset <= offset)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def earliest_local_offset(self) -> int:
        return max(self.freed_upto, self.log_start_offset)

    def last_tiered_offset(self) -> int:
        return self.tiered_upto - 1 if self.tiered_upto >= 0 else -1

    def local_size_bytes(self) -> int:
        return 100 * len(self.times)

    def moved_bytes(self) -> dict[str, int]:
        return self.moved

    async def delete_records_before(self, offset: int) -> int:
        self._fail()
        shard = await self._bench.meta.perform(AdvanceLogStart(self.key, offset))
        return shard.log_start_offset


class MemoryShards:
    """`Shards` and `DiskView` over the catalog: a shard opens when it is first asked for."""

    def __init__(self, bench: ControlBench) -> None:
        self._bench = bench
        self._opened: dict[ShardKey, MemoryShard] = {}
        self.missing: set[ShardKey] = set()

    def get(self, key: ShardKey) -> MemoryShard | None:
        topic = self._bench.catalog.topic_by_id(key.topic_id)
        if topic is None or key in self.missing or not self._bench.catalog.has_shard(key):
            return None
        return self._opened.setdefault(key, MemoryShard(self._bench, key, topic))

    def read(self, key: ShardKey) -> MemoryShard | None:
        """Users mount nothing here."""
        return self.get(key)

    def all(self) -> Iterable[MemoryShard]:
        return [shard for key in self._bench.catalog.shard_keys() if (shard := self.get(key)) is not None]

    def usage(self) -> DiskUsage:
        return DiskUsage("/data/node/segments", 1_000_000, 400_000)

    def further(self) -> list[FurtherUsage]:
        return self._bench.further_disks


class ControlBench:
    """One node's services; `meta` can be made to fail."""

    def __init__(self, meta: MetaService, settings: ProcessSettings) -> None:
        self.meta = meta
        self.catalog = Catalog(lambda overrides: TopicSettings.resolve(settings, overrides))
        self.shards = MemoryShards(self)
        self.further_disks: list[FurtherUsage] = []
        self.registry = Registry(control_apis())
        self.services = NodeServices(
            NODE_ID,
            meta.cluster_id,
            settings,
            meta,
            self.catalog,
            cast(Any, self.shards),
            self.shards,
            cast(Any, NoGroups()),
            TopicChanges(meta, settings),
            ControlState(self.registry.advertised()),
        )

    async def ask(
        self,
        key: int,
        version: int,
        /,
        *,
        via: ConnectionInfo | None = None,
        rights: ClientRights = UNLIMITED,
        **fields: Any,
    ) -> Any:
        """The answer as kafka-python reads it. Nested structures may be given as dicts. `via`: of another listener."""
        return decode_response(key, version, await self.answer(key, version, via=via, rights=rights, **fields))

    async def answer(
        self,
        key: int,
        version: int,
        /,
        *,
        via: ConnectionInfo | None = None,
        rights: ClientRights = UNLIMITED,
        **fields: Any,
    ) -> bytes:
        return await self.answer_to(frame_of(message(request_class(key), version, fields)), via=via, rights=rights)

    async def answer_to(
        self, request: bytes, *, via: ConnectionInfo | None = None, rights: ClientRights = UNLIMITED
    ) -> bytes:
        """Both with their size in front."""
        frame = memoryview(request)[4:]
        header = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        decoded = messages.decode_request(key, version, frame, header.body_position)
        connection = via or ConnectionInfo("client:1", "advertised.example", 9092)
        api: Api | None = self.registry.get(key)
        assert api is not None and api.handler is not None
        assert api.min_version <= version <= api.max_version
        entity = await api.handler(RequestContext(self.services, header, connection, rights), decoded)
        return messages.encode_response(key, version, header.correlation_id, entity)

    async def topic(self, name: str, shards: int = 1, **settings: str) -> Topic:
        """Make a topic and wait until the catalog shows it."""
        topic = await self.meta.perform(CreateTopic(name, shard_count=shards, replication_factor=1, settings=settings))
        await self.shown(lambda: self.catalog.topic_by_id(topic.topic_id) is not None)
        return topic

    async def group_log(self, shards: int = 2) -> Topic:
        """The topic of group offsets, as the node makes it."""
        topic = await self.meta.perform(
            CreateTopic(GROUP_LOG, shard_count=shards, replication_factor=1, settings={}, is_internal=True)
        )
        await self.shown(lambda: self.catalog.topic_by_id(topic.topic_id) is not None)
        return topic

    def shard(self, topic: Topic, index: int = 0) -> MemoryShard:
        shard = self.shards.get(ShardKey(topic.topic_id, index))
        assert shard is not None
        return shard

    async def roll(self, topic: Topic, end_offset: int, index: int = 0) -> None:
        """End the active segment; the next epoch opens there."""
        active = self.catalog.active_segment(ShardKey(topic.topic_id, index))
        assert active is not None
        new = await self.meta.perform(RollSegment(active.key, end_offset))
        await self.shown(lambda: self.catalog.segment(new.key) is not None)

    async def shown(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, 5)


def message(cls: Any, version: int, fields: dict[str, Any]) -> Any:
    """A kafka-python message from plain dicts and lists."""
    return cls(version=version, **_nested(cls._struct, version, fields))


def _nested(struct: Any, version: int, values: dict[str, Any]) -> dict[str, Any]:
    by_name = struct.fields if isinstance(struct.fields, dict) else {field.name: field for field in struct.fields}
    made = {}
    for name, value in values.items():
        field = by_name[name]
        if not field.for_version_q(version):
            continue
        if field.is_struct_array() and value is not None:
            value = [field(version=version, **_nested(field, version, one)) for one in value]
        made[name] = value
    return made


@asynccontextmanager
async def control_bench(**settings: Any) -> AsyncIterator[ControlBench]:
    """A bench with one registered node; settings by attribute name."""
    meta = MetaService(MemoryStore(), clock_ms=lambda: 1_700_000_000_000)
    await meta.start()
    await meta.perform(RegisterNode(NodeInfo(NODE_ID, "storage-1", "internal.example", 9092, rack="a")))
    bench = ControlBench(meta, ProcessSettings(node_id=NODE_ID, **settings))
    bench.catalog.load(await meta.snapshot())

    async def follow() -> None:
        async for change_set in meta.watch(bench.catalog.version):
            bench.catalog.apply(change_set)

    task = asyncio.create_task(follow())
    try:
        yield bench
    finally:
        await bench.services.control.producer_ids.close()
        task.cancel()
        with suppress(asyncio.CancelledError, Unavailable):
            await task
        await meta.close()
