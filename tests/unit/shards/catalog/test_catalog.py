"""The node's view of metadata: changes applied one by one, or a whole snapshot after the watch lost its place."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import (
    AddShards,
    AdvanceLogStart,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    RegisterNode,
    RollSegment,
    SealSegment,
)
from stratalog.model.errors import NotFound, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Change, NodeInfo
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_meta.service import MetaService
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.node import Listen, StorageNode
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.following import follow
from support.gated_meta import GatedMeta
from support.meta_worlds import seal_record
from support.shard_rig import HandClock, ShardRig
from support.waiting import eventually
from support.work import lines_run


def new_catalog() -> Catalog:
    return Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))


def state(catalog: Catalog) -> object:
    return (
        sorted((t.name, t.topic_id, t.shard_count, tuple(t.settings.items())) for t in catalog.topics()),
        {key: (catalog.log_start_offset(key), list(catalog.segments(key))) for key in catalog.shard_keys()},
    )


async def test_a_catalog_that_missed_any_history_equals_one_that_followed_it(tmp_path: Path) -> None:
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    await meta.perform(RegisterNode(NodeInfo(1, "disk", "localhost", 1)))
    rng = random.Random(5)
    first = await meta.snapshot()
    followed, late = new_catalog(), new_catalog()
    followed.load(first)
    late.load(first)
    told: list[Change] = []
    late.on_change(told.append)
    names = ["a", "b", "c"]
    for step in range(120):
        topics = {topic.name: topic for topic in (await meta.snapshot()).topics}
        name = rng.choice(names)
        topic = topics.get(name)
        if topic is None:
            await meta.perform(CreateTopic(name, shard_count=rng.randint(1, 3), replication_factor=1, settings={}))
        elif rng.random() < 0.15:
            await meta.perform(DeleteTopic(topic.topic_id))
        elif rng.random() < 0.2:
            await meta.perform(AddShards(topic.topic_id, topic.shard_count + 1))
        elif rng.random() < 0.2:
            await meta.perform(AlterTopic(topic.topic_id, {"segment.bytes": str(1000 + step)}))
        else:
            shard = await meta.shard(ShardKey(topic.topic_id, rng.randrange(topic.shard_count)))
            active = shard.segments[-1]
            if rng.random() < 0.6:
                await meta.perform(RollSegment(active.key, active.base_offset + rng.randint(1, 5)))
            else:
                await meta.perform(AdvanceLogStart(shard.key, rng.randint(0, active.base_offset)))
        if rng.random() < 0.1:
            late.reload(await meta.snapshot())
    async for change_set in meta.watch(followed.version):
        followed.apply(change_set)
        if change_set.version == (await meta.snapshot()).version:
            break
    late.reload(await meta.snapshot())
    assert state(late) == state(followed)
    fresh = new_catalog()
    fresh.load(await meta.snapshot())
    assert state(fresh) == state(followed)
    assert told
    before = len(told)
    late.reload(await meta.snapshot())
    assert len(told) == before, "nothing differs, nobody is told"
    await meta.close()


async def test_shards_follow_a_reload(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        old = await rig.shard_of("again")
        kept = await rig.shard_of("kept")
        rig.append(old, b"x")
        rig.append(kept, b"x")
        for task in list(rig._tasks):
            task.cancel()
        await rig.meta.service.perform(DeleteTopic(old.topic.topic_id))
        await rig.meta.service.perform(CreateTopic("again", shard_count=2, replication_factor=1, settings={}))
        await rig.meta.service.perform(AddShards(kept.topic.topic_id, 2))
        rig.catalog.reload(await rig.meta.service.snapshot())
        assert rig.catalog.stats.reloads == 1
        new = rig.shards.by_name("again", 1)
        assert new is not None and new.topic.topic_id != old.topic.topic_id
        assert rig.shards.get(old.key) is None
        assert rig.shards.by_name("kept", 0) is kept and rig.shards.by_name("kept", 1) is not None
        assert rig.append(kept, b"y").is_acknowledged
        assert rig.append(new, b"y").offset == 0


async def test_a_listener_that_fails_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:

        def faulty(_: Change) -> None:
            raise ValueError("a bug")

        rig.catalog._listeners.insert(0, faulty)
        shard = await rig.shard_of()
        assert rig.append(shard, b"x").is_acknowledged


async def test_a_node_whose_watch_lost_its_place_while_meta_was_away_follows_again(tmp_path: Path) -> None:
    clock = HandClock()
    meta = GatedMeta(MetaService(MemoryStore(), clock))
    await meta.service.start()
    node = StorageNode(ProcessSettings(), tmp_path, Listen("127.0.0.1", 0), meta, None)  # type: ignore[arg-type]
    await node.start()
    try:
        watch, lost = meta.service.watch, []

        async def once_lost(version: int):  # type: ignore[no-untyped-def]
            if not lost:
                lost.append(version)
                raise NotFound("that history is gone")
            async for change_set in watch(version):
                yield change_set

        meta.service.watch = once_lost  # type: ignore[method-assign, assignment]
        meta.fail("snapshot", Unavailable("away"), ValueError("a bug"))
        for task in node._tasks:
            if task.get_coro().__name__ == "follow":  # type: ignore[union-attr]
                task.cancel()
        node._tasks.start(follow(node.meta, node.catalog, node._end_life))
        await eventually(lambda: lost)
        await meta.service.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings={}))
        await eventually(lambda: node.shards.by_name("flights", 0) is not None)
    finally:
        await node.close()
        await meta.service.close()


async def _with_segments(count: int) -> tuple[MetaService, Catalog, ShardKey]:
    """A shard of `count` sealed segments and an active one, and a catalog that knows them."""
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    await meta.perform(RegisterNode(NodeInfo(1, "disk", "localhost", 1)))
    topic = await meta.perform(CreateTopic("orders", shard_count=1, replication_factor=1, settings={}))
    key = ShardKey(topic.topic_id, 0)
    segment = (await meta.shard(key)).segments[-1]
    for offset in range(1, count + 1):
        following = await meta.perform(RollSegment(segment.key, offset))
        await meta.perform(SealSegment(segment.key, seal_record(segment.key, offset)))
        segment = following
    catalog = new_catalog()
    catalog.load(await meta.snapshot())
    return meta, catalog, key


@pytest.mark.fault("deleterecords-retention-deletion-topic")
async def test_deleting_ten_times_the_segments_costs_ten_times_the_work() -> None:
    work = {}
    for count in (50, 500):
        meta, catalog, key = await _with_segments(count)
        await meta.perform(AdvanceLogStart(key, count))
        change_set = await anext(meta.watch(catalog.version))
        work[count] = lines_run(lambda catalog=catalog, change_set=change_set: catalog.apply(change_set))  # type: ignore[misc]
        assert [segment.epoch for segment in catalog.segments(key)] == [count]
        await meta.close()
    assert work[500] < 15 * work[50]


@pytest.mark.fault("deleterecords-retention-deletion-topic")
async def test_a_segment_is_found_without_reading_its_neighbours() -> None:
    meta, catalog, key = await _with_segments(300)
    first = catalog.segments(key)[0]
    assert lines_run(lambda: catalog.segment(first.key)) < 100
    assert catalog.segment(first.key) is first
    await meta.close()


async def test_a_large_change_set_is_applied_in_steps_and_its_version_moves_with_the_last() -> None:
    meta, catalog, key = await _with_segments(1_000)
    await meta.perform(AdvanceLogStart(key, 1_000))
    change_set = await anext(meta.watch(catalog.version))
    left = [len(catalog.segments(key))]
    for _ in catalog.apply_in_steps(change_set):
        left.append(len(catalog.segments(key)))
        assert catalog.version < change_set.version
    left.append(len(catalog.segments(key)))
    assert catalog.version == change_set.version and left[-1] == 1
    assert max(before - after for before, after in pairwise(left)) <= 256
    await meta.close()


@pytest.mark.fault("command-changes-thousands-records")
async def test_the_loop_turns_while_a_node_follows_a_large_change(tmp_path: Path) -> None:
    meta = MetaService(MemoryStore(), HandClock())
    await meta.start()
    node = StorageNode(ProcessSettings(), tmp_path, Listen("127.0.0.1", 0), meta, None)
    await node.start()
    told, most = 0, 0

    def count(_: Change) -> None:
        nonlocal told
        told += 1

    async def watch() -> None:
        nonlocal most
        before = told
        while True:
            most = max(most, told - before)
            before = told
            await asyncio.sleep(0)

    node.catalog.on_change(count)
    watching = asyncio.create_task(watch())
    try:
        topic = await meta.perform(CreateTopic("wide", shard_count=3_000, replication_factor=1, settings={}))
        await eventually(lambda: node.shards.by_name("wide", 2_999) is not None)
        await meta.perform(DeleteTopic(topic.topic_id))
        await eventually(lambda: told >= 2 * 3_001)
        assert most <= 2 * 256
    finally:
        watching.cancel()
        await node.close()
        await meta.close()
