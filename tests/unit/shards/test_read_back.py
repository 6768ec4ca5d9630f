"""What uploads have read back out of a segment's file and checked, the seal does not read again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stratalog.formats.batches.record_times import BatchTimes
from stratalog.formats.segments.index_block import decode_index_block
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.model.batch import BatchHeader
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig
from support.waiting import eventually

BATCHES = 12
VALUE_BYTES = 70_000
"""Above the index interval, so that a range may end at each batch."""


class ReadsSeen:
    """Positions of all blocking reads of segment files, from the first batch on."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def clear(self) -> None:
        self.ranges.clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadsSeen]:
    seen = ReadsSeen()
    read_into = SegmentFile.read_into

    def noting(self: SegmentFile, buffer: memoryview, position: int) -> None:
        seen.ranges.append((position, len(buffer)))
        read_into(self, buffer, position)

    monkeypatch.setattr(SegmentFile, "read_into", noting)
    yield seen


async def written(rig: ShardRig) -> tuple[ShardLog, ActiveSegment]:
    shard = await rig.shard_of()
    for number in range(BATCHES):
        await rig.acknowledged(shard, bytes([number]) * VALUE_BYTES)
    assert shard.active is not None
    return shard, shard.active


async def upload_reads(shard: ShardLog, segment: ActiveSegment, from_offset: int, batches: int) -> None:
    """As an upload does."""
    max_bytes = (VALUE_BYTES + 500) * batches
    found = await shard.read_committed_range(segment.key, from_offset, max_bytes, take_buffer=_memory)
    assert len(found.headers) == batches


def _memory(size_bytes: int) -> memoryview:
    return memoryview(bytearray(size_bytes))


async def sealed_as_its_file_is(rig: ShardRig, shard: ShardLog, segment: ActiveSegment) -> None:
    """The seal record and the index block say what a scan of the whole file finds."""
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    copy = shard.copies[segment.key.epoch]
    block = decode_index_block(rig.layout.index(segment.key).read_bytes(), source="index block")
    scan = SegmentScan.begin(segment.key, ProducerTable())
    scan.advance(copy.read_blocking, copy.size_bytes)
    assert scan.stopped is None
    seal = shard.segments[0].seal
    assert seal is not None
    assert block.seal == seal
    assert (seal.digest, seal.end_offset, seal.size_bytes) == (scan.digest, BATCHES, copy.size_bytes)
    assert block.points == scan.index.freeze()
    assert (seal.first_timestamp_ms, seal.max_timestamp_ms) == (
        scan.index.first_timestamp_ms,
        scan.index.max_timestamp_ms,
    )


async def test_the_seal_reads_only_what_no_upload_has_read(tmp_path: Path, reads: ReadsSeen) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 0, 5)
        await upload_reads(shard, segment, 5, 4)
        uploaded = sum(size for _, size in reads.ranges)
        reads.clear()
        await sealed_as_its_file_is(rig, shard, segment)
        assert sum(size for _, size in reads.ranges) == segment.size_bytes - uploaded > 0


async def test_a_seal_after_the_last_upload_reads_nothing(tmp_path: Path, reads: ReadsSeen) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 0, BATCHES)
        reads.clear()
        await sealed_as_its_file_is(rig, shard, segment)
        assert reads.ranges == []


async def test_without_uploads_the_seal_reads_everything(tmp_path: Path, reads: ReadsSeen) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await sealed_as_its_file_is(rig, shard, segment)
        assert sum(size for _, size in reads.ranges) == segment.size_bytes


async def test_a_range_sent_again_with_what_came_meanwhile_counts_once(tmp_path: Path, reads: ReadsSeen) -> None:
    """After a doubtful put the same range goes up again under another name, and is longer."""
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 0, 3)
        await upload_reads(shard, segment, 0, 8)
        reads.clear()
        await sealed_as_its_file_is(rig, shard, segment)
        assert 0 < sum(size for _, size in reads.ranges) < segment.size_bytes // 2


async def test_what_was_read_behind_a_gap_does_not_count(tmp_path: Path, reads: ReadsSeen) -> None:
    """Its digest would not continue from the batches before."""
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 4, 8)
        reads.clear()
        await sealed_as_its_file_is(rig, shard, segment)
        assert sum(size for _, size in reads.ranges) == segment.size_bytes


async def test_what_is_read_while_another_thread_takes_in_is_left_for_the_seal(
    tmp_path: Path, reads: ReadsSeen
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        with segment.read_back._one_at_a_time:
            await upload_reads(shard, segment, 0, BATCHES)
        reads.clear()
        await sealed_as_its_file_is(rig, shard, segment)
        assert sum(size for _, size in reads.ranges) == segment.size_bytes


async def test_what_was_taken_in_by_half_counts_for_nothing(
    tmp_path: Path, reads: ReadsSeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index points of batches that the digest does not cover would be of no use."""
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 0, 4)
        take_in = SegmentScan.take_in

        def break_off(
            self: SegmentScan, position: int, headers: Sequence[BatchHeader], data: bytes, times: Sequence[BatchTimes]
        ) -> None:
            def some() -> Iterator[BatchHeader]:
                yield from headers[:2]
                raise MemoryError

            take_in(self, position, some(), data, times)

        with monkeypatch.context() as patch:
            patch.setattr(SegmentScan, "take_in", break_off)
            with pytest.raises(MemoryError):
                await upload_reads(shard, segment, 4, 4)
        reads.clear()
        await sealed_as_its_file_is(rig, shard, segment)
        assert sum(size for _, size in reads.ranges) == segment.size_bytes


async def test_damage_behind_what_was_read_back_keeps_the_segment_from_its_seal(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 0, 6)
        rot(segment, segment.size_bytes - 10)
        shard.ask_roll(rig.clock())
        await eventually(lambda: rig.stats.seal_failures == 1)
        assert segment in shard.ended


async def test_damage_found_since_it_was_read_back_keeps_the_segment_from_its_seal(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard, segment = await written(rig)
        await upload_reads(shard, segment, 0, BATCHES)
        rot(segment, 1_000)
        segment.damage = "found by a reader"
        shard.ask_roll(rig.clock())
        await eventually(lambda: rig.stats.seal_failures == 1)
        assert segment in shard.ended


def rot(segment: ActiveSegment, position: int) -> None:
    fd = os.open(segment.file.path, os.O_RDWR)
    try:
        at = segment.file.size_bytes - segment.size_bytes + position
        byte = os.pread(fd, 1, at)[0]
        os.pwrite(fd, bytes([byte ^ 1]), at)
    finally:
        os.close(fd)
