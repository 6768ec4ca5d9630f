"""Any request to any node of three is performed, or the client gets the address of the right node. Real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import NoteLives
from stratalog_node.node import StorageNode
from support import kafka_oracle
from support.raw_client import RawClient
from support.several_nodes import TOPIC, SeveralNodes, several_nodes
from support.shard_rig import START_MS
from support.waiting import eventually

T = TypeVar("T")
SHARDS = 6
WAIT_S = 20.0


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path) as nodes:
        yield nodes


def bootstrap_of(node: StorageNode) -> str:
    return f"{node.address[0]}:{node.address[1]}"


def admin_at(node: StorageNode) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_of(node)})


async def beside(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(WAIT_S) for future in futures.values()]


@pytest.mark.fault("client-asks-node-lead-knows")
async def test_topics_are_made_changed_and_deleted_by_any_node(three: SeveralNodes) -> None:
    one, two, three_ = (admin_at(node) for node in three.nodes.values())
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)

    def work() -> None:
        done(one.create_topics([NewTopic(TOPIC, SHARDS, 3)]))
        done(two.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[change])]))
        done(three_.create_partitions([NewPartitions(TOPIC, SHARDS + 3)]))
        (found,) = done(three_.describe_configs([resource]))
        assert found["retention.ms"].value == "1000"

    await beside(work)
    for node in three.nodes.values():
        await eventually(lambda node=node: (t := node.catalog.topic(TOPIC)) is not None and t.shard_count == SHARDS + 3)
        assert node.catalog.topic(TOPIC).settings["retention.ms"] == "1000"  # type: ignore[union-attr]
    await beside(lambda: done(two.delete_topics([TOPIC])))
    for node in three.nodes.values():
        await eventually(lambda node=node: node.catalog.topic(TOPIC) is None)


@pytest.mark.fault("client-asks-node-lead-knows")
async def test_metadata_are_the_same_at_each_node_and_name_the_dead_node(
    three: SeveralNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.serve.connections.control_state.LINGER_S", 0.0)
    key = await three.topic(shards=SHARDS)

    def told(node: StorageNode) -> tuple[Any, ...]:
        found = admin_at(node).list_topics(timeout=WAIT_S)
        # Of itself, and the client may have asked another that it had heard of meanwhile.
        assert found.controller_id in three.nodes, "any node is as good as another"
        partitions = found.topics[TOPIC].partitions.values()
        places = {one.id: (one.leader, sorted(one.replicas), sorted(one.isrs)) for one in partitions}
        return {broker.id: broker.port for broker in found.brokers.values()}, places

    (first, *others) = [await beside(lambda node=node: told(node)) for node in three.nodes.values()]
    assert all(other == first for other in others)
    assert first[0] == {node_id: node.address[1] for node_id, node in three.nodes.items()}
    assert {leader for leader, _, _ in first[1].values()} == {1, 2, 3}
    assert all((replicas, isr) == ([1, 2, 3], [1, 2, 3]) for _, replicas, isr in first[1].values())

    def racks() -> dict[int, str | None]:
        admin = admin_at(three.nodes[1])
        described = admin.describe_cluster().result(WAIT_S)
        return {node.id: node.rack for node in described.nodes}

    assert await beside(racks) == {1: "rack-1", 2: "rack-2", 3: "rack-3"}
    (gone, *_) = three.others(key)
    life = three.meta_life(gone)
    await three.stop(gone)
    await three.meta.service.perform(NoteLives(lost=(life,)))
    asked = next(iter(three.nodes.values()))
    await eventually(lambda: not asked.catalog.is_alive(gone))
    found = await beside(lambda: told(asked))
    assert gone not in found[0]
    assert all(leader != gone for leader, _, _ in found[1].values())


@pytest.mark.fault("client-asks-node-lead-knows")
async def test_a_client_that_knows_one_node_writes_reads_and_trims_what_all_lead(three: SeveralNodes) -> None:
    await three.topic(shards=SHARDS)
    node = three.nodes[2]

    def work() -> None:
        producer = Producer({"bootstrap.servers": bootstrap_of(node), "acks": "all"})
        for shard in range(SHARDS):
            for number in range(5):
                producer.produce(TOPIC, b"%d" % number, partition=shard, timestamp=START_MS + number)
        assert producer.flush(WAIT_S) == 0
        admin = admin_at(node)
        shards = [TopicPartition(TOPIC, shard) for shard in range(SHARDS)]
        for spec, offset in (
            (OffsetSpec.latest(), 5),
            (OffsetSpec.earliest(), 0),
            (OffsetSpec.for_timestamp(START_MS + 3), 3),
        ):
            listed = done(
                admin.list_offsets(dict.fromkeys(shards, spec), isolation_level=IsolationLevel.READ_COMMITTED)
            )
            assert [found.offset for found in listed] == [offset] * SHARDS
        trimmed = done(admin.delete_records([TopicPartition(TOPIC, shard, 2) for shard in range(SHARDS)]))
        assert [found.low_watermark for found in trimmed] == [2] * SHARDS
        consumer = Consumer({"bootstrap.servers": bootstrap_of(node), "group.id": "x", "auto.offset.reset": "error"})
        consumer.assign([TopicPartition(TOPIC, shard, 2) for shard in range(SHARDS)])
        found = []
        while len(found) < 3 * SHARDS:
            message = consumer.poll(WAIT_S)
            assert message is not None and message.error() is None
            found.append((message.partition(), message.offset()))
        assert sorted(found) == [(shard, offset) for shard in range(SHARDS) for offset in (2, 3, 4)]
        consumer.close()

    await beside(work)


@pytest.mark.fault("client-asks-node-lead-knows")
async def test_what_only_a_leader_knows_another_node_does_not_answer(three: SeveralNodes) -> None:
    """Each version of each: 6, so that the client looks for the leader."""
    key = await three.topic()
    other = three.nodes[three.others(key)[0]]

    def work() -> None:
        client = RawClient(bootstrap_of(other))
        codes = []
        for version in range(1, 10):
            topic = kafka_oracle.request_class(2).ListOffsetsTopic
            for timestamp in (-1, -2, 0):
                asked = topic.ListOffsetsPartition(
                    version=version, partition_index=0, current_leader_epoch=-1, timestamp=timestamp
                )
                topics = [topic(version=version, name=TOPIC, partitions=[asked])]
                answer = client.call(2, version, replica_id=-1, isolation_level=0, topics=topics, timeout_ms=0)
                codes.append(answer.topics[0].partitions[0].error_code)
        for version in range(3):
            of = kafka_oracle.request_class(21).DeleteRecordsTopic
            trimmed = of(
                version=version,
                name=TOPIC,
                partitions=[of.DeleteRecordsPartition(version=version, partition_index=0, offset=0)],
            )
            answer = client.call(21, version, topics=[trimmed], timeout_ms=1000)
            codes.append(answer.topics[0].partitions[0].error_code)
        for version in (2, 3, 4):
            ends = kafka_oracle.request_class(23).OffsetForLeaderTopic
            one = ends.OffsetForLeaderPartition(version=version, partition=0, current_leader_epoch=-1, leader_epoch=0)
            answer = client.call(
                23, version, replica_id=-1, topics=[ends(version=version, topic=TOPIC, partitions=[one])]
            )
            codes.append(answer.topics[0].partitions[0].error_code)
        client.socket.close()
        assert set(codes) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    await beside(work)
