"""The cluster UI over real processes: what real nodes report of themselves arrives there, and missing nodes are
shown."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually_sync

QUICK = {"remote.upload.interval.ms": "100", "offsets.topic.num.partitions": "1", "log.segment.bytes": "1048576"}


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=("node.lease.ms=2000",)).start()
    yield process
    process.kill()


@pytest.fixture
def nodes(tmp_path: Path, meta: MetaProcess) -> Iterator[dict[int, NodeProcess]]:
    started = {}
    for number in (1, 2):
        arguments = ("--meta", meta.url, "--id", str(number), "--bucket", str(tmp_path / "bucket"))
        node = NodeProcess(tmp_path / f"node-{number}", None, dict(QUICK), verb=("node", "start"), arguments=arguments)
        started[number] = node.start()
    yield started
    for one in started.values():
        one.kill()


def told(meta: MetaProcess, path: str = "/v1/overview") -> dict[str, Any]:
    with urllib.request.urlopen(meta.url + path, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_the_page_shows_what_real_nodes_do_and_which_one_is_gone(
    meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    bootstrap = ",".join(node.bootstrap for node in nodes.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic("flights", 4, 2)]).values()
    made.result(60)
    produce_and_read(bootstrap)

    def is_told() -> bool:
        produce_and_read(bootstrap, 400)  # rates are of what comes between two polls
        shown, courses = told(meta), told(meta, "/v1/courses")["items"]
        heard = [
            one for one in shown["nodes"] if one["state"] == "alive" and one["uploads"] and one["disk_free_bytes"] > 0
        ]
        produced = {one["node_id"] for one in courses if any(sample["produce_rate"] > 0 for sample in one["samples"])}
        fetched = {one["node_id"] for one in courses if any(sample["fetch_rate"] > 0 for sample in one["samples"])}
        return len(heard) == 2 and produced == {1, 2} and bool(fetched) and shown["tiers"]["both"]["bytes"] > 0

    eventually_sync(is_told, timeout=60)
    shown = told(meta)
    pages = [one["page_url"] for one in sorted(shown["nodes"], key=lambda one: one["node_id"])]
    assert pages == [f"http://{node.admin}/" for node in nodes.values()]
    with urllib.request.urlopen(pages[0], timeout=30) as answer:
        assert b"<html" in answer.read()
    assert (shown["shards"]["under_replicated"], shown["faults"], shown["troubles"]) == (0, [], [])

    for port in (meta.url, pages[0].rstrip("/"), pages[1].rstrip("/")):
        shows_what_both_nodes_know(port)
    nodes[2].kill()
    eventually_sync(lambda: [one["state"] for one in told(meta)["nodes"]] == ["alive", "not alive"], timeout=60)
    shown = told(meta)
    assert any(one.startswith("node 2 is not alive") for one in shown["faults"])
    assert shown["shards"]["under_replicated"] >= 4, "those of the topic; what groups write may have one replica"
    assert shown["troubles"] and shown["shards"]["troubled"] > 0


def shows_what_both_nodes_know(port: str) -> None:
    """Each port has all of the cluster, whichever node leads a shard, coordinates a group or has a client."""

    def page(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{port}{path}{'&' if '?' in path else '?'}format=json", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    topic = page("/topics/flights")
    assert {row["line"]["leader"] for row in topic["shards"]} == {1, 2} and topic["not_asked"] == []
    assert all(row["high_watermark"] >= 2_000 and row["local_bytes"] > 0 for row in topic["shards"])
    assert {one["key"]: one["source"] for one in topic["settings"]}["retention.ms"] == "default"
    (oldest,) = page("/topics/flights/records?shard=2&from=oldest&limit=1")["records"]
    newest = page("/topics/flights/records?limit=50")["records"]
    assert (oldest["offset"], oldest["value"]["size"]) == (0, 1_000)
    assert {one["shard"] for one in newest} <= set(range(4)) and len(newest) == 50
    stored = page("/topics/flights/shards/0")
    assert {one["place"] for one in stored["tiers"]} & {"both", "cold", "local"}
    assert page("/groups")["not_asked"] == [] and page("/clients")["not_asked"] == []
    assert [one["node_id"] for one in page("/nodes")["nodes"]] == [1, 2]
    assert page("/nodes/2")["status"]["node_id"] == 2
    with urllib.request.urlopen(f"{port}/plots/produced.svg", timeout=30) as answer:
        assert answer.read().startswith(b"<svg")


def produce_and_read(bootstrap: str, count: int = 8_000) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(count):
        producer.produce("flights", b"x" * 1_000, partition=number % 4)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "page", "enable.auto.commit": False})
    consumer.assign([TopicPartition("flights", shard, 0) for shard in range(4)])
    try:
        read = 0
        while read < count:
            message = consumer.poll(30)
            read += message is not None and message.error() is None
    finally:
        consumer.close()
