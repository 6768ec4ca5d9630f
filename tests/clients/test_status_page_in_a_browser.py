"""The cluster's status page in a real browser: what a person sees, and that what others wrote stays text."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stratalog.meta_api import wire
from stratalog.meta_api.wire import CourseList
from stratalog.model.activity import Activity, StoppedHere
from stratalog.model.errors import NotLeader
from stratalog.model.mount_commands import CreateMount
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.telemetry.door_key import DoorKey
from stratalog_cli.cluster_page import ClusterPage
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from support.browser import NO_CHROMIUM, Browser, Page, chromium
from support.pretended_cluster import Stage
from support.told_cluster import ToldCluster, told_cluster
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
async def cluster() -> AsyncIterator[ToldCluster]:
    async with told_cluster() as started:
        for node_id in (1, 2, 3):
            await started.node(node_id, f"zone-{node_id}")
        await started.topic("flights", 6, 3)
        await started.tell_for(5, 1, 2, 3)
        yield started


@pytest.fixture
async def page(browser: Browser, cluster: ToldCluster) -> AsyncIterator[Page]:
    async with browser.page(cluster.url) as opened:
        await opened.until_text("well", "node 3: ")
        yield opened


async def test_the_page_shows_the_cluster_and_goes_on_by_itself(cluster: ToldCluster, page: Page) -> None:
    shown = await page.until_text("zone-1", "zone-3", "Produced", "All shards take writes.", "No node leaves")
    assert "node 3: 2.9 MiB/s" in shown and "oldest byte 4 s old" in shown
    lines = "[...document.querySelectorAll('#plots svg path:not(.axis)')].map((one) => one.getAttribute('d'))"
    before = await page.ask(lines)
    assert len(before) == 12 and all(one.count("L") == 3 for one in before), "four figures of three nodes"
    await cluster.topic("orders", 4, 3)
    await cluster.lose(2)
    await cluster.tell_for(1, 1, 3)
    await page.until_text("node 2 is not alive", "needs attention", "no_leader", "orders")
    await page.until_text("of 10", selector="#cards")
    await eventually(lambda: _has_changed(page, lines, before), timeout=60)
    assert page.complaints == []


async def test_a_node_that_has_a_page_of_its_own_is_a_link_to_it(cluster: ToldCluster, page: Page) -> None:
    urls = {1: "http://127.0.0.1:9644/", 2: "http://[fd00::2]:9644/", 3: "javascript:alert(1)"}
    for node_id, url in urls.items():
        await cluster.tell(node_id, Activity(0, 0, page_url=url))
    links = "[...document.querySelectorAll('main table a')].map((one) => [one.textContent, one.href])"
    await eventually(lambda: _has_changed(page, links, []), timeout=60)
    assert await page.ask(links) == [["1", urls[1]], ["2", urls[2]]], "what is no address of a page is no link"
    assert page.complaints == []


async def _has_changed(page: Page, script: str, before: object) -> bool:
    return bool(await page.ask(script) != before)


async def test_what_others_wrote_is_shown_as_text_and_never_carried_out(cluster: ToldCluster, page: Page) -> None:
    evil = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>"
    await cluster.node(4, rack=evil)
    stopped = StoppedHere(evil, 1, evil, "javascript:alert(1)", "over\u202egnp.txt\x07")
    await cluster.tell(4, Activity(0, 0, None, (evil,), 1, (stopped,)))
    shown = await page.until_text("window.taken", "javascript:alert(1)", "over\\u202egnp.txt\\u0007")
    assert shown.count("<img src=x") == 4, "rack, fault, shard and cause, each as it was written"
    assert await page.ask("window.taken ?? null") is None
    foreign = "document.querySelectorAll('main img, main script, main [onerror]').length"
    assert await page.ask(foreign) == 0
    assert await page.ask("[...document.links].every((one) => one.origin === location.origin)")
    assert page.complaints == []


async def test_a_service_that_does_not_answer_is_said_and_what_was_known_stays(
    cluster: ToldCluster, page: Page
) -> None:
    port = int(cluster.url.rpartition(":")[2])
    await cluster.server.close()
    await page.until_text("the service does not answer", "zone-3")
    assert await page.ask("document.querySelector('main').classList.contains('old')")
    cluster.server = MetaServer(cluster.service)
    await cluster.server.start("127.0.0.1", port)
    await page.until_text("well", selector="#state")
    assert await page.ask("document.getElementById('notice').hidden && !document.querySelector('main.old')")


async def test_on_a_phone_nothing_is_wider_than_the_screen_and_all_can_be_read(
    cluster: ToldCluster, page: Page
) -> None:
    stopped = StoppedHere("a-topic-with-a-rather-long-name." * 4, 1, "disk", "x" * 200, "free some room")
    await cluster.tell(1, Activity(0, 0, None, ("y" * 200,), 1, (stopped,)))
    await cluster.lose(2)
    await page.until_text("node 2 is not alive", "x" * 200, "no_leader")
    grounds = set()
    for is_dark in (False, True):
        await page.look(width=360, height=740, is_dark=is_dark)
        assert await page.ask(_RIGHTMOST) <= 360
        assert await page.ask(_LEAST_CONTRAST) >= 4.5
        grounds.add(await page.ask("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2, "dark where the reader likes it dark"


async def test_a_person_sees_who_leaves_and_why_it_waits_and_who_left_and_what_is_mounted(
    cluster: ToldCluster, page: Page
) -> None:
    for node_id in (4, 5):
        await cluster.node(node_id, f"zone-{node_id}")
    await cluster.tell_for(1, 1, 2, 3, 4, 5)
    await cluster.retire(4)
    await cluster.until_step(4, RetireStep.DONE)
    await cluster.retire(5, RetireMode.VOLUME)
    await cluster.until_step(5, RetireStep.MOUNT)
    await cluster.take("tier/4")  # again, where it was the other one's that has left
    await cluster.sealed("notes", records=7)
    await cluster.service.perform(CreateMount("last-year", ("notes",), 0, 1 << 50, lasts_ms=7_200_000))
    await cluster.tell_for(1, 1, 2, 3)
    await cluster.retire(3)
    await page.until_text("ReplicationFactor", "MountPending", "notes@last-year", "retired", "serving")

    rows = await shown_rows(page, "retirements")
    assert [row["node"] for row in rows] == ["3", "5", "4"], "who has left comes last"
    assert [row["step"].split("\n")[0] for row in rows] == ["offload", "volume", "offload"]
    assert "ReplicationFactor for " in rows[0]["says"] and "2 nodes stay" in rows[0]["says"]
    assert "MountPending for " in rows[1]["says"] and "the data set of node 5" in rows[1]["says"]
    steps = "[...document.querySelectorAll('#retirements .steps')].map((one) => one.querySelector('.now').textContent)"
    assert await page.ask(steps) == ["preflight", "mount", "done"]
    done = "[...document.querySelectorAll('#retirements .steps')].map((one) => one.querySelectorAll('.done').length)"
    assert await page.ask(done) == [0, 7, 8], "of nine, those behind it"
    states = {row["node"]: row["state"] for row in await shown_rows(page, "nodes")}
    assert states == {"1": "alive", "2": "alive", "3": "alive", "4": "retired", "5": "retired"}
    mounts = {row["mount"]: row for row in await shown_rows(page, "mounts")}
    assert mounts["last-year"]["where"] == "notes@last-year" and mounts["last-year"]["ends"].startswith("in ")
    assert (mounts["tier/4"]["state"], mounts["tier/5"]["state"]) == ("serving", "taking")
    assert mounts["tier/4"]["holder"] in ("node 1", "node 2", "node 3")

    for is_dark in (False, True):
        await page.look(width=390, height=844, is_dark=is_dark)
        assert await page.ask("document.documentElement.scrollWidth") <= 390
        assert await page.ask(_RIGHTMOST) <= 390
        assert await page.ask(_LEAST_CONTRAST) >= 4.5
        assert await page.ask(_HIDDEN_TEXT) == []
    assert page.complaints == []


async def shown_rows(page: Page, section: str) -> list[dict[str, str]]:
    """The cells of a section's table by the names of their columns, as a person reads them."""
    script = f"""[...document.querySelectorAll('#{section} tbody tr:not(.names), #{section} tr:not(.names)')]
      .map((row) => Object.fromEntries([...row.children].map((cell) => [cell.dataset.name, cell.innerText])))"""
    rows: list[dict[str, str]] = await page.ask(script)
    return rows


