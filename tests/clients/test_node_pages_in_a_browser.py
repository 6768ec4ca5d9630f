"""The cluster UI in a real browser, over a real node: from a topic to its records, groups, clients, and plots."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.browser import LEAST_CONTRAST, NO_CHROMIUM, Browser, Page, chromium
from support.node_process import NodeProcess
from support.waiting import eventually, eventually_sync

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(chromium() is None, reason=NO_CHROMIUM),
]
EVIL = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>"
GROUP = f"/group?id={quote('g' + EVIL, safe='')}"
RECORDS = "/topics/flights/records"
LONG_NAMES = """[...document.querySelectorAll('.list td[data-name]')]
    .filter((one) => one.scrollHeight > one.clientHeight + 2).map((one) => one.dataset.name)"""
"""Cells whose name does not fit beside their value, so that it covers the next one's."""
WAYS = (
    "/",
    "/topics",
    "/topics/flights",
    "/topics/flights/shards/0",
    RECORDS,
    "/groups",
    GROUP,
    "/clients",
    "/nodes/1",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """With a topic of two shards, one of them sealed and uploaded in part, and a group that has read some."""
    folder = tmp_path_factory.mktemp("pages")
    settings = {"log.segment.bytes": 65_536, "remote.upload.interval.ms": 50, "offsets.topic.num.partitions": 1}
    with NodeProcess(folder / "data", str(folder / "bucket"), settings) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("flights", 2)])["flights"].result(30)
        producer = Producer({"bootstrap.servers": started.bootstrap, "client.id": "gate-7", "batch.num.messages": 20})
        for number in range(200):
            value = json.dumps({"flight": number, "padding": "v" * 500})
            producer.produce("flights", key=f"key-{number}", value=value, partition=0, headers={"from": "EWR"})
        producer.produce("flights", key=EVIL, value=EVIL, partition=1, headers={EVIL: EVIL})
        assert producer.flush(30) == 0
        consumer = Consumer(
            {"bootstrap.servers": started.bootstrap, "group.id": f"g{EVIL}", "auto.offset.reset": "earliest"}
            | {"client.id": EVIL[:40], "enable.auto.commit": False}
        )
        consumer.subscribe(["flights"])
        read = 0
        while read < 10:
            read += len(consumer.consume(10, 5))
        # Whatever it read: ten records of shard 0 are committed, and none of shard 1.
        consumer.commit(offsets=[TopicPartition("flights", 0, 10)], asynchronous=False)

        def is_uploaded() -> bool:
            told = json.loads(started.get("/v1/segments?topic=flights&shard=0"))
            return len(told) > 1 and told[0]["remote_state"] == "complete"

        eventually_sync(is_uploaded, 60)
        yield started
        consumer.close()


@pytest.fixture
async def page(browser: Browser, node: NodeProcess) -> AsyncIterator[Page]:
    async with browser.page(f"http://{node.admin}/") as opened:
        await opened.until_text("Cluster", "Nodes")
        yield opened


async def go(page: Page, node: NodeProcess, way: str) -> None:
    await page.do("Page.navigate", url=f"http://{node.admin}{way}")


async def follow(page: Page, node: NodeProcess, shown: str) -> None:
    """The first link that shows these words. By its address: after a click it is unknown when the next page is
    there."""
    link = f"[...document.links].find((one) => one.innerText.trim() === {shown!r})"
    await eventually(lambda: page.ask(f"!!{link}"), timeout=30)
    await go(page, node, str(await page.ask(f"{link}.getAttribute('href')")))


async def test_one_walks_from_a_topic_to_its_records(page: Page, node: NodeProcess) -> None:
    await follow(page, node, "Topics")
    await page.until_text("Topics", "flights", "__consumer_offsets")
    await follow(page, node, "flights")
    await page.until_text("2 shards", "high watermark", "200")
    await follow(page, node, "0")
    shown = await page.until_text("nodes, object store", "sealed", "active", "High watermark")
    assert "nowhere" not in shown
    await follow(page, node, "0")
    shown = await page.until_text("Shard 0 has offsets 0 to 200.", "key-0", '"flight": 0', "EWR")
    assert "key-49" in shown and "key-50" not in shown
    await follow(page, node, "Newer")
    await page.until_text("key-50", "key-99")
    await follow(page, node, "Older")
    await page.until_text("key-0", "key-49")
    assert page.complaints == []


