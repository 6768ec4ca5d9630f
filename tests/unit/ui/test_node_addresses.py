"""What the cluster UI asks of nodes: an address that a node reported is a claim; a missing answer is said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from stratalog.admin_api.node_views import HistoryAnswer, LedShards
from stratalog.model.activity import Activity
from stratalog.model.errors import StratalogError, Unavailable, WrongServer
from stratalog.ui import UiHost
from stratalog.ui.gather import Gatherer
from stratalog.ui.node_addresses import NodeAddresses
from stratalog.ui.pages.groups import groups_page
from stratalog.ui.pages.records import why_not_shown
from stratalog.ui.pages.topics import topic_page
from support.reporting_cluster import ReportingCluster, reporting_cluster

Answer = Callable[[web.Request], web.StreamResponse]


@asynccontextmanager
async def port_that(answer: Answer) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    application = web.Application()
    application.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


def of_node(node_id: int) -> Answer:
    return lambda _: web.Response(body=HistoryAnswer(node_id=node_id, samples=[]).model_dump_json().encode())


@pytest.mark.fault("ui-show-node-alone")
async def test_another_node_at_the_address_is_not_mistaken_for_the_one_that_was_meant() -> None:
    addresses = NodeAddresses(None)
    async with port_that(of_node(2)) as url:
        assert (await addresses.ask(2, url, "/v1/history", HistoryAnswer)).node_id == 2
        with pytest.raises(WrongServer, match="another node answers there"):
            await addresses.ask(1, url, "/v1/history", HistoryAnswer)
    await addresses.close()


@pytest.mark.fault("ui-show-node-alone")
async def test_redirects_foreign_answers_and_silence_are_said_and_go_nowhere() -> None:
    addresses, asked = NodeAddresses(lambda: "a-token-of-this-cluster"), list[str]()

    def elsewhere(request: web.Request) -> web.StreamResponse:
        asked.append(f"{request.path} {request.headers['Authorization']}")
        return web.Response(status=302, headers={"Location": "/taken"})

    async with port_that(elsewhere) as url:
        with pytest.raises(StratalogError, match="node 1 at"):
            await addresses.ask(1, url, "/v1/history", HistoryAnswer)
    assert asked == ["/v1/history Bearer a-token-of-this-cluster"]
    async with port_that(lambda _: web.Response(text="<html>")) as url:
        with pytest.raises(WrongServer, match="not the admin port"):
            await addresses.ask(1, url, "/v1/history", HistoryAnswer)
    async with port_that(lambda _: web.Response(body=bytes(17 << 20))) as url:
        with pytest.raises(Unavailable, match="larger than"):
            await addresses.ask(1, url, "/v1/history", HistoryAnswer)
    with pytest.raises(Unavailable, match=r"must be an address that this process reaches"):
        await addresses.ask(1, url, "/v1/history", HistoryAnswer)
    for wrong in ("", "file:///etc/passwd", "http://user@127.0.0.1/", "http://127.0.0.1:1/path"):
        with pytest.raises(Unavailable, match="reported no admin port"):
            await addresses.ask(1, wrong, "/v1/history", HistoryAnswer)
    await addresses.close()


@pytest.fixture
async def cluster() -> AsyncIterator[ReportingCluster]:
    async with reporting_cluster() as started:
        for node_id in (1, 2):
            await started.node(node_id)
        await started.topic("flights", 4, 1)
        yield started


@pytest.mark.fault("ui-show-node-alone")
async def test_a_node_that_does_not_answer_costs_its_part_alone(cluster: ReportingCluster) -> None:
    led = LedShards(node_id=1, items=[]).model_dump_json().encode()
    async with port_that(lambda _: web.Response(body=led)) as url:
        for node_id, page_url in ((1, url), (2, "http://127.0.0.1:1/")):
            await cluster.report(node_id, Activity(0, 0, page_url=page_url))
        gatherer = Gatherer(UiHost(lambda: cluster.service))
        page = await topic_page(gatherer, "flights", {})
        assert [row.high_watermark for row in page.data["shards"]] == [None] * 4
        assert [one.node_id for one in page.data["not_asked"]] == [2]
        groups = await groups_page(gatherer, {})
        assert {one.node_id for one in groups.data["not_asked"]} == {1, 2} and groups.data["groups"] == []
        await gatherer.close()


@pytest.mark.fault("reaches-port-ui-asks")
async def test_an_open_port_shows_the_records_of_its_own_node_alone(cluster: ReportingCluster) -> None:
    await cluster.report(2, Activity(0, 0, page_url="http://127.0.0.1:1/"))
    own = {1: "http://127.0.0.1:2/"}
    closed = Gatherer(UiHost(lambda: cluster.service, None, "no token", lambda: own))
    assert await why_not_shown(closed, 1) is None
    assert await why_not_shown(closed, 2) == "no token: http://127.0.0.1:1/"
    open_to_all = Gatherer(UiHost(lambda: cluster.service, None, None, lambda: own))
    assert await why_not_shown(open_to_all, 2) is None
    await closed.close()
    await open_to_all.close()
