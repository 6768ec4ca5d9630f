"""Three nodes, each in a rack of its own: consumers that name theirs read sealed data there, continue at the leader
where that ends, and see each record once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiokafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer

from stratalog.model.commands.table_commands import NoteLives
from stratalog.model.ids import ShardKey
from stratalog_node.shards.copies.local_copy import CheckedRanges
from support.java_client import JavaTools
from support.several_nodes import TOPIC, SeveralNodes, several_nodes
from support.waiting import eventually


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path) as nodes:
        yield nodes


def consume(
    bootstrap: str, count: int, begin: int = OFFSET_BEGINNING, **settings: object
) -> tuple[list[int], list[int]]:
    """Offsets of `count` records and what follows until the end; and the ends that the client got."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.error.backoff.ms": 50,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, begin)])
    offsets: list[int] = []
    ends: list[int] = []
    while not ends or len(offsets) < count:
        message = consumer.poll(20)
        assert message is not None, f"nothing comes after {offsets[-3:]}"
        error = message.error()
        if error is None:
            assert (message.value() or b"") == b"%d" % (message.offset() or 0)
            offsets.append(message.offset() or 0)
        elif error.code() == KafkaError._PARTITION_EOF:
            ends.append(message.offset() or 0)
        else:
            raise AssertionError(str(error))
    consumer.close()
    return offsets, ends


async def read(nodes: SeveralNodes, count: int, **settings: object) -> tuple[list[int], list[int]]:
    return await asyncio.to_thread(consume, nodes.bootstrap, count, **settings)  # type: ignore[arg-type]


def sent_away(nodes: SeveralNodes) -> int:
    return sum(node.server.stats.sent_away for node in nodes.nodes.values())


def read_at(nodes: SeveralNodes, node_id: int, key: ShardKey) -> int:
    stats = nodes.shard_at(node_id, key).context.stats
    return stats.cached_read_bytes + stats.disk_read_bytes


@pytest.mark.fault("replica-serves-consumer-reaches")
async def test_a_consumer_reads_sealed_data_in_its_rack_and_continues_at_the_leader(three: SeveralNodes) -> None:
    key, end = await three.filled()
    near, other = three.others(key)
    before = {node_id: read_at(three, node_id, key) for node_id in three.nodes}
    assert await read(three, end, client_rack=f"rack-{near}") == (list(range(end)), [end])
    leader = three.leader(key).context.node_id
    assert (three.nodes[leader].server.stats.sent_away, three.nodes[near].server.stats.sent_back) == (1, 1)
    sealed = sum(segment.seal.size_bytes for segment in three.leader(key).segments if segment.seal is not None)
    assert read_at(three, near, key) - before[near] >= sealed, "all of it was read there"
    assert read_at(three, other, key) == before[other]


async def test_a_client_without_a_rack_reads_at_the_leader_alone(three: SeveralNodes) -> None:
    _, end = await three.filled()
    assert await read(three, end) == (list(range(end)), [end])
    assert sent_away(three) == 0


@pytest.mark.fault("node-consumer-sent-died")
async def test_no_client_is_sent_to_a_node_that_has_gone(three: SeveralNodes) -> None:
    key, end = await three.filled()
    near, _ = three.others(key)
    life = three.meta_life(near)
    await three.stop(near)
    await three.meta.service.perform(NoteLives(lost=(life,)))
    await eventually(lambda: all(not node.catalog.is_alive(near) for node in three.nodes.values()))
    assert await read(three, end, client_rack=f"rack-{near}") == (list(range(end)), [end])


@pytest.mark.fault("replica-serves-consumer-reaches")
async def test_what_a_replica_lost_it_sends_back_at_once(three: SeveralNodes) -> None:
    """It was sent to, and finds no file: the leader serves, and does not send the reader away again."""
    key, end = await three.filled()
    near, _ = three.others(key)
    for copy in three.shard_at(near, key).copies.values():
        copy.file.close_when_unused()
        copy.file.path.unlink()
    assert await read(three, end, client_rack=f"rack-{near}") == (list(range(end)), [end])
    assert sent_away(three) == 1


@pytest.mark.fault("replica-serves-consumer-reaches", "bit-flips-copy-seal")
async def test_a_damaged_copy_is_not_served(three: SeveralNodes) -> None:
    key, end = await three.filled()
    near, _ = three.others(key)
    for copy in three.shard_at(near, key).copies.values():
        damage(copy.file.path)
        copy.checked = CheckedRanges(1 << 40)
    assert await read(three, end, client_rack=f"rack-{near}") == (list(range(end)), [end])


@pytest.mark.fault("replica-serves-consumer-reaches")
async def test_aiokafka_goes_there_and_back(three: SeveralNodes) -> None:
    key, end = await three.filled()
    near, _ = three.others(key)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=three.bootstrap,
        client_rack=f"rack-{near}",
        auto_offset_reset="none",
        enable_auto_commit=False,
    )
    await consumer.start()
    consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
    consumer.seek(aiokafka.TopicPartition(TOPIC, 0), 0)
    async with asyncio.timeout(20):
        found = [(await consumer.getone()).offset for _ in range(end)]
    await consumer.stop()
    assert found == list(range(end))
    assert three.nodes[near].server.stats.sent_back == 1


@pytest.mark.fault("replica-serves-consumer-reaches")
async def test_kafka_python_goes_there_and_back(three: SeveralNodes) -> None:
    """It goes back by itself, after one answer: that a replica names no other it takes for a hint."""
    key, end = await three.filled()
    near, _ = three.others(key)

    def consume() -> list[int]:
        consumer = KafkaConsumer(
            bootstrap_servers=three.bootstrap,
            client_rack=f"rack-{near}",
            auto_offset_reset="none",
            enable_auto_commit=False,
            consumer_timeout_ms=20_000,
        )
        partition = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = [next(consumer).offset for _ in range(end)]
        consumer.close()
        return found

    assert await asyncio.to_thread(consume) == list(range(end))
    assert (sent_away(three), three.nodes[near].server.stats.sent_back) == (1, 0)


@pytest.mark.fault("replica-serves-consumer-reaches")
@pytest.mark.timeout(900)  # the first run may fetch the jars
async def test_the_java_consumer_goes_there_and_back(three: SeveralNodes, repository: Path) -> None:
    java = JavaTools.find(repository)
    key, end = await three.filled()
    near, _ = three.others(key)
    arguments = ("--bootstrap-server", three.bootstrap, "--topic", TOPIC, "--partition", "0", "--offset", "earliest")
    printed = await asyncio.to_thread(
        java.run,
        "consumer.ConsoleConsumer",
        *(*arguments, "--max-messages", str(end), "--command-property", f"client.rack=rack-{near}"),
    )
    assert [int(line) for line in printed.splitlines() if line.isdigit()] == list(range(end))
    stats = three.nodes[near].server.stats
    assert (sent_away(three), stats.sent_back) == (1, 1)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF
    path.write_bytes(bytes(data))
