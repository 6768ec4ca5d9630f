"""Index points of sealed copies: a bounded part of memory, and whatever is dropped is read again (decision 0002)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.model.commands.table_commands import DeleteTopic
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig

_BATCH = 40_000
_BATCHES = 8
_BUDGET = 800
"""Enough for the points of two of these segments, not of three."""


def value(segment: int, batch: int) -> bytes:
    return bytes([segment, batch]) * (_BATCH // 2)


async def sealed_segments(rig: ShardRig, count: int) -> ShardLog:
    """A shard of `count` sealed segments with a few index points each."""
    shard = await rig.shard_of()
    for segment in range(count):
        for batch in range(_BATCHES):
            await rig.acknowledged(shard, value(segment, batch))
        shard.ask_roll(rig.clock())
    await rig.all_sealed()
    return shard


def in_memory(shard: ShardLog) -> list[int]:
    return [epoch for epoch, copy in sorted(shard.copies.items()) if copy.points is not None]


async def test_points_of_sealed_copies_stay_within_their_bytes_and_are_read_again(tmp_path: Path) -> None:
    async with ShardRig(tmp_path, log_index_cache_bytes=_BUDGET) as rig:
        shard = await sealed_segments(rig, 6)
        stats = rig.context.sealed_points.stats
        assert 0 < stats.held_bytes <= _BUDGET
        assert stats.drops > 0, "six sealed segments do not fit"
        expected = [value(segment, batch) for segment in range(6) for batch in range(_BATCHES)]
        for _ in range(2):
            assert await rig.read_values(shard, 0, max_bytes=_BATCH) == expected
            assert 0 < stats.held_bytes <= _BUDGET
        assert stats.loads >= 6, "the second pass needs what the first one dropped"


async def test_the_copy_least_recently_read_is_the_one_that_loses_its_points(tmp_path: Path) -> None:
    async with ShardRig(tmp_path, log_index_cache_bytes=_BUDGET) as rig:
        shard = await sealed_segments(rig, 3)
        assert in_memory(shard) == [1, 2]
        read = rig.reader.read_hot(shard, _BATCHES, 1)
        assert read.release is not None
        read.release()
        with pytest.raises(NotCached):
            rig.reader.read_hot(shard, 0, 1)
        await rig.reader.read(shard, 0, 1)
        assert in_memory(shard) == [0, 1], "1 was read since it was sealed, 2 was not"


async def test_reads_continue_while_their_points_are_dropped(tmp_path: Path) -> None:
    async with ShardRig(tmp_path, log_index_cache_bytes=1) as rig:
        shard = await sealed_segments(rig, 4)

        async def read(offset: int) -> bytes:
            found = await rig.reader.read(shard, offset, _BATCH)
            return b"".join(bytes(piece) for piece in found.in_memory())

        offsets = [segment * _BATCHES + batch for batch in range(_BATCHES) for segment in range(4)]
        whole = await asyncio.gather(*map(read, offsets))
        for offset, data in zip(offsets, whole, strict=True):
            assert value(*divmod(offset, _BATCHES)) in data
        assert len(in_memory(shard)) == 1, "the one read last is kept, however small the limit is"


async def test_a_range_by_time_and_by_offset_finds_dropped_points_again(tmp_path: Path) -> None:
    async with ShardRig(tmp_path, log_index_cache_bytes=1) as rig:
        shard = await sealed_segments(rig, 2)
        key = shard.segments[0].key
        data = (await shard.read_committed_range(key, 5, _BATCH)).data
        assert value(0, 5) in data
        found = await shard.offset_for_time(rig.clock())
        assert found is not None
        assert found.offset == 0


async def test_a_freed_copy_holds_no_memory(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_segments(rig, 2)
        stats = rig.context.sealed_points.stats
        before = stats.held_bytes
        await rig.copies.free_local(shard, shard.segments[0].key)
        assert 0 < stats.held_bytes < before
        await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
        await rig.until(lambda: stats.held_bytes == 0)


async def test_a_copy_freed_while_its_points_are_read_holds_no_memory(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_segments(rig, 2)
        stats = rig.context.sealed_points.stats
        rig.context.sealed_points.forget(shard.copies[0])
        of_the_other = stats.held_bytes
        reading = asyncio.ensure_future(rig.reader.read(shard, 0, 1))
        await asyncio.sleep(0)  # it waits for a disk thread now
        await rig.copies.free_local(shard, shard.segments[0].key)
        await reading
        assert stats.held_bytes == of_the_other
