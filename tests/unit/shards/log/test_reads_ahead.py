"""What is read ahead of a reader in the object store is what readers will ask the store for."""

from __future__ import annotations

from pathlib import Path

from stratalog_node.shards.log.shard_log import ShardLog
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

SEGMENTS = 5
FREED = 3


async def freed(rig: TieredShardRig, policy: str) -> ShardLog:
    """One batch in each segment, all of them in the bucket, the oldest there alone."""
    shard = await rig.shard_of(remote_storage_enable="true", remote_read_policy=policy)
    for number in range(SEGMENTS):
        await rig.acknowledged(shard, b"%d" % number)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
    await rig.uploaded()
    for segment in shard.segments[:FREED]:
        await rig.copies.free_local(shard, segment.key)
    return shard


async def blocks_fetched(rig: TieredShardRig, shard: ShardLog) -> int:
    """By a reader that takes the first two segments, one at a time."""
    for offset in (0, 1):
        await shard.read(offset, 1)
    await eventually(lambda: rig.cold.stats.in_flight_bytes == 0 and not len(rig.cold._looks))
    return rig.cold.stats.fetches


async def test_a_reader_that_nears_a_local_copy_has_nothing_of_it_read_ahead(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await freed(rig, "NotInDisk")
        assert await blocks_fetched(rig, shard) == FREED
        assert await rig.read_values(shard) == [b"%d" % number for number in range(SEGMENTS)]
        assert rig.cold.stats.fetches == FREED
        assert rig.cold._shards[shard.key].window.unread_bytes == 0, "memory that nobody comes for"


async def test_what_lies_here_damaged_is_read_ahead_in_the_store(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await freed(rig, "NotInDisk")
        damaged = shard.copy_of(shard.segments[FREED].key)
        assert damaged is not None
        damaged.damage = "a read found it"
        assert await blocks_fetched(rig, shard) == FREED + 1


async def test_where_the_store_is_read_whatever_lies_here_all_is_read_ahead(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await freed(rig, "Force")
        assert await blocks_fetched(rig, shard) == SEGMENTS
