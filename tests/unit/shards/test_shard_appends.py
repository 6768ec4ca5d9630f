"""Appends of one shard: order, answers, refusals, one write per turn."""

from __future__ import annotations

from pathlib import Path

from support.shard_rig import ShardRig


async def test_what_was_acknowledged_is_read_back_in_order(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in range(5):
            asked = rig.append(shard, b"%d" % number, b"more %d" % number)
            assert asked.is_acknowledged and asked.offset == 2 * number
        assert len(await rig.read_values(shard)) == 10
        await rig.restart()
        assert len(await rig.read_values(rig.shard(shard))) == 10
