"""A start that is not provably clean: no offset is given a second time in its epoch, whatever the disk lost."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.part import check_part
from stratalog.model.commands.table_commands import CommitParts, RollSegment, SealSegment
from stratalog_node.disk.checkpoints import flushed_ends
from stratalog_node.disk.clean_stop import note_clean_stop
from stratalog_node.shards.copies import file_creations as openings_module
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.flush import flusher as flusher_module
from stratalog_node.shards.log.shard_log import ShardLog
from support.shard_rig import Asked, ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually


async def records(rig: ShardRig, shard: ShardLog) -> dict[tuple[int, int], bytes]:
    """(epoch, offset) -> the batch that a consumer reads there."""
    found: dict[tuple[int, int], bytes] = {}
    at = shard.log_start_offset
    while at < shard.high_watermark:
        for data in await shard.read(at, 1 << 20):
            data = bytes(data)
            for position, header in walk(data, source="test"):
                found[header.epoch, header.base_offset] = data[position : position + header.size_bytes]
                at = header.end_offset
    return found


@pytest.mark.fault("tail-read-acknowledged-lost")
@pytest.mark.parametrize("how", ["crash", "power_cut"])
async def test_the_first_append_after_an_unclean_start_opens_the_next_epoch(tmp_path: Path, how: str) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        await rig.flusher._flush_dirty(checkpoint_all=False)
        await rig.restart(how)
        shard = rig.shard(shard)
        assert shard.active is not None and shard.active.key.epoch == 0, "an idle shard is left as it is"
        assert rig.meta.calls[RollSegment] == 0
        await rig.acknowledged(shard, b"b")
        assert sorted(await records(rig, shard)) == [(0, 0), (1, 1)]
        await rig.all_sealed()


async def test_after_a_clean_stop_the_log_continues_in_the_same_epoch(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in range(3):
            await rig.acknowledged(rig.shard(shard), b"%d" % number)
            await rig.restart("stop")
        assert sorted(await records(rig, rig.shard(shard))) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.fault("tail-read-acknowledged-lost")
async def test_what_is_in_doubt_stays_in_doubt_through_a_clean_stop(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"lost")
        before = await records(rig, shard)
        await rig.restart("power_cut")
        for _ in range(2):
            await rig.restart("stop")
        await rig.acknowledged(rig.shard(shard), b"new")
        assert not before.keys() & (await records(rig, rig.shard(shard))).keys()


async def test_a_stop_after_a_failed_flush_is_not_clean(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        rig.power.fail_next = lambda path: OSError(5, "error") if path.suffix == ".seg" else None
        await rig.flusher._flush_dirty(checkpoint_all=False)
        rig.power.fail_next = lambda _: None
        await rig.restart("stop")
        await rig.acknowledged(rig.shard(shard), b"b")
        assert sorted(await records(rig, rig.shard(shard))) == [(0, 0), (1, 1)]


@pytest.mark.fault("node-stopped-flushes-files")
async def test_a_stop_in_the_middle_of_a_background_flush_flushes_the_rest_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=4)
        shards = [rig.shard(topic, index) for index in range(4)]
        for shard in shards:
            rig.append(shard, b"a")
        has_begun, gate, sync = threading.Event(), threading.Event(), flusher_module.sync_segment

        def sync_later(active: ActiveSegment, size_bytes: int) -> None:
            has_begun.set()
            assert gate.wait(10)
            sync(active, size_bytes)

        monkeypatch.setattr(flusher_module, "sync_segment", sync_later)
        background = rig.flusher._background_task
        assert background is not None
        rig.flusher.flush_soon()
        await eventually(has_begun.is_set)
        stopping = asyncio.create_task(rig.stop())
        await eventually(background.done)
        gate.set()
        await stopping
        rig.power.cut()
        assert sorted(key.shard for key in flushed_ends(rig.layout.checkpoints)) == [0, 1, 2, 3]
        await rig.start()
        for shard in shards:
            assert await rig.read_values(rig.shard(shard)) == [b"a"]


@pytest.mark.fault("tail-read-acknowledged-lost")
async def test_the_word_of_an_older_life_is_not_believed(tmp_path: Path) -> None:
    """A directory put back from a copy, or used by another process in between."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"a")
        await rig.restart("stop")
        await rig.acknowledged(rig.shard(shard), b"b")
        life = rig.node_epoch
        await rig.crash()
        note_clean_stop(rig.layout.clean_file, life - 1, {})
        await rig.start()
        assert not rig.layout.clean_file.exists()
        await rig.acknowledged(rig.shard(shard), b"c")
        assert sorted(await records(rig, rig.shard(shard))) == [(0, 0), (0, 1), (1, 2)]


