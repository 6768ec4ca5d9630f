"""The cluster UI of a meta service in a real browser: what a person sees, at any size of the cluster and the screen."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.meta_api import wire
from stratalog.meta_api.wire import CourseList
from stratalog.model.activity import Activity, StoppedHere
from stratalog.model.commands.mount_commands import CreateMount
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.telemetry.http_access import HttpAccess
from stratalog_cli.cluster.page import ClusterPage
from stratalog_meta.api.server import MetaServer
from support.browser import LEAST_CONTRAST, NO_CHROMIUM, Browser, Page, chromium
from support.pretended_cluster import Stage
from support.reporting_cluster import ReportingCluster, reporting_cluster
from support.waiting import eventually

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(chromium() is None, reason=NO_CHROMIUM),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture
async def cluster() -> AsyncIterator[ReportingCluster]:
    async with reporting_cluster() as started:
        for node_id in (1, 2, 3):
            await started.node(node_id, f"zone-{node_id}")
        await started.topic("flights", 6, 3)
        await started.report_for(5, 1, 2, 3)
        yield started


@pytest.fixture
async def page(browser: Browser, cluster: ReportingCluster) -> AsyncIterator[Page]:
    async with browser.page(cluster.url) as opened:
        await opened.until_text("well", "zone-3", "node 3 ")
        yield opened


SOON = 60
"""Seconds for a page to ask again: it does every five."""


async def test_the_page_shows_the_cluster_and_refreshes_itself(cluster: ReportingCluster, page: Page) -> None:
    shown = await page.until_text("zone-1", "zone-3", "Produced", "None: all shards have a leader")
    assert "node 3 2.9 MiB/s" in shown and "oldest byte 4 s old" in shown
    drawn = "[...document.querySelectorAll('.plot img')].map((one) => one.complete && one.naturalWidth > 0)"
    await eventually(lambda: _is(page, drawn, [True] * 4), timeout=SOON)
    await cluster.topic("orders", 4, 3)
    await cluster.lose(2)
    await cluster.report_for(1, 1, 3)
    await page.until_text("node 2 is not alive", "needs attention", "no_leader", "Start the nodes that are named")
    await page.until_text("of 10")
    assert page.complaints == []


async def _is(page: Page, script: str, expected: object) -> bool:
    return bool(await page.ask(script) == expected)


@pytest.mark.fault("ui-shows-text-wrote")
async def test_what_others_wrote_is_shown_as_text_and_never_carried_out(cluster: ReportingCluster, page: Page) -> None:
    evil = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>"
    await cluster.node(4, rack=evil)
    stopped = StoppedHere(evil, 1, evil, "javascript:alert(1)", "over\u202egnp.txt\x07")
    await cluster.report(4, Activity(0, 0, None, (evil,), 1, (stopped,), page_url="javascript:alert(1)"))
    shown = await page.until_text("window.taken", "javascript:alert(1)", "over\\u202egnp.txt\\x07")
    assert shown.count("<img src=x") == 4, "rack, fault, shard and cause, each as it was written"
    await page.do("Page.navigate", url=f"{cluster.url}/nodes/4")
    await page.until_text("Node 4", "window.taken", "reported no admin port")
    assert await page.ask("window.taken ?? null") is None
    foreign = "document.querySelectorAll('main img:not([src^=\"/plots/\"]), main script, main [onerror]').length"
    assert await page.ask(foreign) == 0
    assert await page.ask("[...document.links].every((one) => one.origin === location.origin)")
    assert page.complaints == []


@pytest.mark.fault("views-ui-meta-service")
async def test_a_service_that_does_not_answer_is_said_and_what_was_known_stays(
    cluster: ReportingCluster, page: Page
) -> None:
    port = int(cluster.url.rpartition(":")[2])
    await cluster.server.close()
    await page.until_text("This page is old: the service does not answer", "zone-3")
    assert await page.ask("document.querySelector('main').classList.contains('old')")
    cluster.server = MetaServer(cluster.service)
    await cluster.server.start("127.0.0.1", port)
    fresh = "document.getElementById('stale').hidden && !document.querySelector('main.old')"
    await eventually(lambda: page.ask(fresh), timeout=SOON)


async def test_a_thousand_shards_and_many_topics_are_searched_sorted_and_paged(
    browser: Browser, cluster: ReportingCluster
) -> None:
    await cluster.topic("wide", 1_000, 3)
    for number in range(120):
        await cluster.topic(f"topic-{number:03}", 1, 3)
    await cluster.lose(2)
    rows = "[...document.querySelectorAll('table.list tbody tr')].map((row) => row.children[0].innerText.trim())"
    async with browser.page(f"{cluster.url}/topics?size=25") as page:
        await page.until_text("1–25 of 122 topics")
        await _follow(page, "Last")
        await page.until_text("101–122 of 122 topics", "5 / 5")
        await page.ask("document.querySelector('input[name=search]').value = 'IC-04'")
        await page.ask("document.querySelector('form.tools').requestSubmit()")
        await page.until_text("1–10 of 10 topics for “IC-04”")
        await _follow(page, "topic")
        await page.until_text("▲", "topic-040")
        await _follow(page, "topic")
        await page.until_text("▼")
        assert (await page.ask(rows))[0] == "topic-049"
        await page.do("Page.navigate", url=f"{cluster.url}/topics/wide")
        await page.until_text("1–50 of 1,000 shards", "no_leader")
        await _follow(page, "Next")
        await page.until_text("51–100 of 1,000 shards")
        assert (await page.ask(rows))[0] == "50"
        for width in (390, 1280):
            for is_dark in (False, True):
                await page.set_screen(width=width, height=900, is_dark=is_dark)
                for way in ("/", "/topics", "/topics/wide?size=250", "/topics/wide/shards/999", "/troubles", "/nodes"):
                    await page.do("Page.navigate", url=cluster.url + way)
                    await page.until_text("This page as JSON")
                    await eventually(lambda: page.ask("document.readyState === 'complete'"))
                    assert await page.ask("document.documentElement.scrollWidth") <= width, (way, width)
                    assert await page.ask(LEAST_CONTRAST) >= 4.5, (way, width, is_dark)
        assert page.complaints == []


async def _follow(page: Page, shown: str) -> None:
    """The first link of the page that begins with these words."""
    link = f"[...document.querySelectorAll('main a')].find((one) => one.innerText.trim().startsWith({shown!r}))"
    await eventually(lambda: page.ask(f"!!{link}"), timeout=SOON)
    await page.do("Page.navigate", url=await page.ask(f"{link}.href"))


async def test_every_control_has_a_name_and_every_page_its_heading(browser: Browser, cluster: ReportingCluster) -> None:
    nameless = """[...document.querySelectorAll(
        "input:not([type=hidden]), select, button, img, progress, nav, a")].filter((one) =>
      !(one.labels?.length || one.getAttribute("aria-label") || one.alt || one.innerText?.trim() || one.placeholder))
      .map((one) => one.outerHTML)"""
    async with browser.page(cluster.url) as page:
        for way in (
            "/",
            "/topics",
            "/topics/flights",
            "/topics/flights/records",
            "/groups",
            "/clients",
            "/nodes",
            "/troubles",
        ):
            await page.do("Page.navigate", url=cluster.url + way)
            await page.until_text("This page as JSON")
            assert await page.ask(nameless) == [], way
            assert await page.ask("document.querySelectorAll('h1').length") == 1, way
            assert await page.ask("document.documentElement.lang + document.title.endsWith('· Stratalog')") == "entrue"
            current = "document.querySelectorAll('header [aria-current=page]').length"
            assert await page.ask(current) == 1, way


async def test_a_person_sees_which_node_leaves_why_it_waits_and_what_is_mounted(
    browser: Browser, cluster: ReportingCluster
) -> None:
    for node_id in (4, 5):
        await cluster.node(node_id, f"zone-{node_id}")
    await cluster.report_for(1, 1, 2, 3, 4, 5)
    await cluster.retire(4)
    await cluster.until_step(4, RetireStep.DONE)
    await cluster.retire(5, RetireMode.VOLUME)
    await cluster.until_step(5, RetireStep.MOUNT)
    await cluster.sealed("notes", records=7)
    await cluster.service.perform(CreateMount("last-year", ("notes",), 0, 1 << 50, lasts_ms=7_200_000))
    await cluster.report_for(1, 1, 2, 3)
    await cluster.retire(3)
    async with browser.page(cluster.url) as page:
        await page.until_text("ReplicationFactor", "MountPending", "notes@last-year", "serving", "1 node left for good")
        stages = "[...document.querySelectorAll('.stages')].map((one) => one.querySelector('.now').textContent)"
        assert await page.ask(stages) == ["preflight", "mount"]
        done = "[...document.querySelectorAll('.stages')].map((one) => one.querySelectorAll('.done').length)"
        assert await page.ask(done) == [0, 7], "of nine, those behind it"
        for is_dark in (False, True):
            await page.set_screen(width=390, height=844, is_dark=is_dark)
            assert await page.ask("document.documentElement.scrollWidth") <= 390
            assert await page.ask(LEAST_CONTRAST) >= 4.5
        assert page.complaints == []


async def test_the_page_of_a_cluster_on_one_machine_shows_which_process_ended_and_how(
    browser: Browser, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "courses").write_bytes(wire.COURSES.write(CourseList(())))
    async with reporting_cluster() as cluster:
        await cluster.node(2)
        await cluster.report_for(1, 2)
        told = await cluster.service.overview()
    second = next(one for one in stage.plan.parts if one.name == "node-2")
    rows = tuple(replace(one, address=second.addresses["kafka"]) for one in told.nodes)
    (tmp_path / "v1" / "overview").write_bytes(wire.OVERVIEW.write(replace(told, nodes=rows)))
    async with stage.running() as starter:
        cluster_page = ClusterPage(starter)
        try:
            async with browser.page(await cluster_page.start(stage.plan.page_address)) as page:
                await page.until_text("well", "Processes", "meta-1", "node-2")
                node, meta = stage.pids()["node-2"], stage.pids()["meta-1"]
                assert node is not None and meta is not None
                os.kill(node, signal.SIGKILL)
                await page.until_text("node-2 ended: killed by SIGKILL", "needs attention")
                shown = await page.until_text("still count node 2 as alive", "None noticed yet")
                assert "all shards have a leader" not in shown
                os.kill(meta, signal.SIGKILL)
                await page.until_text("no meta service answers", "meta-1 ended: killed by SIGKILL")
        finally:
            await cluster_page.close()


@pytest.mark.fault("http-ports-reachable-beyond")
async def test_a_person_logs_in_once_and_the_page_keeps_showing_until_the_logout(browser: Browser) -> None:
    token = "the-token-of-this-cluster"
    type_in = "document.querySelector('[name=token]').value = {!r}; document.querySelector('main button').click()"
    async with reporting_cluster() as cluster:
        await cluster.node(1, "zone-1")
        server = MetaServer(cluster.service, access=HttpAccess(lambda: (token,)))
        await server.start("127.0.0.1", 0)
        try:
            async with browser.page(f"{server.address}/nodes") as page:
                await page.until_text("Log in")
                await page.ask(type_in.format("a-token-of-another-one"))
                assert "zone-1" not in await page.until_text("not a token of this cluster")
                await page.ask(type_in.format(token))
                await page.until_text("zone-1", "cluster (admin)")
                await cluster.node(2, "zone-2")
                await page.until_text("zone-2")
                assert token not in await page.ask(
                    "location.href + document.cookie + document.documentElement.outerHTML"
                )
                await page.ask("document.querySelector('.who button').click()")
                await page.until_text("A token of this cluster")
                assert page.asked_for_passwords == 0, "no browser asks beside the form"
        finally:
            await server.close()
