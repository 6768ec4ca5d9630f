"""A user mounts a range of a topic: clients read it under another name, from whichever node leads, and write
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stratalog.model.commands.mount_commands import BeginMount, CreateMount, EndMount, MountCut, MoveMount
from stratalog.model.commands.table_commands import AdvanceLogStart, NoteLives
from stratalog.model.cut import CutShard
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog_node.shards.log.shard_log import ShardLog
from support.several_nodes import TOPIC, SeveralNodes, several_nodes
from support.shard_rig import START_MS
from support.waiting import eventually

NAME = f"{TOPIC}@2013-01"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SeveralNodes]:
    async with several_nodes(tmp_path) as started:
        yield started


async def mounted(nodes: SeveralNodes, from_ms: int, until_ms: int) -> tuple[ShardKey, int, int]:
    """The shard that is read, and the range of it."""
    key, _ = await nodes.filled(segments=3)
    command = CreateMount("2013-01", (TOPIC,), from_ms, until_ms)
    mount = await nodes.meta.service.perform(command)
    base, end = mount.topics[0].ranges[0]
    await eventually(lambda: all(node.catalog.topic(NAME) is not None for node in nodes.nodes.values()))
    return key, base, end


def second_segment(nodes: SeveralNodes, key: ShardKey) -> tuple[int, int]:
    """Times of its first and its last record."""
    seal = nodes.leader(key).segments[1].seal
    assert seal is not None
    return seal.first_timestamp_ms, seal.max_timestamp_ms


def consumer_of(nodes: SeveralNodes, **options: Any) -> Consumer:
    return Consumer(
        {"bootstrap.servers": nodes.bootstrap, "group.id": "readers", "enable.auto.commit": False} | options
    )


def read_all(consumer: Consumer, count: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    for _ in range(100):
        for message in consumer.consume(100, timeout=0.2):
            assert message.error() is None, message.error()
            found.append((message.offset() or 0, message.value()))
        if len(found) >= count:
            break
    return found


async def test_clients_read_the_range_under_its_name_and_nothing_else(nodes: SeveralNodes) -> None:
    key, _ = await nodes.filled(segments=3)
    first_ms, last_ms = second_segment(nodes, key)
    mount = await nodes.meta.service.perform(CreateMount("2013-01", (TOPIC,), first_ms, last_ms + 1))
    base, end = mount.topics[0].ranges[0]
    segment = nodes.leader(key).segments[1]
    assert (base, end) == (segment.base_offset, segment.end_offset) and base > 0
    await eventually(lambda: all(node.catalog.topic(NAME) is not None for node in nodes.nodes.values()))

    def look() -> None:
        whole, part = consumer_of(nodes), consumer_of(nodes, **{"auto.offset.reset": "earliest"})
        whole.assign([TopicPartition(TOPIC, 0, base)])
        part.subscribe([NAME])
        try:
            assert part.get_watermark_offsets(TopicPartition(NAME, 0), timeout=20) == (base, end)
            read = read_all(part, end - base)
            assert read == read_all(whole, end - base)[: end - base]
            assert [offset for offset, _ in read] == list(range(base, end))
            at = part.offsets_for_times([TopicPartition(NAME, 0, first_ms + 1)], timeout=20)[0].offset
            assert at == base + 1
            part.commit(offsets=[TopicPartition(NAME, 0, base + 3)], asynchronous=False)
            assert part.committed([TopicPartition(NAME, 0)], timeout=20)[0].offset == base + 3
            assert NAME in part.list_topics(timeout=20).topics
        finally:
            whole.close()
            part.close()

    await asyncio.to_thread(look)


@pytest.mark.fault("client-writes-topic-mounted")
async def test_what_would_write_is_refused_with_a_code_and_words(nodes: SeveralNodes) -> None:
    _, base, _ = await mounted(nodes, 0, START_MS * 2)

    def write() -> list[KafkaError]:
        told: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": nodes.bootstrap, "message.timeout.ms": 20_000, "retries": 0})
        producer.produce(NAME, b"x", partition=0, on_delivery=lambda error, _: told.append(error))
        producer.flush(30)
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        for future in admin.delete_records([TopicPartition(NAME, 0, base + 1)]).values():
            with pytest.raises(KafkaException) as refused:
                future.result(30)
            told.append(refused.value.args[0])
        return told

    produced, trimmed = await asyncio.to_thread(write)
    assert produced.code() == KafkaError.POLICY_VIOLATION
    assert trimmed.code() == KafkaError.POLICY_VIOLATION


@pytest.mark.parametrize("is_local", [True, False])
async def test_what_a_snapshot_has_ends_where_it_does_inside_a_segment(nodes: SeveralNodes, is_local: bool) -> None:
    """Eight records to a segment, two to a batch."""
    key, _ = await nodes.filled(segments=3)
    await nodes.meta.service.perform(MountCut("2013-01", (CutShard(key, 3, 20, 2),)))
    await eventually(lambda: all(node.catalog.topic(NAME) is not None for node in nodes.nodes.values()))
    log = nodes.leader(key)
    await eventually(lambda: set(log.copies) == {0, 1, 2})
    if not is_local:
        for segment in log.segments[:3]:
            log.take_out(segment.key)  # the other nodes have it

    def look() -> None:
        whole, part = consumer_of(nodes), consumer_of(nodes, **{"auto.offset.reset": "earliest"})
        whole.assign([TopicPartition(TOPIC, 0, 3)])
        part.assign([TopicPartition(NAME, 0, 3)])
        try:
            assert part.get_watermark_offsets(TopicPartition(NAME, 0), timeout=20) == (3, 20)
            read = read_all(part, 17)
            assert read == read_all(whole, 20)[:17]
            assert [offset for offset, _ in read] == list(range(3, 20))
            assert part.position([TopicPartition(NAME, 0)])[0].offset == 20
            ends = [START_MS + 19, START_MS + 20]
            found = [part.offsets_for_times([TopicPartition(NAME, 0, at)], timeout=20)[0].offset for at in ends]
            assert found == [19, OFFSET_END]
        finally:
            whole.close()
            part.close()

    await asyncio.to_thread(look)
    view = next(one for node in nodes.nodes.values() if _leads(one := node.shards.read_by_name(NAME, 0)))
    assert view is not None
    newest = await view.offset_of_max_timestamp()
    assert newest is not None and newest.offset == (19 if is_local else 15)
    assert b"".join(map(bytes, await view.read(18, 1))) == b"".join(map(bytes, await view.read(18, 1 << 20)))


@pytest.mark.fault("mount-ends-clients-read")
async def test_an_ended_mount_is_gone_for_clients_and_so_are_the_offsets_of_groups(nodes: SeveralNodes) -> None:
    key, base, _ = await mounted(nodes, 0, START_MS * 2)

    def commit() -> None:
        consumer = consumer_of(nodes)
        consumer.commit(offsets=[TopicPartition(NAME, 0, base + 1)], asynchronous=False)
        consumer.close()

    await asyncio.to_thread(commit)
    await nodes.meta.service.perform(EndMount("2013-01"))
    await eventually(lambda: all(node.catalog.topic(NAME) is None for node in nodes.nodes.values()))
    assert all(node.shards.read_by_name(NAME, 0) is None for node in nodes.nodes.values())
    assert nodes.leader(key).high_watermark > 0, "the topic itself goes on"
    again = await nodes.meta.service.perform(CreateMount("2013-01", (TOPIC,), 0, START_MS * 2))
    await eventually(lambda: all(node.catalog.topic(NAME) is not None for node in nodes.nodes.values()))

    def committed() -> int:
        consumer = consumer_of(nodes)
        found = consumer.committed([TopicPartition(NAME, 0)], timeout=20)[0].offset
        consumer.close()
        return int(found)

    assert await asyncio.to_thread(committed) < 0, f"{again.name} made again begins again"


@pytest.mark.fault("leader-shard-dies-range")
async def test_another_leader_serves_it_when_the_first_is_gone(nodes: SeveralNodes) -> None:
    key, base, end = await mounted(nodes, 0, START_MS * 2)
    first = nodes.leader(key).context.node_id
    view = nodes.nodes[first].shards.read_by_name(NAME, 0)
    assert view is not None and view.is_leader and (view.log_start_offset, view.high_watermark) == (base, end)
    before = b"".join(map(bytes, await view.read(base, 1 << 20)))
    for node_id in nodes.others(key):
        away = nodes.nodes[node_id].shards.read_by_name(NAME, 0)
        assert away is not None and not away.is_leader, "clients are sent to who leads"
    await nodes.stop(first)
    await nodes.meta.service.perform(NoteLives(lost=(nodes.meta_life(first),)))
    await eventually(lambda: any(_leads(node.shards.read_by_name(NAME, 0)) for node in nodes.nodes.values()))
    views = [node.shards.read_by_name(NAME, 0) for node in nodes.nodes.values()]
    (led,) = [one for one in views if one is not None and one.is_leader]
    assert (led.log_start_offset, led.high_watermark, len(led.segments)) == (base, end, 3)
    assert b"".join(map(bytes, await led.read(base, 1 << 20))) == before


def _leads(shard: ShardLog | None) -> bool:
    return shard is not None and shard.is_leader


@pytest.mark.fault("mounted-range-topic-retention")
async def test_the_ends_of_a_mount_never_move_back(nodes: SeveralNodes) -> None:
    """F36: retention of the topic moves its begin up, nothing moves its end, and another leader shows the same."""
    key, base, end = await mounted(nodes, 0, START_MS * 2)
    first = nodes.leader(key).context.node_id
    seen: list[tuple[int, int]] = []

    async def ends(node_id: int, start: int) -> None:
        view = nodes.nodes[node_id].shards.read_by_name(NAME, 0)
        assert view is not None

        def look() -> bool:
            seen.append((view.log_start_offset, view.high_watermark))
            return view.log_start_offset == start

        await eventually(look)

    await ends(first, base)
    await nodes.meta.service.perform(AdvanceLogStart(key, base + 5))
    await ends(first, base + 5)
    await nodes.meta.service.perform(AdvanceLogStart(key, base + 2))
    await nodes.append(key, b"behind the mount")
    await nodes.stop(first)
    await nodes.meta.service.perform(NoteLives(lost=(nodes.meta_life(first),)))
    await eventually(lambda: any(_leads(node.shards.read_by_name(NAME, 0)) for node in nodes.nodes.values()))
    second = next(n for n, node in nodes.nodes.items() if _leads(node.shards.read_by_name(NAME, 0)))
    await ends(second, base + 5)
    assert seen == sorted(seen) and {high for _, high in seen} == {end}
    consumer = consumer_of(nodes, **{"auto.offset.reset": "earliest"})
    try:
        place = TopicPartition(NAME, 0)
        assert await asyncio.to_thread(consumer.get_watermark_offsets, place, 20) == (base + 5, end)
    finally:
        consumer.close()


@pytest.mark.fault("holder-retired-node-data")
async def test_groups_keep_their_offsets_when_the_holder_of_a_data_set_dies(tmp_path: Path) -> None:
    """F93. It is their coordinator as well: what they committed is in their log, so none is lost, old or new."""
    async with several_nodes(tmp_path, 4) as nodes:
        key, base, _ = await mounted(nodes, 0, START_MS * 2)
        committed = [TopicPartition(TOPIC, 0, 5), TopicPartition(NAME, 0, base + 3)]
        gone = nodes.others(key)[0]
        storage_id = next(
            node.storage_id for node in (await nodes.meta.service.snapshot()).nodes if node.node_id == gone
        )
        await nodes.stop(gone)
        await nodes.meta.service.perform(NoteLives(lost=(nodes.meta_life(gone),)))
        mount = await nodes.meta.service.perform(BeginMount(gone, storage_id, MountMode.OFFLOAD))

        def commit() -> None:
            consumer = consumer_of(nodes)
            consumer.commit(offsets=committed, asynchronous=False)
            consumer.close()

        await asyncio.to_thread(commit)
        holder = next(n for n, node in nodes.nodes.items() if _leads(node.shards.by_name("__consumer_offsets", 0)))
        await nodes.meta.service.perform(MoveMount(mount.name, holder))
        await is_held(nodes, mount.name, lambda now: now.holder == holder)
        await nodes.stop(holder)
        await nodes.meta.service.perform(NoteLives(lost=(nodes.meta_life(holder),)))
        await is_held(nodes, mount.name, lambda now: now.holder in nodes.nodes)

        def kept() -> list[TopicPartition]:
            consumer = consumer_of(nodes)
            try:
                return list(consumer.committed([TopicPartition(one.topic, 0) for one in committed], timeout=30))
            finally:
                consumer.close()

        found = await asyncio.to_thread(kept)
        assert [(one.topic, one.offset) for one in found] == [(one.topic, one.offset) for one in committed]


async def is_held(nodes: SeveralNodes, name: str, is_right: Callable[[Mount], bool]) -> None:
    async def look() -> bool:
        mounts = (await nodes.meta.service.snapshot()).mounts
        now = next(mount for mount in mounts if mount.name == name)
        return is_right(now) and now.state is MountState.SERVING

    await eventually(look)
