"""How long and how many idempotent producers a shard remembers: by when the node saw them, through restarts and
deletions, and never more than its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.table_commands import PurgeSegments
from stratalog.model.errors import DiskFull
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.log.ages import forget_silent_producers
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import ShardRig
from support.waiting import eventually

DAY_MS = 86_400_000


def producer(number: int = 7, sequence: int = 0) -> dict[str, Any]:
    return {"producer_id": number, "producer_epoch": 0, "base_sequence": sequence}


@pytest.mark.fault("idempotent-producer-sends-old")
async def test_a_batch_of_old_data_is_known_as_long_as_one_of_new_data(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        first = await rig.acknowledged(shard, b"of 1970", at_ms=0, **producer())
        rig.clock.now_ms += DAY_MS - 1
        assert forget_silent_producers(shard, rig.clock(), DAY_MS) == 0
        assert (await rig.acknowledged(shard, b"of 1970", at_ms=0, **producer())).offset == first.offset
        rig.clock.now_ms += 2
        assert forget_silent_producers(shard, rig.clock(), DAY_MS) == 1


@pytest.mark.fault("idempotent-producer-sends-old")
@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_when_a_producer_was_seen_outlives_a_restart(tmp_path: Path, how: str) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"x", at_ms=0, **producer())
        seen_ms = rig.clock()
        await rig.flusher._flush_dirty(checkpoint_all=True)
        rig.clock.now_ms += DAY_MS // 2
        await rig.restart(how)
        shard = rig.shard(shard)
        assert forget_silent_producers(shard, seen_ms + DAY_MS, DAY_MS) == 0
        assert forget_silent_producers(shard, seen_ms + DAY_MS + 1, DAY_MS) == 1


async def test_what_is_read_back_without_a_checkpoint_counts_as_seen_at_the_start(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        first = await rig.acknowledged(shard, b"x", at_ms=0, **producer())
        await rig.restart("crash")
        shard = rig.shard(shard)
        assert forget_silent_producers(shard, rig.clock() + DAY_MS, DAY_MS) == 0
        assert (await rig.acknowledged(shard, b"x", at_ms=0, **producer())).offset == first.offset


async def emptied(rig: ShardRig, shard: ShardLog) -> None:
    """Its records, and the segments that held them, are gone from disk and metadata."""
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    await shard.delete_records_before(shard.high_watermark)
    await eventually(lambda: len(shard.segments) == 1)
    deleted = await rig.meta.service.deleted_segments()
    for segment in deleted:
        await rig.copies.free_local(shard, segment.key)
    await rig.meta.service.perform(PurgeSegments(tuple([segment.key for segment in deleted])))


@pytest.mark.fault("idempotent-producer-sends-old")
@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_producers_are_known_after_a_restart_though_all_their_segments_are_deleted(
    tmp_path: Path, how: str
) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        first = await rig.acknowledged(shard, b"x", **producer())
        await emptied(rig, shard)
        await rig.flusher._flush_dirty(checkpoint_all=False)
        for _ in range(2):  # what the first start found must be there for the second
            await rig.restart(how)
            shard = rig.shard(shard)
            assert (await rig.acknowledged(shard, b"x", **producer())).offset == first.offset
        await rig.acknowledged(shard, b"y", **producer(sequence=1))
        assert await rig.read_values(shard) == [b"y"]


@pytest.mark.fault("idempotent-producer-sends-old")
async def test_a_first_file_that_cannot_be_made_costs_no_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start knows of them is for the first file, also when that is made at the second attempt."""

    def refuse(*_: object) -> None:
        raise DiskFull("no space left")

    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        first = await rig.acknowledged(shard, b"x", **producer())
        await emptied(rig, shard)
        await rig.flusher._flush_dirty(checkpoint_all=False)
        path = rig.file_of(shard)
        await rig.crash()
        path.unlink()
        await rig.start()
        shard = rig.shard(shard)
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "create", refuse)
            assert not rig.append(shard, b"x", **producer()).is_acknowledged
        assert (await rig.acknowledged(shard, b"x", **producer())).offset == first.offset


@pytest.mark.fault("idempotent-producer-sends-old")
async def test_a_shard_remembers_a_limited_number_of_producers(tmp_path: Path) -> None:
    """Each segment's index block carries them: 200,000 were 5.8 MB, for each segment again."""
    async with ShardRig(tmp_path, producer_id_max_per_shard=10) as rig:
        shard = await rig.shard_of()
        for number in range(30):
            await rig.acknowledged(shard, b"x", **producer(number))
            await rig.acknowledged(shard, b"y", **producer(0, sequence=number + 1))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        seal = shard.segments[0].seal
        assert seal is not None
        table = rig.local.context.tables.known(shard.segments[0])
        assert table is not None and seal.producers.count == 10
        assert [known.producer_id for known in table] == [0, *range(21, 30)], "longest unseen, first gone"
        forget_silent_producers(shard, rig.clock(), DAY_MS)
        assert rig.stats.producers_dropped == 20
        known = await rig.acknowledged(shard, b"x", **producer(29))
        assert known.offset < shard.segments[1].base_offset
        await rig.acknowledged(shard, b"z", **producer(3, sequence=55))


@pytest.mark.fault("idempotent-producer-sends-old")
async def test_producers_whose_appends_fail_evict_no_other_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk each failed append of a new producer cost a known one its place, and its repetition a copy."""
    async with ShardRig(tmp_path, producer_id_max_per_shard=10) as rig:
        shard = await rig.shard_of()
        for number in range(10):
            await rig.acknowledged(shard, b"%d" % number, **producer(number))
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "append", failing_append)
            for number in range(10, 25):
                asked = rig.append(shard, b"x", **producer(number))
                assert not asked.is_acknowledged
        for number in range(10):
            again = await rig.acknowledged(shard, b"%d" % number, **producer(number))
            assert again.offset == number
        for number in range(30, 40):
            await rig.acknowledged(shard, b"y", **producer(number))
        assert shard.active is not None
        assert len(shard.active.leader.producers.snapshot()) == 10


def failing_append(*_: object) -> None:
    raise DiskFull("no space left")
