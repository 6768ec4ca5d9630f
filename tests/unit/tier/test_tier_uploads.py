"""Data goes up: by size, by time, in bundles, in order, never above what is committed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from stratalog.model.commands.table_commands import AlterTopic
from stratalog.model.errors import Unavailable
from stratalog.model.segment import RemoteState
from support.tier_rig import RIG_LIMITS, TierRig
from support.waiting import eventually


async def test_a_shard_with_a_chunk_of_unsent_bytes_sends_a_chunk_at_once() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        for _ in range(70):
            rig.append(shard, 1_000)
        await rig.until(lambda: rig.stats.chunks_put == 1)
        assert rig.stats.bundles_put == 0
        await rig.check()


@pytest.mark.fault("lone-record-quiet-shard")
async def test_f76_a_lone_record_on_a_quiet_shard_goes_by_the_time_limit() -> None:
    """F76: nothing waits for a batch to fill."""
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.lock.current is not None)
        rig.append(shard)
        rig.advance(1)
        await rig.until(lambda: rig.uploader.status().uploader.unsent_bytes > 0)
        since = rig.clock.now_ms
        # Until it begins: how far the clock is moved while it is under way depends on the machine.
        await rig.until(lambda: rig.uploader.status().uploader.tasks or rig.is_committed(shard))
        assert rig.clock.now_ms - since <= rig.limits.interval_ms + 200
        await rig.until(lambda: rig.is_committed(shard))
        assert rig.store.requests["put"] == 1
        await rig.check()


@pytest.mark.fault("record-large-upload-limits")
async def test_f75_a_record_larger_than_a_chunk_and_the_whole_budget_is_uploaded() -> None:
    """F75: the first batch is always taken, whatever its size."""
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard, 3 * rig.limits.in_flight_bytes)
        rig.append(shard, 100)
        await rig.settle()
        assert rig.is_committed(shard)
        await rig.check()


@pytest.mark.fault("batches-larger-upload-share")
async def test_many_batches_larger_than_the_budget_go_one_after_another() -> None:
    """A batch larger than a chunk is found out before it is read: it waits until nothing else is in flight."""
    async with TierRig() as rig:
        await rig.create_topic(shards=8)
        await rig.start_uploader()
        batch_bytes = 2 * rig.limits.in_flight_bytes
        for shard in rig.shards.all():
            rig.append(shard, batch_bytes)
            rig.append(shard, 3 * rig.limits.chunk_bytes)
            rig.append(shard, 100)
        await rig.settle()
        assert all(rig.is_committed(shard) for shard in rig.shards.all())
        assert rig.store.largest_waiting <= batch_bytes * 1.01
        await rig.check()


async def test_a_topic_sends_chunks_of_its_own_size() -> None:
    async with TierRig(replace(RIG_LIMITS, interval_ms=3_600_000)) as rig:
        usual = rig.shard(await rig.create_topic("usual"))
        small = rig.shard(await rig.create_topic("small", remote_upload_chunk_bytes="4096"))
        await rig.start_uploader()
        for shard in (usual, small):
            rig.append(shard, 10_000)
        await eventually(lambda: rig.is_committed(small))
        assert not rig.is_committed(usual)


async def test_data_of_a_topic_wait_as_long_as_it_says_and_a_change_counts_at_once() -> None:
    async with TierRig(replace(RIG_LIMITS, interval_ms=3_600_000)) as rig:
        usual = rig.shard(await rig.create_topic("usual"))
        quick = rig.shard(await rig.create_topic("quick", remote_upload_interval_ms="1000"))
        await rig.start_uploader()
        for shard in (usual, quick):
            rig.append(shard, 100)
        for _ in range(20):  # the uploader has heard of them
            await asyncio.sleep(0)
        rig.advance(1_000)
        await eventually(lambda: rig.is_committed(quick))
        assert not rig.is_committed(usual)
        await rig.meta.perform(AlterTopic(usual.key.topic_id, {"remote.upload.interval.ms": "500"}))
        await eventually(lambda: rig.is_committed(usual))


@pytest.mark.fault("data-uploaded-truncated-later")
async def test_nothing_above_the_high_watermark_or_the_last_stable_offset_goes_up() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        first_open = 0
        for number in range(6):
            offset = rig.append(shard, 200)
            if number == 3:
                first_open = offset
                shard.open_transaction = offset
        rig.append(shard, 100_000, commit=False)
        await rig.settle()
        assert rig.commit_offset(shard) == first_open
        puts = rig.store.requests["put"]
        rig.shards.announce(shard)
        rig.advance(5_000)
        await rig.settle()
        assert rig.store.requests["put"] == puts, "an open transaction is not asked for again and again"
        shard.open_transaction = None
        rig.shards.announce(shard)
        await rig.settle()
        assert rig.commit_offset(shard) == shard.high_watermark == 6
        await rig.check()


async def test_quiet_shards_share_bundles() -> None:
    """Cost follows bytes and time, not shards."""
    limits = replace(RIG_LIMITS, bundle_bytes=1 << 20, in_flight_bytes=2 << 20)
    async with TierRig(limits) as rig:
        topic = await rig.create_topic(shards=200)
        await rig.start_uploader()
        for index in range(200):
            rig.append(rig.shard(topic, index))
        await rig.settle()
        assert rig.is_committed(*rig.shards.all())
        assert rig.store.requests["put"] == 1, "200 shards, one bundle"
        assert rig.stats.parts_committed == 200
        await rig.check()


async def test_a_sealed_segment_is_completed_with_index_and_manifest() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        for _ in range(300):
            rig.append(shard, 1_000)
        sealed = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(sealed))
        manifest = await rig.manifest(sealed)
        assert manifest.seal.digest == shard.copies[sealed.key].digest()
        assert len(manifest.parts) <= 6
        assert rig.stats.segments_completed == 1
        await rig.check()


async def test_bundle_parts_are_taken_home_before_a_segment_is_complete() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        for _ in range(5):
            rig.append(shard)
            await rig.settle()
        assert all("/bundles/" in part.object_key for part in rig.remote(shard.segments[0]).remote.parts)
        sealed = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(sealed))
        assert len((await rig.manifest(sealed)).parts) == 1
        await rig.check()


async def test_bundle_parts_are_taken_home_from_the_store_when_the_local_copy_is_lost() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        for _ in range(3):
            rig.append(shard)
            await rig.settle()
        lost = shard.copies[shard.segments[0].key]
        rig.store.is_away = True
        sealed = await rig.seal(shard)
        del shard.copies[lost.key]
        rig.store.is_away = False
        await rig.until(lambda: rig.is_complete(sealed))
        shard.copies[lost.key] = lost
        await rig.check()


async def test_small_parts_merge_so_that_a_quiet_segment_has_few() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        for _ in range(100):
            rig.append(shard)
            await rig.settle()
        parts = rig.remote(shard.segments[0]).remote.parts
        assert len(parts) <= 2 * rig.limits.merge_parts, f"{len(parts)} parts"
        assert rig.stats.parts_moved > 0
        assert rig.store.requests["get"] == 0, "merging reads nothing back"
        await rig.check()


async def test_an_empty_sealed_segment_is_completed() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard)
        sealed = await rig.seal(shard)
        empty = await rig.seal(shard)
        await rig.until(lambda: rig.is_complete(sealed, empty))
        assert (await rig.manifest(empty)).parts == ()
        await rig.check()


async def test_segments_go_up_in_parallel_but_each_in_order() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=6)
        await rig.start_uploader()
        rig.store.gate.clear()
        for index in range(6):
            for _ in range(300):
                rig.append(rig.shard(topic, index), 1_000)
        await rig.until(lambda: rig.store.requests["put"] == rig.limits.max_requests)
        folders = {key.rsplit("/", 1)[0] for key in rig.store.puts}
        assert len(folders) == rig.limits.max_requests, "one range per segment at a time"
        rig.store.gate.set()
        await rig.settle()
        assert rig.is_committed(*rig.shards.all())
        await rig.check()


async def test_a_topic_without_remote_storage_stays_here_and_goes_up_when_it_is_turned_on() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(remote_storage_enable="false")
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard)
        await rig.settle()
        assert rig.store.requests["put"] == 0
        await rig.meta.perform(AlterTopic(topic.topic_id, {"remote.storage.enable": "true"}))
        await rig.until(lambda: rig.is_committed(shard))
        assert rig.store.requests["put"] == 1


async def test_flush_now_says_what_is_left_when_it_takes_too_long() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        await rig.start_uploader()
        rig.store.is_away = True
        rig.append(rig.shard(topic))
        with pytest.raises(Unavailable, match="not in the object store after 100 ms: segments 1,"):
            await rig.uploader.flush_now(100)


async def test_a_shard_whose_first_segment_gets_its_file_with_the_first_record_is_uploaded() -> None:
    """The local copy is made with the first record: at start there was none."""
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().uploader.segments == 1)
        assert not shard.has_local(shard.segments[0].key)
        rig.append(shard)
        await rig.settle()
        assert rig.remote(shard.segments[0]).remote.state is RemoteState.PARTIAL


async def test_data_that_comes_while_the_answers_of_a_large_bundle_are_taken_in_is_not_forgotten() -> None:
    """Bytes that were counted before the answer is taken in must not hide those that came since."""
    limits = replace(RIG_LIMITS, bundle_bytes=2 << 20, in_flight_bytes=4 << 20)
    async with TierRig(limits) as rig:
        topic = await rig.create_topic(shards=1_300)
        first = rig.shard(topic, 0)
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.lock.current is not None)
        for shard in rig.shards.all():
            rig.append(shard)
        again = False
        flushing = asyncio.create_task(rig.uploader.flush_now(60_000))
        while not flushing.done():
            await asyncio.sleep(0)
            if not again and rig.stats.parts_committed > 500:
                assert rig.uploader.status().uploader.tasks == 1, "the upload is not over yet"
                rig.append(first)
                again = True
        await flushing
        await rig.settle()
        assert rig.commit_offset(first) == 2
