"""The HTTP ports of a running node under a flood, and before a browser that a foreign page has sent."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess
from support.waiting import eventually_sync

OPEN_FILES = 400
SHARDS = 100


class NodeOfFewFiles(NodeProcess):
    """A node that may have `OPEN_FILES` open."""

    def command(self, address: str) -> list[str]:
        return ["sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh", *super().command(address)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"offsets.topic.num.partitions": 1, "meta.listen": f"127.0.0.1:{port}"}
    with NodeOfFewFiles(tmp_path / "data", settings=settings) as node:
        yield node


def flood(stack: ExitStack, address: str, count: int) -> None:
    """Half requests from many addresses; this end keeps refused connections open, too."""
    host, _, port = address.rpartition(":")
    for number in range(count):
        sock = stack.enter_context(socket.socket())
        sock.bind((f"127.0.1.{number % 200 + 1}", 0))
        sock.connect((host, int(port)))
        try:
            sock.sendall(b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n")
        except ConnectionError:
            continue


@pytest.mark.fault("http-port-incomplete-requests")
def test_a_flood_of_half_requests_takes_no_descriptor_that_data_needs(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    settings = {"flush.policy": "fsync"}
    admin.create_topics([NewTopic("orders", SHARDS, config=settings)])["orders"].result(20)
    with ExitStack() as stack:
        flood(stack, node.admin, 300)
        flood(stack, node.settings["meta.listen"], 300)
        refused: list[str] = []
        producer = Producer({"bootstrap.servers": node.bootstrap, "acks": "all", "message.timeout.ms": 20_000})
        for shard in range(SHARDS):
            producer.produce(
                "orders",
                b"value",
                partition=shard,
                on_delivery=lambda error, _: refused.append(str(error)) if error else None,
            )
        assert producer.flush(30) == 0 and not refused
        # While it lasts: new connections to the port are accepted.
        eventually_sync(lambda: refusals_of(node) >= 2 * (300 - OPEN_FILES // 16))
    assert "Too many open files" not in node.log_path.read_text()


@pytest.mark.fault("kafka-clients-connect-process")
def test_a_flood_of_kafka_connections_takes_no_descriptor_that_data_needs(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("orders", SHARDS, config={"flush.policy": "fsync"})])["orders"].result(20)
    refused: list[str] = []
    producer = Producer({"bootstrap.servers": node.bootstrap, "acks": "all", "message.timeout.ms": 20_000})

    def produce(shards: range) -> None:
        for shard in shards:
            producer.produce(
                "orders",
                b"value",
                partition=shard,
                on_delivery=lambda error, _: refused.append(str(error)) if error else None,
            )
        assert producer.flush(30) == 0 and not refused

    produce(range(1))
    host, _, port = node.bootstrap.rpartition(":")
    with ExitStack() as stack:
        for _ in range(OPEN_FILES + 100):
            stack.enter_context(socket.create_connection((host, int(port))))
        eventually_sync(lambda: refusals_of(node, "stratalog_kafka") >= 100)
        produce(range(SHARDS))
    log = node.log_path.read_text()
    assert "Too many open files" not in log and "try again" not in log
    assert 20 <= log.count("connection refused") < 100 and "further lines are left out" in log


def refusals_of(node: NodeProcess, port: str = "stratalog_http") -> float:
    try:
        values = node.metrics()
    except OSError:
        return -1  # those of the flood are closed at this end, and not yet at the other
    return sum(value for key, value in values.items() if key.startswith(f"{port}_turned_away_total"))


@pytest.mark.fault("web-page-browser-sends")
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain", "Origin": "http://page.example"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json", "Host": "page.example:9644"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_page_in_a_browser_can_neither_seal_nor_create_nor_delete(node: NodeProcess, headers: dict[str, str]) -> None:
    body = json.dumps({"name": "taken", "shards": 1}).encode()
    for method, path in (("POST", "/v1/topics"), ("POST", "/v1/seal"), ("DELETE", "/v1/topics/__consumer_offsets")):
        for address in (node.admin, node.settings["meta.listen"]):
            request = urllib.request.Request(f"http://{address}{path}", body, headers, method=method)
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(request, timeout=10)
            assert refusal.value.code in (403, 415)
    assert "taken" not in {topic["name"] for topic in json.loads(node.get("/v1/topics"))}


def test_the_pages_of_a_node_that_is_its_own_meta_service_show_its_disk(node: NodeProcess) -> None:
    for page in ("/", "/nodes"):
        (row,) = json.loads(node.get(f"{page}?format=json"))["nodes"]
        assert 0 < row["disk_free_bytes"] <= row["disk_total_bytes"], page
