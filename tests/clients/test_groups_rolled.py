"""librdkafka's consumers, moved one by one from the classic protocol to the consumer protocol and back, at work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.java_client import JavaTools, RunningTool
from support.node_process import NodeProcess

QUICK = {
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": 30_000,
    "group.initial.rebalance.delay.ms": 0,
}
SHARDS = 6
_PATIENCE_S = 120.0


class Group:
    """Its consumers, polled by one thread, so that what their callbacks say of owners is in order."""

    def __init__(self, node: NodeProcess, name: str, strategy: str) -> None:
        self.node, self.name, self.strategy = node, name, strategy
        self.owners: dict[int, Consumer] = {}
        self.owned_twice: list[int] = []
        self.read: set[bytes] = set()
        self.consumers: list[Consumer] = []

    def starts(self, protocol: str) -> Consumer:
        classic = {
            "partition.assignment.strategy": self.strategy,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
        }
        consumer = Consumer(
            {
                "bootstrap.servers": self.node.bootstrap,
                "group.id": self.name,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                **(classic if protocol == "classic" else {}),
            }
        )
        consumer.subscribe([self.name], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self.consumers.append(consumer)
        return consumer

    def _assigned(self, consumer: Any, places: list[Any]) -> None:
        for place in places:
            if self.owners.get(place.partition, consumer) is not consumer:
                self.owned_twice.append(place.partition)
            self.owners[place.partition] = consumer

    def _revoked(self, consumer: Any, places: list[Any]) -> None:
        for place in places:
            if self.owners.get(place.partition) is consumer:
                del self.owners[place.partition]

    def stops(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.owners, len(self.read))
            for consumer in self.consumers:
                self._poll(consumer)

    def _poll(self, consumer: Consumer) -> None:
        message = consumer.poll(0.02)
        if message is None or message.error() is not None:
            return
        self.read.add(message.value())
        # It does not wait for the answer, which comes after that to a join, and this thread must poll the other members
        # for that.
        # Refused while a rebalance is under way: what was not committed is read again.
        with contextlib.suppress(KafkaException):
            consumer.commit(message, asynchronous=True)

    def until_also(self, tool: RunningTool, condition: Callable[[], bool]) -> None:
        """A tool that ended will never bring it about."""

        def is_so() -> bool:
            assert tool.is_running, "\n".join(tool.lines[-20:])
            return condition()

        self.until(is_so)

    def all_have_work(self) -> bool:
        return len(self.owners) == SHARDS and set(self.owners.values()) == set(self.consumers)


class Writer(threading.Thread):
    """Writes numbers until it is stopped."""

    def __init__(self, node: NodeProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
        self._topic = topic
        self._stopping = threading.Event()
        self.written: set[bytes] = set()

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(0.02):
            number += 1
            self._producer.produce(self._topic, str(number).encode(), partition=number % SHARDS, callback=self._told)
            self._producer.poll(0)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.written.add(message.value())

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self._producer.flush(30) == 0


def kind(node: NodeProcess, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (found,) = [one for one in admin.list_consumer_groups().result(30).valid if one.group_id == group]
    return found.type.name


@pytest.mark.fault("consumers-move-protocol-group")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", [pytest.param("range", marks=pytest.mark.slow), "cooperative-sticky"])
def test_consumers_are_rolled_to_the_consumer_protocol_and_back_under_a_producer(
    start_node: Callable[..., NodeProcess], topic: str, strategy: str
) -> None:
    node = start_node(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, SHARDS)]).values()
    made.result(30)
    group, writer = Group(node, topic, strategy), Writer(node, topic)
    writer.start()
    try:
        for _ in range(3):
            group.starts("classic")
        group.until(group.all_have_work)
        assert kind(node, topic) == "CLASSIC"
        for protocol in ("consumer", "classic"):
            for place, consumer in enumerate(list(group.consumers)):
                group.stops(consumer)
                group.starts(protocol)
                group.until(group.all_have_work)
                is_over = protocol == "classic" and place == 2
                assert kind(node, topic) == ("CLASSIC" if is_over else "CONSUMER")
            if protocol == "consumer":
                node.kill_and_restart()
        writer.stop()
        group.until(lambda: group.read >= writer.written)
        assert not group.owned_twice
    finally:
        writer.stop()
        for consumer in list(group.consumers):
            group.stops(consumer)


@pytest.mark.timeout(900)  # the first run may fetch the jars
@pytest.mark.parametrize(("own", "of_java"), [("classic", "consumer"), ("consumer", "classic")])
def test_the_java_client_joins_a_group_of_the_other_protocol_and_takes_over(
    start_node: Callable[..., NodeProcess], topic: str, repository: Path, own: str, of_java: str
) -> None:
    java = JavaTools.find(repository)
    node = start_node(settings=QUICK)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, SHARDS)]).values()
    made.result(30)
    group, writer = Group(node, topic, "range"), Writer(node, topic)
    words = [f"group.protocol={of_java}", "auto.offset.reset=earliest", "metadata.max.age.ms=1000"]
    writer.start()
    tool = None
    try:
        first = group.starts(own)
        group.until(group.all_have_work)
        speaking = [word for one in words for word in ("--command-property", one)]
        tool = java.start(
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", node.bootstrap, "--group", topic, "--topic", topic),
            *speaking,
        )
        group.until_also(tool, lambda: len(group.owners) == SHARDS // 2 and len(values(tool)) > 10)
        assert kind(node, topic) == "CONSUMER", "the group of both kinds is one of the consumer protocol"
        group.stops(first)
        before = set(writer.written)
        group.until_also(tool, lambda: len({int(value) % SHARDS for value in values(tool) - before}) == SHARDS)
        writer.stop()
        group.until_also(tool, lambda: group.read | values(tool) >= writer.written)
        assert not group.owned_twice
        assert kind(node, topic) == ("CLASSIC" if of_java == "classic" else "CONSUMER")
    finally:
        writer.stop()
        for consumer in list(group.consumers):
            group.stops(consumer)
        if tool is not None:
            tool.stop()


def values(tool: RunningTool) -> set[bytes]:
    return {line.encode() for line in tool.lines if line.isdigit()}
