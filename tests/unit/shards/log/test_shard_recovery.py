"""Restart: checkpoints newer, older and wrong, torn tails, files that are short, missing or of another kind."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import DeleteTopic, SealSegment
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig
from support.waiting import eventually


async def numbered(rig: ShardRig, shard: ShardLog, start: int, count: int) -> None:
    for number in range(start, start + count):
        await rig.acknowledged(shard, b"%d" % number)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_a_clean_stop_leaves_nothing_to_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 20)
        await rig.stop()
        monkeypatch.setattr(
            "stratalog_node.disk.segment_scan.scan_whole_batches", lambda *_, **__: pytest.fail("scanned")
        )
        await rig.start()
        monkeypatch.undo()
        assert await rig.read_values(rig.shard(shard)) == numbers(20)


async def test_a_scan_continues_from_an_older_checkpoint(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 5)
        await rig.restart("stop")
        shard = rig.shard(shard)
        await numbered(rig, shard, 5, 5)
        await rig.restart("crash")
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == numbers(10)
        await numbered(rig, shard, 10, 1)


@pytest.mark.parametrize("cut", [1, 11, 12, 60, 61, 68])
async def test_a_torn_tail_is_cut_at_the_last_whole_batch(tmp_path: Path, cut: int) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 3)
        path = rig.file_of(shard)
        await rig.crash()
        size = path.stat().st_size
        os.truncate(path, size - cut)
        await rig.start()
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == numbers(2)
        await numbered(rig, shard, 2, 1)
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == numbers(3)


@pytest.mark.parametrize("tail", [bytes(4096), b"\xff" * 100, Random(1).randbytes(200)])
async def test_garbage_after_the_last_batch_is_cut(tmp_path: Path, tail: bytes) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 3)
        path = rig.file_of(shard)
        await rig.crash()
        with path.open("ab") as file:
            file.write(tail)
        await rig.start()
        assert await rig.read_values(rig.shard(shard)) == numbers(3)
        assert rig.stats.torn_tail_bytes == (len(tail) if any(tail) else 0), "zeros are room ahead, nothing torn"


async def test_room_ahead_is_cut_at_start_and_the_next_batches_go_where_it_was(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        large = [bytes([number]) * 20_000 for number in range(1, 9)]
        for value in large:
            rig.append(shard, value)
        assert shard.active is not None
        path = rig.file_of(shard)
        assert path.stat().st_size > shard.active.file.size_bytes, "appends of this size make room"
        await rig.restart("crash")
        shard = rig.shard(shard)
        assert shard.active is not None and path.stat().st_size == shard.active.file.size_bytes
        assert rig.stats.torn_tail_bytes == 0
        await rig.acknowledged(shard, b"after")
        assert await rig.read_values(shard) == [*large, b"after"]


async def test_a_checkpoint_that_room_ahead_follows_is_trusted(tmp_path: Path) -> None:
    """Or each start would read a quiet segment whole."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 10)
        path = rig.file_of(shard)
        await rig.stop()
        with path.open("ab") as file:
            file.write(bytes(100_000))
        await rig.start()
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == numbers(10)
        assert shard.active is not None and shard.active.flushed_bytes == shard.active.file.size_bytes, "read again"


async def test_a_sealed_file_has_no_room_ahead(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"x" * 50_000)
        rig.append(shard, b"x" * 50_000)
        assert shard.active is not None
        file = shard.active.file
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        assert file.path.stat().st_size == file.size_bytes


async def test_a_checkpoint_that_points_between_two_batches_does_not_cost_what_follows(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 10)
        assert shard.active is not None
        rig.checkpoints.put([Checkpoint(shard.active.key, 69 * 3 + 5, 3, 1, 1, IndexPoints(), ())])
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == numbers(10)


@pytest.mark.fault("file-cut-gone-offset")
async def test_a_checkpoint_with_a_wrong_offset_is_refuted_by_its_file(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 10)
        assert shard.active is not None
        key = shard.active.key
        rig.checkpoints.put([Checkpoint(key, 69 * 10, 7, 1, 1, IndexPoints(), ())])
        path = rig.file_of(shard)
        await rig.crash()
        with path.open("ab") as file:
            file.write(b"torn")
        await rig.start()
        assert await rig.read_values(rig.shard(shard)) == numbers(10)
        assert key not in rig.checkpoints.load_all()


@pytest.mark.parametrize("room", [0, 100_000])
async def test_damage_below_the_checkpoint_is_not_mistaken_for_a_torn_tail(tmp_path: Path, room: int) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 10)
        path = rig.file_of(shard)
        await rig.stop()
        data = bytearray(path.read_bytes())
        data[SEGMENT_HEADER_BYTES + 69 * 2 + 65] ^= 1
        path.write_bytes(data + bytes(room))
        await rig.start()
        shard = rig.shard(shard)
        assert shard.high_watermark == 10
        assert path.stat().st_size == len(data)


@pytest.mark.fault("file-shard-cannot-opened")
async def test_an_active_file_shorter_than_what_is_in_the_object_store_stops_the_shard_with_a_reason(
    tmp_path: Path,
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 4)
        path = rig.file_of(shard)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69)
        original = rig.meta.service.snapshot

        async def snapshot():  # type: ignore[no-untyped-def]
            found = await original()
            (known,) = found.shards
            (segment,) = known.segments
            committed = replace(segment, remote=replace(segment.remote, commit_offset=3))
            return replace(found, shards=(replace(known, segments=(committed,)),))

        rig.meta.service.snapshot = snapshot  # type: ignore[method-assign]
        await rig.start()
        shard = rig.shard(shard)
        asked = rig.append(shard, b"x")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "offsets 1 to 3 of segment 0-0 are known to have been written" in (asked.answers[0].message or "")


