"""What is over goes, from every tier, after its grace, and nothing else does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.commands.table_commands import AdvanceLogStart, DeleteTopic
from stratalog.model.errors import Unavailable
from stratalog.model.segment import Segment
from support.faulty_store import Fault
from support.tier_rig import RIG_LIMITS, RigShard, TierRig
from support.waiting import eventually

GRACE_MS = 600_001
DELAY_MS = 60_001
HOUR = 3_600_000


async def _sealed(rig: TierRig, shard: RigShard, count: int = 1, size: int = 2_000) -> list[Segment]:
    segments = []
    for _ in range(count):
        rig.append(shard, size)
        segments.append(await rig.seal(shard))
    await rig.until(lambda: rig.is_complete(*segments))
    return segments


@pytest.mark.fault("deletion-client-reads")
async def test_f29_the_log_start_moves_first_and_objects_go_after_the_grace() -> None:
    """F29: a reader that began before finds its objects until the delay has passed."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        first, second = await _sealed(rig, shard, 2)
        folder = rig.names.segment_prefix(first.key)
        await rig.meta.perform(AdvanceLogStart(shard.key, 1))
        await eventually(lambda: shard.log_start_offset == 1)
        janitor = rig.janitor()
        rig.advance(DELAY_MS - 2_000)
        assert await janitor.delete_once() == 0
        assert len([key for key in await rig.store.keys() if key.startswith(folder)]) == 3
        assert shard.has_local(first.key)
        rig.advance(2_000)
        assert await janitor.delete_once() == 1
        assert [key for key in await rig.store.keys() if key.startswith(folder)] == []
        assert not shard.has_local(first.key)
        assert await rig.deleted() == []
        assert rig.is_complete(second)
        await rig.check()


@pytest.mark.fault("wall-clock-set-forward")
async def test_what_was_deleted_while_the_clock_was_far_ahead_goes_a_grace_after_it_was_set_right() -> None:
    """Its time of deletion is years from now, and it would stay for as long."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        rig.clock.now_ms += 10_000 * HOUR
        await rig.meta.perform(AdvanceLogStart(shard.key, 1))
        await eventually(lambda: shard.log_start_offset == 1)
        rig.step_back(10_000 * HOUR)
        janitor = rig.janitor()
        assert await janitor.delete_once() == 0
        rig.advance(DELAY_MS - 2_000)
        assert await janitor.delete_once() == 0, "readers have their grace"
        rig.advance(2_000)
        assert await janitor.delete_once() == 1
        assert not shard.has_local(sealed.key) and await rig.deleted() == []


@pytest.mark.fault("bulk-deletion-stops-halfway")
async def test_f32_a_deletion_that_stops_halfway_leaves_no_manifest_that_points_at_dead_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F32: the manifest goes first; metadata is purged only when the folder lists empty."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        await rig.meta.perform(AdvanceLogStart(shard.key, 1))
        rig.advance(DELAY_MS)
        delete = rig.store.delete
        calls = 0

        async def breaks(keys: Any) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise Unavailable("503")
            await delete(keys)

        monkeypatch.setattr(rig.store, "delete", breaks)
        janitor = rig.janitor()
        assert await janitor.delete_once() == 0
        left = await rig.store.keys(rig.names.segment_prefix(sealed.key))
        assert left and not any(key.endswith(".manifest") for key in left)
        assert len(await rig.deleted()) == 1
        monkeypatch.undo()
        assert await janitor.delete_once() == 1
        assert await rig.store.keys(rig.names.segment_prefix(sealed.key)) == []
        rig.append(shard)
        await rig.settle()
        assert rig.is_committed(shard), "uploads work after everything expired"


@pytest.mark.fault("topic-deleted-uploaded-request")
async def test_f85_a_topic_deleted_while_it_uploads_leaves_nothing() -> None:
    """F85: files, chunks, bundle parts and metadata of all its shards; its neighbours keep theirs."""
    async with TierRig(replace(RIG_LIMITS, put_timeout_ms=50)) as rig:
        gone = await rig.create_topic("gone", shards=3)
        stays = await rig.create_topic("stays", shards=2)
        await rig.start_uploader()
        janitor = rig.janitor()
        doomed = [rig.shard(gone, index) for index in range(3)]
        for shard in rig.shards.all():
            rig.append(shard)
        await rig.settle()
        await _sealed(rig, doomed[0])
        await janitor.sweep_now()
        rig.store.decide = lambda _: Fault.HANG_LANDED
        for _ in range(70):
            rig.append(doomed[1], 1_000)
        await eventually(lambda: rig.uploader.status().uploader.tasks == 1)
        await rig.meta.perform(DeleteTopic(gone.topic_id))
        await eventually(lambda: rig.shards.get(doomed[0].key) is None)
        rig.store.decide = None
        await eventually(lambda: rig.uploader.status().uploader.tasks == 0)
        rig.advance(DELAY_MS)
        assert await janitor.delete_once() == 4
        assert await rig.store.keys(rig.names.topic_prefix(gone.topic_id)) == []
        assert all(not shard.copies for shard in doomed)
        assert await rig.deleted() == []
        await rig.settle()  # the live parts of the shared bundle move out
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        live = await rig.check(rig.shard(stays, index) for index in range(2))
        assert set(await rig.store.keys()) == live, "the bundle with the deleted topic's parts is gone"
        assert rig.stats.bundles_rewritten == 1


@pytest.mark.fault("object-several-shards-share")
async def test_f35_a_shared_bundle_stays_while_it_is_referred_to_and_a_grace_longer() -> None:
    """F35, F33: a reader that holds a part's old place still finds it."""
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=2)
        left, right = rig.shard(topic, 0), rig.shard(topic, 1)
        await rig.start_uploader()
        rig.append(left)
        rig.append(right)
        await rig.settle()
        (bundle,) = await rig.store.keys(rig.names.bundles_prefix)
        janitor = rig.janitor()
        await janitor.sweep_now()
        await rig.until(lambda: True)
        sealed = await rig.seal(left)
        await rig.until(lambda: rig.is_complete(sealed))
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        assert bundle in await rig.store.keys(), "the other shard's part is in it"
        sealed = await rig.seal(right)
        await rig.until(lambda: rig.is_complete(sealed))
        await janitor.sweep_now()
        assert bundle in await rig.store.keys(), "unreferenced, but not for long enough"
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        assert bundle not in await rig.store.keys()
        await rig.check()


