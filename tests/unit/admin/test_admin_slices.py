"""Pages about thousands of segments are made in slices: between two of them the loop serves everybody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from stratalog.admin_api.models import VerifySegment
from stratalog.machines.leading.shard_life import Stop
from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.commands.table_commands import (
    AcquireLock,
    CommitParts,
    CreateTopic,
    RegisterNode,
    RollSegment,
    SealSegment,
)
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import NodeInfo, PartCommit
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.http_access import HttpAccess
from stratalog.telemetry.http_tls import PortTls
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.ui import UiHost, add_ui
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.admin import AdminServices, NodeAdmin, NodeViews, NodeViewSources, add_admin_routes
from stratalog_node.admin import verify as verify_module
from stratalog_node.admin.describe import MAX_PLACES
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.slices import UNITS_PER_SLICE
from stratalog_node.topic_changes import TopicChanges
from support.meta_worlds import HandClock, part, seal_record

SEGMENTS = 3_000


@dataclass
class Looks:
    """Looks at segments' local copies: how many in all, and the most in one turn of the loop."""

    total: int = 0
    most: int = 0
    _before: int = 0

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self.total - self._before)
            self._before = self.total
            await asyncio.sleep(0)


@dataclass
class View:
    """A shard without local copies."""

    key: ShardKey
    topic: Topic
    catalog: Catalog
    looks: Looks
    high_watermark: int = SEGMENTS

    @property
    def log_start_offset(self) -> int:
        return self.catalog.log_start_offset(self.key)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def segments(self) -> Sequence[Segment]:
        return self.catalog.segments(self.key)

    def has_local(self, _segment: SegmentKey) -> bool:
        self.looks.total += 1
        return False

    def size_below_high_watermark(self, _segment: SegmentKey, _from_offset: int) -> int:
        return 0


@dataclass
class Shards:
    views: dict[ShardKey, View] = field(default_factory=dict)

    def get(self, key: ShardKey) -> Any:
        return self.views.get(key)

    read = get

    def all(self) -> Iterable[Any]:
        return self.views.values()

    def stopped(self) -> Sequence[tuple[Any, Stop]]:
        return ()


@dataclass
class Pages:
    http: aiohttp.ClientSession
    meta: MetaService
    looks: Looks
    server: TelemetryServer

    async def json(self, path: str) -> Any:
        async with self.http.get(path) as answer:
            assert answer.status == 200, await answer.text()
            return json.loads(await answer.text())


class Anywhere:
    """As much of an object store as the pages need."""

    url = "s3://bucket"


@asynccontextmanager
async def pages_of(
    meta: MetaService,
    directory: Path,
    audit: AuditLog = NO_AUDIT,
    access: HttpAccess | None = None,
    asking: NodeMetaClient | None = None,
    tls: PortTls | None = None,
) -> AsyncIterator[Pages]:
    """The admin port over what the metadata say, and a watch over what each turn of the loop looks at. `asking`: what
    the node asks the service with."""
    own = asking or NodeMetaClient(meta)
    settings, looks, shards = ProcessSettings(), Looks(), Shards()
    catalog = Catalog(lambda overrides: TopicSettings.resolve(settings, overrides))
    catalog.load(await meta.snapshot())
    for topic in catalog.topics():
        for shard in range(topic.shard_count):
            key = ShardKey(topic.topic_id, shard)
            shards.views[key] = View(key, topic, catalog, looks)
    services = AdminServices(
        node_id=1,
        cluster_id=meta.cluster_id,
        settings=settings,
        data_dir=directory,
        layout=NodeLayout(directory),
        kafka_address="localhost:1",
        started_ms=0,
        now_ms=lambda: 1,
        catalog=catalog,
        shards=shards,
        meta=own,
        topic_changes=TopicChanges(own, settings),
        store=cast(Any, Anywhere()),
        ask_roll=lambda _: False,
        turn=cast(Any, None),
    )
    nothing = cast(Any, None)
    looks_at = NodeViews(services, NodeViewSources(tuple, lambda: iter(()), dict, nothing, tuple, nothing))

    def add_routes(application: web.Application) -> None:
        add_admin_routes(application, NodeAdmin(services), looks_at, audit)
        if tls is not None:
            add_ui(application, UiHost(lambda: meta))

    server = TelemetryServer(MetricRegistry(), add_routes=add_routes, access=access, audit=audit, tls=tls)
    address = await server.start("127.0.0.1:0")
    watching = asyncio.create_task(looks.watch())
    async with aiohttp.ClientSession(f"{'http' if tls is None else 'https'}://{address}") as http:
        yield Pages(http, meta, looks, server)
    watching.cancel()
    await server.stop()


@asynccontextmanager
async def new_meta() -> AsyncIterator[MetaService]:
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    await meta.perform(RegisterNode(NodeInfo(1, "disk", "localhost", 1)))
    yield meta
    await meta.close()


async def one_long_shard(meta: MetaService) -> Topic:
    topic = await meta.perform(CreateTopic("orders", shard_count=1, replication_factor=1, settings={}))
    segment = (await meta.shard(ShardKey(topic.topic_id, 0))).segments[-1]
    for offset in range(1, SEGMENTS + 1):
        following = await meta.perform(RollSegment(segment.key, offset))
        await meta.perform(SealSegment(segment.key, seal_record(segment.key, offset)))
        segment = following
    return topic


@pytest.mark.fault("answers-node-thousands-segments")
async def test_no_page_looks_at_more_than_a_slice_of_a_long_shard_in_one_turn(tmp_path: Path) -> None:
    async with new_meta() as meta:
        await one_long_shard(meta)
        async with pages_of(meta, tmp_path) as pages:
            for path in ("/v1/status", "/v1/topics", "/v1/topics/orders", "/v1/segments"):
                before = pages.looks.total
                async with pages.http.get(path) as answer:
                    assert answer.status == 200
                    await answer.read()
                assert pages.looks.total - before >= SEGMENTS, path
            assert pages.looks.most <= 6 * UNITS_PER_SLICE, "some look up to five times at a segment"


