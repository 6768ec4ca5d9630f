"""Copies and topics go while they are read, flushed or sealed: nothing is lost that is not meant to be, and no
descriptor, file or task stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import CreateTopic, DeleteTopic, RollSegment, SealSegment
from stratalog.model.errors import NotFound, StratalogError
from stratalog_node.disk.file_slice import FileSlice
from stratalog_node.shards.copies import file_removal
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.seal import sealing
from support.sealed_shards import sealed_shard
from support.shard_rig import ShardRig
from support.waiting import eventually


class HeldRead:
    """Makes blocking reads of a copy wait in their thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shard: ShardLog, epoch: int) -> None:
        self.gate = threading.Event()
        self.is_reading = threading.Event()
        file = shard.copies[epoch].file
        kind = type(file)
        real = kind.read

        def held(asked: object, position: int, size_bytes: int) -> bytes:
            if asked is file:
                self.is_reading.set()
                assert self.gate.wait(10)
            return real(asked, position, size_bytes)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "read", held)


async def test_a_freed_copy_is_gone_with_its_index_and_its_descriptor(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig)
        await rig.read_values(shard)
        opened = rig.context.descriptors.open_count
        path = rig.file_of(shard, 0)
        await rig.copies.free_local(shard, shard.segments[0].key)
        assert not path.exists() and not path.with_suffix(".idx").exists()
        assert rig.context.descriptors.open_count == opened - 1
        assert not shard.has_local(shard.segments[0].key)
        with pytest.raises(StratalogError):
            await rig.reader.read(shard, 0, 1000)


@pytest.mark.fault("deletion-client-reads")
async def test_a_read_under_way_gets_its_bytes_before_the_copy_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig)
        held = HeldRead(monkeypatch, shard, 0)
        segment = shard.segments[0].key
        reading = asyncio.create_task(shard.read_committed_range(segment, 0, 1 << 20))
        await eventually(held.is_reading.is_set)
        freeing = asyncio.create_task(rig.copies.free_local(shard, segment))
        await asyncio.sleep(0.03)
        assert not freeing.done()
        held.gate.set()
        assert (await reading).end_offset == 3
        await freeing
        with pytest.raises(NotFound):
            await shard.read_committed_range(segment, 0, 1 << 20)


async def test_two_that_free_one_copy_both_let_its_reader_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one no longer found a copy, saw no reader, and cut the file under it."""
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, 12, 500_000)  # more than is cut off at once
        held = HeldRead(monkeypatch, shard, 0)
        segment, path = shard.segments[0].key, rig.file_of(shard, 0)
        reading = asyncio.create_task(shard.read_committed_range(segment, 0, 8 << 20))
        await eventually(held.is_reading.is_set)
        freeing = [asyncio.create_task(rig.copies.free_local(shard, segment)) for _ in range(2)]
        await asyncio.sleep(0.2)
        held.gate.set()
        assert (await reading).end_offset == 12
        await asyncio.gather(*freeing)
        assert not path.exists()


@pytest.mark.fault("restart-index-written-file")
async def test_a_cancelled_read_keeps_its_pin_until_its_thread_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig)
        held = HeldRead(monkeypatch, shard, 0)
        file = shard.copies[0].file
        reading = asyncio.create_task(shard.read_committed_range(shard.segments[0].key, 0, 1 << 20))
        await eventually(held.is_reading.is_set)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert file.pins == 1
        held.gate.set()
        await eventually(lambda: file.pins == 0)


async def test_a_client_that_takes_its_answer_slowly_does_not_hold_up_freeing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_removal, "_PIN_POLLS", 2)
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig, values=2, size=100_000)
        rig.reader.outstanding_bytes = rig.reader.room_bytes(1 << 40)  # memory is short: no copy is made
        read = rig.reader.read_hot(shard, 0, 1 << 20, for_socket=True)
        (piece,) = read.buffers
        assert isinstance(piece, FileSlice)
        path, opened = rig.file_of(shard, 0), rig.context.descriptors.open_count
        await rig.copies.free_local(shard, shard.segments[0].key)
        assert not path.exists()
        with open(tmp_path / "sent", "wb") as sink:
            while len(piece):
                piece.send(sink.fileno(), 1 << 20)
        assert (tmp_path / "sent").read_bytes().count(b"1" * 100) > 0
        assert read.release is not None
        read.release()
        assert rig.context.descriptors.open_count == opened - 1


async def test_a_large_file_is_freed_without_touching_any_other(tmp_path: Path) -> None:
    """The number of a swept descriptor may be another file's by the time of the next step."""
    async with ShardRig(tmp_path, descriptor_limit=4) as rig:
        topic = await rig.create_topic(shards=12, segment_bytes=64 << 20)
        shards = [rig.shard(topic, index) for index in range(12)]
        for _ in range(9):
            rig.append(shards[0], bytes(900_000))
        shards[0].ask_roll(rig.clock())
        await rig.all_sealed()
        freeing = asyncio.create_task(rig.copies.free_local(shards[0], shards[0].segments[0].key))
        number = 0
        while not freeing.done():
            for shard in shards[1:]:
                rig.append(shard, b"%d" % number)
            number += 1
            await asyncio.sleep(0)
        await freeing
        for shard in shards[1:]:
            assert await rig.read_values(shard) == [b"%d" % n for n in range(number)]


