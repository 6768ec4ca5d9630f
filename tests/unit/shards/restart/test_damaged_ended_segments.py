"""A bit flips below the checkpoint of the only copy of a segment, which no start reads: its seal finds the damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.commands.table_commands import SealSegment
from stratalog.model.segment import SegmentState
from stratalog_node.backoff import Backoff
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.seal import sealing
from support.shard_rig import ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

pytestmark = pytest.mark.fault("ended-segment-damaged-below-checkpoint")
BATCH = 69


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "Backoff", lambda *_: Backoff(0.001, 0.01))


async def written(rig: ShardRig, *values: bytes) -> ShardLog:
    shard = await rig.shard_of()
    for value in values:
        await rig.acknowledged(shard, value)
    return shard


def flip(path: Path, batch: int) -> bytes:
    """One bit of a record. Returns what the file was."""
    whole = path.read_bytes()
    data = bytearray(whole)
    data[SEGMENT_HEADER_BYTES + BATCH * (batch + 1) - 1] ^= 1
    path.write_bytes(data)
    return whole


async def ended(rig: ShardRig, shard: ShardLog) -> ShardLog:
    """The damaged segment ends: another is active."""
    shard = rig.shard(shard)
    shard.ask_roll(rig.clock())
    await rig.acknowledged(shard, b"next")
    return shard


@pytest.mark.parametrize("batch", [0, 1, 2])
async def test_the_seal_restores_the_damaged_batch_from_the_bucket(tmp_path: Path, batch: int) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await written(rig, b"a", b"b", b"c")
        await rig.uploaded()
        path = rig.file_of(shard)
        await rig.stop()
        whole = flip(path, batch)
        await rig.start()
        shard = await ended(rig, shard)
        await rig.all_sealed()
        assert path.read_bytes() == whole and rig.stats.healed_bytes > 0
        assert await rig.read_values(shard) == [b"a", b"b", b"c", b"next"]
        assert not rig.sealing.damage_lines and not rig.sealing.damaged
        assert shard.copies[0].damage is None, "it was read again"


async def test_a_segment_that_had_ended_before_the_restart_is_restored_by_the_start(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await written(rig, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.flusher._flush_dirty(checkpoint_all=True)
        path = rig.file_of(shard)
        rig.meta.hold(SealSegment)
        shard = await ended(rig, shard)
        await eventually(lambda: shard.segments[0].state is SegmentState.SEALING)
        await rig.crash()
        rig.meta.release(SealSegment)
        whole = flip(path, 1)
        await rig.start()
        await rig.all_sealed()
        assert path.read_bytes() == whole
        assert await rig.read_values(rig.shard(shard)) == [b"a", b"b", b"c", b"next"]


async def test_while_the_bucket_is_away_the_node_names_the_segment_and_tries_again(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await written(rig, b"a", b"b", b"c")
        await rig.uploaded()
        path = rig.file_of(shard)
        await rig.stop()
        whole = flip(path, 1)
        await rig.start()
        rig.store.is_away = True
        shard = await ended(rig, shard)
        await eventually(lambda: rig.sealing.damage_lines)
        (line,) = rig.sealing.damage_lines
        assert line.startswith("flights-0: segment 0-0 ended and is not sealed: ") and "the only copy" in line
        assert "next: " in line
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"last")
        await eventually(lambda: 1 in shard.copies)
        assert [one.key.epoch for one in shard.ended] == [0], "segments behind it are sealed meanwhile"
        rig.store.is_away = False
        await rig.all_sealed()
        assert path.read_bytes() == whole and not rig.sealing.damage_lines


async def test_what_the_bucket_does_not_have_is_named_and_not_given_up(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await written(rig, b"a")
        await rig.uploaded()
        await rig.acknowledged(shard, b"b")
        await rig.uploader.close()
        await rig.flusher._flush_dirty(checkpoint_all=True)
        path = rig.file_of(shard)
        await rig.crash()
        whole = flip(path, 1)
        await rig.start()
        await rig.uploader.close()
        shard = await ended(rig, shard)
        await eventually(lambda: rig.sealing.damage_lines)
        (line,) = rig.sealing.damage_lines
        assert "the object store has the segment only up to offset 1" in line
        assert shard.segments[0].state is SegmentState.SEALING and rig.stats.given_up_offsets == 0
        path.write_bytes(whole)
        await rig.all_sealed()
        assert await rig.read_values(shard) == [b"a", b"b", b"next"]


async def test_without_a_bucket_the_segment_is_named(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await written(rig, b"a", b"b")
        path = rig.file_of(shard)
        await rig.stop()
        flip(path, 0)
        await rig.start()
        await ended(rig, shard)
        await eventually(lambda: rig.sealing.damage_lines)
        assert "start it with --bucket" in rig.sealing.damage_lines[0]
