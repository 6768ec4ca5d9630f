"""A node's pages in a real browser, over a real node: from a topic to its records, groups, clients, and how it went."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.browser import NO_CHROMIUM, Browser, Page, chromium
from support.node_process import NodeProcess
from support.waiting import eventually, eventually_sync

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(chromium() is None, reason=NO_CHROMIUM),
]
EVIL = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>"
WAYS = ("/", "/topics", "/topics/flights", "/topics/flights/0", "/topics/flights/0/records", "/groups", "/clients")


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
        consumer.commit(asynchronous=False)

        def is_uploaded() -> bool:
            told = json.loads(started.get("/v1/segments?topic=flights&shard=0"))
            return len(told) > 1 and told[0]["remote_state"] == "complete"

        eventually_sync(is_uploaded, 60)
        yield started
        consumer.close()


@pytest.fixture
async def page(browser: Browser, node: NodeProcess) -> AsyncIterator[Page]:
    async with browser.page(f"http://{node.admin}/") as opened:
        await opened.until_text("Stratalog node", "ready")
        yield opened


async def go(page: Page, node: NodeProcess, way: str) -> None:
    await page.do("Page.navigate", url=f"http://{node.admin}{way}")


async def follow(page: Page, node: NodeProcess, shown: str) -> None:
    """The first link that shows these words. By its address: a click tells nobody when the next page is there."""
    link = f"[...document.links].find((one) => one.innerText.trim() === {shown!r})"
    await eventually(lambda: page.ask(f"!!{link}"), timeout=30)
    await go(page, node, str(await page.ask(f"{link}.getAttribute('href')")))


async def test_one_walks_from_a_topic_to_its_records(page: Page, node: NodeProcess) -> None:
    await follow(page, node, "topics")
    await page.until_text("Topics", "flights", "__consumer_offsets")
    await follow(page, node, "flights")
    await page.until_text("node 1", "2 shards", "200")
    await follow(page, node, "0")
    shown = await page.until_text("disk, bucket", "sealed", "active", "1*")
    assert "nowhere" not in shown
    await follow(page, node, "0")
    shown = await page.until_text("From offset 0 on.", "key-0", '"flight": 0', "from=EWR")
    assert "key-19" in shown and "key-20" not in shown
    await follow(page, node, "next")
    await page.until_text("From offset 20 on.", "key-20")
    assert page.complaints == []


async def test_groups_show_their_lag_and_clients_who_they_are(page: Page, node: NodeProcess) -> None:
    await page.do("Page.enable")

    async def has_lag() -> bool:
        await go(page, node, "/groups")
        shown = await page.until_text("Consumer groups", "Stable")
        return "records behind; 1 member" in shown and " 0 records behind" not in shown

    await eventually(has_lag, timeout=60)
    await go(page, node, "/clients")
    await page.until_text("Kafka connection", "gate-7", "127.0.0.1:", "internal")
    assert page.complaints == []


async def test_what_others_wrote_is_shown_as_text_on_every_page(page: Page, node: NodeProcess) -> None:
    for way in ("/groups", "/clients", "/topics/flights/1/records"):
        await go(page, node, way)
        await page.until_text("onerror=")
        assert await page.ask("window.taken ?? null") is None
        assert await page.ask("document.querySelectorAll('img, script, [onerror]').length") == 0
        assert await page.ask("[...document.links].every((one) => one.origin === location.origin)")


async def test_the_course_of_throughput_and_lag_is_drawn(page: Page, node: NodeProcess) -> None:
    async def is_drawn() -> bool:
        await go(page, node, "/")
        await page.until_text("Written", "Read", "Upload lag", "Consumer lag")
        return bool(await page.ask("document.querySelectorAll('figure polyline').length === 4"))

    await eventually(is_drawn, timeout=90)
    assert "B/s" in await page.text(".plots") and "records" in await page.text(".plots")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_every_page_fits_a_phone(page: Page, node: NodeProcess, is_dark: bool, tmp_path: Path) -> None:
    await page.look(width=390, height=844, is_dark=is_dark)
    for way in WAYS:
        await go(page, node, way)
        await page.until_text("topics", selector="nav")
        await eventually(lambda: page.ask("document.readyState === 'complete'"))
        assert await page.ask("document.documentElement.scrollWidth") <= 390, way
        background = await page.ask("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(18, 23, 28)") is is_dark


@pytest.mark.parametrize(
    "way", ["/topics/none", "/topics/flights/9", "/topics/flights/x", "/topics/flights/0/records?offset=-1"]
)
def test_what_there_is_not_is_said(node: NodeProcess, way: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"http://{node.admin}{way}", timeout=30)
    assert told.value.code in (400, 404)


def test_names_of_any_characters_are_linked_to_their_pages(node: NodeProcess) -> None:
    assert "flights" in node.get(f"/topics/{quote('flights', safe='')}")
