"""What a small segment costs in requests, and the keeping of house in looks, however many segments there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from support.tier_rig import RIG_LIMITS, RigShard, TierRig
from support.waiting import eventually

DELAY_MS = 60_001
LONG_MS = 4_000_000


async def _sealed(rig: TierRig, shard: RigShard, count: int) -> list[Segment]:
    segments = []
    for _ in range(count):
        rig.append(shard, 200)
        segments.append(await rig.seal(shard))
    return segments


@pytest.mark.fault("hundreds-thousands-complete-segments")
async def test_a_small_sealed_segment_costs_half_the_requests_it_did() -> None:
    """3 PUT, 1 GET, 1 LIST to complete, 1 GET, 1 LIST to free, 2 LIST, 3 DELETE to delete, which is 12."""
    count = 20
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(local_retention_ms="1"))
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().lock_epoch)
        rig.store.requests.clear()
        segments = await _sealed(rig, shard, count)
        await rig.until(lambda: rig.is_complete(*segments))
        assert rig.store.requests == Counter(put=3 * count, get=count)
        rig.store.requests.clear()
        rig.advance(LONG_MS)
        await rig.retention().run_once()
        assert not any(shard.has_local(segment.key) for segment in segments)
        assert rig.store.requests == Counter(list=count)
        rig.store.requests.clear()
        await rig.meta.perform(AdvanceLogStart(shard.key, count))
        await eventually(lambda: shard.log_start_offset == count)
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == count
        assert await rig.store.keys() == []
        assert rig.store.requests == Counter(list=4, delete=2), (
            "one listing of the shard, of the bundles, of cuts, and one that proves the store where there are no cuts"
        )
        assert (3 + 1 + 1) * count + 6 <= 12 * count / 2


async def test_deleted_segments_behind_much_else_are_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of their shard is given up where it shows too much that is not theirs."""
    monkeypatch.setattr("stratalog_node.tier.sweep.janitor._OTHER_OBJECTS", 5)
    monkeypatch.setattr("stratalog_node.tier.sweep.janitor._OBJECTS_PER_SEGMENT", 1)
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        segments = await _sealed(rig, shard, 4)
        await rig.until(lambda: rig.is_complete(*segments))
        for number in range(20):
            await rig.store.put(f"{rig.names.shard_prefix(shard.key)}!{number}".replace("!", "0note-"), [b"x"])
        await rig.meta.perform(AdvanceLogStart(shard.key, 3))
        await eventually(lambda: shard.log_start_offset == 3)
        rig.advance(DELAY_MS)
        assert await rig.janitor().delete_once() == 3
        folders = [rig.names.segment_prefix(segment.key) for segment in segments]
        left = [await rig.store.keys(folder) for folder in folders]
        assert [bool(keys) for keys in left] == [False, False, False, True]


@pytest.mark.fault("hundreds-thousands-complete-segments")
@pytest.mark.parametrize("count", [10, 40])
async def test_a_sweep_of_clean_folders_reads_nothing_but_listings(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata was read again per thousand folders, and a manifest per complete segment."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        segments = await _sealed(rig, shard, count)
        for _ in range(70):
            rig.append(shard, 1_000)
        await rig.until(lambda: rig.is_complete(*segments))
        await rig.settle()
        monkeypatch.setattr("stratalog_node.tier.sweep.orphan_sweep._SUSPECTS_AT_A_TIME", 5)
        readings = Counter[str]()
        snapshot = rig.meta.snapshot

        async def counted() -> Any:
            readings["snapshot"] += 1
            return await snapshot()

        monkeypatch.setattr(rig.meta, "snapshot", counted)
        rig.advance(LONG_MS)
        rig.store.requests.clear()
        report = await rig.janitor().sweep_now()
        assert report.objects >= 3 * count and report.orphans == 0
        assert rig.store.requests == Counter(list=3), "data, probes and bundles"
        assert readings["snapshot"] == 1, "for the bundles"


@pytest.mark.fault("hundreds-thousands-complete-segments")
async def test_a_moved_high_watermark_is_counted_only_where_it_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each move counted all unfinished segments of its shard again."""
    behind = 50
    # Whoever gains the lock counts all; so does who hears of a put that ended, and puts are limited in real time.
    async with TierRig(replace(RIG_LIMITS, put_timeout_ms=600_000)) as rig:
        shard = rig.shard(await rig.create_topic())
        rig.store.gate.clear()
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().lock_epoch)
        segments = await _sealed(rig, shard, behind)
        rig.append(shard)
        await rig.until(lambda: rig.uploader.status().uploader.unsent_segments == behind + 1)
        counted = Counter[SegmentKey]()
        size_below = shard.size_below_high_watermark

        def counting(segment: SegmentKey, from_offset: int) -> int:
            counted[segment] += 1
            return size_below(segment, from_offset)

        monkeypatch.setattr(shard, "size_below_high_watermark", counting)
        before = rig.uploader.status().uploader.unsent_bytes
        for _ in range(10):
            size = rig.uploader.status().uploader.unsent_bytes
            rig.append(shard)
            await eventually(lambda size=size: rig.uploader.status().uploader.unsent_bytes > size)
        assert sum(counted[segment.key] for segment in segments) == 0
        assert 0 < counted[shard.segments[-1].key] <= 20
        monkeypatch.undo()
        assert rig.uploader.status().uploader.unsent_bytes > before
        rig.store.gate.set()
        await rig.until(lambda: rig.is_complete(*segments))
        await rig.settle()
        await rig.check()


async def test_what_a_roll_ends_and_what_a_transaction_held_back_is_still_counted() -> None:
    """The high watermark passes a segment's end and continues in the next one, in one move."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        rig.append(shard)
        await rig.settle()
        shard.open_transaction = shard.high_watermark
        rig.append(shard)
        ended = await rig.roll(shard)
        rig.append(shard, commit=False)
        await rig.seal(shard, ended)
        shard.open_transaction = None
        rig.commit(shard)
        await rig.until(lambda: rig.is_complete(ended) and rig.is_committed(shard))
        await rig.check()
