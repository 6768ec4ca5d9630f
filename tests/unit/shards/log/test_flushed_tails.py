"""A file that ends below what its checkpoint says was flushed: the checkpoint is a witness, whatever the stop was."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.errors import DiskFull
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.checkpoints import Checkpoints, flushed_ends
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

BATCH = 69


async def acknowledged(rig: ShardRig, shard: ShardLog, *values: bytes) -> None:
    for value in values:
        await rig.acknowledged(shard, value)


async def stopped(rig: ShardRig, shard: ShardLog) -> str:
    shard = rig.shard(shard)
    await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
    assert shard.stop is not None
    return shard.stop.reason


def cut(path: Path, how: str, batches: int) -> None:
    size = path.stat().st_size
    if how == "gone":
        path.unlink()
        return
    os.truncate(path, SEGMENT_HEADER_BYTES + BATCH * batches)
    if how == "zeros":
        os.truncate(path, size + 100_000)


@pytest.mark.fault("file-cut-gone-offset")
@pytest.mark.parametrize("how", ["cut", "zeros", "gone"])
async def test_flushed_batches_that_are_gone_come_back_from_the_bucket(tmp_path: Path, how: str) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        path = rig.file_of(shard)
        await rig.stop()
        cut(path, how, 1)
        await rig.start()
        shard = await rig.healed(shard)
        await acknowledged(rig, shard, b"d")
        assert await rig.read_values(shard) == [b"a", b"b", b"c", b"d"]
        assert shard.active is not None and shard.active.key.epoch == 1, "the disk is not as it was left"


@pytest.mark.fault("file-cut-gone-offset")
@pytest.mark.parametrize("how", ["cut", "zeros", "gone"])
async def test_flushed_batches_that_are_nowhere_stop_the_shard_at_every_start(tmp_path: Path, how: str) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        path = rig.file_of(shard)
        await rig.stop()
        whole = path.read_bytes()
        cut(path, how, 1)
        for _ in range(2):
            await rig.start()
            first = 0 if how == "gone" else 1
            reason = await stopped(rig, shard)
            assert f"offsets {first} to 3 were written and are lost" in reason and str(path) in reason
            assert rig.shard(shard).high_watermark == 3, "nobody is told that the log ends earlier"
            await rig.stop()
        path.write_bytes(whole)
        await rig.start()
        assert await rig.read_values(rig.shard(shard)) == [b"a", b"b", b"c"], "the file was put back"


@pytest.mark.fault("file-cut-gone-offset")
async def test_flushed_batches_that_the_bucket_has_only_in_part_stop_the_shard_with_the_rest_named(
    tmp_path: Path,
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, shard, b"c", b"d")
        path = rig.file_of(shard)
        await rig.uploader.close()
        await rig.flusher.close()
        await rig.crash()
        cut(path, "cut", 1)
        await rig.start()
        assert "offsets 2 to 4 were written and are lost" in await stopped(rig, shard)
        with pytest.raises(AssertionError):
            await acknowledged(rig, rig.shard(shard), b"e")
        await rig.restart("power_cut")
        assert "offsets 2 to 4 were written and are lost" in await stopped(rig, shard)


@pytest.mark.fault("file-cut-gone-offset")
async def test_after_a_crash_an_older_checkpoint_is_a_witness_as_well(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.flusher._flush_dirty(checkpoint_all=True)
        await acknowledged(rig, shard, b"c")
        path = rig.file_of(shard)
        await rig.crash()
        cut(path, "cut", 1)
        await rig.start()
        assert "offsets 1 to 2 were written and are lost" in await stopped(rig, shard), "of c nobody knows"


@pytest.mark.fault("file-cut-gone-offset")
async def test_what_is_given_up_is_not_witnessed_again_by_an_older_checkpoint(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        path = rig.file_of(shard)
        await rig.stop()
        cut(path, "cut", 1)
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.stop is None)
        assert await rig.read_values(shard) == [b"a"] and shard.high_watermark == 3
        assert rig.checkpoints.load_all() == {}, "of the file as it was"
        await acknowledged(rig, shard, b"d")
        await rig.restart("power_cut")
        assert rig.shard(shard).stop is None
        assert (await rig.read_values(rig.shard(shard)))[:1] == [b"a"]


@pytest.mark.fault("file-cut-gone-offset")
async def test_a_batch_damaged_since_its_flush_before_a_torn_tail_costs_nothing_behind_it(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.flusher._flush_dirty(checkpoint_all=True)
        path = rig.file_of(shard)
        await rig.crash()
        data = bytearray(path.read_bytes())
        data[SEGMENT_HEADER_BYTES + BATCH + 65] ^= 1
        path.write_bytes(data + b"torn")
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is None and shard.high_watermark == 3 and path.stat().st_size == len(data)


@pytest.mark.fault("file-cut-gone-offset")
async def test_damage_repaired_from_the_bucket_costs_nothing_behind_it(tmp_path: Path) -> None:
    """Also what was never uploaded: the file continues where the parts end."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, shard, b"c", b"d")
        await rig.flusher._flush_dirty(checkpoint_all=True)
        path = rig.file_of(shard)
        await rig.crash()
        data = bytearray(path.read_bytes())
        whole = bytes(data)
        data[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + BATCH + 20] = bytes(BATCH + 20)
        path.write_bytes(data + b"torn")
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c", b"d"]
        assert path.read_bytes() == whole


