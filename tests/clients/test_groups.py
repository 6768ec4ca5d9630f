"""Consumer groups of real clients: they share shards, rebalance, come back, and forget no committed offset."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from support.group_members import ConfluentMember, KafkaPythonMember, all_seen, share_all
from support.node_process import NodeProcess
from support.topics import create_topic, produce
from support.waiting import eventually, eventually_sync

SHARDS = 6
PATIENCE_S = 60


def fill(node: NodeProcess, topic: str, first: int, count: int) -> set[bytes]:
    """`count` numbered values, spread over the shards."""
    values = [b"%d" % number for number in range(first, first + count)]
    for shard in range(SHARDS):
        produce(node.bootstrap, topic, values[shard::SHARDS], partition=shard)
    return set(values)


def state_of(node: NodeProcess, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    return admin.describe_consumer_groups([group])[group].result(PATIENCE_S)


@pytest.mark.parametrize("make", [ConfluentMember, KafkaPythonMember])
def test_members_join_and_leave_and_together_read_everything(make: Any, node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, SHARDS)
    written = fill(node, topic, 0, 600)
    first = make(node.bootstrap, f"{topic}-g", [topic])
    eventually_sync(lambda: share_all([first], SHARDS), PATIENCE_S)
    second = make(node.bootstrap, f"{topic}-g", [topic])
    third = make(node.bootstrap, f"{topic}-g", [topic])
    eventually_sync(lambda: share_all([first, second, third], SHARDS), PATIENCE_S)
    written |= fill(node, topic, 600, 600)
    members = [first, second, third]
    eventually_sync(lambda: all_seen(members) == written, PATIENCE_S)

    first.leave()
    eventually_sync(lambda: share_all([second, third], SHARDS), PATIENCE_S)
    third.leave()
    eventually_sync(lambda: share_all([second], SHARDS), PATIENCE_S)
    written |= fill(node, topic, 1200, 300)
    eventually_sync(lambda: all_seen(members) == written, PATIENCE_S)
    second.leave()
    assert all(member.failure is None for member in members)


async def test_aiokafka_members_join_and_leave(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, SHARDS)
    written = fill(node, topic, 0, 300)

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=node.bootstrap,
            group_id=f"{topic}-g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            auto_commit_interval_ms=100,
            fetch_max_wait_ms=50,
        )

    seen: set[bytes] = set()

    async def poll(*consumers: AIOKafkaConsumer) -> None:
        for consumer in consumers:
            for records in (await consumer.getmany(timeout_ms=20)).values():
                seen.update(record.value for record in records)

    async with member() as first:
        async with member() as second:

            async def both_share() -> bool:
                await poll(first, second)
                parts = [len(first.assignment()), len(second.assignment())]
                return parts == [3, 3] and seen == written

            await eventually(both_share, PATIENCE_S)
        written |= await asyncio.to_thread(fill, node, topic, 300, 300)

        async def first_has_all() -> bool:
            await poll(first)
            return len(first.assignment()) == SHARDS and seen == written

        await eventually(first_has_all, PATIENCE_S)


def test_members_of_different_clients_share_one_group(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, SHARDS)
    one = ConfluentMember(node.bootstrap, f"{topic}-g", [topic], partition_assignment_strategy="range")
    other = KafkaPythonMember(node.bootstrap, f"{topic}-g", [topic])
    eventually_sync(lambda: share_all([one, other], SHARDS), PATIENCE_S)
    written = fill(node, topic, 0, 300)
    eventually_sync(lambda: all_seen([one, other]) == written, PATIENCE_S)
    one.leave()
    eventually_sync(lambda: share_all([other], SHARDS), PATIENCE_S)
    other.leave()


def test_a_cooperative_rebalance_takes_only_what_moves(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, SHARDS)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    first = ConfluentMember(node.bootstrap, f"{topic}-g", [topic], **settings)
    eventually_sync(lambda: share_all([first], SHARDS), PATIENCE_S)
    second = ConfluentMember(node.bootstrap, f"{topic}-g", [topic], **settings)
    eventually_sync(lambda: share_all([first, second], SHARDS), PATIENCE_S)
    assert [len(lost) for lost in first.lost if lost] == [SHARDS // 2], "three shards moved, three were never let go"

    written = fill(node, topic, 0, 300)
    eventually_sync(lambda: all_seen([first, second]) == written, PATIENCE_S)
    second.leave()
    eventually_sync(lambda: share_all([first], SHARDS), PATIENCE_S)
    assert sum(map(len, first.lost)) == SHARDS // 2
    first.leave()


def test_a_static_member_comes_back_to_its_shards_without_a_rebalance(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, SHARDS)
    group = f"{topic}-g"
    first = ConfluentMember(node.bootstrap, group, [topic], group_instance_id="a")
    second = ConfluentMember(node.bootstrap, group, [topic], group_instance_id="b")
    eventually_sync(lambda: share_all([first, second], SHARDS), PATIENCE_S)
    owned, assignments = set(second.owned), first.joined
    second.leave()  # a static member that closes does not leave the group

    returned = ConfluentMember(node.bootstrap, group, [topic], group_instance_id="b")
    eventually_sync(lambda: returned.owned == owned, PATIENCE_S)
    written = fill(node, topic, 0, 300)
    eventually_sync(lambda: all_seen([first, second, returned]) == written, PATIENCE_S)
    assert first.joined == assignments, "the other member never noticed"
    assert {member.group_instance_id for member in state_of(node, group).members} == {"a", "b"}
    first.leave()
    returned.leave()


def test_a_member_that_falls_silent_loses_its_shards(node: NodeProcess, topic: str) -> None:
    create_topic(node.bootstrap, topic, SHARDS)
    settings = {"session_timeout_ms": 1000, "max_poll_interval_ms": 1000}
    silent = ConfluentMember(node.bootstrap, f"{topic}-g", [topic], **settings)
    other = ConfluentMember(node.bootstrap, f"{topic}-g", [topic], **settings)
    eventually_sync(lambda: share_all([silent, other], SHARDS), PATIENCE_S)
    silent.vanish()
    eventually_sync(lambda: other.owned == set(range(SHARDS)), PATIENCE_S)
    written = fill(node, topic, 0, 60)
    eventually_sync(lambda: all_seen([other]) == written, PATIENCE_S)
    other.leave()


def test_committed_offsets_survive_kill_9(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic, SHARDS)
    fill(node, topic, 0, 600)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
    offsets = [TopicPartition(topic, shard, 10 * shard + 1, f"note {shard}") for shard in range(SHARDS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.commit(offsets=[TopicPartition(topic, 5, 77)], asynchronous=False)

    node.kill_and_restart()

    asked = [TopicPartition(topic, shard) for shard in range(SHARDS)]
    found = {partition.partition: partition for partition in consumer.committed(asked, 20)}
    consumer.close()
    assert [found[shard].offset for shard in range(SHARDS)] == [1, 11, 21, 31, 41, 77]
    assert found[2].metadata == "note 2"


def test_a_working_group_survives_kill_9(start_node: Callable[..., NodeProcess], topic: str) -> None:
    node = start_node()
    create_topic(node.bootstrap, topic, SHARDS)
    members: list[Any] = [
        ConfluentMember(node.bootstrap, "g", [topic], partition_assignment_strategy="range"),
        KafkaPythonMember(node.bootstrap, "g", [topic], reconnect_backoff_max_ms=200),
    ]
    eventually_sync(lambda: share_all(members, SHARDS), PATIENCE_S)
    written = fill(node, topic, 0, 300)
    eventually_sync(lambda: all_seen(members) == written, PATIENCE_S)

    node.kill_and_restart()
    written |= fill(node, topic, 300, 300)
    eventually_sync(lambda: all_seen(members) == written, PATIENCE_S)
    members[0].leave()
    written |= fill(node, topic, 600, 60)
    eventually_sync(lambda: all_seen(members) == written, PATIENCE_S)
    members[1].leave()


def test_kcat_consumes_as_a_group_and_continues_where_it_stopped(node: NodeProcess, topic: str) -> None:
    if not shutil.which("kcat"):
        pytest.skip("kcat is not installed (apt-get install kcat)")
    create_topic(node.bootstrap, topic, SHARDS)
    command = ["kcat", "-b", node.bootstrap, "-G", f"{topic}-g", "-e", "-q", "-X", "auto.offset.reset=earliest", topic]
    for first in (0, 300):
        written = fill(node, topic, first, 300)
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert set(done.stdout.split()) == written
