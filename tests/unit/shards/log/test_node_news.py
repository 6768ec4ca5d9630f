"""News of other nodes reaches shards with work at once, and thousands of idle ones in slices, or when they are written
to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.machines.leading.chain_events import ChainEvent
from stratalog.machines.leading.leader_events import NodeUpdated
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.metadata import NodeInfo
from stratalog.model.topic import Topic
from stratalog_node.shards.log.ages import check_due_shards
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.slices import UNITS_PER_SLICE
from support.loop_turns import Turns
from support.shard_rig import ShardRig
from support.waiting import eventually

SHARDS = 3 * UNITS_PER_SLICE
OTHER = 2


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that heard of a node, in order."""
    found: list[int] = []
    tell = ShardLog.handle

    def noted(shard: ShardLog, event: ChainEvent) -> None:
        if isinstance(event, NodeUpdated):
            assert event.node_id == OTHER
            found.append(shard.key.shard)
        tell(shard, event)

    monkeypatch.setattr(ShardLog, "handle", noted)
    return found


async def at_rest(rig: ShardRig, shards: int = SHARDS) -> Topic:
    """Shards that this node leads."""
    topic = await rig.create_topic(shards=shards)
    for number in range(shards):
        await rig.acknowledged(rig.shard(topic, number), b"first")
    await rig.meta.service.perform(RegisterNode(NodeInfo(OTHER, "other-disk", "other", 9092)))
    await eventually(lambda: rig.catalog.node(OTHER) is not None)
    await eventually(lambda: not rig.shards.news._untold)
    await check_due_shards(rig.shards.due_shards, rig.clock())
    return topic


@pytest.mark.fault("node-dies-follows-thousands")
async def test_all_shards_hear_it_once_and_other_work_runs_meanwhile(tmp_path: Path, told: list[int]) -> None:
    async with ShardRig(tmp_path) as rig:
        await at_rest(rig)
        told.clear()
        async with Turns(lambda: len(told)) as turns:
            rig.shards.news.changed(OTHER)
            rig.shards.news.changed(OTHER)
            await eventually(lambda: len(told) >= SHARDS)
        assert sorted(told) == [*range(SHARDS)]
        assert turns.most <= UNITS_PER_SLICE


@pytest.mark.fault("node-dies-follows-thousands")
async def test_shards_with_work_hear_it_first_and_idle_ones_when_they_are_written_to(
    tmp_path: Path, told: list[int]
) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await at_rest(rig)
        rig.append(rig.shard(topic, 600), b"x")
        told.clear()
        rig.context.rolls_in_progress.note_roll()
        rig.shards.news.changed(OTHER)
        for _ in range(3):
            await asyncio.sleep(0)
        assert told == [600]
        rig.context.rolls_in_progress.note_roll()
        rig.append(rig.shard(topic, 500), b"x")
        for _ in range(3):
            await asyncio.sleep(0)
        assert told[:2] == [600, 500]
        await eventually(lambda: len(told) == SHARDS)
        assert len(set(told)) == SHARDS
        rig.append(rig.shard(topic, 400), b"x")
        await asyncio.sleep(0)
        assert len(told) == SHARDS, "it has heard it"


async def test_what_few_shards_hear_they_hear_at_once(tmp_path: Path, told: list[int]) -> None:
    async with ShardRig(tmp_path) as rig:
        await at_rest(rig, shards=3)
        told.clear()
        rig.shards.news.changed(OTHER)
        assert told == [0, 1, 2]


@pytest.mark.fault("node-dies-follows-thousands")
async def test_a_fault_of_one_shard_keeps_no_other_from_hearing_it(
    tmp_path: Path, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await at_rest(rig, shards=3)
        bad, tell = rig.shard(topic, 1), ShardLog.handle

        def faulty(shard: ShardLog, event: ChainEvent) -> None:
            if shard is bad and isinstance(event, NodeUpdated):
                raise ValueError("a bug")
            tell(shard, event)

        told.clear()
        with monkeypatch.context() as patched:
            patched.setattr(ShardLog, "handle", faulty)
            rig.shards.news.changed(OTHER)
        assert told == [0, 2]
        assert [shard for shard, _ in rig.shards.stopped()] == [bad]


async def test_shards_that_lead_nothing_hear_nothing(tmp_path: Path, told: list[int]) -> None:
    """A node has a shard for each one of the cluster, and leads a part of them."""
    async with ShardRig(tmp_path) as rig:
        topic = await at_rest(rig, shards=3)
        await rig.create_topic("led-by-others", shards=20)
        await check_due_shards(rig.shards.due_shards, rig.clock())
        told.clear()
        rig.shards.news.changed(OTHER)
        assert told == [0, 1, 2]
        assert [shard.key.topic_id for shard in rig.shards.due_shards.changed()] == 3 * [topic.topic_id]
