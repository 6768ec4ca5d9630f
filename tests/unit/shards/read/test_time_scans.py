"""Look-ups by time over what clients really send: large batches, batches that lie about their times, or hold no
records. They run off the event loop, and open few batches once these were looked at."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.record_times import BatchTimes
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.segment import Segment
from stratalog_node.disk import opened_batches, segment_scan
from stratalog_node.serve.producing.produce import offer
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read import time_scan
from stratalog_node.shards.read.time_lookups import TimeLookups
from support.hostile_batches import GARBAGE, claiming
from support.shard_rig import START_MS, Asked, ShardRig, make_batch
from support.tiered_shards import TieredShardRig
from support.waiting import eventually


def put(rig: ShardRig, shard: ShardLog, batch: bytes) -> int:
    """Append a batch as it is; returns its first offset."""
    asked = Asked()
    faulty = offer(shard, memoryview(bytearray(batch)), 9, -1, asked, 0, rig.clock())
    assert faulty is None, faulty
    rig.tick()
    assert asked.is_acknowledged
    return asked.offset


class Opened:
    """The batches that look-ups opened, and on which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.records = 0
        self.running = self.most_running = 0
        self.gate = threading.Event()
        self.gate.set()
        for name in ("first_offset_at_or_after", "offset_of_max_timestamp"):
            monkeypatch.setattr(time_scan, name, self._counted(getattr(time_scan, name)))

    def _counted(self, real: Any) -> Any:
        def opened(batch: Any, *args: Any, **more: Any) -> Any:
            self.threads.append(threading.current_thread())
            self.records += struct.unpack_from(">i", batch, 57)[0]
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.gate.wait(20)
            try:
                return real(batch, *args, **more)
            finally:
                self.running -= 1

        return opened


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


async def at(shard: ShardLog, time_ms: int) -> int | None:
    found = await shard.offset_for_time(START_MS + time_ms)
    return found.offset if found is not None else None


@pytest.mark.fault("look-large-batch-batch")
@pytest.mark.parametrize("codec", Codec)
async def test_no_batch_is_opened_on_the_event_loop(tmp_path: Path, opened: Opened, codec: Codec) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        put(rig, shard, make_batch([b"%d" % number for number in range(20_000)], compression=codec))
        assert await at(shard, 15_000) == 15_000
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 19_999
        await shard.delete_records_before(10_000)
        assert await at(shard, 0) == 10_000, "the log starts in the middle of the batch"
        assert await at(shard, 19_000) == 19_000
        assert len(opened.threads) == 4 and threading.main_thread() not in opened.threads


async def test_the_log_start_holds_in_every_kind_of_segment(tmp_path: Path) -> None:
    """Times that fall: the first record of a time lies below the log start, a later one above it."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for segment in range(3):
            for number in range(4):
                rig.append(shard, b"a", b"b", at_ms=START_MS + (1000 if number == 0 else 10 * number))
            if segment < 2:
                shard.ask_roll(rig.clock())
        await rig.all_sealed()
        for start in range(24):
            await shard.delete_records_before(start)
            first = next(o for o in range(start, 25) if o == 24 or o % 8 in (0, 1))
            assert await at(shard, 500) == (first if first < 24 else None), start


@pytest.mark.fault("look-large-batch-batch")
async def test_a_batch_with_invalid_records_hides_nothing_behind_it(tmp_path: Path, opened: Opened) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"before", at_ms=START_MS)
        for codec in Codec:
            put(rig, shard, claiming(GARBAGE, 3, START_MS + 3_000_000, codec))
        behind = shard.high_watermark
        rig.append(shard, b"behind", at_ms=START_MS + 100)
        assert await at(shard, 0) == 0
        assert await at(shard, 50) == behind
        assert await at(shard, 101) is None
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest == (behind, START_MS + 100, 0)


@pytest.mark.fault("look-large-batch-batch")
async def test_a_damaged_batch_is_reported_and_never_skipped(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"a value that will be damaged", at_ms=START_MS)
        path = rig.file_of(shard)
        assert shard.active is not None
        end = shard.active.file.size_bytes
        rig.append(shard, b"behind", at_ms=START_MS + 100)
        with path.open("r+b") as file:
            file.seek(end - 5)
            file.write(b"\xff")
        for time_ms in (0, 50):  # whatever its header says, it is unknown whether it holds such a record
            with pytest.raises(Corrupt):
                await shard.offset_for_time(START_MS + time_ms)
        await shard.delete_records_before(1)
        assert await at(shard, 50) == 1


async def test_a_large_batch_is_opened(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"before", at_ms=START_MS)
        put(rig, shard, make_batch([bytes(9 << 20), bytes(9 << 20)], at_ms=START_MS + 10, compression=Codec.ZSTD))
        assert await at(shard, 11) == 2
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest[:2] == (2, START_MS + 11)


async def test_a_batch_too_large_to_be_opened_is_answered_with_its_first_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with it: passing over it would hide its records."""
    for name in ("_USUAL_BYTES", "LARGEST_DECODED_BYTES"):
        monkeypatch.setattr(opened_batches, name, 1 << 20)
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"before", at_ms=START_MS)
        put(rig, shard, make_batch([bytes(1 << 20), bytes(1 << 20)], at_ms=START_MS + 10, compression=Codec.ZSTD))
        assert await at(shard, 11) == 1
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest[:2] == (1, START_MS + 11)


