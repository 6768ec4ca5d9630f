"""The power goes: topics with flush.policy=fsync have every acknowledged record, wherever the cut comes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import DeleteTopic, RollSegment, SealSegment
from stratalog_node.disk.journal_file import list_journals
from stratalog_node.shards.flush import shared_journal
from stratalog_node.shards.flush.flusher import DIRECT_FILES
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import Asked, ShardRig
from support.waiting import eventually

MANY = DIRECT_FILES + 3


async def fsync_shards(rig: ShardRig, count: int = MANY, **settings: object) -> list[ShardLog]:
    topic = await rig.create_topic(shards=count, flush_policy="fsync", **settings)
    return [rig.shard(topic, index) for index in range(count)]


async def all_acknowledged(rig: ShardRig, shards: list[ShardLog], *values: bytes) -> None:
    for value in values:
        asked = [rig.append(rig.shard(shard), value) for shard in shards]
        await eventually(lambda: all(a.is_answered for a in asked))  # noqa: B023
        assert all(a.is_acknowledged for a in asked), [a.answers for a in asked]


async def every_shard_reads(rig: ShardRig, shards: list[ShardLog], *values: bytes) -> None:
    for shard in shards:
        assert await rig.read_values(rig.shard(shard)) == list(values)


async def test_what_went_through_the_journal_is_there_after_a_power_cut(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig)
        await all_acknowledged(rig, shards, b"a", b"b", b"c")
        assert rig.flusher.stats.journal_groups > 0
        await rig.restart("power_cut")
        await every_shard_reads(rig, shards, b"a", b"b", b"c")


async def test_a_second_power_cut_right_after_the_replay_takes_nothing_either(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig)
        await all_acknowledged(rig, shards, b"a", b"b")
        await rig.restart("power_cut")
        assert not list_journals(rig.layout.journal)
        await rig.restart("power_cut")
        await every_shard_reads(rig, shards, b"a", b"b")


async def test_a_kill_and_then_a_power_cut_take_nothing(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig)
        await all_acknowledged(rig, shards, b"a", b"b")
        await rig.restart("crash")
        await rig.restart("power_cut")
        await every_shard_reads(rig, shards, b"a", b"b")


@pytest.mark.parametrize("size", [0, 1, SEGMENT_HEADER_BYTES - 1, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 30])
@pytest.mark.parametrize("fill", ["cut", "zeros"])
async def test_the_journal_gives_back_what_a_file_lost(tmp_path: Path, size: int, fill: str) -> None:
    """Names survive here, contents do not: as on a file system that allocates late."""
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig)
        await all_acknowledged(rig, shards, b"a", b"b")
        paths = [rig.file_of(shard) for shard in shards]
        await rig.crash()
        for path in paths:
            if fill == "cut":
                os.truncate(path, size)
            else:
                path.write_bytes(path.read_bytes()[: size if size >= SEGMENT_HEADER_BYTES else 0].ljust(4096, b"\0"))
        await rig.start()
        await every_shard_reads(rig, shards, b"a", b"b")
        await all_acknowledged(rig, shards, b"c")
        await rig.restart("power_cut")
        await every_shard_reads(rig, shards, b"a", b"b", b"c")


async def test_a_torn_entry_at_the_end_of_the_journal_costs_only_itself(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig)
        await all_acknowledged(rig, shards, b"a")
        await rig.power_cut()
        (journal,) = list_journals(rig.layout.journal)
        with journal.open("ab") as file:
            file.write(b"\0" * 50 + b"torn")
        await rig.start()
        await every_shard_reads(rig, shards, b"a")


async def test_a_journal_of_a_deleted_topic_does_not_stop_a_start(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig)
        await all_acknowledged(rig, shards, b"a")
        await rig.crash()
        await rig.meta.service.perform(DeleteTopic(shards[0].topic.topic_id))
        await rig.start()
        assert not list(rig.shards.all())


async def test_a_journal_continues_while_a_topic_in_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_journal, "JOURNAL_BYTES", 4000)
    async with ShardRig(tmp_path) as rig:
        doomed = await fsync_shards(rig)
        topic = await rig.create_topic("other", shards=MANY, flush_policy="fsync")
        others = [rig.shard(topic, index) for index in range(MANY)]
        await all_acknowledged(rig, doomed + others, b"0")
        await rig.meta.service.perform(DeleteTopic(doomed[0].topic.topic_id))
        await eventually(lambda: rig.shards.get(doomed[0].key) is None)
        for shard in doomed:
            await rig.copies.free_local(None, shard.copies[0].key)
        values = [b"%d" % number for number in range(1, 30)]
        await all_acknowledged(rig, others, *values)
        await rig.restart("power_cut")
        await every_shard_reads(rig, others, b"0", *values)


async def test_a_roll_whose_end_was_not_flushed_is_not_known_to_meta(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        (shard,) = await fsync_shards(rig, 1)
        await all_acknowledged(rig, [shard], b"a")
        rig.power.fail_next = lambda path: OSError(5, "error") if path.suffix == ".seg" else None
        rig.append(shard, b"never acknowledged")
        shard.ask_roll(rig.clock())
        rig.append(shard, b"nor this")
        await eventually(lambda: rig.flusher.stats.failures > 0)
        rig.power.fail_next = lambda _: None
        await rig.restart("power_cut")
        await every_shard_reads(rig, [shard], b"a")
        await all_acknowledged(rig, [shard], b"b")
        await every_shard_reads(rig, [shard], b"a", b"b")


@pytest.mark.fault("power-fails-bytes-names")
@pytest.mark.parametrize("largest", [1, 12_000], ids=["small", "with room ahead"])
async def test_rolls_and_power_cuts_in_any_order_lose_nothing_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(shared_journal, "JOURNAL_BYTES", 1000 + 10 * largest)
    rng = random.Random(7)
    async with ShardRig(tmp_path) as rig:
        shards = await fsync_shards(rig, segment_bytes=600 + 30 * largest)
        acknowledged: list[list[tuple[int, bytes]]] = [[] for _ in shards]
        number = 0
        for _ in range(12):
            asked: list[tuple[int, bytes, Asked]] = []
            for _ in range(rng.randrange(1, 12)):
                for index, known in enumerate(shards):
                    value = (b"%d" % number).ljust(rng.randrange(largest), b".")
                    number += 1
                    asked.append((index, value, rig.append(rig.shard(known), value)))
                if rng.random() < 0.5:
                    await eventually(lambda: all(a.is_answered for _, _, a in asked))  # noqa: B023
            await rig.power_cut()
            for index, value, one in asked:
                if one.is_acknowledged:
                    acknowledged[index].append((one.offset, value))
            await rig.start()
            for index, known in enumerate(shards):
                shard = rig.shard(known)
                assert shard.stop is None, shard.stop
                expected = acknowledged[index]
                await eventually(lambda: shard.high_watermark > (expected[-1][0] if expected else -1))  # noqa: B023
                values = await rig.read_values(shard)
                for offset, value in expected:
                    assert values[offset] == value
        await rig.all_sealed()


@pytest.mark.fault("power-fails-bytes-names")
@pytest.mark.parametrize("values", [[], [b"c", b"d"]], ids=["nothing follows", "more follows"])
async def test_an_end_that_meta_knows_is_one_that_no_power_cut_takes_back(tmp_path: Path, values: list[bytes]) -> None:
    """Also where answers do not wait for a flush: a roll is reported once the ended segment is on the disk."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"a")
        rig.append(shard, b"b")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        for value in values:
            await rig.acknowledged(shard, value)
        await eventually(lambda: rig.catalog.segments(shard.key)[0].end_offset == 2)
        await rig.power_cut()
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        assert shard.stop is None
        assert (await rig.read_values(shard))[:2] == [b"a", b"b"]
        await rig.acknowledged(shard, b"e")
        await rig.all_sealed()


@pytest.mark.fault("power-fails-bytes-names")
async def test_a_replicated_topic_that_lost_its_tail_to_the_power_says_so_when_more_was_known(tmp_path: Path) -> None:
    """Acknowledged from the page cache and lost with it: allowed by the policy, but never silently (rule 8)."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        rig.append(shard, b"a")
        rig.meta.hold(SealSegment)
        shard.ask_roll(rig.clock())
        await eventually(lambda: rig.meta.calls[RollSegment] == 1 and shard.segments[-1].epoch == 1)
        path = rig.file_of(shard, 0)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES)
        rig.meta.open_all()
        await rig.start()
        asked = rig.append(rig.shard(shard), b"b")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "known to have been written" in (asked.answers[0].message or "")