@pytest.mark.fault("file-cut-gone-offset")
async def test_what_was_flushed_is_still_missed_after_a_start_that_could_not_read_the_file(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        path = rig.file_of(shard)
        await rig.stop()
        whole = path.read_bytes()
        path.write_bytes(b"\xff" * len(whole))
        await rig.start()
        stop = rig.shard(shard).stop
        assert stop is not None and stop.cause is StopCause.UNREADABLE
        await rig.stop()
        path.write_bytes(whole[: SEGMENT_HEADER_BYTES + BATCH])
        await rig.start()
        assert "offsets 1 to 3 were written and are lost" in await stopped(rig, shard)


async def test_a_wrong_checkpoint_just_where_the_healed_file_ends_does_not_make_it_heal_for_ever(
    tmp_path: Path,
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        assert shard.active is not None
        key, path = shard.active.key, rig.file_of(shard)
        await rig.stop()
        os.truncate(path, SEGMENT_HEADER_BYTES + BATCH)
        store = Checkpoints(rig.layout.checkpoints)
        store.put([Checkpoint(key, BATCH * 3, 2, 1, 1, IndexPoints(), ())])
        store.close()
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b", b"c"]
        assert rig.stats.healed_shards == 1


async def test_a_wrong_checkpoint_is_gone_before_the_file_that_refutes_it_is_cut_just_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        assert shard.active is not None
        rig.checkpoints.put([Checkpoint(shard.active.key, BATCH * 3, 2, 1, 1, IndexPoints(), ())])
        path = rig.file_of(shard)
        await rig.crash()
        with path.open("ab") as file:
            file.write(b"torn")
        real = SegmentFile.truncate

        def cut_and_die(file: SegmentFile, size_bytes: int) -> None:
            real(file, size_bytes)
            raise RuntimeError("killed")

        monkeypatch.setattr(SegmentFile, "truncate", cut_and_die)
        await rig.start()
        assert rig.shard(shard).stop is not None, "the file was cut, and the process went no further with it"
        monkeypatch.undo()
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == [b"a", b"b", b"c"]


@pytest.mark.fault("start-full-disk-shard")
async def test_a_wrong_checkpoint_that_a_full_disk_kept_is_gone_once_the_shard_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a later start believes it, though its file was cut and written to since."""
    real, tries = Checkpoints.revoke, 0

    def full_twice(store: Checkpoints, keys: Iterable[SegmentKey]) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise DiskFull("no space left")
        real(store, keys)

    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        assert shard.active is not None
        key, path = shard.active.key, rig.file_of(shard)
        rig.checkpoints.put([Checkpoint(key, BATCH * 3, 2, 1, 1, IndexPoints(), ())])
        await rig.crash()
        with path.open("ab") as file:
            file.write(b"torn")
        monkeypatch.setattr(Checkpoints, "revoke", full_twice)
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is not None and "needs room on the disk" in shard.stop.reason
        await eventually(lambda: shard.stop is None)
        kept = rig.checkpoints.load_all().get(key)
        assert kept is None or kept.next_offset == 3
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]


async def test_a_segment_that_ended_empty_is_sealed_though_its_file_is_gone(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.restart("crash")
        shard = rig.shard(shard)
        rig.meta.hold(AdvanceLogStart)  # which would delete it at once
        asked = rig.append(shard, b"a")
        await eventually(lambda: asked.is_acknowledged)
        path = rig.file_of(shard, 0)
        await rig.crash()
        path.unlink()
        rig.meta.open_all()
        await rig.start()
        assert rig.shard(shard).stop is None
        assert await rig.read_values(rig.shard(shard)) == [b"a"]
        await rig.all_sealed()


class _UnsyncedCheckpoints:
    """What RocksDB may find after a power cut: any state since the last write that was synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: list[dict[SegmentKey, Checkpoint]] = [{}]
        put, delete, revoke = Checkpoints.put, Checkpoints.delete, Checkpoints.revoke

        def noted(store: Checkpoints) -> None:
            self.states.append(store.load_all())

        def noted_put(store: Checkpoints, checkpoints: Iterable[Checkpoint]) -> None:
            put(store, checkpoints)
            noted(store)

        def noted_delete(store: Checkpoints, keys: Iterable[SegmentKey]) -> None:
            delete(store, keys)
            noted(store)

        def noted_revoke(store: Checkpoints, keys: Iterable[SegmentKey]) -> None:
            revoke(store, keys)
            self.states.clear()
            noted(store)

        monkeypatch.setattr(Checkpoints, "put", noted_put)
        monkeypatch.setattr(Checkpoints, "delete", noted_delete)
        monkeypatch.setattr(Checkpoints, "revoke", noted_revoke)

    def cut(self, path: Path, chance: random.Random) -> None:
        place = chance.randrange(len(self.states))
        kept = self.states[place]
        store = Checkpoints(path)
        store.revoke(list(store.load_all()))
        store.put(kept.values())
        self.states = [kept]
        store.close()


@pytest.mark.fault("file-cut-gone-offset")
@pytest.mark.parametrize("seed", range(6))
async def test_no_checkpoint_says_more_than_a_power_cut_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whichever of the unsynced checkpoints survive, no file is accused of having lost what was never flushed."""
    chance = random.Random(seed)
    unsynced = _UnsyncedCheckpoints(monkeypatch)
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(segment_bytes=600)
        for number in range(14):
            shard = rig.shard(shard)
            for _ in range(chance.randrange(5)):
                rig.append(shard, b"%d" % number)
            if chance.random() < 0.5:
                await rig.flusher._flush_dirty(checkpoint_all=chance.random() < 0.7)
            how = chance.choice(["stop", "crash", "power_cut", "power_cut"])
            await getattr(rig, how)()
            if how == "power_cut":
                unsynced.cut(rig.layout.checkpoints, chance)
            await rig.start()
            assert rig.shard(shard).stop is None, f"{how} {number}: {rig.shard(shard).stop}"
        await rig.all_sealed()


async def test_a_revoked_checkpoint_is_synced_away(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "checkpoints")
    real = store._db
    calls: list[tuple[str, bool]] = []

    class Spy:
        def write(self, batch: Any) -> None:
            calls.append(("write", False))
            real.write(batch)

        def flush_wal(self, sync: bool) -> None:
            calls.append(("flush", sync))
            real.flush_wal(sync)

    store._db = Spy()  # type: ignore[assignment]
    store.revoke([])
    assert calls == [("write", False), ("flush", True)]
    store._db = real
    store.close()
    assert flushed_ends(tmp_path / "checkpoints") == {} == flushed_ends(tmp_path / "nothing")
