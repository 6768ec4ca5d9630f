"""A local copy that rots on the disk: wrong bytes are never served, not even once they lie in the page cache (F73)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import LENGTH_AT
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.leading.chain_events import SegmentFlushFailed
from stratalog.model.errors import Corrupt
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.log.shard_log import ShardLog
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


async def sealed_and_rotten(rig: ShardRig) -> ShardLog:
    """Two batches in a sealed segment, of which the second one is damaged on the disk."""
    shard = await rig.shard_of()
    await rig.acknowledged(shard, b"a" * 500)
    await rig.acknowledged(shard, b"b" * 500)
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    await rig.restart("stop")
    shard = rig.shard(shard)
    rot(rig.file_of(shard, 0))
    return shard


async def test_damage_once_found_is_refused_on_every_later_read(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_and_rotten(rig)
        for _ in range(3):
            with pytest.raises(Corrupt, match="CRC"):
                await rig.reader.read(shard, 0, 1 << 20)
            with pytest.raises(NotCached):
                rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        assert rig.stats.damaged_copies == 1, "it is counted once"


async def test_whole_batches_before_the_damage_are_still_served(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_and_rotten(rig)
        with pytest.raises(Corrupt):
            await rig.reader.read(shard, 1, 1 << 20)
        first = await rig.reader.read(shard, 0, 600)
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
            rig.reader.read_hot(shard, 1, 1 << 20, for_socket=True)
        with pytest.raises(Corrupt):
            await rig.reader.read(shard, 1, 1 << 20)
        assert rig.stats.damaged_copies == 1


def zero_inside(path: Path, position: int) -> None:
    """As a page that the disk never took, once something has brought it into the page cache."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes(300), position)
        os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


@pytest.mark.fault("page-cache-holds-unchecked")
@pytest.mark.parametrize("how", ["stop", "crash"])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
async def test_what_this_life_neither_wrote_nor_checked_is_checked_though_it_lies_in_the_page_cache(
    tmp_path: Path, *, is_sealed: bool, how: str
) -> None:
    """Readahead, another process or a checkpoint's start bring pages there that were never checked."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for letter in (b"a", b"b", b"c"):
            await rig.acknowledged(shard, letter * 500)
        if is_sealed:
            shard.ask_roll(rig.clock())
            await rig.all_sealed()
        else:
            await rig.restart("stop")  # a checkpoint
            shard = rig.shard(shard)
        await rig.restart(how)
        shard = rig.shard(shard)
        copy = shard.copies[0] if is_sealed else shard.active
        assert copy is not None
        zero_inside(rig.file_of(shard, 0), SEGMENT_HEADER_BYTES + copy.header_at(0).size_bytes + 100)
        # Its points come into memory by a lookup, which reads no batch.
        await rig.context.sealed_points.read(copy, lambda _: None)
        for offset in (0, 1):
            with pytest.raises(NotCached):
                rig.reader.read_hot(shard, offset, 1 << 20, for_socket=True)
        with pytest.raises(Corrupt, match="CRC"):
            await rig.reader.read(shard, 1, 1 << 20)


@pytest.mark.fault("page-cache-holds-unchecked")
@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
async def test_what_was_checked_once_is_served_from_the_page_cache_from_then_on(
    tmp_path: Path, *, is_sealed: bool
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for letter in (b"a", b"b", b"c"):
            await rig.acknowledged(shard, letter * 500)
        if is_sealed:
            shard.ask_roll(rig.clock())
            await rig.all_sealed()
        await rig.restart("stop")
        shard = rig.shard(shard)
        for offset in (1, 0):
            with pytest.raises(NotCached):
                rig.reader.read_hot(shard, offset, 1, for_socket=True)
            await rig.reader.read(shard, offset, 1)
        read = rig.reader.read_hot(shard, 0, 1 << 10, for_socket=True)
        assert read.next_offset == 1, "the first batch alone fits"
        rig.reader.read_hot(shard, 1, 1, for_socket=True)
        with pytest.raises(NotCached):
            rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)


@pytest.mark.fault("page-cache-holds-unchecked")
async def test_a_batch_at_a_wrong_offset_on_the_disk_is_damage(tmp_path: Path) -> None:
    """Base offset and epoch are not covered by the CRC: they must continue from what the index says."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for letter in (b"a", b"b", b"c"):
            await rig.acknowledged(shard, letter * 500)
        await rig.restart("stop")
        shard = rig.shard(shard)
        assert shard.active is not None
        at = SEGMENT_HEADER_BYTES + shard.active.header_at(0).size_bytes
        fd = os.open(rig.file_of(shard, 0), os.O_RDWR)
        os.pwrite(fd, (7).to_bytes(8, "big"), at)
        os.close(fd)
        for offset in (0, 1, 2):
            with pytest.raises(Corrupt):
                await rig.reader.read(shard, offset, 1 << 20)
        with pytest.raises(Corrupt):
            await shard.read_committed_range(shard.active.key, 0, 1 << 20)


@pytest.mark.fault("page-cache-holds-unchecked")
async def test_a_file_whose_flush_failed_is_read_with_checks(tmp_path: Path) -> None:
    """The kernel may have dropped pages that it could not write: what it shows in their place is not reliable."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a" * 500)
        assert shard.active is not None
        rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        shard.handle(SegmentFlushFailed(shard.active.key.epoch, "flush failed"))
        with pytest.raises(NotCached):
            rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        assert await rig.read_values(shard) == [b"a" * 500]