@pytest.mark.fault("tail-read-acknowledged-lost")
async def test_a_shard_that_was_never_written_to_leaves_no_empty_segment_behind(tmp_path: Path) -> None:
    """Its file may have been lost with all that was in it, so its epoch is not used again either."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.restart("crash")
        shard = rig.shard(shard)
        await rig.acknowledged(shard, b"a")
        assert list(await records(rig, shard)) == [(1, 0)]
        await eventually(lambda: [segment.epoch for segment in shard.segments] == [1])
        assert rig.meta.calls[SealSegment] == 0


@pytest.mark.fault("large-batches-thousands-shards")
async def test_a_burst_over_many_shards_after_an_unclean_start_creates_few_files_a_turn(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=100)
        for index in range(100):
            rig.append(rig.shard(topic, index), b"a")
        await rig.restart("crash")
        rolls_in_turn = []
        asked = [rig.offer(rig.shard(topic, index), b"b") for index in range(100)]
        while not all(rig.shard(topic, index).ended or rig.shard(topic, index).copies for index in range(100)):
            before = rig.stats.rolls
            rig.tick()
            rolls_in_turn.append(rig.stats.rolls - before)
        assert max(rolls_in_turn) <= 32 and sum(rolls_in_turn) == 100
        await eventually(lambda: all(a.is_acknowledged for a in asked))


@pytest.mark.fault("large-batches-thousands-shards")
async def test_batches_that_wait_for_their_files_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 100_000
    monkeypatch.setattr(openings_module, "_MOST_DEFERRED_BYTES", most)
    async with ShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=200)
        shards = [rig.shard(topic, index) for index in range(200)]
        asked = []
        for _ in range(2):  # the second time, half of the shards still wait
            asked += [rig.offer(shard, bytes(5_000)) for shard in shards]
            rig.tick()
            assert sum(batch.size_bytes for shard in shards for batch in shard._pending) <= most
        await eventually(lambda: all(a.is_acknowledged for a in asked))


async def test_a_first_record_that_the_power_took_does_not_lend_its_offset_to_another(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"lost")
        before = await records(rig, shard)
        await rig.restart("power_cut")
        await rig.acknowledged(rig.shard(shard), b"new")
        assert not before.keys() & (await records(rig, rig.shard(shard))).keys()


@pytest.mark.fault("tail-read-acknowledged-lost")
async def test_attempts_of_a_lost_tail_and_of_what_came_in_its_place_are_of_two_segments(tmp_path: Path) -> None:
    """A PUT landed, its commit did not, the power went: each complete attempt in the bucket is still valid."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await rig.acknowledged(shard, b"lost" * 20_000)
        rig.meta.hold(CommitParts)
        uploading = asyncio.create_task(rig.uploaded())
        await eventually(lambda: rig.meta.calls[CommitParts] > 0)
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)
        await rig.power_cut()
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        assert (await rig.acknowledged(shard, b"true" * 20_000)).offset == 0
        await rig.uploaded()
        said: dict[tuple[int, int], bytes] = {}
        chunks = [key for key in await rig.store.keys() if key.endswith(".chunk")]
        for key in chunks:
            data = await rig.store.inner.get(key)
            header = check_part(data, source=key).header
            place = (header.identity.key.epoch, header.base_offset)
            assert said.setdefault(place, header.digest_after) == header.digest_after, key
        assert sorted(said) == [(0, 0), (1, 0)]


@pytest.mark.fault("tail-read-acknowledged-lost")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
@pytest.mark.parametrize("seed", range(4))
async def test_no_epoch_and_offset_ever_stands_for_two_records(tmp_path: Path, seed: int, policy: str) -> None:
    chance = random.Random(seed)
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(flush_policy=policy, segment_bytes=1_000)
        seen: dict[tuple[int, int], bytes] = {}
        number = 0
        for _ in range(12):
            shard = rig.shard(shard)
            asked: list[Asked] = []
            for _ in range(chance.randrange(6)):
                number += 1
                asked.append(rig.append(shard, b"%d" % number))
            if chance.random() < 0.7:
                await eventually(lambda: all(a.is_answered for a in asked))  # noqa: B023
            if chance.random() < 0.5:
                await rig.flusher._flush_dirty(checkpoint_all=chance.random() < 0.5)
            for place, batch in (await records(rig, shard)).items():
                assert seen.setdefault(place, batch) == batch, f"{place} was shown with other bytes before"
            await rig.restart(chance.choice(["stop", "crash", "power_cut", "power_cut"]))
        await rig.all_sealed()
