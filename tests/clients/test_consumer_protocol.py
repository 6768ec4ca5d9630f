"""Groups of the consumer protocol (KIP-848) with librdkafka, which speaks it as applications do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess

QUICK = {"group.consumer.heartbeat.interval.ms": 200, "group.consumer.session.timeout.ms": 3_000}
_PATIENCE_S = 60.0


@pytest.fixture
def quick(start_node: Callable[..., NodeProcess]) -> NodeProcess:
    return start_node(settings=QUICK)


def make_topic(node: NodeProcess, name: str, shards: int, records: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    assert result(admin.create_topics([NewTopic(name, shards)])) is None
    write(node, name, records)


def write(node: NodeProcess, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
    for number in range(records):
        producer.produce(topic, str(number).encode(), key=str(number).encode())
    assert producer.flush(30) == 0


class Member:
    """A consumer that is polled, and what it was given and took away."""

    def __init__(self, node: NodeProcess, group: str, topics: list[str], **options: Any) -> None:
        self.read: list[str] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **options,
            }
        )
        self.consumer.subscribe(topics)

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            self.read.append(f"{message.topic()}/{message.partition()}/{message.offset()}")

    @property
    def has(self) -> set[tuple[str, int]]:
        return {(place.topic, place.partition) for place in self.consumer.assignment()}

    @property
    def read_of_its_own(self) -> set[str]:
        """Of the shards that it has now."""
        has = {f"{topic}/{shard}" for topic, shard in self.has}
        return {one for one in self.read if one.rpartition("/")[0] in has}


def until(condition: Callable[[], bool], *members: Member) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [member.has for member in members]
        for member in members:
            member.poll()


def result(found: dict[str, Future[Any]]) -> Any:
    (future,) = found.values()
    return future.result(30)


def test_members_share_a_topic_read_all_of_it_once_and_continue_where_they_were(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, topic, 6, 300)
    first, second = Member(quick, topic, [topic]), Member(quick, topic, [topic])
    try:
        until(lambda: len(first.has) == len(second.has) == 3, first, second)
        assert not first.has & second.has
        until(lambda: len(set(first.read + second.read)) == 300, first, second)
        for member in (first, second):
            member.consumer.commit(asynchronous=False)
        second.consumer.close()
        until(lambda: len(first.has) == 6, first)
        write(quick, topic, 60)
        begun = len(first.read)
        until(lambda: len(first.read) - begun >= 60, first)
        assert len(first.read) - begun == 60, "what was committed is not read again"
    finally:
        first.consumer.close()


DYING = """
import sys
from confluent_kafka import Consumer
address, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": address, "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic])
while True:
    consumer.poll(0.1)