async def test_records_are_found_by_time_by_key_and_from_the_end_on_every_tier(page: Page, node: NodeProcess) -> None:
    await go(page, node, f"{RECORDS}?shard=0&limit=10")
    shown = await page.until_text("key-199")
    assert "key-190" in shown and "key-189" not in shown
    await go(page, node, f"{RECORDS}?shard=0&from=time&at=2020-01-01&limit=10")
    await page.until_text("key-0", "key-9")
    await go(page, node, f"{RECORDS}?shard=0&from=time&at=2120-01-01")
    await page.until_text("No records there.")
    await go(page, node, f"{RECORDS}?from=key&key=key-7&scan=true")
    shown = await page.until_text("key-7", '"flight": 7')
    assert "1 record" in shown
    await go(page, node, RECORDS)
    await page.until_text("all 2 shards", "onerror=")
    pretty = "document.querySelector('td[data-name=value] details pre').textContent"
    assert str(await page.ask(pretty)).startswith('{\n  "flight": ')
    assert page.complaints == []


async def test_groups_show_their_lag_and_clients_their_names(page: Page, node: NodeProcess) -> None:
    await page.do("Page.enable")

    async def has_lag() -> bool:
        await go(page, node, "/groups?format=json")
        shown = json.loads(await page.until_text("groups"))["groups"]
        return bool(shown and shown[0]["lag"] == 191 and shown[0]["members"] == 1)

    await eventually(has_lag, timeout=60)
    await go(page, node, GROUP)
    await page.until_text("Records behind", "Members", "flights", "none", "next record")
    await go(page, node, "/clients")
    await page.until_text("Kafka connections", "gate-7", "127.0.0.1:", "internal", "User:ANONYMOUS")
    assert page.complaints == []


@pytest.mark.fault("ui-shows-text-wrote")
async def test_what_others_wrote_is_shown_as_text_on_every_page(page: Page, node: NodeProcess) -> None:
    for way in ("/groups", GROUP, "/clients", f"{RECORDS}?shard=1"):
        await go(page, node, way)
        await page.until_text("onerror=")
        assert await page.ask("window.taken ?? null") is None
        foreign = "document.querySelectorAll('img, script:not([src=\"/ui/refresh.js\"]), [onerror]').length"
        assert await page.ask(foreign) == 0
        assert await page.ask("[...document.links].every((one) => one.origin === location.origin)")


async def test_the_course_of_throughput_and_lag_is_drawn(page: Page, node: NodeProcess) -> None:
    async def is_drawn() -> bool:
        await go(page, node, "/nodes/1")
        await page.until_text("Written", "Read", "Not in the object store yet", "Consumer lag")
        shown = await page.text(".plots")
        images = "[...document.querySelectorAll('.plot img')].map((one) => one.complete && one.naturalWidth > 0)"
        return "B/s" in shown and "record" in shown and await page.ask(images) == [True] * 4

    await eventually(is_drawn, timeout=90)
    drawn = node.get("/plots/node-written.svg?node=1")
    assert drawn.startswith("<svg") and "<script" not in drawn and 'class="line' in drawn
    assert page.complaints == []


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_every_page_fits_a_phone(page: Page, node: NodeProcess, is_dark: bool) -> None:
    await page.set_screen(width=390, height=844, is_dark=is_dark)
    for way in WAYS:
        await go(page, node, way)
        await page.until_text("Topics", selector="header")
        await eventually(lambda: page.ask("document.readyState === 'complete'"))
        assert await page.ask("document.documentElement.scrollWidth") <= 390, way
        assert await page.ask(LONG_NAMES) == [], way
        assert await page.ask(LEAST_CONTRAST) >= 4.5, way
        background = await page.ask("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(15, 20, 24)") is is_dark


@pytest.mark.parametrize(
    "way",
    [
        "/topics/none",
        "/topics/flights/shards/9",
        "/topics/flights/shards/x",
        f"{RECORDS}?from=offset&at=-1",
        f"{RECORDS}?from=time&at=soon",
        f"{RECORDS}?shard=7",
        "/group?id=none",
        "/nodes/9",
    ],
)
def test_what_there_is_not_is_said(node: NodeProcess, way: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"http://{node.admin}{way}", timeout=30)
    assert told.value.code in (400, 404)
