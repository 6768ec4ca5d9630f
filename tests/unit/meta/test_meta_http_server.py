"""The HTTP boundary: health, resources, limits, problems, and a description that is true."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from stratalog.meta_api.streams import SnapshotReader
from stratalog.model.commands.table_commands import AdvanceLogStart, CommitParts, RollSegment
from stratalog.model.errors import Unavailable
from stratalog.telemetry.http_limits import HttpLimits
from stratalog_meta import MetaService
from stratalog_meta.api import openapi, serve
from stratalog_meta.api.routes import ROUTES
from stratalog_meta.api.server import MetaServer
from stratalog_meta.stores.memory import MemoryStore
from support.failing_meta_store import FailingStore
from support.meta_worlds import HandClock, MetaWorld, running

PRODUCER_IDS, CREATE_TOPIC = "/v1/commands/allocate-producer-ids", "/v1/commands/create-topic"
NOBODYS = UUID(int=7)
"""The id of no topic; the same in every run, for it is part of tests' names."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running("http/memory", tmp_path) as started:
        yield started


@pytest.fixture
async def http(world: MetaWorld) -> AsyncIterator[aiohttp.ClientSession]:
    assert world.url is not None
    async with aiohttp.ClientSession(world.url) as session:
        yield session


async def problem_of(response: aiohttp.ClientResponse) -> tuple[int, str, str]:
    assert response.content_type == "application/problem+json"
    problem = await response.json(content_type=None)
    assert problem["status"] == response.status or problem["title"] == "InvalidRequest"
    return response.status, problem["title"], problem["detail"]


# Health ---------------------------------------------------------------------------------------------------------
async def test_a_running_service_is_healthy_and_ready(http: aiohttp.ClientSession) -> None:
    for path, text in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
        async with http.get(path) as response:
            assert (response.status, await response.text()) == (200, text)


async def test_a_service_whose_store_failed_lives_but_is_not_ready() -> None:
    store = FailingStore(MemoryStore())
    service = MetaService(store, HandClock())
    await service.start()
    server = await serve(service, "127.0.0.1", 0)
    store.fails_before = True
    async with aiohttp.ClientSession(server.address) as http:
        async with http.post(PRODUCER_IDS, json={"count": 1}) as response:
            assert (await problem_of(response))[:2] == (500, "OutcomeUnknown")
        async with http.get("/readyz") as response:
            assert response.status == 503 and "started again" in await response.text()
        async with http.get("/healthz") as response:
            assert response.status == 200
        async with http.get("/v1/cluster") as response:
            assert (await response.json())["why_no_changes"] is not None
        async with http.post(PRODUCER_IDS, json={"count": 1}) as response:
            assert (await problem_of(response))[:2] == (503, "Unavailable")
    await server.close()
    await service.close()


# Resources ------------------------------------------------------------------------------------------------------
async def test_resources_can_be_read_by_their_paths(world: MetaWorld, http: aiohttp.ClientSession) -> None:
    segment = await world.ready_topic("orders", shard_count=2)
    await world.topic("payments")
    topic_id = segment.key.topic_id
    answers: dict[str, Any] = {}
    for path in (
        "/v1/cluster",
        "/v1/nodes",
        "/v1/topics",
        "/v1/topics?name=orders",
        "/v1/topics?after=orders&limit=1",
        f"/v1/topics/{topic_id}",
        f"/v1/topics/{topic_id}/shards/1",
        f"/v1/topics/{topic_id}/shards/0/segments/0/0",
        "/v1/deleted-segments",
    ):
        async with http.get(path) as response:
            assert response.status == 200, path
            answers[path] = await response.json()
    assert answers["/v1/cluster"] == {
        "cluster_id": world.service.cluster_id,
        "version": 3,
        "nodes": 1,
        "topics": 2,
        "shards": 3,
        "why_no_changes": None,
    }
    assert [topic["name"] for topic in answers["/v1/topics"]["items"]] == ["orders", "payments"]
    assert [topic["name"] for topic in answers["/v1/topics?name=orders"]["items"]] == ["orders"]
    assert [topic["name"] for topic in answers["/v1/topics?after=orders&limit=1"]["items"]] == ["payments"]
    assert answers[f"/v1/topics/{topic_id}"]["topic_id"] == str(topic_id)
    assert answers[f"/v1/topics/{topic_id}/shards/1"]["segments"][0]["state"] == "active"
    assert answers[f"/v1/topics/{topic_id}/shards/0/segments/0/0"]["key"]["topic_id"] == str(topic_id)
    assert answers["/v1/nodes"]["items"][0]["node_id"] == 1


async def test_settings_are_compared_when_the_caller_says_what_it_read(
    world: MetaWorld, http: aiohttp.ClientSession
) -> None:
    segment = await world.ready_topic()
    asked = {"topic_id": str(segment.key.topic_id), "expected": {}}
    async with http.post("/v1/commands/alter-topic", json=asked | {"settings": {"a": "1"}}) as response:
        assert response.status == 200
    async with http.post("/v1/commands/alter-topic", json=asked | {"settings": {"a": "2"}}) as response:
        assert (await problem_of(response))[:2] == (409, "Conflict")


