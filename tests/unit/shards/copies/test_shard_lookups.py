"""Finding things in a shard: offsets by time, positions of batches in large groups, what reads hold."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from stratalog.formats.segments.index_points import INDEX_INTERVAL_BYTES
from stratalog.model.commands.table_commands import RollSegment, SealSegment
from stratalog.model.errors import Unavailable
from stratalog_node.shards.copies.local_copy import LocalCopy
from support.shard_rig import START_MS, ShardRig
from support.waiting import eventually


async def test_a_record_is_found_by_its_time_in_every_kind_of_segment(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for segment in range(3):
            for number in range(3):
                await rig.acknowledged(shard, b"a", b"b", at_ms=START_MS + 100 * segment + 10 * number)
            if segment == 1:
                rig.meta.hold(SealSegment)
            if segment < 2:
                shard.ask_roll(rig.clock())
            if segment == 0:
                await rig.all_sealed()
        assert len(shard.ended) == 1 and shard.active is not None

        async def found(at_ms: int) -> tuple[int, int] | None:
            answer = await shard.offset_for_time(START_MS + at_ms)
            return (answer.offset, answer.epoch) if answer is not None else None

        assert await found(-5) == (0, 0)
        assert await found(1) == (1, 0)
        assert await found(21) == (5, 0)
        assert await found(22) == (6, 1)
        assert await found(111) == (9, 1)
        assert await found(150) == (12, 2)
        assert await found(221) == (17, 2)
        assert await found(222) is None
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 17
        await shard.delete_records_before(3)
        assert await found(0) == (3, 0)


async def test_a_shard_without_records_has_no_times_with_and_without_a_bucket(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        assert await shard.offset_for_time(0) is None
        assert await shard.offset_of_max_timestamp() is None


class NothingInStore:
    """A bucket that has nothing of any segment."""

    async def find_by_time(self, segment: object, timestamp_ms: int, from_offset: int = 0) -> None:
        return None

    async def offset_of_max_timestamp(self, segment: object) -> None:
        return None


@pytest.mark.fault("metadata-loaded-shard-file")
@pytest.mark.parametrize("has_bucket", [True, False])
@pytest.mark.parametrize("is_newest", [True, False])
async def test_a_segment_that_is_nowhere_is_not_one_without_such_a_time(
    tmp_path: Path, has_bucket: bool, is_newest: bool
) -> None:
    """Its records are missed, and a consumer that gets "none" would skip them (F40). Its seal says which times it
    cannot have."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"lost", at_ms=START_MS + (200 if is_newest else 0))
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"there", at_ms=START_MS + 100)
        await rig.all_sealed()
        path = rig.file_of(shard, 0)
        await rig.crash()
        path.unlink()
        rig.cold = cast(Any, NothingInStore()) if has_bucket else None
        await rig.start()
        shard = rig.shard(shard)
        with pytest.raises(Unavailable):
            await shard.offset_for_time(START_MS)
        for look in (shard.offset_of_max_timestamp, partial(shard.offset_for_time, START_MS + 50)):
            if is_newest:
                with pytest.raises(Unavailable):
                    await look()
            else:
                found = await look()
                assert found is not None and found.offset == 1


async def test_a_committed_record_is_found_by_time_before_the_watch_reports_its_segment(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"old", at_ms=START_MS)
        apply, held = rig.catalog.apply, []
        rig.catalog.apply = held.append  # type: ignore[method-assign, assignment]
        shard.ask_roll(rig.clock())
        await rig.acknowledged(shard, b"new", at_ms=START_MS + 10)
        assert shard.high_watermark == 2 and len(shard.segments) == 1
        answer = await shard.offset_for_time(START_MS + 5)
        assert answer is not None and (answer.offset, answer.epoch) == (1, 1)
        rig.catalog.apply = apply  # type: ignore[method-assign]
        for change_set in held:
            rig.catalog.apply(change_set)
        assert await shard.offset_for_time(START_MS + 5) == answer


async def test_any_offset_of_a_large_group_of_small_batches_is_found_within_one_index_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        count = 4 * INDEX_INTERVAL_BYTES // 70
        asked = [rig.offer(shard, b"%07d" % number) for number in range(count)]
        rig.tick()
        assert all(a.is_acknowledged for a in asked)
        assert rig.stats.append_groups == 1
        looks = 0
        real = LocalCopy._header_at

        def counted(copy: LocalCopy, position: int, read: object) -> object:
            nonlocal looks
            looks += 1
            return real(copy, position, read)  # type: ignore[arg-type]

        monkeypatch.setattr(LocalCopy, "_header_at", counted)
        rng = random.Random(1)
        for _ in range(40):
            offset, looks = rng.randrange(count), 0
            (value,) = (await rig.read_values(shard, offset, 1))[:1] or [None]
            assert value == b"%07d" % offset
            break
        for _ in range(40):
            offset, looks = rng.randrange(count), 0
            read = rig.reader.read_hot(shard, offset, 1)
            assert looks <= 2 * INDEX_INTERVAL_BYTES // 70
            assert read.release is not None
            read.release()


async def test_what_reads_hold_is_counted_until_it_is_released(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, bytes(10_000))
        reader = rig.reader
        hot, slow = reader.read_hot(shard, 0, 1 << 20), await reader.read(shard, 0, 1 << 20)
        assert reader.outstanding_bytes == rig.pool.lent_bytes + slow.size_bytes
        for read in (hot, slow):
            assert read.release is not None
            read.release()
        assert reader.outstanding_bytes == 0 == rig.pool.lent_bytes
        kept = await shard.read(0, 1 << 20)
        assert reader.outstanding_bytes == 0 == rig.pool.lent_bytes
        assert len(kept) == 1


async def test_unread_answers_hold_no_more_memory_than_the_limit(tmp_path: Path) -> None:
    """Buffers come in sizes four times apart: what counts is the buffer, not how much of it is filled."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, bytes(66_000))
        reader = rig.reader
        limit = reader._limit_bytes = 8 << 20
        reads = [reader.read_hot(shard, 0, 1 << 20, for_socket=True) for _ in range(200)]
        assert limit // 4 < rig.pool.lent_bytes <= limit // 2 + (256 << 10)
        for read in reads:
            assert read.release is not None
            read.release()
        assert reader.outstanding_bytes == 0 == rig.pool.lent_bytes


async def test_only_the_event_loop_changes_hints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that does could take away the oldest hint between the loop's look at it and its removal."""
    real, threads = LocalCopy.remember, []

    def noted(copy: LocalCopy, offset: int, position: int) -> None:
        threads.append(threading.current_thread())
        real(copy, offset, position)

    monkeypatch.setattr(LocalCopy, "remember", noted)
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"first")
        rig.append(shard, b"second")
        assert shard.active is not None
        await shard.read_committed_range(shard.active.key, 0, 1)
        await rig.reader.read(shard, 0, 1)
        read = rig.reader.read_hot(shard, 0, 1)
        assert read.release is not None
        read.release()
        assert threads == [threading.current_thread()] * 3


async def test_a_repetition_that_wants_no_answer_waits_for_nothing(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"old")
        rig.meta.hold(RollSegment)
        shard.ask_roll(rig.clock())
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "acks": 0}
        assert rig.append(shard, b"x", **producer).is_acknowledged
        assert rig.append(shard, b"x", **producer).is_acknowledged
        rig.meta.release(RollSegment)
        await eventually(lambda: shard.high_watermark == 2)
