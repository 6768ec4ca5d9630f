"""A sealed segment's file that is gone under a running node: reads go to the object store, or say what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import Unavailable
from stratalog.model.segment import RemoteCopy, RemoteState, Segment
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig


class StoredBytes:
    """An object store that holds one segment's batches."""

    def __init__(self) -> None:
        self.data = b""
        self.reads = 0

    async def read(
        self, segments: Sequence[Segment], offset: int, max_bytes: int, room_bytes: Any, read_for: Any
    ) -> list[bytes]:
        self.reads += 1
        return [self.data]

    async def find_by_time(self, segment: Segment, timestamp_ms: int, log_start: int) -> tuple[int, int] | None:
        self.reads += 1
        return (segment.base_offset, timestamp_ms)

    async def offset_of_max_timestamp(self, segment: Segment) -> tuple[int, int] | None:
        self.reads += 1
        return (segment.base_offset, 1)


async def _sealed(rig: ShardRig) -> tuple[ShardLog, bytes]:
    shard = await rig.shard_of()
    await rig.acknowledged(shard, b"a" * 500)
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    read = await rig.reader.read(shard, 0, 1 << 20)
    data = b"".join(map(bytes, read.in_memory()))
    if read.release is not None:
        read.release()
    return shard, data


def _complete(rig: ShardRig, shard: ShardLog) -> None:
    segments: Any = shard.segments
    whole = RemoteCopy(RemoteState.COMPLETE, segments[0].end_offset, (), "manifest", b"d", 1)
    segments[0] = replace(segments[0], remote=whole)


def _lose(rig: ShardRig, shard: ShardLog) -> None:
    copy = shard.copies[0]
    rig.context.sealed_points.forget(copy)
    copy.file.close()
    copy.file.path.unlink()


@pytest.mark.fault("sealed-segment-file-gone")
async def test_reads_of_a_file_that_is_gone_go_to_the_object_store_without_a_restart(tmp_path: Path) -> None:
    stored = StoredBytes()
    async with ShardRig(tmp_path, cold=stored) as rig:
        shard, stored.data = await _sealed(rig)
        _complete(rig, shard)
        changed: list[Segment] = []
        rig.events.on_segment_changed(lambda _, segment: changed.append(segment))
        _lose(rig, shard)
        for _ in range(3):
            with pytest.raises(NotCached):
                rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
            read = await rig.reader.read(shard, 0, 1 << 20)
            assert b"".join(map(bytes, read.in_memory())) == stored.data
        assert stored.reads == 3
        key = shard.segments[0].key
        assert key in shard.missing and not shard.has_local(key)
        assert [segment.key for segment in changed] == [key], "the uploader is told"
        assert (rig.stats.missing_copies, rig.stats.damaged_copies) == (1, 0), "told once"


@pytest.mark.fault("sealed-segment-file-gone")
async def test_reads_of_a_lost_file_are_retriable_and_say_what_is_lost(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, _ = await _sealed(rig)
        _lose(rig, shard)
        with pytest.raises(Unavailable, match="file is gone"):
            await rig.reader.read(shard, 0, 1 << 20)
        with pytest.raises(Unavailable, match=r"\[0, 1\) are lost here and not in the object store"):
            await rig.reader.read(shard, 0, 1 << 20)
        await rig.restart("stop")
        shard = rig.shard(shard)
        assert shard.segments[0].key in shard.missing, "a restart says the same"
        with pytest.raises(Unavailable, match=r"\[0, 1\) are lost here and not in the object store"):
            await rig.reader.read(shard, 0, 1 << 20)


@pytest.mark.fault("sealed-segment-file-gone")
async def test_a_file_that_is_back_is_read_again_without_a_restart(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, data = await _sealed(rig)
        path = shard.copies[0].file.path
        kept = path.rename(path.with_suffix(".kept"))
        rig.context.sealed_points.forget(shard.copies[0])
        shard.copies[0].file.close()
        for _ in range(2):
            with pytest.raises(Unavailable):
                await rig.reader.read(shard, 0, 1 << 20)
        kept.rename(path)
        changed: list[bool] = []
        rig.events.on_segment_changed(lambda shard, segment: changed.append(shard.has_local(segment.key)))
        read = await rig.reader.read(shard, 0, 1 << 20)
        assert b"".join(map(bytes, read.in_memory())) == data
        assert changed == [True] and not shard.missing
        shard.copies[0].file.close()
        path.rename(kept)
        with pytest.raises(Unavailable):
            await rig.reader.read(shard, 0, 1 << 20)
        kept.rename(path)
        await rig.copies.look_for_missing(shard.key)
        assert shard.has_local(shard.segments[0].key), "retention's rounds look, too, for there may be no reader"


async def test_times_in_a_file_that_is_gone_are_looked_up_in_the_object_store(tmp_path: Path) -> None:
    stored = StoredBytes()
    async with ShardRig(tmp_path, cold=stored) as rig:
        shard, stored.data = await _sealed(rig)
        _complete(rig, shard)
        _lose(rig, shard)
        found = await shard.offset_for_time(0)
        assert found is not None and (found.offset, stored.reads) == (0, 1)
        assert shard.segments[0].key in shard.missing
