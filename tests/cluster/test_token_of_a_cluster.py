"""Processes that share a token: nodes, the meta service and commands show it, all others are refused, and it is
replaced while all of them run."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.errors import Unauthorized
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually_sync

OLD, NEW = "the-old-token-of-all", "the-new-token-of-all"
LEASE_MS = 1_000


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(OLD)
    return path


@pytest.fixture
def meta(tmp_path: Path, token: Path) -> Iterator[MetaProcess]:
    settings = (f"node.lease.ms={LEASE_MS}", f"auth.token.file={token}")
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=settings).start()
    yield process
    process.kill()


@pytest.fixture
def nodes(meta: MetaProcess, tmp_path: Path, token: Path) -> Iterator[list[NodeProcess]]:
    started = [
        NodeProcess(
            tmp_path / f"node-{number}",
            settings={"auth.token.file": token},
            verb=("node", "start"),
            arguments=("--meta", meta.url, "--id", str(number)),
        ).start()
        for number in (1, 2)
    ]
    yield started
    for node in started:
        node.kill()


def command(*words: str, token: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("stratalog"))
    environment = {key: value for key, value in os.environ.items() if key != "STRATALOG_TOKEN_FILE"}
    shown = () if token is None else ("--token-file", str(token))
    return subprocess.run([program, *shown, *words], env=environment, capture_output=True, text=True, timeout=120)


def status_of(url: str, shown: str | None = None) -> int:
    request = urllib.request.Request(url)
    if shown is not None:
        request.add_header("Authorization", f"Bearer {shown}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def heartbeats(meta: MetaProcess) -> float:
    """So many were taken."""
    request = urllib.request.Request(f"http://{meta.admin}/metrics", headers={"Authorization": f"Bearer {NEW}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("stratalog_meta_lives_heartbeats_total")).split()[1])


def produce(nodes: list[NodeProcess], count: int) -> None:
    producer = Producer({"bootstrap.servers": nodes[0].bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce("flights", f"{number}".encode(), partition=number % 2)
    assert producer.flush(60) == 0


@pytest.mark.fault("http-ports-reachable-beyond")
def test_only_processes_with_the_token_work_with_the_cluster(
    meta: MetaProcess, nodes: list[NodeProcess], token: Path
) -> None:
    for url in (
        f"{meta.url}/v1/nodes",
        f"http://{meta.admin}/metrics",
        *(f"http://{n.admin}/v1/status" for n in nodes),
    ):
        assert (status_of(url), status_of(url, NEW), status_of(url, OLD)) == (401, 401, 200), url
    for admin in (meta.admin, *(node.admin for node in nodes)):
        assert status_of(f"http://{admin}/healthz") == status_of(f"http://{admin}/readyz") == 200

    asked = (("topics", "list", "--admin", nodes[0].admin), ("nodes", "list", "--meta", meta.url))
    for words in asked:
        refused, taken = command(*words), command(*words, token=token)
        assert refused.returncode == 3 and "--token-file FILE" in refused.stderr, refused
        assert taken.returncode == 0, taken

    admin = AdminClient({"bootstrap.servers": nodes[0].bootstrap})
    admin.create_topics([NewTopic("flights", 2, 2)])["flights"].result(30)
    produce(nodes, 100)
    for log in (meta.log_path, *(node.log_path for node in nodes)):
        assert OLD not in log.read_text()


@pytest.mark.fault("token-replaced-cluster-runs")
async def test_the_token_is_replaced_while_all_run_and_no_node_is_lost(
    meta: MetaProcess, nodes: list[NodeProcess], token: Path
) -> None:
    def opens(shown: str) -> bool:
        urls = (f"{meta.url}/v1/nodes", *(f"http://{node.admin}/v1/status" for node in nodes))
        return all(status_of(url, shown) == 200 for url in urls)

    client = HttpMetaClient(meta.url, token=lambda: shown)
    shown = OLD
    before = {node.node_id: (node.epoch, node.is_alive) for node in await client.nodes()}
    assert before == {1: (1, True), 2: (1, True)}
    for content, has_to_open in ((f"{OLD}\n{NEW}", NEW), (f"{NEW}\n{OLD}", NEW), (NEW, NEW)):
        token.write_text(content)
        eventually_sync(lambda wanted=has_to_open: opens(wanted), 60)
    eventually_sync(lambda: status_of(f"{meta.url}/v1/nodes", OLD) == 401, 60)

    with pytest.raises(Unauthorized):
        await client.nodes()
    shown = NEW
    before_heard = heartbeats(meta)
    # Two leases' worth of each node: a node that was not heard has been noted as lost by then.
    eventually_sync(lambda: heartbeats(meta) - before_heard > 2 * 4 * len(nodes), 60)
    assert all(node.is_alive and node.epoch == 1 for node in await client.nodes())
    nodes[0].restart()
    after = {node.node_id: (node.epoch, node.is_alive) for node in await client.nodes()}
    assert after == {1: (2, True), 2: (1, True)}
    await client.close()


def test_a_node_without_a_token_says_what_to_do(meta: MetaProcess, tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "late", verb=("node", "start"), arguments=("--meta", meta.url, "--id", "9"))
    with pytest.raises(AssertionError, match=r"from the setting auth\.token\.file"):
        node.start()
