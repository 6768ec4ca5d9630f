"""Idle shards are not visited: what time may do to a shard is looked at when something happened to it, or is due."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.machines.leading.leader_events import TimePassed
from stratalog_node.shards.copies import due_shards
from stratalog_node.shards.log.ages import check_due_shards
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig

SHARDS = 50
DAY_MS = 86_400_000


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that got the time."""
    found: list[int] = []
    look = ShardLog.check_age

    def noted(shard: ShardLog, now_ms: int) -> bool:
        found.append(shard.key.shard)
        return look(shard, now_ms)

    monkeypatch.setattr(ShardLog, "check_age", noted)
    return found


async def looked(rig: ShardRig, seen: list[int]) -> list[int]:
    seen.clear()
    await check_due_shards(rig.shards.due_shards, rig.clock())
    return sorted(seen)


@pytest.mark.fault("node-thousands-idle-shards")
async def test_shards_at_rest_are_not_told_of_time(tmp_path: Path, seen: list[int]) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=SHARDS, segment_ms=DAY_MS)
        shards = [rig.shard(topic, number) for number in range(SHARDS)]
        for shard in shards:
            rig.append(shard, b"x")
        assert await looked(rig, seen) == [*range(SHARDS)]
        assert await looked(rig, seen) == [] == await looked(rig, seen)
        rig.append(shards[7], b"y")
        rig.append(shards[7], b"z")
        assert await looked(rig, seen) == [7], "once, however much happened"
        assert await looked(rig, seen) == []


@pytest.mark.fault("node-thousands-idle-shards")
async def test_each_shard_rolls_when_its_own_time_has_come(tmp_path: Path, seen: list[int]) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=SHARDS, segment_ms=1_000)
        shards = [rig.shard(topic, number) for number in range(SHARDS)]
        for shard in shards[:3]:
            rig.append(shard, b"x")
            rig.clock.now_ms += 300
        await looked(rig, seen)
        assert await looked(rig, seen) == []
        for number in range(3):
            rig.clock.now_ms = rig.clock.now_ms // 100 * 100
            rig.clock.now_ms += 100 if number == 0 else 300
            assert number in await looked(rig, seen)
            epochs = [shard.active.key.epoch for shard in shards[:3] if shard.active is not None]
            assert epochs == [int(other <= number) for other in range(3)]


async def test_a_roll_that_fails_is_tried_at_each_check(tmp_path: Path, seen: list[int]) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(segment_ms=1_000)
        rig.append(shard, b"old")
        await looked(rig, seen)
        folder = rig.layout.shard(shard.key)
        folder.rename(folder.with_name("aside"))
        folder.write_bytes(b"a file where the directory was")
        rig.clock.now_ms += 1_000
        assert await looked(rig, seen) == [0] == await looked(rig, seen)
        assert shard.active is not None and shard.active.key.epoch == 0
        folder.unlink()
        folder.with_name("aside").rename(folder)
        assert await looked(rig, seen) == [0]
        assert shard.active.key.epoch == 1


async def test_another_setting_moves_the_time_of_shards_at_rest(tmp_path: Path, seen: list[int]) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(segment_ms=DAY_MS)
        rig.append(shard, b"x")
        await looked(rig, seen)
        assert await looked(rig, seen) == []
        rules = shard.rules
        rules.roll = replace(rules.roll, segment_ms=500)
        shard.apply_rules(shard.topic, rules)
        rig.clock.now_ms += 499
        await looked(rig, seen)
        assert shard.active is not None and shard.active.key.epoch == 0
        rig.clock.now_ms += 1
        assert await looked(rig, seen) == [0]
        assert shard.active.key.epoch == 1


async def test_a_faulty_shard_stops_and_the_others_are_looked_at(
    tmp_path: Path, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3, segment_ms=1_000)
        for number in range(3):
            rig.append(rig.shard(topic, number), b"x")
        bad = rig.shard(topic, 1)
        step = type(bad.chain).step

        def faulty(chain: object, event: object, now_ms: int) -> object:
            if chain is bad.chain and isinstance(event, TimePassed):
                raise ValueError("a bug")
            return step(chain, event, now_ms)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(type(bad.chain), "step", faulty)
            rig.clock.now_ms += 1_000
            assert await looked(rig, seen) == [0, 1, 2]
        assert bad.stop is not None and [shard for shard, _ in rig.shards.stopped()] == [bad]
        assert all(one.active.key.epoch == 1 for one in map(rig.shard, [topic] * 2, (0, 2)) if one.active)
        await looked(rig, seen)
        assert await looked(rig, seen) == []


async def test_times_that_are_out_of_date_take_no_memory(
    tmp_path: Path, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy shard rolls thousands of times within its `segment.ms`."""
    monkeypatch.setattr(due_shards, "_FEW", 4)
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(segment_ms=DAY_MS)
        for _ in range(20):
            rig.append(shard, b"x")
            rig.clock.now_ms += 1
            await looked(rig, seen)
            shard.ask_roll(rig.clock())
        assert len(rig.shards.due_shards._heap) <= 6
