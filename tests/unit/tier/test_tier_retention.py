"""What retention ends and what it frees, and in which order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from stratalog.machines.tiering.retention import DiskPressure
from stratalog.model.commands.table_commands import AlterTopic, Command, ForgetLocal
from stratalog.model.errors import OutcomeUnknown
from stratalog.model.segment import Segment, SegmentState
from support.gated_meta import perform_instead
from support.tier_rig import RigShard, TierRig
from support.waiting import eventually

HOUR = 3_600_000


async def _sealed(rig: TierRig, shard: RigShard, count: int = 1, size: int = 2_000) -> list[Segment]:
    """Whole segments, sealed and complete in the store."""
    segments = []
    for _ in range(count):
        rig.append(shard, size)
        segments.append(await rig.seal(shard))
    await rig.until(lambda: rig.is_complete(*segments))
    return segments


async def test_a_local_copy_is_freed_once_it_is_complete_and_old_enough() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_ms="1000")
        shard = rig.shard(topic)
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        worker = rig.retention()
        rig.clock.now_ms = sealed.seal.max_timestamp_ms + 1_000 if sealed.seal else 0
        await worker.run_once()
        assert shard.has_local(sealed.key), "not older than the limit yet"
        rig.advance(1)
        await worker.run_once()
        assert not shard.has_local(sealed.key)
        await eventually(lambda: rig.remote(sealed).local_nodes == ())
        await rig.check()


async def test_local_retention_by_bytes_frees_the_oldest_first() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_bytes="4500")
        shard = rig.shard(topic)
        await rig.start_uploader()
        segments = await _sealed(rig, shard, 4)
        await rig.retention().run_once()
        assert [shard.has_local(segment.key) for segment in segments] == [False, True, True, True]


@pytest.mark.fault("local-retention-cold-reads")
async def test_f37_with_cold_reads_off_the_last_readable_copy_stays() -> None:
    """F37: Disable means that the object store does not count as a copy to read from."""
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_ms="0", remote_read_policy="Disable")
        shard = rig.shard(topic)
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        rig.advance(HOUR)
        await rig.retention().run_once()
        assert shard.has_local(sealed.key)


@pytest.mark.fault("local-retention-cold-reads")
@pytest.mark.parametrize("damage", ["chunk gone", "chunk short", "manifest gone"])
async def test_f37_a_remote_copy_that_is_not_whole_frees_nothing(damage: str) -> None:
    """F37: the manifest is read and its objects are counted once more before the file goes."""
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_ms="0")
        shard = rig.shard(topic)
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        manifest = await rig.manifest(sealed)
        chunk = manifest.parts[0].object_key
        body = await rig.store.inner.get(chunk)
        manifest_key = rig.remote(sealed).remote.manifest_key
        assert manifest_key is not None
        await rig.store.inner.delete([manifest_key if damage == "manifest gone" else chunk])
        if damage == "chunk short":
            await rig.store.inner.put(chunk, [body[:-1]])
        rig.advance(HOUR)
        await rig.retention().run_once()
        assert shard.has_local(sealed.key)
        assert rig.remote(sealed).local_nodes == (1,)


@pytest.mark.fault("uploads-fall-local-retention")
async def test_what_is_not_uploaded_waits_and_does_not_hold_up_younger_segments() -> None:
    """Local data waits for its upload; history is never dropped to make room."""
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_ms="0")
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.append(shard)
        shard.copies[shard.segments[0].key].is_damaged = True
        behind = await rig.seal(shard)
        (younger,) = await _sealed(rig, shard)
        rig.advance(HOUR)
        await rig.retention().run_once()
        assert shard.has_local(behind.key)
        assert not shard.has_local(younger.key)


@pytest.mark.fault("retention-hits-segment-uploaded")
async def test_f38_a_lost_answer_of_meta_is_not_a_failure_and_the_copy_goes_in_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F38: a metadata timeout taken as failure would keep the copy forever."""
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_ms="0")
        shard = rig.shard(topic)
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        perform = rig.meta.perform

        async def lossy(command: Command[Any]) -> None:
            await perform(command)
            raise OutcomeUnknown("the answer was lost")

        perform_instead(monkeypatch, rig.meta, ForgetLocal, lossy)
        rig.advance(HOUR)
        worker = rig.retention()
        await worker.run_once()
        assert shard.has_local(sealed.key)
        monkeypatch.undo()
        await eventually(lambda: rig.remote(sealed).local_nodes == ())
        await worker.run_once()
        assert not shard.has_local(sealed.key)


async def test_retention_by_time_ends_whole_old_heads_at_the_end_time_plus_one_and_never_the_active_one() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(retention_ms="10000")
        shard = rig.shard(topic)
        rig.append(shard, timestamp_ms=rig.clock.now_ms)
        first = await rig.seal(shard)
        rig.clock.now_ms += 5_000
        rig.append(shard)
        await rig.seal(shard)
        rig.append(shard, timestamp_ms=0)
        worker = rig.retention()
        rig.clock.now_ms += 5_000
        await worker.run_once()
        assert shard.log_start_offset == 0
        rig.clock.now_ms += 1
        await worker.run_once()
        await eventually(lambda: shard.log_start_offset == 1)
        assert [segment.key for segment in await rig.deleted()] == [first.key]
        rig.clock.now_ms += HOUR
        await worker.run_once()
        await eventually(lambda: len(shard.segments) == 1)
        assert shard.segments[0].state is SegmentState.ACTIVE, "the active one stays, whatever its age"