class Follower:
    why_no_changes = None

    def __init__(self, leader: str | None) -> None:
        self._leader = leader

    def leading(self) -> MetaService:
        raise NotLeader("another instance leads the metadata", self._leader)


@pytest.mark.parametrize("leader, is_link", [("http://127.0.0.1:1", True), ("javascript:alert(1)", False)])
async def test_an_instance_that_does_not_lead_shows_where_to_ask(browser: Browser, leader: str, is_link: bool) -> None:
    server = MetaServer(Follower(leader))
    await server.start("127.0.0.1", 0)
    try:
        async with browser.page(server.address) as page:
            await page.until_text("another instance leads the metadata", leader, selector="#notice")
            links = "[...document.querySelectorAll('#notice a')].map((one) => one.href)"
            assert await page.ask(links) == ([leader + "/"] if is_link else [])
            assert await page.ask("document.getElementById('main').hidden")
    finally:
        await server.close()


async def test_the_page_of_a_cluster_on_one_machine_says_who_ended_and_how(browser: Browser, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "courses").write_bytes(wire.COURSES.write(CourseList(())))
    async with told_cluster() as cluster:
        (tmp_path / "v1" / "overview").write_bytes(wire.OVERVIEW.write(await cluster.service.overview()))
    async with stage.running() as starter:
        door = ClusterPage(starter)
        try:
            async with browser.page(await door.start(stage.plan.page_address)) as page:
                await page.until_text("well", "Processes", "meta-1", "node-2")
                node, meta = stage.pids()["node-2"], stage.pids()["meta-1"]
                assert node is not None and meta is not None
                os.kill(node, signal.SIGKILL)
                await page.until_text("node-2 ended: killed by SIGKILL", selector="#down")
                await page.until_text("needs attention", selector="#state")
                os.kill(meta, signal.SIGKILL)
                await page.until_text("no instance of the meta service leads", "meta-1 ended: killed by SIGKILL")
        finally:
            await door.close()


