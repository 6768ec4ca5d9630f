"""Every number that the HTTP API takes has bounds: what lies outside is refused in words, and nothing changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stratalog.meta_api import codec
from stratalog.model.commands import RollSegment
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import BatchMemo, ProducerSnapshot
from stratalog.model.segment import SealRecord
from support.meta_worlds import MetaWorld, part, running, seal_record

HUGE = (2**63, 10**400)
MINUS = (-(2**63) - 1, -(10**400))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MetaWorld]:
    async with running("http/memory", tmp_path) as started:
        yield started


@pytest.fixture
async def http(world: MetaWorld) -> AsyncIterator[aiohttp.ClientSession]:
    assert world.url is not None
    async with aiohttp.ClientSession(world.url) as session:
        yield session


def as_json(model: type[codec.Json], record: object) -> Any:
    return model.model_validate(record).model_dump(mode="json")


def sealed(segment: SegmentKey) -> SealRecord:
    producer = ProducerSnapshot(7, 0, 1, (BatchMemo(0, 9, 0, 1),))
    record = seal_record(segment, 10)
    return SealRecord(record.epoch, 0, 10, 1, 2, 10, b"\xd1" * 8, (producer,), record.replicas, record.sealed_ms)


def with_each_number(body: Any, number: int) -> Iterator[Any]:
    """The body once for each of its numbers, which is `number` then."""
    for path in list(numbers_in(body)):
        if path[-1] == "expires_ms":
            continue  # nobody reads it: a lock's epoch is what counts
        changed = deepcopy(body)
        place = changed
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = number
        yield changed


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from numbers_in(inner, (*path, key))


async def requests_with_numbers(world: MetaWorld) -> list[tuple[str, str, Any]]:
    """One of each kind, and each would be performed as it is."""
    active = await world.ready_topic("orders", shard_count=1)
    topic, shard = f"/v1/topics/{active.key.topic_id}", f"/v1/topics/{active.key.topic_id}/shards/0"
    lock = as_json(codec.LockJson, await world.lock())
    following = await world.client.perform(RollSegment(active.key, 10))
    old, new = f"{shard}/segments/0/0", f"{shard}/segments/1/10"
    commit = {"segment": as_json(codec.SegmentKeyJson, active.key), "expected_commit_offset": -1}
    commit["part"] = as_json(codec.RemotePartJson, part(0, 5))
    keys = {"segments": [as_json(codec.SegmentKeyJson, following.key)]}
    return [
        ("PUT", "/v1/nodes/1", {"storage_id": "s", "host": "h", "port": 1}),
        ("POST", "/v1/topics", {"name": "new", "shard_count": 1, "replication_factor": 1}),
        ("POST", topic + "/shard-count", {"shard_count": 2}),
        ("POST", new + "/roll", {"end_offset": 20}),
        ("POST", new + "/isr", {"isr": [1], "expected_version": 0}),
        ("PUT", new + "/fence", {"fence": 1}),
        ("PUT", old + "/seal", {"record": as_json(codec.SealRecordJson, sealed(active.key))}),
        ("POST", "/v1/locks/acquire", {"name": "tier/2", "holder": "node-1/1", "ttl_ms": 1_000}),
        ("POST", "/v1/producer-ids", {"count": 1}),
        ("POST", "/v1/parts/commit", {"lock": lock, "commits": [commit]}),
        ("POST", "/v1/nodes/1/forget-local", keys),
        ("PUT", old + "/remote", {"lock": lock, "manifest_key": "m", "manifest_digest": "ZA==", "size_bytes": 1}),
        ("PUT", shard + "/log-start", {"offset": 1}),
    ]


async def test_a_number_outside_its_bounds_changes_nothing(world: MetaWorld, http: aiohttp.ClientSession) -> None:
    requests = await requests_with_numbers(world)
    before = await world.client.snapshot()
    for method, path, body in requests:
        for number in (*HUGE, *MINUS):
            for changed in with_each_number(body, number):
                if path.endswith("/log-start") and number < 0:
                    continue  # below the log start there is nothing to do, whatever the number
                async with http.request(method, path, json=changed) as response:
                    told = await response.json(content_type=None)
                    is_refused = all(item["problem"] for item in told.get("items", [{"problem": None}]))
                    assert 400 <= response.status < 500 or is_refused, (method, path, changed, told)
    after = await world.client.snapshot()
    assert after.version == before.version and after == before


async def test_a_number_in_a_path_or_a_query_has_bounds_too(http: aiohttp.ClientSession) -> None:
    for number in ("9" * 5_000, str(2**63), "-1", "1.5", "²", "x"):
        for path in (f"/v1/watch?after={number}", f"/v1/topics?limit={number}"):
            async with http.get(path) as response:
                assert response.status == 400, path
    async with http.get("/v1/topics?limit=1001") as response:
        assert response.status == 400


@pytest.mark.parametrize("ttl_ms", [2**63, 2**63 - 1, 3_600_001, 0, -1])
async def test_a_lease_lasts_an_hour_at_most(http: aiohttp.ClientSession, world: MetaWorld, ttl_ms: int) -> None:
    """A lock for 2^63 ms kept a node from its own objects for ever."""
    body = {"name": "tier/1", "holder": "somebody", "ttl_ms": ttl_ms}
    async with http.post("/v1/locks/acquire", json=body) as response:
        assert response.status == 400
    assert (await world.lock()).epoch == 1


async def test_names_have_a_longest_one(http: aiohttp.ClientSession) -> None:
    for field in ("storage_id", "host", "rack"):
        body = {"storage_id": "s", "host": "h", "port": 1} | {field: "x" * 513}
        async with http.put("/v1/nodes/1", json=body) as response:
            assert response.status == 400


async def test_one_request_names_so_many_segments_and_no_more(http: aiohttp.ClientSession, world: MetaWorld) -> None:
    segment = await world.ready_topic()
    keys = {"segments": [as_json(codec.SegmentKeyJson, segment.key)] * 10_001}
    for path in ("/v1/deleted-segments/purge", "/v1/nodes/1/forget-local"):
        async with http.post(path, json=keys) as response:
            assert response.status == 413
