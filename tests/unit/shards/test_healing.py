"""The disk lost what the meta service knows of: it comes back from the bucket, or the shard says what is missing."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from stratalog.formats.segment_file import SEGMENT_HEADER_BYTES
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.segment import SegmentState
from stratalog.objects.obstore_store import open_memory
from stratalog.objects.settings import StoreSettings
from stratalog_node.shards.shard_log import ShardLog
from stratalog_node.shards.stopped import StopCause
from support.faulty_store import FaultyStore
from support.shard_rig import ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually


async def acknowledged(rig: ShardRig, shard: ShardLog, *values: bytes) -> None:
    for value in values:
        await rig.acknowledged(shard, value)


async def test_a_tail_that_was_uploaded_but_never_flushed_comes_back_after_a_power_cut(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.restart("power_cut")
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]
        await acknowledged(rig, shard, b"d")
        await rig.restart("power_cut")
        assert (await rig.read_values(await rig.healed(shard)))[:3] == [b"a", b"b", b"c"], "healed means flushed"


async def test_only_the_part_that_is_missing_is_written_again(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, shard, b"c", b"d")
        await rig.uploaded()
        await rig.crash()
        path = rig.file_of(shard)
        whole = path.read_bytes()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69 * 3 + 5)
        await rig.start()
        shard = await rig.healed(shard)
        assert rig.shards.stats.healed_bytes == 69 and rig.shards.stats.healed_shards == 1
        assert path.read_bytes() == whole


async def test_what_lies_behind_a_damaged_batch_is_kept(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, shard, b"c")
        await rig.crash()
        path = rig.file_of(shard)
        data = bytearray(path.read_bytes())
        data[SEGMENT_HEADER_BYTES + 69 + 65] ^= 1
        path.write_bytes(data)
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b", b"c"], "c was never uploaded"


async def test_a_rolled_segment_whose_tail_is_gone_comes_back_and_the_next_one_is_loaded(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        rig.meta.hold("seal_segment")
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"c", b"d")
        await eventually(lambda: (segment := rig.catalog.segment(shard.segments[0].key)) and segment.end_offset == 2)
        await eventually(lambda: _is_committed(rig, shard))
        path = rig.file_of(shard, 0)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69)
        rig.meta.open_all()
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c", b"d"]
        await rig.all_sealed()
        await acknowledged(rig, shard, b"e")
        assert shard.high_watermark == 5


def _is_committed(rig: TieredShardRig, shard: ShardLog) -> bool:
    rig.uploader.poke()
    segment = rig.catalog.segment(shard.segments[0].key)
    return segment is not None and segment.remote.commit_offset == 2


async def test_a_file_that_is_gone_altogether_is_made_again(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        await rig.crash()
        rig.file_of(shard).unlink()
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b"]


async def test_a_store_that_is_away_at_start_holds_up_nobody_else_and_the_shard_heals_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        hurt, fine = rig.shard(topic, 0), rig.shard(topic, 1)
        await acknowledged(rig, hurt, b"a", b"b")
        await rig.uploaded()
        await acknowledged(rig, fine, b"x")
        await rig.flusher._flush_dirty(checkpoint_all=False)
        path = rig.file_of(hurt)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES)
        rig.store.is_away = True
        await rig.start()
        hurt, fine = rig.shard(hurt), rig.shard(fine)
        await acknowledged(rig, fine, b"y")
        asked = rig.append(hurt, b"c")
        assert asked.error is ErrorCode.KAFKA_STORAGE_ERROR
        await eventually(lambda: hurt.refusal is not None and "connection refused" in hurt.refusal.reason)
        assert hurt.refusal is not None and hurt.refusal.cause is StopCause.HEALING
        rig.store.is_away = False
        await acknowledged(rig, await rig.healed(hurt), b"c")
        assert await rig.read_values(hurt) == [b"a", b"b", b"c"]


async def test_appends_that_come_while_a_shard_is_read_anew_do_not_begin_its_file_anew(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for _ in range(20):
            await acknowledged(rig, shard, b"x" * 20_000)
        await rig.uploaded()
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        asked = []
        while shard.active is None:
            asked.append(rig.append(shard, b"y"))
            await asyncio.sleep(0)
        assert asked and all(a.is_answered and a.error is ErrorCode.KAFKA_STORAGE_ERROR for a in asked)
        assert await rig.read_values(shard) == [b"x" * 20_000] * 20


async def test_offsets_that_are_nowhere_are_named_and_the_shard_stops(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        (chunk,) = [key for key in await rig.store.keys() if key.endswith(("chunk", "bundle"))]
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        await rig.store.inner.delete([chunk])
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is not None and shard.refusal.cause is StopCause.DATA_LOST)
        assert shard.refusal is not None
        assert "offsets 1 to 3 were written and are lost" in shard.refusal.reason


async def test_a_disk_that_is_not_what_the_bucket_goes_on_from_stops_the_shard(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        topic = await rig.create_topic(shards=2)
        shard, other = rig.shard(topic, 0), rig.shard(topic, 1)
        await acknowledged(rig, shard, b"a", b"b")
        await acknowledged(rig, other, b"z")
        await rig.uploaded()
        foreign = rig.file_of(other).read_bytes()[SEGMENT_HEADER_BYTES:]
        path = rig.file_of(shard)
        await rig.crash()
        path.write_bytes(path.read_bytes()[:SEGMENT_HEADER_BYTES] + foreign)
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is not None and shard.refusal.cause is StopCause.UNREADABLE)
        assert path.read_bytes().endswith(foreign), "nothing of it was overwritten"


async def test_with_unclean_seal_lost_offsets_are_given_up_and_the_log_goes_on_without_a_gap(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        rig.meta.hold("seal_segment")
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"d")
        path = rig.file_of(shard, 0)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69 + 20)
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is None)
        assert await rig.read_values(shard) == [b"a", b"d"]
        assert rig.shards.stats.given_up_offsets == 2
        assert path.with_suffix(".given-up").read_bytes(), "what was there is kept for a human"
        await rig.all_sealed()
        assert shard.segments[0].state is SegmentState.SEALED and shard.segments[0].end_offset == 3
        await acknowledged(rig, shard, b"e")
        await rig.restart("stop")
        assert await rig.read_values(rig.shard(shard)) == [b"a", b"d", b"e"]


async def test_with_unclean_seal_a_shard_goes_on_though_objects_of_its_bucket_are_gone(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        (chunk,) = [key for key in await rig.store.keys() if key.endswith(("chunk", "bundle"))]
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        await rig.store.inner.delete([chunk])
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a"] and shard.high_watermark == 3
        assert (await rig.acknowledged(shard, b"d")).offset == 3


async def test_with_unclean_seal_nothing_is_given_up_because_the_wrong_bucket_was_named(tmp_path: Path) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(uncleanSeal="allow")
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        right, rig.store = rig.store, FaultyStore(open_memory(StoreSettings(backoff_ms=1, backoff_cap_ms=2)), rig.clock)
        await rig.start()
        refused = rig.shard(shard)
        await eventually(lambda: refused.refusal is not None and "holds nothing of cluster" in refused.refusal.reason)
        assert refused.refusal is not None and refused.refusal.cause is StopCause.HEALING
        assert rig.shards.stats.given_up_offsets == 0
        await eventually(lambda: rig.uploader.claim.fork)
        assert not await rig.store.keys(), "nothing goes where the data is not"
        await rig.crash()
        rig.store = right
        await rig.start()
        assert await rig.read_values(await rig.healed(shard)) == [b"a", b"b", b"c"]


# The log start ----------------------------------------------------------------------------------------------------
async def test_a_log_whose_tail_is_lost_goes_on_behind_the_records_that_were_deleted(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a")
        await rig.flusher._flush_dirty(checkpoint_all=False)
        await acknowledged(rig, shard, b"b", b"c", b"d")
        await shard.delete_records_before(3)
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is None)
        assert shard.log_start_offset == 3 == shard.high_watermark
        asked = await rig.acknowledged(shard, b"e")
        assert asked.offset == 3
        assert await rig.read_values(shard) == [b"e"], "what is acknowledged after the loss is visible"
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"f")
        await rig.all_sealed()
        await rig.restart("crash")
        assert await rig.read_values(rig.shard(shard)) == [b"e", b"f"]


async def test_producers_are_remembered_though_the_log_goes_on_behind_a_lost_tail(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        producer = {"producer_id": 7, "producer_epoch": 0}
        first = await rig.acknowledged(shard, b"a", base_sequence=0, **producer)
        await rig.flusher._flush_dirty(checkpoint_all=False)
        await acknowledged(rig, shard, b"b", b"c")
        await shard.delete_records_before(3)
        await rig.restart("power_cut")
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is None)
        again = await rig.acknowledged(shard, b"a", base_sequence=0, **producer)
        assert again.offset == first.offset == 0


async def test_a_rolled_segment_that_was_deleted_whole_is_not_missed(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        rig.meta.hold("seal_segment")
        shard.ask_roll(rig.clock())
        await acknowledged(rig, shard, b"c", b"d")
        path = rig.file_of(shard, 0)
        await rig.crash()
        path.unlink()
        await rig.meta.service.advance_log_start(shard.key, 3)
        rig.meta.open_all()
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is None)
        assert await rig.read_values(shard) == [b"d"]
        await acknowledged(rig, shard, b"e")


async def test_metadata_older_than_the_bucket_heal_nothing(tmp_path: Path) -> None:
    """The segment was finished, and its local copy freed, after the copy of the metadata was made."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b")
        await rig.uploaded()
        key = shard.segments[0].key
        await rig.crash()
        rig.file_of(shard).unlink()
        manifest = rig.names.manifest(key, 0, 2, node_id=1, lock_epoch=9, attempt=1)
        await rig.store.inner.put(manifest, [b"of a later time"])
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is not None and shard.refusal.cause is StopCause.UNREADABLE)
        assert shard.refusal is not None and "older than the object store" in shard.refusal.reason