@pytest.mark.fault("look-large-batch-batch")
async def test_batches_that_claim_a_time_which_no_record_has_are_opened_once(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        liar = claiming(bytes(7 * 60_000), 60_000, START_MS + 3_000_000, Codec.ZSTD)
        for _ in range(40):
            put(rig, shard, liar)
        right = shard.high_watermark
        rig.append(shard, b"right", at_ms=START_MS + 3_000_000)
        walked: list[int] = []

        def counted(batch: Any, header: BatchHeader) -> BatchTimes:
            walked.append(header.record_count)
            return opened_batches.opened_times(batch, header)

        monkeypatch.setattr(segment_scan, "opened_times", counted)
        monkeypatch.setattr(time_scan, "opened_times", counted)
        assert await at(shard, 2_000_000) == right
        assert opened.records == 1
        walked.clear()
        assert await at(shard, 2_000_001) == right
        assert sum(walked) < 80 * 60_000, "those of one index interval, and not all again"


async def test_look_ups_leave_disk_threads_to_reads(tmp_path: Path, opened: Opened) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"first", b"second")
        opened.gate.clear()
        try:
            looks = [asyncio.create_task(at(shard, 1)) for _ in range(10)]
            await eventually(lambda: opened.running)
            for _ in range(3):
                read = await rig.reader.read(shard, 0, 1000)
                assert read.size_bytes
                assert read.release is not None
                read.release()
            assert opened.most_running <= 2
        finally:
            opened.gate.set()
        assert await asyncio.gather(*looks) == [1] * 10
        assert opened.most_running <= 2


async def test_the_newest_record_is_looked_for_where_seals_say_that_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads all headers of a segment, and times ascend in most logs."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in range(12):
            await rig.acknowledged(shard, b"x", at_ms=START_MS + number)
            if number < 11:
                shard.ask_roll(rig.clock())
        await rig.all_sealed()
        looked: list[int] = []
        really_look = TimeLookups._local_max

        async def counted(lookups: TimeLookups, shard: Any, segment: Segment, copy: LocalCopy, *end: int) -> Any:
            looked.append(copy.key.epoch)
            return await really_look(lookups, shard, segment, copy, *end)

        monkeypatch.setattr(TimeLookups, "_local_max", counted)
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest.offset == 11
        assert looked == [11]


async def test_the_newest_record_above_the_log_start_is_found_in_the_store(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(remote_storage_enable="true")
        times = [START_MS + later_ms for later_ms in (5_000, 1, 3, 70_000, 2, 3, 3, 1)]
        for time_ms in times:
            await rig.acknowledged(shard, b"x", at_ms=time_ms)
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        await rig.uploaded()
        await rig.copies.free_local(shard, shard.segments[0].key)
        for start in range(len(times)):
            await shard.delete_records_before(start)
            newest = await shard.offset_of_max_timestamp()
            assert newest is not None
            assert (newest.offset, newest.timestamp_ms) == (times.index(max(times[start:]), start), max(times[start:]))


@pytest.mark.parametrize("seed", range(8))
async def test_of_equally_new_records_the_first_is_found_wherever_they_are(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        times = [START_MS + rng.randrange(4) for _ in range(12)]
        for time_ms in times:
            await rig.acknowledged(shard, b"x", at_ms=time_ms)
            if rng.random() < 0.6:
                shard.ask_roll(rig.clock())
        await rig.all_sealed()
        for start in range(len(times)):
            await shard.delete_records_before(start)
            newest = await shard.offset_of_max_timestamp()
            assert newest is not None
            assert (newest.offset, newest.timestamp_ms) == (times.index(max(times[start:]), start), max(times[start:]))
