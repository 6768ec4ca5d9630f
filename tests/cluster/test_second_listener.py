"""Three nodes with two listeners each: clients of the second one get no other address, whatever they ask, and the nodes
reach each other by the first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.listeners import Listener
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually_sync

SHARDS = 6
TOLD = "localhost"
"""The address that all clients get; the listeners bind 127.0.0.1, and the internal ones advertise that."""


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=("node.lease.ms=1000",)).start()
    yield process
    process.kill()


@pytest.fixture
def nodes(meta: MetaProcess, tmp_path: Path) -> Iterator[list[NodeProcess]]:
    listeners = {"listeners": "outside://127.0.0.1:0", "advertised.listeners": f"outside://{TOLD}:0"}
    started = [
        NodeProcess(
            tmp_path / f"node-{number}",
            settings=listeners,
            verb=("node", "start"),
            arguments=("--meta", meta.url, "--id", str(number)),
        ).start()
        for number in (1, 2, 3)
    ]
    yield started
    for node in started:
        node.kill()


def outside(node: NodeProcess) -> str:
    """HOST:PORT where its second listener is, as it says."""
    found = re.findall(r"^stratalog ready: .*, outside 127\.0\.0\.1:(\d+)$", node.log_path.read_text(), re.MULTILINE)
    return f"{TOLD}:{found[-1]}"


class Heard:
    """Every broker that a client of librdkafka ever heard of, by its own account."""

    def __init__(self) -> None:
        self.addresses: set[str] = set()
        self.looks = 0

    def settings(self, **more: object) -> dict[str, object]:
        return {"statistics.interval.ms": 50, "stats_cb": self._look, **more}

    def _look(self, told: str) -> None:
        self.looks += 1
        brokers = json.loads(told)["brokers"].values()
        self.addresses |= {one["nodename"] for one in brokers if one["nodename"]}


@pytest.mark.fault("clients-different-network-nodes")
def test_clients_of_the_second_listener_get_no_other_address(nodes: list[NodeProcess]) -> None:
    outside_addresses = {outside(node) for node in nodes}
    first = outside(nodes[0])
    heard = Heard()
    admin = AdminClient({"bootstrap.servers": first})
    for made in admin.create_topics([NewTopic("flights", SHARDS, 3)]).values():
        made.result(30)

    def leaders() -> set[int]:
        shards = admin.list_topics("flights", timeout=10).topics["flights"].partitions.values()
        return {shard.leader for shard in shards}

    eventually_sync(lambda: leaders() == {1, 2, 3}, 60)
    listed = admin.list_topics(timeout=10).brokers.values()
    assert {f"{one.host}:{one.port}" for one in listed} == outside_addresses
    described = admin.describe_cluster(request_timeout=10).result(30).nodes
    assert {f"{one.host}:{one.port}" for one in described} == outside_addresses

    values = [f"flight-{number}" for number in range(600)]
    failed: list[object] = []
    producer = Producer(
        heard.settings(**{"bootstrap.servers": first, "acks": "all", "message.timeout.ms": 120_000, "linger.ms": 5})
    )

    def send(some: list[str]) -> None:
        for number, value in enumerate(some):
            producer.produce(
                "flights",
                value.encode(),
                partition=number % SHARDS,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(120) == 0 and failed == []

    send(values[:300])
    nodes[2].kill()  # what it led goes to others, which clients learn by hints and by metadata
    send(values[300:])

    consumer = Consumer(
        heard.settings(**{"bootstrap.servers": first, "group.id": "readers", "auto.offset.reset": "earliest"})
    )
    consumer.subscribe(["flights"])
    found: set[str] = set()

    def has_all() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            if message.error() is None:
                found.add(bytes(message.value() or b"").decode())
        return len(found) == len(values)

    eventually_sync(has_all, 120)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert heard.looks > 0 and heard.addresses <= outside_addresses, "a client outside was given an inside address"
    assert len(heard.addresses) >= 2

    inside = AdminClient({"bootstrap.servers": nodes[0].bootstrap}).list_topics(timeout=10).brokers.values()
    assert {f"{one.host}:{one.port}" for one in inside} <= {node.bootstrap for node in nodes}


async def test_a_node_registers_all_that_it_tells(meta: MetaProcess, nodes: list[NodeProcess]) -> None:
    client = HttpMetaClient(meta.url)
    known = {node.node_id: node for node in (await client.snapshot()).nodes}
    await client.close()
    for number, node in enumerate(nodes, 1):
        port = int(outside(node).rpartition(":")[2])
        assert known[number].listeners == (Listener("outside", TOLD, port),)
        assert f"{known[number].host}:{known[number].port}" == node.bootstrap


def test_a_listener_whose_address_is_taken_keeps_the_node_from_starting_and_leaves_nothing_open(
    nodes: list[NodeProcess], meta: MetaProcess, tmp_path: Path
) -> None:
    taken = outside(nodes[0]).replace(TOLD, "127.0.0.1")
    late = NodeProcess(
        tmp_path / "late",
        settings={"listeners": f"outside://{taken}"},
        verb=("node", "start"),
        arguments=("--meta", meta.url, "--id", "9"),
    )
    with pytest.raises(AssertionError, match=r"listeners \(outside\)=127\.0\.0\.1:\d+: cannot listen there"):
        late.start()