# What is refused ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v1/nothing", None, (404, "InvalidRequest")),
        ("PATCH", "/v1/topics", None, (405, "InvalidRequest")),
        ("GET", "/v1/topics/orders", None, (400, "InvalidRequest")),
        ("GET", f"/v1/topics/{NOBODYS}", None, (404, "NotFound")),
        ("GET", f"/v1/topics/{NOBODYS}/shards/-1", None, (400, "InvalidRequest")),
        ("GET", f"/v1/topics/{NOBODYS}/shards/{2**63}", None, (400, "InvalidRequest")),
        ("GET", f"/v1/topics/{NOBODYS}/shards/0", None, (404, "NotFound")),
        ("GET", "/v1/topics?limit=many", None, (400, "InvalidRequest")),
        ("GET", "/v1/watch", None, (400, "InvalidRequest")),
        ("GET", "/v1/watch?after=-1", None, (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b"", (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b"{", (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b"\xff", (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b'{"name":"a"}', (400, "InvalidRequest")),
        (
            "POST",
            CREATE_TOPIC,
            b'{"name":"a","shard_count":1,"replication_factor":1,"retension":"1"}',
            (400, "InvalidRequest"),
        ),
        ("POST", CREATE_TOPIC, b'{"name":"a","shard_count":"1","replication_factor":1}', (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b'{"name":"a","shard_count":true,"replication_factor":1}', (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b'{"name":"a","shard_count":1.0,"replication_factor":1}', (400, "InvalidRequest")),
        ("POST", CREATE_TOPIC, b"[" * 100_000, (400, "InvalidRequest")),
        (
            "POST",
            CREATE_TOPIC + "?validate_only=perhaps",
            b'{"name":"a","shard_count":1,"replication_factor":1}',
            (400, "InvalidRequest"),
        ),
        ("POST", "/v1/commands/roll-segments", b"{}", (404, "InvalidRequest")),
        ("GET", "/v1/commands/roll-segment", None, (405, "InvalidRequest")),
        ("POST", "/v1/commands/delete-topic", b'{"topic_id":"orders"}', (400, "InvalidRequest")),
        (
            "POST",
            "/v1/commands/roll-segment",
            b'{"segment":{"topic_id":"'
            + str(NOBODYS).encode()
            + b'","shard":0,"epoch":0,"base_offset":0,"end":9},"end_offset":1}',
            (400, "InvalidRequest"),
        ),
        (
            "POST",
            "/v1/commands/complete-remote",
            b'{"lock":{"name":"a","holder":"b","epoch":1,"expires_ms":1},"segment":{"topic_id":"'
            + str(NOBODYS).encode()
            + b'","shard":0,"epoch":0,"base_offset":0},"manifest_key":"k","manifest_digest":"!","size_bytes":1}',
            (400, "InvalidRequest"),
        ),
        ("POST", PRODUCER_IDS, b'{"count":' + b"9" * 400 + b"}", (400, "InvalidRequest")),
        (
            "POST",
            "/v1/commands/register-node",
            b'{"node":{"node_id":"x","storage_id":"s","host":"h","port":1}}',
            (400, "InvalidRequest"),
        ),
    ],
)
async def test_a_request_that_cannot_be_is_a_problem(
    http: aiohttp.ClientSession, method: str, path: str, body: bytes | None, expected: tuple[int, str]
) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.request(method, path, data=body, headers=headers) as response:
        status, title, detail = await problem_of(response)
    assert (status, title) == expected
    assert detail


async def test_the_port_has_the_limits_and_the_guard_of_every_http_port(world: MetaWorld) -> None:
    limits = HttpLimits(max_body_bytes=1_000, request_timeout_s=0.05)
    server = MetaServer(world.service, limits=limits)
    url = await server.start("127.0.0.1", 0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(url) as http:
        async with http.post(CREATE_TOPIC, data=b"x" * 1_001, headers=headers) as response:
            assert (await problem_of(response))[:2] == (413, "LimitExceeded")
        async with http.post(CREATE_TOPIC, data=b"{}") as response:
            assert (response.status, (await problem_of(response))[1]) == (415, "InvalidRequest")
        async with http.get("/v1/topics", headers={"Host": "rebound.example"}) as response:
            assert (response.status, (await problem_of(response))[1]) == (403, "InvalidRequest")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"POST /v1/commands/create-topic HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 50\r\n\r\n{")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await server.close()


@pytest.mark.fault("web-page-browser-sends")
async def test_a_web_page_elsewhere_can_change_nothing(world: MetaWorld, http: aiohttp.ClientSession) -> None:
    await world.node()
    topic = await world.topic()
    body = b'{"name":"taken","shard_count":1,"replication_factor":1}'
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json", "Origin": "http://page.example"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"},
        {"Content-Type": "application/json", "Host": "page.example"},
    ):
        async with http.post(CREATE_TOPIC, data=body, headers=headers) as response:
            assert response.status in (403, 415)
        deletion = json.dumps({"topic_id": str(topic.topic_id)}).encode()
        async with http.post("/v1/commands/delete-topic", data=deletion, headers=headers) as response:
            assert response.status in (403, 415)
    assert [known.name for known in (await world.client.snapshot()).topics] == ["orders"]


async def test_a_crash_in_a_handler_is_an_unknown_outcome_and_the_server_lives(
    world: MetaWorld, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(MetaService, "perform", crash)
        async with http.post(PRODUCER_IDS, json={"count": 1}) as response:
            assert (await problem_of(response))[:2] == (500, "OutcomeUnknown")
    async with http.post(PRODUCER_IDS, json={"count": 1}) as response:
        assert response.status == 200


async def test_an_address_that_is_taken_is_refused_in_words(world: MetaWorld) -> None:
    assert world.url is not None
    with pytest.raises(Unavailable, match="another port"):
        await MetaServer(world.service).start("127.0.0.1", int(world.url.rpartition(":")[2]))


# Streams --------------------------------------------------------------------------------------------------------
async def test_a_silent_watch_says_that_it_lives(http: aiohttp.ClientSession, world: MetaWorld) -> None:
    version = (await world.client.snapshot()).version
    async with http.get("/v1/watch", params={"after": str(version)}) as response:
        assert response.content_type == "application/x-ndjson"
        assert await asyncio.wait_for(response.content.readline(), 10) == b"\n"


async def test_a_watch_of_a_part_costs_the_same_whether_there_are_few_or_many(
    http: aiohttp.ClientSession, world: MetaWorld
) -> None:
    from stratalog.model.metadata import PartCommit
    from support.meta_worlds import part

    segment = await world.ready_topic()
    lock = await world.lock()
    version = (await world.client.snapshot()).version
    for offset in range(300):
        await world.service.perform(CommitParts(lock, (PartCommit(segment.key, offset, part(offset, offset + 1)),)))
    sizes = []
    async with http.get("/v1/watch", params={"after": str(version)}) as response:
        while len(sizes) < 300:
            line = await asyncio.wait_for(response.content.readline(), 10)
            sizes += [len(line)] if line.strip() else []
    assert max(sizes) - min(sizes) < 100


@pytest.mark.fault("snapshot-shard-list-deleted")
async def test_answers_about_thousands_of_segments_come_in_pieces_and_the_loop_turns_between(
    world: MetaWorld, http: aiohttp.ClientSession
) -> None:
    segment = await world.ready_topic()
    key = segment.key.shard_key
    for offset in range(1, 1_501):
        segment = await world.service.perform(RollSegment(segment.key, offset))
    await world.service.perform(AdvanceLogStart(key, 500))
    for path, name, count in (
        (f"/v1/topics/{key.topic_id}/shards/0", "segments", 1_001),
        ("/v1/deleted-segments", "items", 500),
    ):
        async with http.get(path) as response:
            pieces = [piece async for piece, is_whole in response.content.iter_chunks() if is_whole]
            assert len(pieces) > count // 256, "each chunk is sent before the next is made"
            assert len(json.loads(b"".join(pieces))[name]) == count
    assert await world.client.shard(key) == await world.service.shard(key)
    assert await world.client.deleted_segments() == await world.service.deleted_segments()
    assert await world.client.snapshot() == await world.service.snapshot()


@pytest.mark.fault("snapshot-shard-list-deleted")
async def test_a_snapshot_comes_in_lines_of_bounded_size_whatever_a_shard_holds(
    world: MetaWorld, http: aiohttp.ClientSession
) -> None:
    segment = await world.ready_topic()
    for offset in range(1, 1_501):
        segment = await world.service.perform(RollSegment(segment.key, offset))
    async with http.get("/v1/snapshot") as response:
        lines = (await response.read()).splitlines()
    assert len(lines) == 1 + 1 + 1 + 6
    assert max(len(json.loads(line).get("segments", ())) for line in lines) <= 256
    reader = SnapshotReader()
    for line in lines:
        reader.add(line)
    assert reader.finish() == await world.service.snapshot()
    cut_short = SnapshotReader()
    for line in lines[:-1]:
        cut_short.add(line)
    with pytest.raises(Unavailable, match="cut short"):
        cut_short.finish()


# Description ----------------------------------------------------------------------------------------------------
async def test_the_description_names_every_route_and_every_model_it_refers_to(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        document = await response.json()
    assert document == json.loads(json.dumps(openapi.document()))
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["summary"]
        assert ("requestBody" in operation) == (route.body is not None)
    assert {"/v1/snapshot", "/v1/watch", "/healthz", "/readyz"} <= set(document["paths"])
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert referred <= set(document["components"]["schemas"])
    assert document["components"]["schemas"]["SegmentKey"]["properties"]["epoch"]["minimum"] == 0
    assert document["paths"]["/v1/commands/roll-segment"]["post"]["summary"].startswith("The ACTIVE segment ends")
