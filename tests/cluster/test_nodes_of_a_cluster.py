"""Nodes as processes of their own around one meta service: each leads its shards, and the service knows who lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.metadata import NodeInfo
from stratalog_cli.entry import build_app
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually, eventually_sync

LEASE_MS = 1_000


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    settings = (f"node.lease.ms={LEASE_MS}",)
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=settings).start()
    yield process
    if process.is_running:
        process.kill()


@pytest.fixture
def nodes(meta: MetaProcess, tmp_path: Path) -> Iterator[list[NodeProcess]]:
    started = [
        NodeProcess(
            tmp_path / f"node-{number}",
            verb=("node", "start"),
            arguments=("--meta", meta.url, "--id", str(number), "--rack", f"rack-{number}"),
        ).start()
        for number in (1, 2)
    ]
    yield started
    for node in started:
        node.kill()


async def alive(meta: MetaProcess) -> dict[int, bool]:
    client = HttpMetaClient(meta.url)
    nodes = (await client.snapshot()).nodes
    await client.close()
    assert all(node.rack == f"rack-{node.node_id}" for node in nodes)
    return {node.node_id: node.is_alive for node in nodes}


def make_topic(nodes: list[NodeProcess], shards: int = 4) -> None:
    """Each node has heard of it: without the meta service none of them would any more."""
    admins = [AdminClient({"bootstrap.servers": node.bootstrap}) for node in nodes]
    for made in admins[0].create_topics([NewTopic("flights", shards, 1)]).values():
        made.result(30)

    def leaders(admin: AdminClient) -> list[int]:
        listed = admin.list_topics(timeout=10).topics.get("flights")
        return [] if listed is None else [shard.leader for shard in listed.partitions.values()]

    for admin in admins:
        eventually_sync(lambda admin=admin: len(leaders(admin)) == shards and set(leaders(admin)) == {1, 2})


def produce(bootstrap: str, shards: int, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    failed: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            "flights",
            value.encode(),
            partition=number % shards,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0 and failed == []


def consume(bootstrap: str, shards: int, count: int) -> set[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("flights", shard, 0) for shard in range(shards)])
    found: set[str] = set()

    def has_all() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            assert message.error() is None, message.error()
            found.add(bytes(message.value() or b"").decode())
        return len(found) >= count

    eventually_sync(has_all, timeout=60)
    consumer.close()
    return found


def test_clients_find_each_shard_at_the_node_that_leads_it(nodes: list[NodeProcess]) -> None:
    make_topic(nodes)
    values = [f"flight-{number}" for number in range(400)]
    produce(nodes[1].bootstrap, 4, values)
    assert consume(nodes[0].bootstrap, 4, len(values)) == set(values)


async def test_a_node_that_stops_is_known_to_be_gone_at_once_and_one_that_is_killed_after_its_lease(
    meta: MetaProcess, nodes: list[NodeProcess]
) -> None:
    assert await alive(meta) == {1: True, 2: True}
    first, second = nodes
    second.stop()

    async def only_the_first() -> bool:
        return await alive(meta) == {1: True, 2: False}

    await eventually(only_the_first)
    first.kill()

    async def none() -> bool:
        return await alive(meta) == {1: False, 2: False}

    await eventually(none)
    second.start()
    assert (await alive(meta))[2]


def test_producers_and_consumers_continue_while_the_meta_service_is_away(
    meta: MetaProcess, nodes: list[NodeProcess]
) -> None:
    make_topic(nodes)
    meta.kill()
    values = [f"flight-{number}" for number in range(400)]
    produce(nodes[0].bootstrap, 4, values)
    assert consume(nodes[1].bootstrap, 4, len(values)) == set(values)
    meta.start()
    eventually_sync(lambda: "hears this node again" in nodes[0].log_text())


async def test_a_process_whose_life_is_over_stops_and_says_why(meta: MetaProcess, nodes: list[NodeProcess]) -> None:
    """It was frozen for longer than its lease, and another process began the node's next life."""
    nodes[0].pause()
    client = HttpMetaClient(meta.url)
    known = (await client.snapshot()).nodes[0]

    async def is_away() -> bool:
        return not (await alive(meta))[known.node_id]

    await eventually(is_away, timeout=30)
    await client.perform(RegisterNode(NodeInfo(known.node_id, known.storage_id, known.host, known.port, known.rack)))
    await client.close()
    nodes[0].resume()
    await eventually(lambda: not nodes[0].is_running, timeout=30)
    assert "is in its life 2" in nodes[0].log_tail()


@pytest.mark.parametrize("meta_option", ["localhost:9100", "http://a:1,http://a:1"])
def test_a_wrong_address_of_the_meta_service_is_refused_before_anything_is_made(
    meta_option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(build_app(("node",)), ["node", "start", "--meta", meta_option])
    assert (ran.exit_code == 2 and "address" in ran.output + str(ran.exception)) or "names an instance" in ran.output
    assert list(tmp_path.iterdir()) == []
