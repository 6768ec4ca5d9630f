"""Writes that fail in unforeseen ways: everybody is answered, and what was refused does not come back."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.leader_events import PersistBatches
from stratalog.machines.leading.roll_order import RollOrder
from stratalog.machines.leading.sealed_producers import Producers
from stratalog.model.commands.table_commands import RollSegment
from stratalog.model.errors import DiskFull, OutcomeUnknown, StratalogError, Unavailable
from stratalog_node.disk.journal_file import JournalFile
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.flush import flusher as flusher_module
from stratalog_node.shards.flush import shared_journal
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.seal.sealing import Sealing
from support.shard_rig import ShardRig, make_batch
from support.waiting import eventually

MANY = flusher_module.DIRECT_FILES + 3


def break_down(*_: object, **__: object) -> None:
    raise RuntimeError("a bug")


async def refused_append(shard: ShardLog) -> type[StratalogError]:
    """The error that an append of the node itself gets now. Fails when it gets no answer."""
    with pytest.raises(StratalogError) as refusal:
        async with asyncio.timeout(10):
            await shard.append([make_batch([b"lost"])])
    return refusal.type


# Waiting requests are answered ------------------------------------------------------------------------------------
@pytest.mark.fault("error-occurs-node-middle")
async def test_producers_in_the_turn_of_a_fault_get_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"kept")
        with monkeypatch.context() as patch:
            patch.setattr(ActiveSegment, "write", break_down)
            beside = rig.offer(shard, b"from a client")
            assert await refused_append(shard) is OutcomeUnknown
            assert beside.error is ErrorCode.REQUEST_TIMED_OUT
        assert rig.append(shard, b"later").error is ErrorCode.KAFKA_STORAGE_ERROR
        assert await rig.read_values(shard) == [b"kept"]


@pytest.mark.fault("error-occurs-node-middle")
@pytest.mark.parametrize("how", ["stop", "crash"])
@pytest.mark.parametrize("is_written", [False, True])
async def test_after_a_failed_write_a_start_continues_where_the_batches_of_the_file_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, is_written: bool
) -> None:
    """Offsets were given, and it is unknown whether the batches are in the file: no checkpoint says that they are."""
    write = ActiveSegment.write

    def break_down_at(active: ActiveSegment, effect: PersistBatches) -> None:
        if is_written:
            write(active, effect)
        raise RuntimeError("a bug")

    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"kept")
        with monkeypatch.context() as patch:
            patch.setattr(ActiveSegment, "write", break_down_at)
            assert rig.append(shard, b"un", b"known").error is ErrorCode.REQUEST_TIMED_OUT
        await rig.flusher._flush_dirty(checkpoint_all=True)
        await rig.restart(how)
        await rig.acknowledged(rig.shard(shard), b"later")
        unknown = [b"un", b"known"] if is_written else []
        assert await rig.read_values(rig.shard(shard)) == [b"kept", *unknown, b"later"]
        rig.shard(shard).ask_roll(rig.clock())
        await rig.all_sealed()


async def test_a_log_whose_flush_failed_is_not_told_as_a_full_disk(tmp_path: Path) -> None:
    """`DiskFull` says that it heals by itself; a failed flush lasts until a person has repaired the disk."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        rig.power.fail_next = lambda path: OSError(errno.EIO, "error") if path.suffix == ".seg" else None
        await rig.flusher._flush_dirty(checkpoint_all=False)
        rig.power.fail_next = lambda _: None
        assert await refused_append(shard) is Unavailable


async def test_a_full_disk_is_reported_as_full(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.context.gate.no_room = "free some space"
        assert await refused_append(shard) is DiskFull


@pytest.mark.fault("error-occurs-node-middle")
@pytest.mark.parametrize("place", ["a file", "the group"])
async def test_requests_that_wait_for_a_failed_flush_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2, flush_policy="fsync")
        bad, good = rig.shard(topic, 0), rig.shard(topic, 1)
        with monkeypatch.context() as patch:
            if place == "a file":
                patch.setattr(flusher_module, "sync_segment", break_down)
            else:
                patch.setattr(rig.flusher, "_make_durable", break_down)
            assert await refused_append(bad) is OutcomeUnknown
        await rig.acknowledged(good, b"x")


