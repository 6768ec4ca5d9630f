"""Three nodes as processes, a rack each: a consumer reads in its rack, the node there is killed, it reads on; and the
command line asks one of them, or all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner, Result

from stratalog_cli.entry import build_app
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.waiting import eventually_sync

RECORDS = 60
APP = build_app()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """With `flights`, whose first segment is sealed at all three, and whose second one has a few records more."""
    root = tmp_path_factory.mktemp("cluster")
    meta = MetaProcess(root, "meta", "--data", str(root / "meta"), settings=("node.lease.ms=1000",)).start()
    started = [
        NodeProcess(
            root / f"node-{number}",
            settings={"read.replica.min.bytes": 1},
            verb=("node", "start"),
            arguments=("--meta", meta.url, "--id", str(number), "--rack", f"rack-{number}"),
        )
        for number in (1, 2, 3)
    ]
    with ThreadPoolExecutor() as starting:
        list(starting.map(NodeProcess.start, started))
    bootstrap = ",".join(node.bootstrap for node in started)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic("flights", 1, 3)]).values():
        made.result(30)
    produce(bootstrap, range(RECORDS - 10))
    eventually_sync(lambda: [one["outcome"] for one in ask_json(started, "seal", "flights")] == ["sealed"], timeout=30)
    produce(bootstrap, range(RECORDS - 10, RECORDS))
    yield started
    for node in started:
        node.kill()
    meta.kill()


def produce(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    failed: list[object] = []
    for number in numbers:
        producer.produce(
            "flights",
            b"%d" % number,
            b"tail-%d" % (number % 7),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
        if number % 5 == 4:
            assert producer.flush(60) == 0  # a few batches
    assert producer.flush(60) == 0 and failed == []


def ask(nodes: list[NodeProcess], *arguments: str) -> Result:
    addresses = ",".join(node.admin for node in nodes)
    return CliRunner().invoke(APP, [*arguments], env={"STRATALOG_ADMIN": addresses})


def ask_json(nodes: list[NodeProcess], *arguments: str) -> Any:
    ran = ask(nodes, *arguments, "--output", "json")
    assert ran.exit_code in (0, 1), ran.output
    return json.loads(ran.stdout)


def leader_of(nodes: list[NodeProcess]) -> int:
    shard = AdminClient({"bootstrap.servers": nodes[0].bootstrap}).list_topics("flights", timeout=20).topics["flights"]
    return int(shard.partitions[0].leader)


@pytest.mark.fault("command-asks-several-nodes")
def test_one_node_says_which_others_have_copies_and_were_not_asked(nodes: list[NodeProcess]) -> None:
    (sealed, active) = ask_json(nodes[:1], "segments", "flights")
    assert (sealed["state"], sorted(sealed["local_nodes"]), sealed["node_id"]) == ("sealed", [1, 2, 3], 1)
    assert sorted(active["replicas"]) == [1, 2, 3]
    listed = ask(nodes[:1], "segments", "flights").stdout
    assert "1,2,3" in listed and f"{leader_of(nodes)}*" in listed
    verified = ask(nodes[:1], "verify", "flights")
    assert verified.exit_code == 0 and "not asked: nodes 2, 3" in verified.stderr
    located = ask(nodes[:1], "locate", "flights", "0", "3")
    assert located.exit_code == 0, located.output
    assert "not asked: nodes 2, 3" in located.stderr


def test_all_are_asked_and_each_file_is_named_with_its_node(nodes: list[NodeProcess]) -> None:
    (sealed, _) = ask_json(nodes, "segments", "flights")
    assert [place.split(":")[0] for place in sealed["places"]] == ["node 1", "node 2", "node 3"]
    verified = ask(nodes, "verify", "flights")
    assert verified.exit_code == 0 and verified.stdout.startswith("clean") and not verified.stderr
    one, all_ = (ask_json(asked, "verify", "flights") for asked in (nodes[:1], nodes))
    assert all_["local_bytes"] > 2 * one["local_bytes"] and all_["other_holders"] == []
    located = ask_json(nodes, "locate", "flights", "0", str(RECORDS - 1))
    assert (located["is_readable"], located["node_id"]) == (True, leader_of(nodes)), "the leader knows the end"
    status = ask_json(nodes, "status")
    assert [told["node_id"] for told in status] == [1, 2, 3]
    assert [(node["node_id"], node["rack"], node["is_alive"]) for node in status[0]["nodes"]] == [
        (number, f"rack-{number}", True) for number in (1, 2, 3)
    ]


@pytest.mark.fault("clients-search-keys-once")
def test_the_leader_finds_the_records_of_a_key_and_names_the_other_leaders(nodes: list[NodeProcess]) -> None:
    told = ask_json(nodes, "find", "flights", "--key", "tail-3")
    assert [int(one["value"]) for one in told["records"]] == list(range(3, RECORDS, 7))
    leader = leader_of(nodes)
    other = ask([nodes[leader % 3]], "find", "flights", "--key", "tail-3")
    assert other.exit_code == 1 and f"1 shard has node {leader} as the leader" in other.stderr


@pytest.mark.fault("command-asks-several-nodes")
def test_a_node_that_does_not_lead_names_the_leader(nodes: list[NodeProcess]) -> None:
    leader = leader_of(nodes)
    other = nodes[leader % 3]
    (sealed,) = ask_json([other], "seal", "flights")
    assert (sealed["outcome"], sealed["leader"]) == ("elsewhere", leader)
    refused = ask([other], "seal", "flights")
    assert refused.exit_code == 1 and f"not asked: node {leader}, where" in refused.stderr
    topics = ask([other], "topics", "describe", "flights")
    assert topics.exit_code == 0
    (shard,) = ask_json([other], "topics", "describe", "flights")["shards"]
    assert shard["high_watermark"] is None, "its leader knows, and was not asked"


@pytest.mark.fault("command-asks-several-nodes")
def test_a_node_that_does_not_answer_is_named_and_the_others_are_asked(nodes: list[NodeProcess]) -> None:
    nobody = CliRunner().invoke(APP, ["status", "--admin", f"127.0.0.1:1,{nodes[0].admin}"])
    assert nobody.exit_code == 1 and "left out: " in nobody.stderr and "node" in nobody.stdout
    for command in (("topics", "describe", "flights"), ("segments", "flights"), ("locate", "flights", "0", "0")):
        ran = CliRunner().invoke(APP, [*command, "--admin", f"127.0.0.1:1,{nodes[0].admin}"])
        assert ran.exit_code == 1 and "left out: " in ran.stderr and ran.stdout, command


@pytest.mark.fault("replica-serves-consumer-killed")
def test_the_kill_of_the_replica_that_serves_costs_a_consumer_no_record(nodes: list[NodeProcess]) -> None:
    """The last test: it leaves two nodes."""
    leader = leader_of(nodes)
    near = next(node for number, node in enumerate(nodes, 1) if number != leader)
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(node.bootstrap for node in nodes),
            "group.id": "none",
            "client.rack": f"rack-{nodes.index(near) + 1}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 100,
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 5,
            "fetch.error.backoff.ms": 50,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.assign([TopicPartition("flights", 0, 0)])
    found: list[int] = []

    def has(count: int) -> bool:
        message = consumer.poll(1)
        if message is not None:
            error = message.error()
            assert error is None or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN), str(error)
            if error is None:
                assert int(message.value() or b"-1") == message.offset()
                found.append(message.offset() or 0)
        return len(found) >= count

    eventually_sync(lambda: has(10), timeout=30)
    assert near.metrics()["stratalog_kafka_fetch_requests_total"] > 0
    near.kill()
    eventually_sync(lambda: has(RECORDS), timeout=60)
    consumer.close()
    assert found == list(range(RECORDS))
