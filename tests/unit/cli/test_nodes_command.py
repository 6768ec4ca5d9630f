"""`stratalog nodes`: what it says of a cluster whose meta service runs in the test, and of one that does not answer."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner, Result

from stratalog.model.commands.retirement_commands import RetireNode
from stratalog.model.commands.table_commands import CreateTopic, NoteLives, RegisterNode, RollSegment, SealSegment
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog_cli.entry import build_app
from stratalog_meta.api.server import MetaServer
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from support.meta_worlds import HandClock, seal_record


async def two_nodes(service: MetaService) -> None:
    for node_id in (2, 1):
        await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "127.0.0.1", 9_000 + node_id)))
    await service.perform(CreateTopic("wide", 1, 2))


async def one_that_died_alone(service: MetaService) -> None:
    """Node 1 is to leave and is not alive: it alone had 120 sealed segments and what was written behind them."""
    await service.perform(RegisterNode(NodeInfo(1, "disk-1", "127.0.0.1", 9_001)))
    topic = await service.perform(CreateTopic("flights", 1, 1))
    for number in range(120):
        active = (await service.shard(ShardKey(topic.topic_id, 0))).segments[-1].key
        end_offset = 10 * number + 10
        await service.perform(RollSegment(active, end_offset))
        await service.perform(SealSegment(active, seal_record(active, end_offset)))
    await service.perform(RegisterNode(NodeInfo(2, "disk-2", "127.0.0.1", 9_002)))
    await service.perform(RetireNode(1))
    await service.perform(NoteLives(lost=(Life(1, 1),)))


@contextmanager
def serving(prepare: Callable[[MetaService], Awaitable[None]]) -> Iterator[str]:
    """The service runs on an event loop of its own."""
    started, stopping = threading.Event(), asyncio.Event()
    made: list[object] = []

    async def serve() -> None:
        service = MetaService(MemoryStore(), HandClock(), lease_ms=60_000)
        await service.start()
        await prepare(service)
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
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(20)


@pytest.fixture
def meta() -> Iterator[str]:
    """Of two nodes and a topic on both."""
    with serving(two_nodes) as url:
        yield url


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


def test_ctrl_c_says_that_the_retirement_continues(meta: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stratalog_cli.admin.nodes.time.sleep", interrupted)
    ended = run("retire", "2", "--wait", "--meta", meta)
    assert ended.exit_code == 130
    assert "node 2 continues to leave: `stratalog nodes status 2` shows how far it is" in ended.stderr
    assert "`stratalog nodes cancel 2` takes it back" in ended.stderr


def test_the_reason_of_a_wait_is_whole_in_a_narrow_terminal(meta: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table broke it into a column of some letters, and the progress cut it off."""
    monkeypatch.setenv("COLUMNS", "40")
    assert run("retire", "2", "--meta", meta).exit_code == 0
    run("retire", "2", "--wait", "--timeout", "1", "--meta", meta)
    told = run("status", "2", "--meta", meta)
    reason = "1 node stays, and 1 topic has more replicas, such as 'wide' with 2: add nodes first"
    assert f"node 2: waits (ReplicationFactor): {reason}" in told.stdout, told.stdout


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


@pytest.mark.fault("node-died-permanently")
def test_what_no_one_has_is_listed_before_a_person_gives_it_up_and_says_where_it_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stratalog.machines.copies.leaving_survey.MAX_UNHELD_LISTED", 110)
    with serving(one_that_died_alone) as meta:
        (told,) = json.loads(run("status", "1", "--meta", meta, "--output", "json").output)
        assert told["unheld_count"] == 121 and len(told["unheld"]) == 110
        first = told["unheld"][0]
        assert (first["topic"], first["base_offset"], first["end_offset"]) == ("flights", 0, 10)
        assert first["segment"]["shard"] == first["segment"]["epoch"] == 0
        with urllib.request.urlopen(f"{meta}/v1/retirements", timeout=20) as answer:
            assert json.load(answer)["items"][0]["unheld"] == told["unheld"]
        shown = run("status", "1", "--meta", meta).output
        assert "what only node 1 had, which is not alive: 121 ranges" in shown
        assert "[0, 10)" in shown and "[990, 1000)" in shown and "[1000, 1010)" not in shown
        assert "and 21 more ranges; --output json lists the first 110" in shown
    monkeypatch.undo()
    with serving(one_that_died_alone) as meta:
        (told,) = json.loads(run("status", "1", "--meta", meta, "--output", "json").output)
        assert told["unheld_count"] == len(told["unheld"]) == 121
        last = told["unheld"][-1]
        assert (last["base_offset"], last["end_offset"]) == (1_200, None), "of an open one nobody knows the end"


def test_an_open_segment_that_no_one_has_is_shown_without_an_end() -> None:
    async def one_open(service: MetaService) -> None:
        await service.perform(RegisterNode(NodeInfo(1, "disk-1", "127.0.0.1", 9_001)))
        await service.perform(CreateTopic("flights", 1, 1))
        await service.perform(RetireNode(1))
        await service.perform(NoteLives(lost=(Life(1, 1),)))

    with serving(one_open) as meta:
        shown = run("status", "1", "--meta", meta).output
    assert "1 range" in shown and "0 and on" in shown and "open" in shown and "more range" not in shown


@pytest.mark.fault("meta-service-answers-command")
def test_a_meta_service_that_does_not_answer_is_named_with_its_address() -> None:
    away = run("list", "--meta", "http://127.0.0.1:1")
    assert away.exit_code == 3 and "no meta service answers at" in away.output