@pytest.mark.fault("error-occurs-node-middle")
async def test_an_invalid_batch_fails_the_ones_beside_it(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        with pytest.raises(StratalogError):
            await shard.append([make_batch([b"whole"]), make_batch([b"cut"])[:-1]])
        rig.tick()
        assert shard.end_offset == 0


@pytest.mark.fault("error-occurs-node-middle")
async def test_rolls_behind_one_that_meets_a_fault_are_not_forgotten_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        waiting = rig.append(shard, b"in the next segment")
        shard.ask_roll(rig.clock())
        rig.append(shard, b"in the one after")
        monkeypatch.setattr(RollOrder, "handle", break_down)
        appending = asyncio.ensure_future(refused_append(shard))
        await asyncio.sleep(0)
        rig.meta.release(RollSegment)
        await eventually(lambda: waiting.is_answered)
        assert waiting.error is ErrorCode.REQUEST_TIMED_OUT
        assert await appending is OutcomeUnknown
        monkeypatch.undo()
        await rig.restart()
        await rig.all_sealed()
        assert (await rig.read_values(rig.shard(shard)))[:3] == [b"old", b"in the next segment", b"in the one after"]


@pytest.mark.fault("error-occurs-node-middle")
async def test_a_seal_that_meets_faults_is_tried_again_and_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        real = Sealing._make_seal

        def make_seal(sealing: Sealing, old: ActiveSegment, before: Producers) -> object:
            if old.key.epoch == 0:
                raise RuntimeError("a bug")
            return real(sealing, old, before)

        with monkeypatch.context() as patch:
            patch.setattr(Sealing, "_make_seal", make_seal)
            for number in range(3):
                rig.append(shard, b"%d" % number)
                shard.ask_roll(rig.clock())
            await eventually(lambda: rig.stats.sealed == 2 and rig.stats.seal_failures > 1)
        assert await rig.read_values(shard) == [b"0", b"1", b"2"]
        await rig.all_sealed()


# Journals ---------------------------------------------------------------------------------------------------------
@pytest.mark.fault("full-journal-file-cannot")
async def test_a_journal_that_cannot_be_removed_stays_and_the_next_ones_are_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_journal, "JOURNAL_BYTES", 1500)
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=MANY, flush_policy="fsync")
        shards = [rig.shard(topic, index) for index in range(MANY)]
        real = Path.unlink

        def refuse(path: Path, missing_ok: bool = False) -> None:
            if path.suffix == ".journal":
                raise OSError(errno.EPERM, "Operation not permitted")
            real(path, missing_ok)

        async def write(number: int) -> None:
            asked = [rig.append(shard, b"%d" % number) for shard in shards]
            await eventually(lambda: all(a.is_acknowledged for a in asked))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", refuse)
            for number in range(10):
                await write(number)
            await eventually(lambda: len(list(rig.layout.journal.iterdir())) > 3)
        for number in range(10, 20):
            await write(number)
        await eventually(lambda: len(list(rig.layout.journal.iterdir())) <= 2)
        await rig.restart("power_cut")
        for shard in shards:
            assert await rig.read_values(rig.shard(shard)) == [b"%d" % number for number in range(20)]


async def test_a_journal_that_meets_a_fault_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=MANY, flush_policy="fsync")
        shards = [rig.shard(topic, index) for index in range(MANY)]
        with monkeypatch.context() as patch:
            patch.setattr(JournalFile, "write", break_down)
            asked = [rig.append(shard, b"x") for shard in shards]
            await eventually(lambda: all(a.is_acknowledged for a in asked))
        await rig.restart("power_cut")
        for shard in shards:
            assert await rig.read_values(rig.shard(shard)) == [b"x"]


# What was refused -------------------------------------------------------------------------------------------------
class TornDisk:
    """Writes half of what it is given, then fails; with `is_stuck` it does not take back what it wrote either."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_full = self.is_stuck = False
        self._pwritev, self._ftruncate = os.pwritev, os.ftruncate
        patch.setattr(os, "pwritev", self._write)
        patch.setattr(os, "ftruncate", self._cut)

    def _write(self, fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        if self.is_full:
            kept = list(buffers)[: len(buffers) - 1]
            if kept:
                self._pwritev(fd, kept, position, flags)
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._pwritev(fd, buffers, position, flags)

    def _cut(self, fd: int, size_bytes: int) -> None:
        if self.is_stuck:
            raise OSError(errno.EIO, "Input/output error")
        self._ftruncate(fd, size_bytes)


@pytest.mark.fault("append-fails-node-cannot")
@pytest.mark.parametrize("is_freed", [False, True])
async def test_what_was_refused_and_could_not_be_cut_off_is_unknown_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_freed: bool
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"kept")
        disk = TornDisk(monkeypatch)
        disk.is_full = disk.is_stuck = True
        torn = [rig.offer(shard, b"torn %d" % number) for number in range(3)]
        rig.tick()
        assert [asked.error for asked in torn] == [ErrorCode.REQUEST_TIMED_OUT] * 3, "they may come back"
        disk.is_full = False
        refused = rig.append(shard, b"refused")
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR, "nothing is written before the rest is cut off"
        assert not shard.ask_roll(rig.clock()), "nor does the segment end with the rest behind its end"
        expected = [b"kept", b"torn 0", b"torn 1"]
        if is_freed:
            disk.is_stuck = False
            await rig.acknowledged(shard, b"next 0")
            expected = [b"kept", b"next 0"]
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == expected


@pytest.mark.fault("append-fails-node-cannot")
async def test_what_was_refused_and_cut_off_never_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        disk = TornDisk(monkeypatch)
        disk.is_full = True
        torn = [rig.offer(shard, b"torn %d" % number) for number in range(3)]
        rig.tick()
        assert [asked.error for asked in torn] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        disk.is_full = False
        await rig.acknowledged(shard, b"next 0")
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == [b"next 0"]


@pytest.mark.fault("checkpoint-deletion-disk-full")
async def test_a_checkpoint_that_cannot_be_deleted_stays_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full while a segment ends: the next start deletes its checkpoint."""
    unretrieved: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))

    def cannot_delete(*_: object) -> None:
        raise Unavailable("checkpoints: cannot write checkpoints: no space left on device")

    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"kept")
        await rig.flusher._flush_dirty(checkpoint_all=True)
        monkeypatch.setattr(rig.flusher._checkpoints, "delete", cannot_delete)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        await rig.flusher._forgetting.ended()
    gc.collect()
    assert not unretrieved
    said = capsys.readouterr()
    assert "stays until the next start" in said.out + said.err