async def test_a_deleted_topic_leaves_no_descriptor_and_its_files_go_after_the_grace_period(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        shards = [rig.shard(topic, index) for index in range(3)]
        keys = []
        for shard in shards:
            rig.append(shard, b"x")
            shard.ask_roll(rig.clock())
        await rig.all_sealed()
        for shard in shards:
            rig.append(shard, b"y")
            keys += [segment.key for segment in shard.segments]
        await rig.meta.service.perform(DeleteTopic(topic.topic_id))
        await eventually(lambda: rig.shards.get(shards[0].key) is None)
        assert rig.context.descriptors.open_count == 0
        assert rig.append(shards[0], b"z").error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        aside = rig.layout.segment(keys[0]._replace(epoch=7))
        for suffix in (".unconfirmed", ".given-up"):
            aside.with_suffix(suffix).write_bytes(b"set aside for a human")
        for suffix in (".idx", ".idx.tmp"):
            aside.with_suffix(suffix).write_bytes(b"a crash came between it and its segment")
        for key in keys:
            await rig.copies.free_local(None, key)
        assert list(rig.layout.segments.iterdir()) == [rig.layout.spares]


async def test_a_topic_deleted_under_a_read_closes_its_file_when_the_read_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await sealed_shard(rig)
        await rig.read_values(shard)
        held = HeldRead(monkeypatch, shard, 0)
        reading = asyncio.create_task(shard.read_committed_range(shard.segments[0].key, 0, 1 << 20))
        await eventually(held.is_reading.is_set)
        await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
        await eventually(lambda: rig.shards.get(shard.key) is None)
        assert rig.context.descriptors.open_count == 1
        held.gate.set()
        assert (await reading).end_offset == 3
        await eventually(lambda: rig.context.descriptors.open_count == 0)


@pytest.mark.parametrize("policy", ["fsync", "replicated"])
async def test_a_topic_deleted_under_a_flush_and_a_roll_leaves_nothing_running(tmp_path: Path, policy: str) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(flush_policy=policy)
        gate = threading.Event()
        rig.power.fail_next = lambda path: None if path.suffix != ".seg" or gate.wait(10) else OSError(5, "x")
        first = rig.append(shard, b"x")
        shard.ask_roll(rig.clock())
        second = rig.append(shard, b"y")
        await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
        await eventually(lambda: rig.shards.get(shard.key) is None)
        gate.set()
        await eventually(lambda: first.is_answered and second.is_answered)
        await eventually(lambda: not rig.sealing._tasks)
        await eventually(lambda: rig.context.descriptors.open_count == 0)
        assert rig.sealing.unsealed_count == 0
        assert not rig.flusher._dirty and not rig.flusher._checkpointed and not rig.flusher._asked
        await rig.flusher._flush_dirty(checkpoint_all=True)
        assert rig.flusher.stats.failures == 0


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_topic_deleted_under_a_roll_leaves_nothing_of_what_was_rolled_into(
    tmp_path: Path, is_named: bool
) -> None:
    """The meta service does not know that segment, so no node is asked to free it."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"b")
        await rig.until(lambda: rig.context.spares.ready_count > 0)
        gate = threading.Event()
        if is_named:
            rig.meta.hold(RollSegment)
        else:
            rig.power.fail_next = lambda path: None if path.suffix != ".seg" or gate.wait(10) else OSError(5, "x")
        keys = [segment.key for segment in shard.segments]
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"x" * 10_000)
        assert shard.active is not None
        rolled_into = shard.active.file
        if is_named:
            await eventually(lambda: rolled_into.is_named)
        await rig.meta.service.perform(DeleteTopic(shard.topic.topic_id))
        await eventually(lambda: asked.is_answered and rig.shards.get(shard.key) is None)
        gate.set()
        rig.meta.open_all()
        await eventually(lambda: not rig.sealing._tasks)
        for key in keys:
            await rig.copies.free_local(None, key)
        assert list(rig.layout.segments.iterdir()) == [rig.layout.spares]
        assert sum(path.stat().st_size for path in rig.layout.spares.iterdir()) == 0
        assert rig.context.descriptors.open_count == 0


async def test_a_topic_made_again_under_its_name_starts_empty_and_the_old_one_stays_gone(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        old = await rig.shard_of()
        rig.append(old, b"old")
        pending = rig.offer(old, b"offered before the deletion")
        await rig.meta.service.perform(DeleteTopic(old.topic.topic_id))
        await rig.meta.service.perform(CreateTopic("flights", shard_count=1, replication_factor=1, settings={}))
        await eventually(lambda: (found := rig.shards.by_name("flights", 0)) is not None and found is not old)
        await eventually(lambda: pending.is_answered)
        new = rig.shards.by_name("flights", 0)
        assert new is not None and new.high_watermark == 0
        assert rig.append(new, b"new").offset == 0
        await rig.restart()
        new = rig.shards.by_name("flights", 0)
        assert new is not None
        assert await rig.read_values(new) == [b"new"]


async def test_a_segment_deleted_before_it_was_sealed_goes_like_any_other(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"y")
        await eventually(lambda: rig.meta.calls[SealSegment] == 1)
        path, key = rig.file_of(shard, 0), shard.ended[0].key
        assert await shard.delete_records_before(1) == 1
        await eventually(lambda: rig.catalog.segment(key) is None)
        await rig.copies.free_local(shard, key)
        rig.meta.release(SealSegment)
        await eventually(lambda: rig.sealing.unsealed_count == 0)
        assert not path.exists() and not path.with_suffix(".idx").exists()
        assert not shard.ended and not shard.copies
        assert rig.context.descriptors.open_count == 1
        assert await rig.read_values(shard) == [b"y"]


async def test_a_seal_that_is_written_after_its_segment_was_freed_leaves_no_index_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        begun, gate, real = threading.Event(), threading.Event(), sealing.write_durably

        def slow(path: Path, pieces: Iterable[bytes]) -> None:
            begun.set()
            assert gate.wait(30)
            real(path, pieces)

        monkeypatch.setattr(sealing, "write_durably", slow)
        monkeypatch.setattr(file_removal, "_PIN_POLLS", 1)
        rig.append(shard, b"x")
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"y")
        await eventually(begun.is_set)
        path, ended = rig.file_of(shard, 0), shard.ended[0]
        assert await shard.delete_records_before(1) == 1
        await eventually(lambda: rig.catalog.segment(ended.key) is None)
        await rig.copies.free_local(shard, ended.key)
        gate.set()
        await eventually(lambda: not ended.file.pins)
        assert not path.exists() and not path.with_suffix(".idx").exists()


async def test_delete_records_stops_at_the_high_watermark(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        rig.append(shard, b"not committed yet")
        assert await shard.delete_records_before(10) == 1
        assert shard.log_start_offset == 1 == shard.high_watermark
        assert await shard.delete_records_before(0) == 1
        rig.meta.release(RollSegment)
        await eventually(lambda: shard.high_watermark == 2)
        assert await rig.read_values(shard) == [b"not committed yet"]


@pytest.mark.fault("request-handler-fails")
async def test_a_fault_in_one_shard_stops_that_shard_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        shards = [rig.shard(topic, index) for index in range(3)]
        real = ShardLog.flush_pending

        def faulty(shard: ShardLog, now_ms: int) -> None:
            if shard is shards[0]:
                raise ValueError("a bug")
            real(shard, now_ms)

        monkeypatch.setattr(ShardLog, "flush_pending", faulty)
        asked = [rig.offer(shard, b"x") for shard in shards]
        rig.tick()
        assert asked[1].is_acknowledged and asked[2].is_acknowledged
        monkeypatch.undo()
        later = rig.append(shards[0], b"y")
        assert later.error is ErrorCode.KAFKA_STORAGE_ERROR


async def test_an_append_of_the_node_itself_fails_by_its_kind(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        from support.shard_rig import make_batch

        assert await shard.append([make_batch([b"a"]), make_batch([b"b", b"c"])]) == 0
        assert await shard.append([]) == 3
        rig.context.gate.no_room = "full"
        with pytest.raises(StratalogError, match="full"):
            await shard.append([make_batch([b"d"])])
        rig.context.gate.no_room = None
        assert await shard.append([make_batch([b"d"])]) == 3
