"""Clients of other libraries do what their rules allow, and hear Kafka's errors for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType
from kafka import KafkaAdminClient

from support.closed_node import CLIENTS, ClosedNode
from support.waiting import eventually_sync

VALUES = [b"value %d" % number for number in range(20)]
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Tests make topics, users and rules by the internal listener, which asks for no login."""
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
USERS = ("writer", "reader", "nobody", "both")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    with ClosedNode(tmp_path_factory.mktemp("guarded"), GUARDED) as node:
        for user in USERS:
            node.set_user(user, "SCRAM-SHA-256")
        write(node, None, "orders", VALUES)
        node.allow("writer", WRITE, TOPIC, "orders")
        node.allow("reader", READ, TOPIC, "orders")
        node.allow("reader", READ, GROUP, "team")
        node.allow("writer", READ, GROUP, "writers")
        yield node


def write(node: ClosedNode, user: str | None, topic: str, values: list[bytes]) -> list[KafkaError | None]:
    """The error of each value. None: by the listener that asks for no login."""
    settings = {"bootstrap.servers": node.bootstrap} if user is None else node.librdkafka(user)
    producer = confluent_kafka.Producer(settings | {"message.timeout.ms": 20_000})
    outcomes: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(30) == 0
    return outcomes


def consumer_of(node: ClosedNode, user: str, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        node.librdkafka(user) | {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )


def first_error(consumer: confluent_kafka.Consumer) -> int:
    found: list[int] = []

    def is_refused() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            found.append(message.error().code())
        return bool(found)

    eventually_sync(is_refused)
    return found[0]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_may_write_and_read_one_topic_does_both(node: ClosedNode, client: str) -> None:
    topic = f"of-{client}"
    admin = node.new_admin()
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    node.allow("both", READ, TOPIC, topic)
    node.allow("both", WRITE, TOPIC, topic)
    node.allow("both", READ, GROUP, topic)
    settings, round_trip = CLIENTS[client]
    assert round_trip(settings(node, "both"), topic, VALUES) == VALUES


def test_one_that_may_only_read_writes_nothing(node: ClosedNode) -> None:
    before = _end(node)
    codes = {error.code() if error is not None else 0 for error in write(node, "reader", "orders", [b"x"] * 5)}
    assert codes == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    assert _end(node) == before
    consumer = consumer_of(node, "reader", "team")
    consumer.subscribe(["orders"])
    got: list[bytes] = []

    def has_all() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None
            got.append(message.value() or b"")
        return len(got) >= len(VALUES)

    eventually_sync(has_all)
    assert got[: len(VALUES)] == VALUES
    consumer.close()


def _end(node: ClosedNode) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "looks"})
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("orders", 0), 30)
    consumer.close()
    return int(end)


@pytest.mark.parametrize("user", ["reader", "nobody"])
def test_aiokafka_hears_that_it_may_not_write(node: ClosedNode, user: str) -> None:
    """Also of a topic of which it may not know."""

    async def denied() -> None:
        async with AIOKafkaProducer(**node.aiokafka(user)) as producer:
            await producer.send_and_wait("orders", b"x")

    before = _end(node)
    with pytest.raises(TopicAuthorizationFailedError):
        asyncio.run(denied())
    assert _end(node) == before


def test_aiokafka_hears_that_it_may_not_read(node: ClosedNode) -> None:
    """Of a topic of which it may not know it asks again and again (0.14), and raises nothing."""

    async def denied() -> None:
        async with AIOKafkaConsumer(**node.aiokafka("writer"), auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            async with asyncio.timeout(60):
                await consumer.getone()

    with pytest.raises(TopicAuthorizationFailedError):
        asyncio.run(denied())


def test_one_that_may_only_write_reads_nothing(node: ClosedNode) -> None:
    assert write(node, "writer", "orders", [b"more"]) == [None]
    consumer = consumer_of(node, "writer", "writers")
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    assert first_error(consumer) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    consumer = consumer_of(node, "writer", "team")
    consumer.subscribe(["orders"])
    assert first_error(consumer) == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


def test_one_without_rights_sees_no_topic_and_no_group(node: ClosedNode) -> None:
    librdkafka = AdminClient(node.librdkafka("nobody"))
    assert librdkafka.list_topics(timeout=30).topics == {}
    named = librdkafka.list_topics("orders", timeout=30).topics["orders"]
    assert named.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and not named.partitions
    assert librdkafka.list_consumer_groups().result(30).valid == []
    python = KafkaAdminClient(**node.kafka_python("nobody"))
    assert python.list_topics() == []
    python.close()
    reader = AdminClient(node.librdkafka("reader"))
    assert set(reader.list_topics(timeout=30).topics) == {"orders"}


def test_operations_are_told_to_clients_that_ask(node: ClosedNode) -> None:
    admin = AdminClient(node.librdkafka("reader"))
    (described,) = admin.describe_topics(
        confluent_kafka.TopicCollection(["orders"]), include_authorized_operations=True
    ).values()
    assert set(described.result(30).authorized_operations) == {READ, DESCRIBE}
    (group,) = admin.describe_consumer_groups(["team"], include_authorized_operations=True).values()
    assert set(group.result(30).authorized_operations) == {READ, DESCRIBE}


def test_a_right_that_is_revoked_ends_for_open_connections_and_does_not_return_with_a_restart(tmp_path: Path) -> None:
    with ClosedNode(tmp_path, GUARDED) as node:
        node.set_user("alice", "SCRAM-SHA-256")
        write(node, None, "orders", VALUES)
        node.allow("alice", READ, TOPIC, "orders")
        node.allow("alice", WRITE, TOPIC, "orders")
        node.allow("alice", READ, GROUP, "team")
        consumer = consumer_of(node, "alice", "team")
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        eventually_sync(lambda: (message := consumer.poll(0.2)) is not None and message.error() is None)
        node.revoke("alice", TOPIC)
        assert first_error(consumer) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        (error,) = write(node, "alice", "orders", [b"late"])
        assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        node.kill()
        node.start()
        (error,) = write(node, "alice", "orders", [b"later"])
        assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer.close()
