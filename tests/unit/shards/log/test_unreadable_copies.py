"""A sealed copy that the disk does not return: a fault of one node's disk does not block what is whole on other
nodes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.errors import Unavailable
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import START_MS, ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

VALUES = [b"a" * 500, b"b" * 500]


async def sealed(rig: ShardRig, **settings: str) -> ShardLog:
    """Offsets 0 and 1 at times one apart, in a segment that is sealed."""
    shard = await rig.shard_of(**settings)
    for number, value in enumerate(VALUES):
        await rig.acknowledged(shard, value, at_ms=START_MS + number)
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    return shard


def becomes_unreadable(rig: ShardRig, shard: ShardLog, epoch: int = 0) -> None:
    """No descriptor of it is open, and no read of it succeeds: as on a disk that fails, for root as for others."""
    path = rig.file_of(shard, epoch)
    shard.copies[epoch].file.close()
    path.rename(path.with_suffix(".whole"))
    path.mkdir()


def is_restored(rig: ShardRig, shard: ShardLog, epoch: int = 0) -> None:
    path = rig.file_of(shard, epoch)
    path.rmdir()
    path.with_suffix(".whole").rename(path)


@pytest.mark.fault("disk-give-sealed-local")
async def test_what_the_disk_does_not_give_comes_from_the_store(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await sealed(rig, remote_storage_enable="true")
        await rig.uploaded()
        becomes_unreadable(rig, shard)
        assert await rig.read_values(shard) == VALUES
        found = await shard.offset_for_time(START_MS + 1)
        assert found is not None and found.offset == 1
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 1
        is_restored(rig, shard)


@pytest.mark.fault("disk-give-sealed-local")
async def test_a_disk_with_the_only_copy_is_asked_again(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed(rig)
        becomes_unreadable(rig, shard)
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"cannot (read|open)"):
                await rig.reader.read(shard, 0, 1 << 20)
        is_restored(rig, shard)
        assert await rig.read_values(shard) == VALUES


@pytest.mark.fault("disk-give-sealed-local")
async def test_times_in_a_damaged_copy_are_found_in_the_store(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await sealed(rig, remote_storage_enable="true")
        await rig.uploaded()
        with rig.file_of(shard, 0).open("r+b") as file:
            file.seek(SEGMENT_HEADER_BYTES)
            file.write(bytes(shard.copies[0].size_bytes))
        assert await rig.read_values(shard) == VALUES
        found = await shard.offset_for_time(START_MS + 1)
        assert found is not None and found.offset == 1
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 1


async def test_a_read_finds_its_segment_elsewhere_though_older_ones_were_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(remote_storage_enable="true")
        for number in range(5):
            await rig.acknowledged(shard, b"%d" % number)
            shard.ask_roll(rig.clock())
            await rig.all_sealed()
        await rig.uploaded()
        becomes_unreadable(rig, shard, epoch=4)
        is_reading, gate = threading.Event(), threading.Event()
        really_read = SegmentFile.read

        def held(file: SegmentFile, position: int, size_bytes: int) -> bytes:
            is_reading.set()
            assert gate.wait(10)
            return really_read(file, position, size_bytes)

        monkeypatch.setattr(SegmentFile, "read", held)
        reading = asyncio.create_task(shard.read(4, 1 << 20))
        await eventually(is_reading.is_set)
        await shard.delete_records_before(4)
        await eventually(lambda: shard.segments[0].epoch == 4)
        gate.set()
        (data,) = await reading
        assert [header.base_offset for _, header in walk(data, source="what was read")] == [4]
        is_restored(rig, shard, epoch=4)
