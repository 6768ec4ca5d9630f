"""A range of a long shard under another name: what it takes to read does not grow with the shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog_node.shards.catalog.catalog import Catalog, MountedShard
from stratalog_node.shards.log.mounted import MountedLog
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig

SEGMENTS = 30
EACH = 2


async def long_shard(rig: ShardRig) -> ShardLog:
    """Two batches in each segment; the last one is open."""
    shard = await rig.shard_of()
    for number in range(SEGMENTS):
        for half in range(EACH):
            await rig.acknowledged(shard, b"%d" % (EACH * number + half))
        if number + 1 < SEGMENTS:
            shard.ask_roll(rig.clock())
    await rig.all_sealed()
    return shard


def mounted(shard: ShardLog, base_offset: int, end_offset: int) -> MountedLog:
    return MountedLog(shard, MountedShard(shard.key, shard.topic, base_offset, end_offset))


async def test_a_read_asks_for_the_segments_a_few_times_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        log = mounted(await long_shard(rig), 3, EACH * (SEGMENTS - 1))
        asked = 0
        real = Catalog.segments

        def counted(catalog: Catalog, *args: object) -> object:
            nonlocal asked
            asked += 1
            return real(catalog, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Catalog, "segments", counted)
        read = await rig.reader.read(log, 20, 1)
        assert read.size_bytes and asked <= 10, asked


async def test_segments_are_those_of_the_range_that_are_sealed(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await long_shard(rig)
        end = EACH * SEGMENTS
        for base_offset in range(end):
            for end_offset in range(base_offset + 1, end + 1):
                log = mounted(shard, base_offset, end_offset)
                wanted = [
                    one
                    for one in shard.segments[:-1]
                    if one.base_offset < end_offset and one.base_offset + EACH > base_offset
                ]
                assert log.segments == wanted
                is_cut = bool(wanted) and wanted[-1].base_offset + EACH > end_offset
                assert log.cut_offset == (end_offset if is_cut else None)
