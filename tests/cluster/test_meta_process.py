"""`stratalog meta start --data`: one instance of the meta service as a process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.meta_api.attempts import RetryPolicy
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.meta_api.transport import MAX_REQUESTS
from stratalog.model.commands.table_commands import AllocateProducerIds, CreateTopic, RegisterNode
from stratalog.model.metadata import Heartbeat, Life, NodeInfo
from stratalog_cli.entry import build_app
from support.meta_process import MetaFailed, MetaProcess
from support.meta_worlds import collect
from support.waiting import eventually

NODE = NodeInfo(1, "disk-1", "host", 9092)
PATIENT = RetryPolicy(attempts=400, attempt_s=10.0, first_pause_s=0.01, longest_pause_s=0.1)


@pytest.fixture
def meta(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MetaProcess]:
    """Nodes need no heartbeats unless a test gives the lease in ms as parameter."""
    settings = (f"node.lease.ms={getattr(request, 'param', 600_000)}",)
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "data"), settings=settings).start()
    yield process
    if process.is_running:
        process.kill()


async def test_what_was_answered_outlives_a_kill_and_a_watch_continues(meta: MetaProcess) -> None:
    client = HttpMetaClient(meta.url, PATIENT)
    cluster_id = await client.read_cluster_id()
    await client.perform(RegisterNode(NODE))
    watch = client.watch(1)
    for number in range(3):
        topic = await client.perform(CreateTopic(f"before-{number}", 1, 1, {}))
        if number == 0:
            assert (await anext(watch)).version == 2
        meta.kill()
        meta.start()
        assert (await client.topic(topic.topic_id)) == topic
    assert await client.read_cluster_id() == cluster_id
    versions = []
    async for change_set in watch:
        versions.append(change_set.version)
        if change_set.version >= (await client.read_version()):
            break
    assert versions == list(range(3, versions[-1] + 1)), "nothing missed, no snapshot needed"
    await client.close()


async def test_all_that_the_nodes_of_one_machine_ask_for_at_a_time_is_let_in(meta: MetaProcess) -> None:
    """Each has as many requests under way as it may, and one more comes to ask."""
    clients = [HttpMetaClient(meta.url, PATIENT) for _ in range(6)]
    watching = [asyncio.ensure_future(collect(client.watch(0), 1_000)) for client in clients]
    crowd = clients * (2 * MAX_REQUESTS)
    await asyncio.gather(*(client.perform(AllocateProducerIds(1)) for client in crowd))
    one_more = HttpMetaClient(meta.url, RetryPolicy(attempts=1))
    assert await one_more.read_cluster_id()
    refused = meta.metric('stratalog_http_turned_away_total{port="meta",reason="full"}')
    for watch in watching:
        watch.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    for client in (*clients, one_more):
        await client.close()
    assert refused == 0


@pytest.mark.parametrize("meta", [400], indirect=True)
async def test_a_node_that_falls_silent_is_lost_by_its_lease(meta: MetaProcess) -> None:
    client = HttpMetaClient(meta.url, PATIENT)
    registration = await client.perform(RegisterNode(NODE))
    assert (await client.heartbeat(Heartbeat(Life(1, registration.node_epoch)))).lease_ms == 400

    async def is_lost() -> bool:
        return not (await client.snapshot()).nodes[0].is_alive

    await eventually(is_lost)
    assert meta.metric("stratalog_meta_lives_lost_total") == 1
    assert meta.metric("stratalog_meta_lives_heartbeats_total") == 1
    await client.close()


def test_it_stops_in_order_and_says_what_it_is(meta: MetaProcess) -> None:
    assert json.loads(meta.get("/readyz"))["ready"]
    assert meta.metric("stratalog_meta_version") == 0
    meta.stop()
    assert "stopped" in meta.log()


def test_a_second_instance_on_the_directory_is_refused_with_the_reason(meta: MetaProcess, tmp_path: Path) -> None:
    with pytest.raises(MetaFailed, match="in use by another process"):
        MetaProcess(tmp_path, "second", "--data", str(tmp_path / "data")).start()


async def test_commands_that_are_not_answered_are_done_once_it_is_back(meta: MetaProcess) -> None:
    client = HttpMetaClient(meta.url, PATIENT)
    first = (await client.perform(AllocateProducerIds(1))).first
    meta.kill()
    meta.start()
    assert (await client.perform(AllocateProducerIds(1))).first == first + 1
    await client.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name one place"),
        (("--data", "x", "--store", "etcd://h:1"), "name one place"),
        (("--store", "zookeeper://h:1"), "not an etcd address"),
        (("--data", "x", "--listen", "nowhere"), "--listen 'nowhere'"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_made(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(build_app(("meta",)), ["meta", "start", *arguments])
    assert ran.exit_code == 2 and words in ran.output
    assert list(tmp_path.iterdir()) == []
