"""The status page as the meta service serves it: its files, its answers, and what watching it costs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Generator

import aiohttp
import pytest

from stratalog.machines.cluster_overview import Known, overview
from stratalog.model.activity import Activity, StoppedHere
from stratalog.model.errors import NotLeader
from stratalog.model.metadata import Snapshot
from stratalog.model.status_page import Overview
from stratalog_meta.api.server import MetaServer
from stratalog_meta.seldom import FRESH_MS, SeldomMade
from stratalog_meta.service import MetaService
from support.source_tree import REPOSITORY
from support.told_cluster import ToldCluster, told_cluster

FILES = REPOSITORY / "meta_service" / "stratalog_meta" / "page"


@pytest.fixture
async def cluster() -> AsyncIterator[ToldCluster]:
    async with told_cluster() as started:
        yield started


@pytest.fixture
async def http(cluster: ToldCluster) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cluster.url) as session:
        yield session


# Files ----------------------------------------------------------------------------------------------------------------
async def test_the_page_and_all_that_it_loads_come_from_this_port_under_a_policy_that_allows_nothing_else(
    http: aiohttp.ClientSession,
) -> None:
    waiting, loaded = ["/"], set()
    while waiting:
        path = waiting.pop()
        loaded.add(path)
        async with http.get(path) as response:
            assert response.status == 200, path
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
            text = await response.text()
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "").replace("https?:\\/\\/", ""), path
        named = re.findall(r'(?:href|src)="(/page/[^"]+)"', text)
        named += [f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', text)]
        waiting += set(named) - loaded
    assert loaded == {"/", "/page/base.css", *(f"/page/{one.name}" for one in FILES.glob("*.[cj]s*"))}


def test_no_script_of_the_page_makes_markup_of_text() -> None:
    sinks = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|srcdoc|DOMParser|\bon\w+ *= *[\"']"
    )
    files = [path for path in FILES.iterdir() if path.suffix in (".js", ".html")]
    found = {path.name: re.findall(sinks, path.read_text()) for path in files}
    assert len(found) >= 5
    assert {name: hits for name, hits in found.items() if hits} == {}


# Answers --------------------------------------------------------------------------------------------------------------
async def test_the_overview_has_what_nodes_told_and_what_the_metadata_say(
    cluster: ToldCluster, http: aiohttp.ClientSession
) -> None:
    for node_id in (1, 2):
        await cluster.node(node_id, f"zone-{node_id}")
    await cluster.topic("flights", 4, 2)
    await cluster.tell_for(3, 1, 2)
    stopped = StoppedHere("flights", 3, "disk", "it is full", "free some room")
    await cluster.tell(2, Activity(0, 0, None, ("disk: no room",), 1, (stopped,)), free=7)
    async with http.get("/v1/overview") as response:
        told = await response.json()
    assert [(one["node_id"], one["state"], one["replicas"]) for one in told["nodes"]] == [
        (1, "alive", 4),
        (2, "alive", 4),
    ]
    assert told["nodes"][1]["disk_free_bytes"] == 7 and told["nodes"][0]["uploads"]["unsent_bytes"] == 1_000_000
    assert told["shards"] | {"topics": 1, "shards": 4, "led": 4, "under_replicated": 0} == told["shards"]
    assert told["stopped"] == [{"node_id": 2, "shard": stopped._asdict()}]
    assert told["faults"] == ["node 2: disk: no room"]


async def test_the_courses_are_told_from_a_time_on(cluster: ToldCluster, http: aiohttp.ClientSession) -> None:
    for node_id in (1, 2):
        await cluster.node(node_id)
    await cluster.tell_for(4, 1, 2)
    async with http.get("/v1/courses") as response:
        items = (await response.json())["items"]
    assert [[one["produce_rate"] for one in item["samples"]] for item in items] == [[1_000_000] * 3, [2_000_000] * 3]
    last_ms = items[0]["samples"][-1]["at_ms"]
    async with http.get(f"/v1/courses?after={last_ms - 1}") as response:
        assert [len(item["samples"]) for item in (await response.json())["items"]] == [1, 1]
    async with http.get("/v1/courses?after=yesterday") as response:
        assert response.status == 400


async def test_an_instance_that_does_not_lead_serves_the_page_and_says_who_does() -> None:
    class Follower:
        why_no_changes = None

        def leading(self) -> MetaService:
            raise NotLeader("another instance leads the metadata", "http://127.0.0.1:1")

    server = MetaServer(Follower())
    await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(server.address) as http:
            async with http.get("/") as response:
                assert response.status == 200
            async with http.get("/page/place") as response:
                assert await response.json() == {
                    "leader": "http://127.0.0.1:1",
                    "words": "another instance leads the metadata",
                    "parts": [],
                }
            async with http.get("/v1/overview", allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (307, "http://127.0.0.1:1/v1/overview")
    finally:
        await server.close()


async def test_the_page_of_another_site_may_not_ask(http: aiohttp.ClientSession) -> None:
    for headers in ({"Origin": "http://elsewhere"}, {"Host": "elsewhere"}, {"Sec-Fetch-Site": "cross-site"}):
        async with http.get("/v1/overview", headers=headers) as response:
            assert response.status == 403


async def test_a_cluster_is_told_without_its_shards(cluster: ToldCluster, http: aiohttp.ClientSession) -> None:
    """What an operator asks for in each pass must not grow with the data."""
    async with http.get("/v1/outline") as response:
        told = await response.json()

    assert {"topics", "nodes", "mounts", "health", "sums"} <= told.keys() and "shards" not in told
    assert len(told["sums"]["topics"]) == len(told["topics"])


# Cost -----------------------------------------------------------------------------------------------------------------
class Asked:
    """Counts how often what is known is gathered. Its clock moves by hand, and by `look_ms` with each look at it."""

    def __init__(self) -> None:
        self.times = 0
        self.now_ms = 1_000
        self.look_ms = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def known(self) -> Known:
        self.times += 1
        await self.go_on.wait()
        return Known("cluster", Snapshot(self.times, (), (), ()), 0, lambda _: None, ())

    async def steps(self) -> Generator[None, None, Overview]:
        return overview(await self.known())

    def clock(self) -> int:
        self.now_ms += self.look_ms
        return self.now_ms


async def test_however_many_watch_at_once_the_cluster_is_looked_at_once() -> None:
    asked = Asked()
    asked.go_on.clear()
    maker = SeldomMade(asked.steps, asked.clock, "a test")
    watching = [asyncio.create_task(maker.get()) for _ in range(50)]
    await asyncio.sleep(0)
    watching[0].cancel()  # the one for whom it was begun goes away
    asked.go_on.set()
    told = await asyncio.gather(*watching[1:])
    assert asked.times == 1 and {one.version for one in told} == {1}
    await maker.close()


async def test_it_is_looked_at_anew_when_the_answer_is_old() -> None:
    asked = Asked()
    maker = SeldomMade(asked.steps, asked.clock, "a test")
    assert (await maker.get()).version == 1
    asked.now_ms += FRESH_MS - 1
    assert (await maker.get()).version == 1
    asked.now_ms += 1
    assert (await maker.get()).version == 2
    await maker.close()


async def test_a_look_that_takes_long_is_made_seldom() -> None:
    asked = Asked()
    asked.look_ms = 2_000
    maker = SeldomMade(asked.steps, asked.clock, "a test")
    first = await maker.get()
    asked.look_ms = 0
    asked.now_ms += 19 * 2_000
    assert await maker.get() is first
    asked.now_ms += 2_000
    assert await maker.get() is not first
    await maker.close()


async def test_a_look_that_fails_is_made_again() -> None:
    asked = Asked()
    broken = True

    async def steps() -> Generator[None, None, Overview]:
        if broken:
            raise NotLeader("not now")
        return await asked.steps()

    maker = SeldomMade(steps, asked.clock, "a test")
    with pytest.raises(NotLeader):
        await maker.get()
    broken = False
    assert (await maker.get()).version == 1
    await maker.close()
