"""`stratalog nodes`: what it says of a cluster whose meta service runs in the test, and of one that does not answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from stratalog.model.commands import CreateTopic, RegisterNode
from stratalog.model.metadata import NodeInfo
from stratalog_cli.entry import build_app
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock


@pytest.fixture
def meta() -> Iterator[str]:
    """Of two nodes and a topic on both; the service lives on a loop of its own."""
    started, stopping = threading.Event(), asyncio.Event()
    made: list[object] = []

    async def serve() -> None:
        service = MetaService(MemoryStore(), HandClock(), lease_ms=60_000)
        await service.start()
        for node_id in (2, 1):
            await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "127.0.0.1", 9_000 + node_id)))
        await service.perform(CreateTopic("wide", 1, 2))
        server = MetaServer(service)
        made.extend([await server.start("127.0.0.1", 0), asyncio.get_running_loop()])
        started.set()
        await stopping.wait()
        await server.close()
        await service.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    url, loop = made
    assert isinstance(url, str) and isinstance(loop, asyncio.AbstractEventLoop)
    yield url
    loop.call_soon_threadsafe(stopping.set)
    thread.join(20)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(("nodes",)), ["nodes", *arguments])


def test_nodes_are_listed_with_the_disk_that_a_force_must_name(meta: str) -> None:
    listed = run("list", "--meta", meta)
    assert listed.exit_code == 0 and "disk-1" in listed.output and "alive" in listed.output
    told = json.loads(run("list", "--meta", meta, "--output", "json").output)
    assert [node["storage_id"] for node in told] == ["disk-1", "disk-2"] and told[0]["retirement"] is None


def test_a_wish_is_shown_with_the_reason_why_it_waits_and_taken_back(meta: str) -> None:
    assert "no node leaves" in run("status", "--meta", meta).output
    assert run("retire", "2", "--meta", meta).exit_code == 0
    waited = run("retire", "2", "--wait", "--timeout", "2", "--meta", meta)
    assert waited.exit_code == 3 and "ReplicationFactor" in waited.output
    (told,) = json.loads(run("status", "2", "--meta", meta, "--output", "json").output)
    assert told["retirement"]["wait"]["reason"] == "ReplicationFactor" and told["retirement"]["mode"] == "offload"
    refused = run("retire", "2", "--mode", "volume", "--meta", meta)
    assert refused.exit_code == 2 and "offload mode already" in refused.output
    assert "node 2 stays" in run("cancel", "2", "--meta", meta).output
    assert "was not leaving: nothing was changed" in run("cancel", "2", "--meta", meta).output
    assert run("status", "2", "--meta", meta).exit_code == 2


def test_what_would_go_elsewhere_is_shown_and_an_even_cluster_is_left_alone(meta: str) -> None:
    def rebalance(*arguments: str) -> Result:
        return CliRunner().invoke(build_app(("rebalance",)), ["rebalance", "--meta", meta, *arguments])

    shown = rebalance()
    assert shown.exit_code == 0 and "leaders after" in shown.output and "as even as" in shown.output
    told = json.loads(rebalance("--seal", "--output", "json").output)
    assert told["is_even"] and told["rounds"] == 0 and told["moves"] == []
    assert [(node["node_id"], node["leaders"], node["load"]) for node in told["nodes"]] == [(1, 1, 2), (2, 0, 1)]
    assert rebalance("--seal", "--dry-run").output == shown.output


def test_a_force_names_the_disk_and_is_refused_for_a_node_that_lives(meta: str) -> None:
    assert "spelled out" in run("retire", "1", "--force", "disk-2", "--meta", meta).output
    assert "is alive" in run("retire", "1", "--force", "disk-1", "--meta", meta).output
    assert "never registered" in run("retire", "9", "--meta", meta).output


def test_a_meta_service_that_does_not_answer_is_named_with_its_address() -> None:
    away = run("list", "--meta", "http://127.0.0.1:1")
    assert away.exit_code == 3 and "no meta service answers at" in away.output
