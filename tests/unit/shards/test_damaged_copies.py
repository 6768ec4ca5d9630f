"""A local copy that rots on the disk: wrong bytes are never served, not even once they lie in the page cache (F73)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.formats.record_batch import LENGTH_AT
from stratalog.formats.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.errors import Corrupt
from stratalog_node.shards.local_copy import NotCached
from support.shard_rig import ShardRig


def rot(path: Path) -> None:
    """Flip a bit in the last batch and push the file out of the page cache."""
    fd = os.open(path, os.O_RDWR)
    try:
        at = os.fstat(fd).st_size - 3
        byte = os.pread(fd, 1, at)[0]
        os.pwrite(fd, bytes([byte ^ 1]), at)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


async def test_damage_once_found_is_refused_on_every_later_read(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a" * 500)
        await rig.acknowledged(shard, b"b" * 500)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        await rig.restart("stop")
        shard = rig.shard(shard)
        rot(rig.file_of(shard, 0))
        for _ in range(3):
            with pytest.raises(Corrupt, match="CRC"):
                await rig.shards.reader.read(shard, 0, 1 << 20)
            with pytest.raises(NotCached):
                rig.shards.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        assert rig.shards.stats.damaged_copies == 1, "told once"


async def test_whole_batches_before_the_damage_are_still_served(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a" * 500)
        await rig.acknowledged(shard, b"b" * 500)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        await rig.restart("stop")
        shard = rig.shard(shard)
        rot(rig.file_of(shard, 0))
        with pytest.raises(Corrupt):
            await rig.shards.reader.read(shard, 1, 1 << 20)
        first = await rig.shards.reader.read(shard, 0, 600)
        assert first.size_bytes > 500


async def test_a_batch_header_damaged_in_the_page_cache_is_remembered_as_well(tmp_path: Path) -> None:
    """Or each read would end there, although the object store may hold the range."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a" * 500)
        await rig.acknowledged(shard, b"b" * 500)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        copy = shard.copies[0]
        end_of_first = copy.header_at(0).size_bytes
        fd = os.open(rig.file_of(shard, 0), os.O_RDWR)
        os.pwrite(fd, bytes(4), SEGMENT_HEADER_BYTES + end_of_first + LENGTH_AT)
        os.close(fd)
        with pytest.raises(NotCached):
            rig.shards.reader.read_hot(shard, 1, 1 << 20, for_socket=True)
        with pytest.raises(Corrupt):
            await rig.shards.reader.read(shard, 1, 1 << 20)
        assert rig.shards.stats.damaged_copies == 1