async def test_retention_by_bytes_counts_all_tiers_and_leaves_at_least_the_limit() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(retention_bytes="4500", local_retention_bytes="1")
        shard = rig.shard(topic)
        await rig.start_uploader()
        await _sealed(rig, shard, 4)
        worker = rig.retention()
        await worker.run_once()
        await eventually(lambda: shard.log_start_offset == 1)
        assert len(shard.segments) == 4


async def test_f83_a_segment_without_times_does_not_expire_at_once() -> None:
    """F83: an unset time is not 1970."""
    async with TierRig() as rig:
        topic = await rig.create_topic(retention_ms=str(HOUR))
        shard = rig.shard(topic)
        rig.append(shard, timestamp_ms=-1)
        sealed = await rig.seal(shard)
        empty = await rig.seal(shard)
        worker = rig.retention()
        await worker.run_once()
        assert rig.remote(sealed).state is SegmentState.SEALED
        assert rig.remote(empty).state is SegmentState.SEALED
        rig.clock.now_ms += HOUR + 1
        await worker.run_once()
        await eventually(lambda: len(shard.segments) == 1)


@pytest.mark.fault("retention-changes-read-asks")
async def test_f84_retention_changed_live_holds_in_the_next_round() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(retention_ms="-1")
        shard = rig.shard(topic)
        rig.append(shard)
        await rig.seal(shard)
        rig.clock.now_ms += 1_000 * HOUR
        worker = rig.retention()
        await worker.run_once()
        assert shard.log_start_offset == 0
        await rig.meta.perform(AlterTopic(topic.topic_id, {"retention.ms": "1000"}))
        await eventually(lambda: rig.catalog.topic_settings(topic.topic_id).retention_ms == 1_000)
        await worker.run_once()
        await eventually(lambda: shard.log_start_offset == 1)


@pytest.mark.fault("uploads-fall-local-retention")
async def test_above_the_hard_limit_writes_are_refused_with_numbers_until_there_is_room() -> None:
    told: list[DiskPressure | None] = []
    async with TierRig() as rig:
        topic = await rig.create_topic(local_retention_ms="0")
        shard = rig.shard(topic)
        await rig.start_uploader()
        rig.store.is_away = True
        for _ in range(6):
            rig.append(shard, 2_000)
            await rig.seal(shard)
        worker = rig.retention(hard_limit_bytes=10_000, on_pressure=told.append, unsent_bytes=lambda: 42)
        rig.advance(HOUR)
        await worker.run_once()
        (pressure,) = told
        assert pressure is not None
        assert "local.hard.limit.bytes=10000" in pressure.message and "42 bytes wait" in pressure.message
        assert all(shard.has_local(segment.key) for segment in shard.segments), "history is never dropped"
        rig.store.is_away = False
        await rig.until(lambda: rig.is_complete(*shard.segments[:-1]))
        await worker.run_once()
        assert told == [pressure, None]
        assert worker.pressure is None


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.fault("store-answer-segments-segment")
async def test_a_check_that_is_not_answered_holds_up_no_other_shard() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=12, local_retention_ms="0")
        await rig.start_uploader()
        sealed = [(await _sealed(rig, rig.shard(topic, number)))[0] for number in range(12)]
        rig.advance(HOUR)
        hung = {rig.names.segment_prefix(segment.key) for segment in sealed[:3]}
        rig.store.hangs = lambda key: any(key.startswith(folder) for folder in hung)
        round_ = asyncio.create_task(rig.retention(call_timeout_ms=60_000).run_once())
        await eventually(lambda: not any(rig.shards.get(s.key.shard_key).has_local(s.key) for s in sealed[3:]))  # type: ignore[union-attr]
        assert not round_.done()
        assert all(rig.shards.get(s.key.shard_key).has_local(s.key) for s in sealed[:3])  # type: ignore[union-attr]
        await _cancelled(round_)


@pytest.mark.fault("store-answer-segments-segment")
async def test_a_store_that_answers_nothing_does_not_keep_old_data_from_ending() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=12, retention_ms=str(2 * HOUR), local_retention_ms="0")
        await rig.start_uploader()
        for number in range(12):
            await _sealed(rig, rig.shard(topic, number))
        rig.store.hangs = lambda _: True
        worker = rig.retention(call_timeout_ms=60_000, interval_ms=10)
        rig.advance(HOUR)
        await worker.start()
        try:
            lists = rig.store.requests["list"]
            await eventually(lambda: rig.store.requests["list"] > lists, timeout=20)
            rig.advance(2 * HOUR)
            await eventually(lambda: all(shard.log_start_offset == 1 for shard in rig.shards.all()))
        finally:
            await worker.close()


@pytest.mark.fault("store-answer-segments-segment")
async def test_segments_whose_checks_are_not_answered_leave_their_places_to_others() -> None:
    """More than two rounds look at: they wait ever longer, and a round in which nothing answers ends early."""
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=26, local_retention_ms="0")
        await rig.start_uploader()
        sealed = [(await _sealed(rig, rig.shard(topic, number)))[0] for number in range(26)]
        rig.advance(HOUR)
        hung = {rig.names.segment_prefix(segment.key) for segment in sealed[:16]}
        rig.store.hangs = lambda key: any(key.startswith(folder) for folder in hung)
        worker = rig.retention(call_timeout_ms=200)
        lists = rig.store.requests["list"]
        await worker.run_once()
        assert rig.store.requests["list"] - lists <= 16, "eight that hang, and those that were begun meanwhile"
        is_local = [True] * 26
        for _ in range(8):  # on a busy machine a healthy store too may leave some unanswered
            await worker.run_once()
            is_local = [rig.shards.get(s.key.shard_key).has_local(s.key) for s in sealed]  # type: ignore[union-attr]
            if not any(is_local[16:]):
                break
        assert is_local == [True] * 16 + [False] * 10