# What may happen meanwhile ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_given_up", [False, True], ids=["no", "allow"])
async def test_one_damaged_answer_of_the_store_gives_nothing_up(tmp_path: Path, *, is_given_up: bool) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(**({"uncleanSeal": "allow"} if is_given_up else {}))
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        await rig.crash()
        os.truncate(rig.file_of(shard), SEGMENT_HEADER_BYTES + 69)
        real, answers = rig.store.get_range, 0

        async def damaged_twice(key: str, start: int, end: int) -> bytes:
            nonlocal answers
            answers += 1
            body = await real(key, start, end)
            return body if answers > 2 else body[:-1] + bytes([body[-1] ^ 1])

        rig.store.get_range = damaged_twice  # type: ignore[method-assign]
        await rig.start()
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]
        assert rig.shards.stats.given_up_offsets == 0 and answers > 2


async def test_a_flush_that_fails_while_a_shard_is_healed_is_final(tmp_path: Path) -> None:
    """A second one would succeed, and prove nothing (`disk/lost_flushes.py` says why)."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await acknowledged(rig, shard, b"a", b"b", b"c")
        await rig.uploaded()
        path = rig.file_of(shard)
        await rig.crash()
        os.truncate(path, SEGMENT_HEADER_BYTES + 69)
        failed: list[Path] = []

        def fails_once(file: Path) -> OSError | None:
            if file != path or failed:
                return None
            failed.append(file)
            return OSError(errno.EIO, "the disk")

        rig.power.fail_next = fails_once
        await rig.start()
        shard = rig.shard(shard)
        await eventually(lambda: shard.refusal is not None and shard.refusal.cause is not StopCause.HEALING)
        assert shard.refusal is not None and shard.refusal.cause is StopCause.UNREADABLE and not shard.is_end_known
        assert failed and rig.layout.lost_flushes.exists(), "the next start copies the file"
        await rig.restart("crash")
        shard = await rig.healed(shard)
        assert await rig.read_values(shard) == [b"a", b"b", b"c"]
