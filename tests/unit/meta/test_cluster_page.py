"""The cluster UI as the meta service serves it: its files, its answers, and what watching it costs."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Generator

import aiohttp
import pytest

from stratalog.machines.plans.cluster_overview import Known, overview
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.activity import Activity, StoppedHere
from stratalog.model.commands.table_commands import NoteLives
from stratalog.model.errors import InvalidRequest, NotFound, NotLeader
from stratalog.model.metadata import Snapshot
from stratalog.model.retirement import RetireStep
from stratalog.model.views.cluster_lists import ListAsk
from stratalog.model.views.status_page import Overview
from stratalog_meta.api.server import MetaServer
from stratalog_meta.costly_answer import FRESH_MS, CostlyAnswer
from stratalog_meta.service import MetaService
from support.reporting_cluster import ReportingCluster, reporting_cluster
from support.waiting import eventually


@pytest.fixture
async def cluster() -> AsyncIterator[ReportingCluster]:
    async with reporting_cluster() as started:
        yield started


@pytest.fixture
async def http(cluster: ReportingCluster) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cluster.url) as session:
        yield session


# Pages ----------------------------------------------------------------------------------------------------------------
async def test_the_pages_and_all_that_they_load_come_from_this_port_under_a_policy_that_allows_nothing_else(
    cluster: ReportingCluster, http: aiohttp.ClientSession
) -> None:
    await cluster.node(1, "zone-1")
    await cluster.topic("flights", 3, 1)
    await cluster.report_for(3, 1)
    waiting, loaded = ["/"], set()
    while waiting:
        path = waiting.pop()
        loaded.add(path)
        async with http.get(path) as response:
            assert response.status == 200, path
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "script-src 'unsafe" not in policy
            assert response.content_type != "text/html" or "unsafe" not in policy
            text = await response.text()
        is_page = response.content_type == "text/html"
        assert not is_page or "://" not in text, path
        named = re.findall(r'(?:href|src|srcset)="(/[^"]*)"', text) if is_page else []
        waiting += {html.unescape(one) for one in named if is_worth_a_look(one)} - loaded
    kinds = {"/", "/topics", "/topics/flights", "/topics/flights/shards/2", "/topics/flights/records", "/groups"}
    assert kinds | {"/clients", "/nodes", "/nodes/1", "/troubles", "/ui/ui.css", "/plots/produced.svg"} <= loaded


async def test_a_path_without_a_page_is_a_page_with_a_way_back_for_a_browser(http: aiohttp.ClientSession) -> None:
    for path in ("/topic", "/ui/none.css", "/nodes/1/<b>"):
        async with http.get(path, headers={"Accept": "text/html,*/*;q=0.8"}) as response:
            text = await response.text()
            assert (response.status, response.content_type) == (404, "text/html"), path
        assert "there is no page" in text and '<a href="/">' in text and "/ui/ui.css" in text and "<b>" not in text
        async with http.get(path) as response:
            assert (response.status, response.content_type) == (404, "application/problem+json"), "for a program"


def is_worth_a_look(path: str) -> bool:
    """One of each kind of order; not the JSON twins."""
    return "format=json" not in path and "sort=" not in path and "place=" not in path


async def test_each_page_has_a_twin_for_scripts_and_lists_are_searched_sorted_and_paged(
    cluster: ReportingCluster, http: aiohttp.ClientSession
) -> None:
    await cluster.node(1)
    for number in range(30):
        await cluster.topic(f"topic-{number:02}", 1 + number % 3, 1)
    await cluster.topic("wide", 120, 1)

    async def names(query: str) -> list[str]:
        async with http.get(f"/topics?format=json&{query}") as response:
            return [one["name"] for one in (await response.json())["topics"]]

    assert await names("size=25") == [f"topic-{number:02}" for number in range(25)]
    assert await names("size=25&page=2") == [f"topic-{number:02}" for number in range(25, 30)] + ["wide"]
    assert (await names("sort=shards&order=desc"))[:2] == ["wide", "topic-02"]
    assert await names("search=PIC-1&sort=name&order=desc") == [f"topic-{number}" for number in range(19, 9, -1)]
    async with http.get("/topics/wide?format=json&size=50&page=3") as response:
        told = await response.json()
        assert [one["line"]["shard"] for one in told["shards"]] == list(range(100, 120)) and told["total"] == 120
    async with http.get("/topics/wide/shards/7?format=json") as response:
        (segment,) = (await response.json())["segments"]
        assert (segment["state"], segment["place"]) == ("active", "open")
    for path, status in (
        ("/topics/none", 404),
        ("/topics/wide/shards/120", 404),
        ("/topics/wide/shards/x", 400),
        ("/topics?sort=colour", 400),
        ("/topics?page=x", 400),
        ("/topics/wide/records?from=nowhere", 400),
        ("/group?id=none", 503),  # the only node has no admin port, so that is unknown
        ("/plots/none.svg", 404),
    ):
        async with http.get(path) as response:
            assert response.status == status, path


async def test_the_lists_are_the_same_over_http(cluster: ReportingCluster) -> None:
    await cluster.node(1)
    await cluster.topic("flights", 3, 1)
    await cluster.sealed("notes", records=7)
    client, service, ask = HttpMetaClient(cluster.url), cluster.service, ListAsk(sort="", limit=2)
    try:
        assert await client.topic_page(ask) == await service.topic_page(ask)
        assert await client.shard_page("flights", ask) == await service.shard_page("flights", ask)
        sealed = await client.segment_page("notes", 0, ask, "local")
        assert sealed == await service.segment_page("notes", 0, ask, "local")
        assert [(one.place, one.end_offset) for one in sealed.items] == [("local", 7)]
        assert await client.trouble_page(ask, "no_leader") == await service.trouble_page(ask, "no_leader")
        with pytest.raises(NotFound):
            await client.shard_page("none", ask)
        with pytest.raises(InvalidRequest, match="expected one of name, shards"):
            await client.topic_page(ListAsk(sort="colour"))
    finally:
        await client.close()


async def test_nodes_that_left_are_gone_unless_what_they_held_is_still_read(
    cluster: ReportingCluster, http: aiohttp.ClientSession
) -> None:
    for node_id in (1, 2, 3, 4):
        await cluster.node(node_id)
    await cluster.report_for(1, 1, 2, 3, 4)
    await cluster.retire(4)
    await cluster.until_step(4, RetireStep.DONE)
    async with http.get("/nodes?format=json") as response:
        told = await response.json()
    shown = {one["node_id"]: one["mounts"] for one in told["nodes"]}
    mounted = {mount.node_id for mount in (await cluster.service.snapshot()).mounts}
    assert set(shown) == {1, 2, 3} | mounted and (shown.get(4) == ["tier/4"] or told["left"] == 1)


async def test_a_disk_that_makes_no_progress_is_seen(cluster: ReportingCluster, http: aiohttp.ClientSession) -> None:
    await cluster.node(1)
    await cluster.service.perform(NoteLives(stuck=(cluster.lives[1],)))

    async def is_seen() -> bool:
        async with http.get("/") as response:
            page = await response.text()
        return "disk stuck" in page and "node 1 is stuck: its disk makes no progress" in page

    await eventually(is_seen)


# Answers --------------------------------------------------------------------------------------------------------------
async def test_the_overview_has_what_nodes_reported_and_what_the_metadata_say(
    cluster: ReportingCluster, http: aiohttp.ClientSession
) -> None:
    for node_id in (1, 2):
        await cluster.node(node_id, f"zone-{node_id}")
    await cluster.topic("flights", 4, 2)
    await cluster.report_for(3, 1, 2)
    stopped = StoppedHere("flights", 3, "disk", "it is full", "free some room")
    await cluster.report(2, Activity(0, 0, None, ("disk: no room",), 1, (stopped,)), free=7)
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


async def test_the_courses_are_reported_from_a_time_on(cluster: ReportingCluster, http: aiohttp.ClientSession) -> None:
    for node_id in (1, 2):
        await cluster.node(node_id)
    await cluster.report_for(4, 1, 2)
    async with http.get("/v1/courses") as response:
        items = (await response.json())["items"]
    assert [[one["produce_rate"] for one in item["samples"]] for item in items] == [[1_000_000] * 3, [2_000_000] * 3]
    last_ms = items[0]["samples"][-1]["at_ms"]
    async with http.get(f"/v1/courses?after={last_ms - 1}") as response:
        assert [len(item["samples"]) for item in (await response.json())["items"]] == [1, 1]
    async with http.get("/v1/courses?after=yesterday") as response:
        assert response.status == 400


@pytest.mark.fault("views-ui-meta-service")
@pytest.mark.parametrize("leader, is_link", [("http://127.0.0.1:1", True), ("javascript:alert(1)", False)])
async def test_an_instance_that_does_not_lead_names_the_leader(leader: str, is_link: bool) -> None:
    class Follower:
        why_no_changes = None

        def leading(self) -> MetaService:
            raise NotLeader("another instance leads the metadata", leader)

    server = MetaServer(Follower())
    await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(server.address) as http:
            async with http.get("/topics") as response:
                page = await response.text()
                assert response.status == 503 and "another instance leads the metadata" in page and leader in page
                assert (f'href="{leader}"' in page) is is_link
            async with http.get("/v1/overview", allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (307, f"{leader}/v1/overview")
    finally:
        await server.close()


async def test_the_page_of_another_site_may_not_ask(http: aiohttp.ClientSession) -> None:
    for headers in ({"Origin": "http://elsewhere"}, {"Host": "elsewhere"}, {"Sec-Fetch-Site": "cross-site"}):
        async with http.get("/v1/overview", headers=headers) as response:
            assert response.status == 403


@pytest.mark.fault("cluster-hundreds-thousands-segments")
async def test_a_cluster_is_reported_without_its_shards(cluster: ReportingCluster, http: aiohttp.ClientSession) -> None:
    """What an operator asks for in each pass must not grow with the data."""
    async with http.get("/v1/outline") as response:
        told = await response.json()

    assert {"topics", "nodes", "mounts", "health", "sums"} <= told.keys() and "shards" not in told
    assert len(told["sums"]["topics"]) == len(told["topics"])


# Cost -----------------------------------------------------------------------------------------------------------------
class Asked:
    """Counts how often the answer is made. The test moves its clock, and each reading adds `look_ms`."""

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
    maker = CostlyAnswer(asked.steps, asked.clock, "a test")
    watching = [asyncio.create_task(maker.get()) for _ in range(50)]
    await asyncio.sleep(0)
    watching[0].cancel()  # the client that it was begun for goes away
    asked.go_on.set()
    told = await asyncio.gather(*watching[1:])
    assert asked.times == 1 and {one.version for one in told} == {1}
    await maker.close()


async def test_it_is_checked_again_when_the_answer_is_old() -> None:
    asked = Asked()
    maker = CostlyAnswer(asked.steps, asked.clock, "a test")
    assert (await maker.get()).version == 1
    asked.now_ms += FRESH_MS - 1
    assert (await maker.get()).version == 1
    asked.now_ms += 1
    assert (await maker.get()).version == 2
    await maker.close()


@pytest.mark.fault("cluster-hundreds-thousands-segments")
async def test_a_check_that_takes_long_is_made_seldom() -> None:
    asked = Asked()
    asked.look_ms = 2_000
    maker = CostlyAnswer(asked.steps, asked.clock, "a test")
    first = await maker.get()
    asked.look_ms = 0
    asked.now_ms += 19 * 2_000
    assert await maker.get() is first
    asked.now_ms += 2_000
    assert await maker.get() is not first
    await maker.close()


async def test_a_check_that_fails_is_made_again() -> None:
    asked = Asked()
    broken = True

    async def steps() -> Generator[None, None, Overview]:
        if broken:
            raise NotLeader("not now")
        return await asked.steps()

    maker = CostlyAnswer(steps, asked.clock, "a test")
    with pytest.raises(NotLeader):
        await maker.get()
    broken = False
    assert (await maker.get()).version == 1
    await maker.close()
