"""Groups of real clients over two nodes: their coordinator is killed while they consume and commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog_node.groups.placement import OFFSETS_TOPIC, shard_of
from support.group_members import (
    Committed,
    CommittingMember,
    ConfluentMember,
    KafkaPythonMember,
    all_seen,
    share_all,
)
from support.history import Log, Outcome, Seen, Sent, anomalies
from support.java_client import JavaTools
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.topics import read
from support.waiting import eventually, eventually_sync

SHARDS = 4
PATIENCE_S = 20
"""Of a quiet machine: a wait that fails is reported before the test's time is over."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 4,
}


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=("node.lease.ms=2000",)).start()
    yield process
    if process.is_running:
        process.kill()


@pytest.fixture
def nodes(meta: MetaProcess, tmp_path: Path) -> Iterator[list[NodeProcess]]:
    started = [
        NodeProcess(
            tmp_path / f"node-{number}",
            settings=SETTINGS,
            verb=("node", "start"),
            arguments=("--meta", meta.url, "--id", str(number)),
        )
        for number in (1, 2)
    ]
    with ThreadPoolExecutor() as starting:
        list(starting.map(NodeProcess.start, started))
    yield started
    for node in started:
        node.kill()


class Writer(threading.Thread):
    """Writes numbered values until it is stopped, and notes the outcome of each."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.sent: list[Sent] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._ending = threading.Event()
        self.start()

    def run(self) -> None:
        number = 0
        while not self._ending.wait(0.01):
            send = Sent("writer", (self.topic, number % SHARDS), b"%d" % number)
            self.sent.append(send)
            self._producer.produce(
                self.topic,
                send.value,
                partition=number % SHARDS,
                on_delivery=lambda error, message, send=send: _note(send, error, message),
            )
            self._producer.poll(0)
            number += 1

    def end(self) -> None:
        self._ending.set()
        self.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0
        assert all(send.outcome is Outcome.OK for send in self.sent)

    @property
    def values(self) -> set[bytes]:
        return {send.value for send in self.sent}


def _note(send: Sent, error: Any, message: Any) -> None:
    if error is None:
        send.outcome, send.offset = Outcome.OK, message.offset()


class StrictMember(CommittingMember):
    """No member is removed here without knowing it: a record whose commit was confirmed is never read again."""

    def _check_position(self, shard: int, offset: int) -> None:
        if offset < self._committed.told[shard]:
            self._committed.went_back.append(f"shard {shard}, offset {offset}")


def leaders_of(bootstrap: str, topic: str) -> dict[int, int]:
    described = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic]
    return {number: shard.leader for number, shard in described.partitions.items()}


def group_at(nodes: list[NodeProcess], node_id: int, name: str) -> str:
    """A group of such a name that this node coordinates."""
    led = leaders_of(nodes[0].bootstrap, OFFSETS_TOPIC)
    numbered = (f"{name}-{number}" for number in range(1_000))
    return next(group for group in numbered if led[shard_of(group, len(led))] == node_id)


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, SHARDS, 2)])[topic].result(PATIENCE_S)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "the first of all"})
    consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)  # it makes the group log
    consumer.close()
    admin.poll(0)


_ASK_AGAIN = (
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.NOT_COORDINATOR,
)


def is_committed(consumer: confluent_kafka.Consumer, offset: TopicPartition) -> bool:
    """Whether its coordinator takes it; one that loads its groups says so and is asked again."""
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    except confluent_kafka.KafkaException as error:
        assert error.args[0].code() in _ASK_AGAIN, error
        return False
    return True


def judged(bootstrap: str, writer: Writer) -> list[Any]:
    """What the log shows against the answers that the writer got."""
    logs = {}
    for shard in range(SHARDS):
        own = [send for send in writer.sent if send.place[1] == shard]
        found = read(bootstrap, writer.topic, len(own), partition=shard)
        logs[writer.topic, shard] = Log(0, [Seen(one.offset(), one.value()) for one in found])
    return anomalies(writer.sent, logs)


@pytest.mark.fault("node-coordinates-groups-killed", "coordinator-cut-taken-place", "client-asks-node-node")
async def test_a_killed_coordinator_costs_its_groups_a_rediscovery_and_no_committed_offset(
    meta: MetaProcess, nodes: list[NodeProcess]
) -> None:
    bootstrap = ",".join(node.bootstrap for node in nodes)
    await asyncio.to_thread(make_topic, bootstrap, "flights")
    assert set(leaders_of(bootstrap, OFFSETS_TOPIC).values()) == {1, 2}, "each node coordinates some groups"
    confluent, python, aio, static = (group_at(nodes, 1, name) for name in ("confluent", "python", "aio", "static"))
    writer, committed = Writer(bootstrap, "flights"), Committed()
    members: list[Any] = [StrictMember(committed, bootstrap, confluent, ["flights"]) for _ in range(2)]
    others: list[Any] = [KafkaPythonMember(bootstrap.split(","), python, ["flights"], reconnect_backoff_max_ms=200)]
    others.append(ConfluentMember(bootstrap, static, ["flights"], group_instance_id="one"))
    seen: set[bytes] = set()

    async def consume() -> None:
        settings = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, "auto_commit_interval_ms": 100}
        async with AIOKafkaConsumer("flights", bootstrap_servers=bootstrap, group_id=aio, **settings) as consumer:
            while True:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    seen.update(record.value for record in records)

    consuming = asyncio.create_task(consume())
    await eventually(lambda: share_all(members, SHARDS) and all(share_all([one], SHARDS) for one in others), PATIENCE_S)
    await eventually(lambda: committed.told and seen, PATIENCE_S)

    await asyncio.to_thread(meta.kill)
    await eventually(lambda: nodes[0].metrics()["stratalog_groups_proofs_total"] > 0, PATIENCE_S)
    reached = dict(committed.told)
    await eventually(lambda: all(committed.told[shard] > offset for shard, offset in reached.items()), PATIENCE_S)
    await asyncio.to_thread(meta.start)
    await eventually(lambda: "hears this node again" in nodes[1].log_text(), PATIENCE_S)

    nodes[0].kill()

    assignments = [member.joined for member in members]
    killed_at = len(writer.sent)
    everybody = [members, *([one] for one in others)]

    def all_go_on() -> bool:
        new = {send.value for send in writer.sent[killed_at : killed_at + 50]}
        return len(new) == 50 and new <= seen and all(new <= all_seen(group) for group in everybody)

    await eventually(all_go_on, PATIENCE_S)
    assert [member.joined for member in members] == assignments, (
        "the membership went with the group: nobody joined again"
    )
    members.append(StrictMember(committed, nodes[1].bootstrap, confluent, ["flights"]))
    await eventually(lambda: share_all(members, SHARDS), PATIENCE_S)
    await asyncio.to_thread(writer.end)
    await eventually(
        lambda: seen == writer.values and all(all_seen(group) == writer.values for group in everybody), PATIENCE_S
    )
    for member in [*members, *others]:
        await asyncio.to_thread(member.leave)
    consuming.cancel()
    assert committed.went_back == [], "what was told as committed was read again"
    admin = AdminClient({"bootstrap.servers": nodes[1].bootstrap})
    await eventually(lambda: set(admin.list_topics(timeout=10).brokers) == {2}, PATIENCE_S)  # it lingers for a moment
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert listed.errors == [], "who asks every node does not ask the one that is gone"
    assert {confluent, python, aio, static} <= {group.group_id for group in listed.valid}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": nodes[1].bootstrap, "group.id": confluent})
    places = [TopicPartition("flights", shard) for shard in range(SHARDS)]
    found = {place.partition: place.offset for place in await asyncio.to_thread(consumer.committed, places, PATIENCE_S)}
    consumer.close()
    assert found == dict(committed.told)
    assert await asyncio.to_thread(judged, nodes[1].bootstrap, writer) == []


@pytest.mark.fault("node-coordinates-groups-killed")
def test_the_java_client_continues_at_its_commit_after_the_coordinator_was_killed(
    nodes: list[NodeProcess], repository: Path
) -> None:
    java = JavaTools.find(repository)
    bootstrap = ",".join(node.bootstrap for node in nodes)
    make_topic(bootstrap, "flights")
    group = group_at(nodes, 1, "java")
    lines = [f"line {number}" for number in range(200)]
    producer = Producer({"bootstrap.servers": bootstrap})
    for line in lines:
        producer.produce("flights", line.encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    eventually_sync(lambda: is_committed(consumer, TopicPartition("flights", 0, 80)), PATIENCE_S)
    consumer.close()
    nodes[0].kill()
    at = ("--bootstrap-server", bootstrap, "--topic", "flights", "--group", group, "--from-beginning")
    printed = java.run("consumer.ConsoleConsumer", *at, "--max-messages", "120")
    assert [line for line in printed.splitlines() if line.startswith("line ")] == lines[80:]
