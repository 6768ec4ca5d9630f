"""Deletion takes what it must, after its grace, and leaves what is not its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import obstore
import pytest

from stratalog.model.commands.table_commands import AdvanceLogStart, DeleteTopic
from stratalog.model.segment import Segment
from support.tier_rig import NODE_ID, RIG_LIMITS, RigShard, TierRig
from support.waiting import eventually

DELAY_MS = 60_001
LONG_MS = 4_000_000


async def _sealed(rig: TierRig, shard: RigShard, count: int = 1) -> list[Segment]:
    segments = []
    for _ in range(count):
        rig.append(shard, 2_000)
        segments.append(await rig.seal(shard))
    await rig.until(lambda: rig.is_complete(*segments))
    return segments


async def _deleted(rig: TierRig, shard: RigShard, offset: int) -> None:
    await rig.meta.perform(AdvanceLogStart(shard.key, offset))
    await eventually(lambda: shard.log_start_offset == offset)


@pytest.mark.fault("foreign-keys-deleted-segment")
async def test_foreign_keys_in_a_deleted_segments_folder_stay_and_hold_up_nothing() -> None:
    """Whatever they are called; a name with a space, which none of our stores would accept, blocked the purge."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        first, second = await _sealed(rig, shard, 2)
        folder = rig.names.segment_prefix(first.key)
        foreign = [f"{folder}my notes (1).txt", f"{folder}readme"]
        raw: Any = rig.store.inner._store  # type: ignore[attr-defined]
        for key in foreign:
            await obstore.put_async(raw._client, key, b"mine")
        await _deleted(rig, shard, second.end_offset or 0)
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == 2
        assert sorted(await rig.store.keys(folder)) == sorted(foreign)
        assert await rig.store.keys(rig.names.segment_prefix(second.key)) == []
        assert await rig.deleted() == []


@pytest.mark.fault("retention-deletes-segment-sweep")
@pytest.mark.parametrize("call", ["deleted_segments", "snapshot", "purged_topics"])
async def test_a_segment_deleted_while_a_sweep_reads_metadata_keeps_its_grace(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever reading it falls before. Chunks must not go before their manifest."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        attempt = rig.names.chunk(sealed.key, 0, 1, node_id=NODE_ID, lock_epoch=1, attempt=9)
        await rig.store.put(attempt, [b"x"])  # so that the folder is looked at
        rig.advance(LONG_MS)
        folder = set(await rig.store.keys(rig.names.segment_prefix(sealed.key)))
        reading = getattr(rig.meta, call)

        async def deleted_just_before() -> Any:
            monkeypatch.undo()
            await rig.meta.perform(AdvanceLogStart(shard.key, 1))
            return await reading()

        monkeypatch.setattr(rig.meta, call, deleted_just_before)
        await rig.janitor().sweep_now()
        assert shard.log_start_offset == 1
        assert set(await rig.store.keys(rig.names.segment_prefix(sealed.key))) >= folder - {attempt}


@pytest.mark.fault("upload-topic-segment-purged")
async def test_a_late_put_of_a_purged_topic_is_swept_after_a_restart_too() -> None:
    """And a bundle that holds a part of it is not unexplained."""
    async with TierRig(replace(RIG_LIMITS, merge_parts=100)) as rig:
        gone = await rig.create_topic("gone")
        stays = rig.shard(await rig.create_topic("stays"))
        doomed = rig.shard(gone)
        await rig.start_uploader()
        rig.append(doomed)
        rig.append(stays)
        await rig.settle()
        key = doomed.segments[0].key
        await rig.meta.perform(DeleteTopic(gone.topic_id))
        await eventually(lambda: rig.shards.get(doomed.key) is None)
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == 1
        await rig.crash_uploader()
        late = rig.names.chunk(key, 0, 5, node_id=NODE_ID, lock_epoch=1, attempt=7)
        await rig.store.put(late, [b"x"])
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().lock_epoch == 2)
        for _ in range(4):
            rig.advance(LONG_MS * 25)
            report = await rig.janitor().sweep_now()
            await rig.settle()
        assert late not in await rig.store.keys()
        assert report.unexplained == []
        assert set(await rig.store.keys()) == await rig.check([stays])


@pytest.mark.fault("upload-topic-segment-purged")
async def test_a_late_put_of_a_purged_segment_of_a_living_topic_is_swept() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        (sealed,) = await _sealed(rig, shard)
        await _deleted(rig, shard, 1)
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == 1
        late = rig.names.chunk(sealed.key, 0, 1, node_id=NODE_ID, lock_epoch=1, attempt=7)
        await rig.store.put(late, [b"x"])
        rig.advance(LONG_MS)
        await rig.janitor().sweep_now()
        assert await rig.store.keys() == []
