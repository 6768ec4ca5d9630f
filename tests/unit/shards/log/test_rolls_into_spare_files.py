"""A roll takes a file that was made ahead, and nothing in it is acknowledged before the next start would find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import RollSegment
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig


async def rolled_once(rig: ShardRig, **settings: object) -> ShardLog:
    """A shard whose next roll finds a spare."""
    shard = await rig.shard_of(**settings)
    await rig.acknowledged(shard, b"a")
    shard.ask_roll(rig.clock())
    await rig.acknowledged(shard, b"b")
    await rig.until(lambda: rig.context.spares.ready_count > 0)
    return shard


def names(rig: ShardRig, shard: ShardLog) -> list[str]:
    return sorted(path.name[-5:] for path in rig.layout.shard(shard.key).glob("*.seg"))


async def test_a_roll_makes_no_file_in_the_turn_and_its_file_has_its_name_when_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled_once(rig)
        with monkeypatch.context() as during_the_turn:
            during_the_turn.setattr("stratalog_node.disk.files.made_file", None)
            shard.ask_roll(rig.clock())
            asked = rig.append(shard, b"c")
        assert not asked.is_answered
        assert names(rig, shard) == ["0.seg", "1.seg"]
        await rig.until(lambda: asked.is_answered)
        assert asked.is_acknowledged
        assert names(rig, shard) == ["0.seg", "1.seg", "2.seg"]
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]


@pytest.mark.fault("process-power-fails-roll")
@pytest.mark.parametrize("how", ["crash", "power_cut", "stop"])
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
async def test_what_was_acknowledged_in_a_spare_is_found_by_the_next_start(
    tmp_path: Path, how: str, policy: str
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled_once(rig, flush_policy=policy)
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"c")
        if policy == "replicated":
            await shard.make_durable()
        await rig.restart(how)
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]
        assert [path.name for path in rig.layout.spares.iterdir()] == []


@pytest.mark.fault("process-power-fails-roll")
@pytest.mark.parametrize("how", ["crash", "power_cut"])
async def test_a_spare_whose_roll_was_not_confirmed_leaves_nothing_that_was_acknowledged_and_no_file(
    tmp_path: Path, how: str
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled_once(rig)
        await shard.make_durable()
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"c")
        await rig.until(lambda: rig.meta.calls[RollSegment] > 1)
        assert not asked.is_answered
        rig.meta.open_all()
        await rig.restart(how)
        shard = rig.shard(shard)
        assert (await rig.read_values(shard))[:2] == [b"a", b"b"]
        assert [path.name for path in rig.layout.spares.iterdir()] == []
        await rig.acknowledged(shard, b"d")


@pytest.mark.fault("removes-file-name")
async def test_a_removed_spare_file_stops_the_shard_before_anything_in_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rolled_once(rig)
        for path in rig.layout.spares.iterdir():
            path.unlink()
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"c")
        await rig.until(lambda: asked.is_answered)
        assert not asked.is_acknowledged
        await rig.restart("crash")
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == [b"a", b"b"]
        await rig.acknowledged(shard, b"d")