@pytest.mark.fault("file-shard-cannot-opened")
async def test_a_file_that_cannot_be_opened_refuses_its_shard_and_no_other(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        for index in range(2):
            rig.append(rig.shard(topic, index), b"x")
        path = rig.file_of(rig.shard(topic, 0))
        await rig.crash()
        path.unlink()
        path.mkdir()
        await rig.start()
        assert rig.append(rig.shard(topic, 0), b"y").error is ErrorCode.KAFKA_STORAGE_ERROR
        await rig.acknowledged(rig.shard(topic, 1), b"y")


@pytest.mark.fault("segment-crosses-epochs-data", "file-shard-cannot-opened")
async def test_a_file_of_another_segment_is_refused(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        for index in range(2):
            rig.append(rig.shard(topic, index), b"x")
        paths = [rig.file_of(rig.shard(topic, index)) for index in range(2)]
        await rig.crash()
        paths[0].write_bytes(paths[1].read_bytes())
        await rig.start()
        asked = rig.append(rig.shard(topic, 0), b"y")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "wrong identity" in (asked.answers[0].message or "")


@pytest.mark.fault("restart-index-written-file")
async def test_a_segment_found_sealing_is_sealed_after_the_restart(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 3)
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await numbered_later(rig, shard, 3)
        await eventually(lambda: rig.meta.calls[SealSegment] == 1)
        await rig.crash()
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        assert await rig.read_values(shard) == numbers(4)
        await rig.all_sealed()
        assert await rig.read_values(shard) == numbers(4)


async def test_a_segment_damaged_below_its_known_end_is_refused_and_not_cut(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await numbered(rig, shard, 0, 10)
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await eventually(lambda: rig.meta.calls[SealSegment] == 1)
        path = rig.file_of(shard, 0)
        await rig.crash()
        rig.meta.open_all()
        data = bytearray(path.read_bytes())
        data[SEGMENT_HEADER_BYTES + 69 * 2 + 65] ^= 1
        path.write_bytes(data)
        await rig.start()
        asked = rig.append(rig.shard(shard), b"x")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "offsets 2 to 10 of segment 0-0 are known to have been written" in (asked.answers[0].message or "")
        assert path.read_bytes() == data


async def numbered_later(rig: ShardRig, shard: ShardLog, number: int) -> None:
    asked = rig.append(shard, b"%d" % number)
    await eventually(lambda: asked.is_acknowledged)


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_a_producer_is_known_after_a_restart_as_it_was_before(tmp_path: Path, how: str) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for sequence in range(3):
            rig.append(shard, b"p", producer_id=7, producer_epoch=0, base_sequence=sequence)
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        asked = rig.append(shard, b"p", producer_id=7, producer_epoch=0, base_sequence=3)
        await eventually(lambda: asked.is_acknowledged)
        rig.append(shard, b"q", producer_id=8, producer_epoch=0, base_sequence=0)
        assert shard.active is not None and shard.ended
        live, at_end = shard.active.leader.producers.snapshot(), shard.ended[0].leader.producers_at_end
        await rig.restart(how)
        shard = rig.shard(shard)
        assert shard.active is not None
        assert shard.active.leader.producers.snapshot() == live
        assert shard.ended[0].leader.producers_at_end == at_end
        again = rig.append(shard, b"p", producer_id=7, producer_epoch=0, base_sequence=3)
        assert again.is_acknowledged and again.offset == 3
        assert shard.end_offset == 5


async def test_an_active_segment_without_its_file_still_knows_the_producers_before_it(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"p", producer_id=7, producer_epoch=0, base_sequence=0)
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await eventually(lambda: rig.meta.calls[SealSegment] == 1)
        path = rig.file_of(shard)
        await rig.crash()
        path.unlink()
        await rig.start()
        shard = rig.shard(shard)
        again = rig.append(shard, b"p", producer_id=7, producer_epoch=0, base_sequence=0)
        assert again.is_acknowledged and again.offset == 0
        assert shard.end_offset == 1


async def test_checkpoints_of_segments_that_are_gone_do_not_gather(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic()
        rig.append(rig.shard(topic), b"x")
        await rig.restart("stop")
        assert len(rig.checkpoints.load_all()) == 1
        await rig.meta.service.perform(DeleteTopic(topic.topic_id))
        await eventually(lambda: not list(rig.shards.all()))
        await rig.restart("crash")
        assert rig.checkpoints.load_all() == {}


async def test_a_start_keeps_no_checkpoint_in_memory(tmp_path: Path) -> None:
    """Each holds all index points of its segment: 10,000 of them would be gigabytes for nothing."""
    of_others = [held for held in gc.get_objects() if type(held) is Checkpoint]
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=3)
        for index in range(3):
            await numbered(rig, rig.shard(topic, index), 0, 5)
        await rig.restart("stop")
        assert len(rig.checkpoints.load_all()) == 3
        held = [held for held in gc.get_objects() if type(held) is Checkpoint]
        assert not [checkpoint for checkpoint in held if all(checkpoint is not other for other in of_others)]