"""


def test_a_member_that_is_killed_gives_its_shards_to_the_others(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, topic, 4)
    first = Member(quick, topic, [topic])
    try:
        until(lambda: len(first.has) == 4, first)  # before the other comes, who might be the first to join
        dying = subprocess.Popen([sys.executable, "-c", DYING, quick.bootstrap, topic, topic])
        try:
            until(lambda: len(first.has) == 2, first)
        finally:
            dying.kill()
            dying.wait()
        until(lambda: len(first.has) == 4, first)
    finally:
        first.consumer.close()


def test_members_continue_over_a_kill_of_their_coordinator_without_a_rebalance(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, topic, 4, 100)
    taken: list[object] = []
    first, second = Member(quick, topic, [topic]), Member(quick, topic, [topic])
    try:
        until(lambda: len(first.has) == len(second.has) == 2, first, second)
        until(lambda: len(first.read_of_its_own | second.read_of_its_own) == 100, first, second)
        for member in (first, second):
            member.consumer.commit(asynchronous=False)
            member.consumer.subscribe([topic], on_revoke=lambda _, places: taken.extend(places))
            member.read.clear()  # of a shard that changed hands before, some was read twice
        before = described(quick, topic)
        quick.kill_and_restart()
        write(quick, topic, 40)
        until(lambda: len(first.read + second.read) >= 40, first, second)
        for member in (first, second):
            member.consumer.commit(asynchronous=False)
        assert len(first.read + second.read) == len({*first.read, *second.read}) == 40, "nothing is read twice"
        assert not taken
        assert described(quick, topic) == before
    finally:
        first.consumer.close()
        second.consumer.close()


def described(node: NodeProcess, group: str) -> dict[str, set[tuple[str, int]]]:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    found = result(admin.describe_consumer_groups([group]))
    return {
        member.member_id: {(place.topic, place.partition) for place in member.assignment.topic_partitions}
        for member in found.members
    }


@pytest.mark.fault("static-member-consumer-protocol")
def test_a_static_member_is_back_in_its_place_and_its_double_is_refused(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, topic, 4)
    first = Member(quick, topic, [topic], **{"group.instance.id": "one"})
    second = Member(quick, topic, [topic], **{"group.instance.id": "two"})
    try:
        until(lambda: len(first.has) == len(second.has) == 2, first, second)
        had = second.has
        double = Member(quick, topic, [topic], **{"group.instance.id": "two"})
        with pytest.raises(KafkaException, match="still used by another member"):
            until(lambda: bool(double.has), double)
        double.consumer.close()
        second.consumer.close()
        assert len(first.has) == 2, "its shards wait for it"
        second = Member(quick, topic, [topic], **{"group.instance.id": "two"})
        until(lambda: len(second.has) == 2, first, second)
        assert second.has == had
    finally:
        first.consumer.close()
        second.consumer.close()


def test_a_regular_expression_finds_topics_that_come_later(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, f"{topic}-a", 1)
    member = Member(quick, topic, [f"^{topic}-.*"])
    try:
        until(lambda: member.has == {(f"{topic}-a", 0)}, member)
        make_topic(quick, f"{topic}-b", 2)
        until(lambda: len(member.has) == 3, member)
    finally:
        member.consumer.close()
    with pytest.raises(KafkaException) as refused:
        member = Member(quick, topic, ["^("])
        until(lambda: bool(member.has), member)
    assert refused.value.args[0].code() in (KafkaError.INVALID_REGULAR_EXPRESSION, KafkaError._INVALID_ARG)


def test_tools_list_and_describe_it_with_its_kind(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, topic, 2)
    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    member = Member(quick, topic, [topic], **{"group.remote.assignor": "range", "client.id": "reader"})
    try:
        until(lambda: len(member.has) == 2, member)
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(30).valid
        assert [(group.group_id, group.type) for group in listed] == [(topic, ConsumerGroupType.CONSUMER)]
        assert admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(30).valid == []
        found = result(admin.describe_consumer_groups([topic]))
        assert (found.type, found.state.name, found.partition_assignor) == (
            ConsumerGroupType.CONSUMER,
            "STABLE",
            "range",
        )
        (shown,) = found.members
        assert shown.client_id == "reader" and len(shown.assignment.topic_partitions) == 2
    finally:
        member.consumer.close()
    assert result(admin.delete_consumer_groups([topic])) is None


@pytest.mark.fault("group-changes-protocol-member")
def test_a_group_turns_to_the_other_protocol_while_it_has_no_members(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    quick = start_node(settings=QUICK | {"group.consumer.migration.policy": "disabled"})
    make_topic(quick, topic, 1, 10)
    classic = Member(quick, topic, [topic], **{"group.protocol": "classic"})
    until(lambda: len(classic.read) == 10, classic)
    classic.consumer.commit(asynchronous=False)
    early = Member(quick, topic, [topic])
    with pytest.raises(KafkaException, match="Inconsistent group protocol"):
        until(lambda: bool(early.has), early, classic)
    early.consumer.close()
    classic.consumer.close()
    for protocol in ("consumer", "classic", "consumer"):
        write(quick, topic, 5)
        member = Member(quick, topic, [topic], **{"group.protocol": protocol})
        until(lambda member=member: len(member.read) >= 5, member)  # type: ignore[misc]
        assert len(member.read) == 5, "it goes on where the other protocol committed"
        member.consumer.commit(asynchronous=False)
        member.consumer.close()


def test_a_commit_of_a_client_that_is_not_a_member_is_refused(quick: NodeProcess, topic: str) -> None:
    make_topic(quick, topic, 1, 1)
    member = Member(quick, topic, [topic])
    stranger = Consumer({"bootstrap.servers": quick.bootstrap, "group.id": topic})
    try:
        until(lambda: len(member.read) == 1, member)
        with pytest.raises(KafkaException) as refused:
            stranger.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    finally:
        member.consumer.close()
        stranger.close()