@pytest.mark.fault("answers-node-thousands-segments")
async def test_no_page_looks_at_more_than_a_slice_of_many_shards_in_one_turn(tmp_path: Path) -> None:
    async with new_meta() as meta:
        await meta.perform(CreateTopic("wide", shard_count=SEGMENTS, replication_factor=1, settings={}))
        async with pages_of(meta, tmp_path) as pages:
            for path in ("/v1/status", "/v1/topics", "/v1/topics/wide", "/v1/segments"):
                async with pages.http.get(path) as answer:
                    assert answer.status == 200
                    await answer.read()
            assert pages.looks.most <= 6 * UNITS_PER_SLICE


@pytest.mark.fault("client-asks-pages-lists")
async def test_many_pages_at_a_time_look_at_no_more_in_one_turn_than_one_page(tmp_path: Path) -> None:
    async with new_meta() as meta:
        await one_long_shard(meta)
        async with pages_of(meta, tmp_path) as pages:

            async def get(path: str) -> None:
                async with pages.http.get(path) as answer:
                    assert answer.status == 200
                    await answer.read()

            for path in ("/v1/status", "/v1/topics", "/v1/topics/orders", "/v1/segments"):
                await asyncio.gather(*(get(path) for _ in range(20)))
            assert pages.looks.total >= 4 * 20 * SEGMENTS
            assert pages.looks.most <= 6 * UNITS_PER_SLICE


@pytest.mark.fault("client-asks-pages-lists")
async def test_many_verifications_at_a_time_read_two_segments_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = most = 0
    check = verify_module._check

    async def counted(*arguments: Any) -> VerifySegment:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        try:
            return await check(*arguments)
        finally:
            reading -= 1

    monkeypatch.setattr(verify_module, "_check", counted)
    async with new_meta() as meta:
        await meta.perform(CreateTopic("wide", shard_count=20, replication_factor=1, settings={}))
        async with pages_of(meta, tmp_path) as pages:

            async def verify() -> None:
                async with pages.http.post("/v1/verify", json={}) as answer:
                    assert len((await answer.text()).splitlines()) == 22

            await asyncio.gather(*(verify() for _ in range(10)))
    assert most == 2


@pytest.mark.fault("body-16-mib-meta")
@pytest.mark.parametrize(
    "body",
    [
        b'{"unset":[' + b"1," * 500_000 + b"1]}",
        b'{"set":{' + b",".join(b'"%x":1' % number for number in range(50_000)) + b"}}",
        b"{" + b",".join(b'"%x":1' % number for number in range(50_000)) + b"}",
    ],
    ids=["a list", "settings", "unknown fields"],
)
async def test_a_body_with_a_million_faults_is_refused_without_a_list_of_them(tmp_path: Path, body: bytes) -> None:
    """Such a list held the loop for 3.5 s and took half a gigabyte, for each 1 MiB."""
    headers = {"Content-Type": "application/json"}
    async with (
        new_meta() as meta,
        pages_of(meta, tmp_path) as pages,
        pages.http.patch("/v1/topics/orders", data=body, headers=headers) as answer,
    ):
        assert answer.status == 400
        assert "more than 1000" in await answer.text()


@pytest.mark.fault("answers-node-thousands-segments")
async def test_all_segments_are_listed_once_in_order_though_they_come_in_pieces(tmp_path: Path) -> None:
    async with new_meta() as meta:
        await one_long_shard(meta)
        await meta.perform(CreateTopic("more", shard_count=2, replication_factor=1, settings={}))
        async with pages_of(meta, tmp_path) as pages:
            listed = await pages.json("/v1/segments")
            assert [(one["topic"], one["shard"], one["epoch"]) for one in listed] == [
                ("more", 0, 0),
                ("more", 1, 0),
                *(("orders", 0, epoch) for epoch in range(SEGMENTS + 1)),
            ]
            assert len(await pages.json("/v1/segments?topic=orders&shard=0")) == SEGMENTS + 1
            assert [one["topic"] for one in await pages.json("/v1/segments?shard=1")] == ["more"]
            assert await pages.json("/v1/segments?topic=more&shard=1") == [listed[1]]
            for path in ("/v1/segments?topic=nope", "/v1/segments?topic=more&shard=2"):
                async with pages.http.get(path) as answer:
                    assert answer.status == 404


async def test_lists_of_nothing_are_lists(tmp_path: Path) -> None:
    async with new_meta() as meta, pages_of(meta, tmp_path) as pages:
        assert await pages.json("/v1/topics") == []
        assert await pages.json("/v1/segments") == []


async def test_of_a_segment_with_thousands_of_parts_the_first_places_are_listed(tmp_path: Path) -> None:
    async with new_meta() as meta:
        topic = await meta.perform(CreateTopic("quiet", shard_count=1, replication_factor=1, settings={}))
        segment = (await meta.shard(ShardKey(topic.topic_id, 0))).segments[-1]
        lock = await meta.perform(AcquireLock("tier/1", "node-1/1", 1_000))
        for offset in range(500):
            await meta.perform(CommitParts(lock, (PartCommit(segment.key, offset or -1, part(offset, offset + 1)),)))
        async with pages_of(meta, tmp_path) as pages:
            (listed,) = await pages.json("/v1/segments")
            assert (len(listed["places"]), listed["more_places"]) == (MAX_PLACES, 500 - MAX_PLACES)
            assert (await pages.json("/v1/status"))["bytes"]["cold"] == 500