_RIGHTMOST = """Math.max(...[...document.querySelectorAll("body *:not(.names):not(.names *)")]
  .map((one) => one.getBoundingClientRect().right))"""

_HIDDEN_TEXT = """[...document.querySelectorAll("td, .steps span, .badge")].filter((one) =>
  one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline").map((one) => one.innerText)"""

_LEAST_CONTRAST = """(() => {
  const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = numbers(color).map((one) => one / 255)
      .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const written = [...document.querySelectorAll("body *")].filter((one) =>
    one.getClientRects().length && [...one.childNodes].some((inside) => inside.nodeType === 3 && inside.data.trim()));
  return Math.min(...written.map((one) => {
    const [dim, bright] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    return (bright + 0.05) / (dim + 0.05);
  }));
})()"""


async def test_a_person_types_the_token_once_and_the_page_goes_on_with_it(browser: Browser) -> None:
    token = "the-token-of-this-cluster"
    async with told_cluster() as cluster:
        await cluster.node(1, "zone-1")
        server = MetaServer(cluster.service, key=DoorKey(lambda: (token,)))
        await server.start("127.0.0.1", 0)
        try:
            async with browser.page(server.address, "wrong-at-first") as refused:
                await eventually(lambda: refused.asked_for_passwords > 0, timeout=60)
                assert "zone-1" not in await refused.text()
            async with browser.page(server.address, token) as page:
                await page.until_text("zone-1")
                typed = page.asked_for_passwords
                await cluster.node(2, "zone-2")
                await page.until_text("zone-2")
                assert page.asked_for_passwords == typed <= 2, "what it asks afterwards shows what was typed"
                assert token not in await page.ask("location.href + document.documentElement.outerHTML")
        finally:
            await server.close()