async def test_an_old_bundle_with_a_dead_part_is_rewritten_within_its_age() -> None:
    """Deleted topics really go, also out of bundles that are mostly alive."""
    async with TierRig() as rig:
        stays = await rig.create_topic("stays", shards=10)
        gone = await rig.create_topic("gone")
        await rig.start_uploader()
        for shard in rig.shards.all():
            rig.append(shard)
        await rig.settle()
        (bundle,) = await rig.store.keys(rig.names.bundles_prefix)
        await rig.meta.perform(DeleteTopic(gone.topic_id))
        janitor = rig.janitor(bundle_max_age_ms=3_600_000)
        rig.advance(DELAY_MS)
        await janitor.delete_once()
        await rig.settle()
        assert rig.stats.bundles_rewritten == 0, "young and mostly alive"
        rig.advance(3_600_000)
        await janitor.sweep_now()
        await rig.until(lambda: rig.stats.parts_moved == 10)
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        assert bundle not in await rig.store.keys()
        assert set(await rig.store.keys()) == await rig.check(rig.shard(stays, index) for index in range(10))


async def test_the_sweep_takes_doubtful_attempts_and_leaves_what_it_must() -> None:
    """In flight, young, of a newer lock, of another node, foreign, unexplained: hands off."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        rig.store.script.append(Fault.LOST_ANSWER)
        for _ in range(70):
            rig.append(shard, 1_000)
        await rig.settle()
        (orphan,) = set(await rig.store.keys()) - await rig.check()
        key = shard.segments[0].key
        names = rig.names
        keep = [
            names.chunk(key, 0, 5, node_id=1, lock_epoch=99, attempt=1),
            names.chunk(key, 0, 5, node_id=2, lock_epoch=1, attempt=1),
            names.chunk(key._replace(epoch=7, base_offset=500), 500, 501, node_id=1, lock_epoch=1, attempt=1),
            f"{names.segment_prefix(key)}note.txt",
            f"{names.data_prefix}readme",
        ]
        for name in keep:
            await rig.store.put(name, [b"x"])
        rig.advance(GRACE_MS)
        young = names.chunk(key, 0, 6, node_id=1, lock_epoch=1, attempt=3)
        await rig.store.put(young, [b"x"])
        with rig.uploader.attempts.in_flight(orphan):
            assert (await rig.janitor().sweep_now()).orphans == 0
        report = await rig.janitor().sweep_now()
        assert report.orphans == 1
        assert orphan in rig.store.deletions and len(rig.store.deletions) == 1
        assert sorted(report.foreign) == sorted(keep[3:])
        assert report.unexplained == [keep[0], keep[2]]
        assert rig.stats.objects_unexplained == 4
        assert {*keep, young} <= set(await rig.store.keys())
        await rig.check()


async def test_after_completion_everything_but_the_chosen_attempts_is_swept() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=3)
        await rig.start_uploader()
        faults = [*[Fault.NONE] * 6, Fault.LOST_ANSWER, Fault.CUT, Fault.TAKEN, Fault.SLOW_DOWN]
        rig.store.decide = lambda _: rig.rng.choice(faults)
        sealed = []
        for index in range(3):
            for _ in range(150):
                rig.append(rig.shard(topic, index), 1_000)
            sealed.append(await rig.seal(rig.shard(topic, index)))
        await rig.until(lambda: rig.is_complete(*sealed), timeout=20)
        rig.store.decide = None
        rig.advance(3_600_000)
        janitor = rig.janitor()
        await janitor.sweep_now()
        rig.advance(DELAY_MS)
        await janitor.sweep_now()
        assert set(await rig.store.keys()) == await rig.check()
        gets = rig.store.requests["get"]
        await janitor.sweep_now()
        assert rig.store.requests["get"] == gets, "a clean folder's manifest is not read again"


async def test_without_an_object_store_retention_is_local_deletion() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(remote_storage_enable="false", retention_ms="1000"))
        rig.append(shard)
        sealed = await rig.seal(shard)
        rig.clock.now_ms += 1_001
        await rig.retention(store=None).run_once()
        await eventually(lambda: shard.log_start_offset == 1)
        rig.clock.now_ms += DELAY_MS
        janitor = rig.janitor(store=None, uploader=None)
        assert await janitor.delete_once() == 1
        assert not shard.has_local(sealed.key)
        assert await rig.deleted() == []


@pytest.mark.fault("503-slowdown-1-000")
async def test_f45_a_folder_with_more_objects_than_one_deletion_takes_is_emptied() -> None:
    """F45: over 1,000 keys; the store's interface splits them."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        for attempt in range(1_200):
            await rig.store.inner.put(
                rig.names.chunk(sealed.key, 0, 1, node_id=1, lock_epoch=1, attempt=attempt), [b"x"]
            )
        await rig.meta.perform(AdvanceLogStart(shard.key, 1))
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == 1
        assert await rig.store.keys(rig.names.segment_prefix(sealed.key)) == []


@pytest.mark.fault("store-answer-segments-segment")
async def test_a_folder_that_is_not_answered_holds_up_no_other_shards_deletion() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic(shards=5)
        await rig.start_uploader()
        sealed = [(await _sealed(rig, rig.shard(topic, number)))[0] for number in range(5)]
        for segment in sealed:
            await rig.meta.perform(AdvanceLogStart(segment.key.shard_key, 1))
        hung = rig.names.segment_prefix(sealed[0].key)
        rig.store.hangs = hung.__eq__
        rig.advance(DELAY_MS)
        deleting = asyncio.create_task(rig.janitor(call_timeout_ms=HOUR).delete_once())
        async with asyncio.timeout(10):
            while [segment.key for segment in await rig.deleted()] != [sealed[0].key]:
                await asyncio.sleep(0.001)
                assert not deleting.done()
        deleting.cancel()
        with suppress(asyncio.CancelledError):
            await deleting
