"""Retention ends the content of the active segment, once all of it is old: an idle topic keeps nothing for longer.

Recorded with Kafka 4.3.1, retention.ms=3000 and log.retention.check.interval.ms=1000, by `AdminClient.list_offsets` for
EARLIEST four times a second: the log start of an idle partition moves to its end 3.4 s after its only record, and 3.7 s
after a record without a time was written.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratalog.formats.batches.compression import Codec
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.sweep.retention import RetentionSchedule, RetentionWorker
from support.hostile_batches import GARBAGE, claiming, timed_batch
from support.shard_rig import NODE_ID, START_MS, ShardRig
from support.waiting import eventually
from unit.shards.log.test_header_times import put

LIMIT_MS = 3_000


class Rig(ShardRig):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.age_ms = START_MS
        self.added_up = 0
        """How often what all segments take was added up."""
        self.schedule = RetentionSchedule()
        self.tier_stats = TierStats()

    async def start(self) -> None:
        await super().start()
        self.retention = RetentionWorker(
            node_id=NODE_ID,
            meta=self.meta,  # type: ignore[arg-type]
            shards=self.shards,
            copies=self.copies,
            catalog=self.catalog,
            store=None,
            names=ObjectNames("", self.meta.service.cluster_id),
            schedule=self.schedule,
            clock_ms=lambda: self.age_ms,
            stats=self.tier_stats,
            local_bytes=self.local_bytes,
        )

    async def local_bytes(self) -> int:
        self.added_up += 1
        return 0

    def written_at(self, shard: ShardLog, later_ms: int) -> None:
        """The last write to the file was then, by the clock of the disk."""
        written_s = (START_MS + later_ms) / 1_000
        os.utime(self.file_of(shard), (written_s, written_s))

    async def round_at(self, shard: ShardLog, later_ms: int) -> int:
        """Where the log starts after a round at that time."""
        self.age_ms = START_MS + later_ms
        await self.retention.run_once()
        assert self.tier_stats.rounds_failed == 0
        version = await self.meta.read_version()
        await eventually(lambda: self.catalog.version >= version)
        return shard.log_start_offset


@asynccontextmanager
async def rig_of(root: Path, **settings: str) -> AsyncIterator[tuple[Rig, ShardLog]]:
    async with Rig(root) as rig:
        yield rig, await rig.shard_of(**({"retention_ms": str(LIMIT_MS)} | settings))


@pytest.mark.fault("topic-writes-active-segment")
async def test_an_idle_segment_ends_once_its_newest_record_is_older_than_the_limit(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as (rig, shard):
        await put(rig, shard, timed_batch([START_MS, START_MS + 1_000], START_MS + 1_000))
        rig.written_at(shard, 1_000)
        assert await rig.round_at(shard, 1_000 + LIMIT_MS) == 0, "as old as the limit, and not older"
        assert await rig.round_at(shard, 1_001 + LIMIT_MS) == 2
        await rig.all_sealed()
        await eventually(lambda: len(shard.segments) == 1 and shard.segments[0].base_offset == 2)


@pytest.mark.fault("topic-writes-active-segment")
async def test_an_empty_active_segment_is_not_rolled_again_and_again(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as (rig, shard):
        await put(rig, shard, timed_batch([START_MS], START_MS))
        rig.written_at(shard, 0)
        assert await rig.round_at(shard, 10_000) == 1
        await rig.all_sealed()
        rolled = shard.segments[-1].epoch
        assert rolled == 1
        for later in range(3):
            assert await rig.round_at(shard, 1_000_000 + later) == 1
        assert shard.segments[-1].epoch == rolled
        await put(rig, shard, timed_batch([START_MS + 2_000_000], START_MS + 2_000_000))
        assert await rig.round_at(shard, 2_000_001) == 1
        rig.written_at(shard, 2_000_000)
        assert await rig.round_at(shard, 2_003_001) == 2


async def test_older_segments_and_the_active_one_go_together_and_only_in_order(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as (rig, shard):
        await put(rig, shard, timed_batch([START_MS + 50_000], START_MS + 50_000))
        shard.ask_roll(rig.clock())
        await put(rig, shard, timed_batch([START_MS], START_MS))
        await rig.all_sealed()
        rig.written_at(shard, 0)
        assert await rig.round_at(shard, 20_000) == 0, "the one before it is young"
        assert shard.segments[-1].epoch == 1
        assert await rig.round_at(shard, 60_000) == 2


async def test_an_active_segment_is_as_old_as_its_newest_record_whatever_headers_claim(tmp_path: Path) -> None:
    """The first batch claims that all is old, the second that all is new."""
    async with rig_of(tmp_path) as (rig, shard):
        await put(rig, shard, timed_batch([START_MS + 20_000], -1))
        rig.written_at(shard, 0)
        assert await rig.round_at(shard, 20_000) == 0
        assert await rig.round_at(shard, 23_001) == 1
    async with rig_of(tmp_path / "other") as (rig, shard):
        await put(rig, shard, timed_batch([START_MS], START_MS + 600_000, Codec.LZ4))
        rig.written_at(shard, 0)
        rig.clock.now_ms += 20_000
        assert await rig.round_at(shard, 20_000) == 1


async def test_a_record_without_a_time_is_as_old_as_the_last_write(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as (rig, shard):
        await put(rig, shard, timed_batch([-1], -1))
        rig.written_at(shard, 5_000)
        assert await rig.round_at(shard, 5_000 + LIMIT_MS) == 0
        assert await rig.round_at(shard, 5_001 + LIMIT_MS) == 1
        await put(rig, shard, claiming(GARBAGE, 3, 0, Codec.GZIP))
        rig.written_at(shard, 50_000)
        assert await rig.round_at(shard, 50_000 + LIMIT_MS) == 1
        assert await rig.round_at(shard, 50_001 + LIMIT_MS) == 4


@pytest.mark.fault("producer-writes-wrong-maxtimestamp")
async def test_a_segment_with_newer_records_than_its_headers_say_is_kept(tmp_path: Path) -> None:
    """One old record that says so, and newer ones that do not: the segment was deleted within seconds."""
    async with rig_of(tmp_path) as (rig, shard):
        await put(rig, shard, timed_batch([START_MS - 1_000_000], START_MS - 1_000_000))
        await put(rig, shard, timed_batch([START_MS, START_MS], -1))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        assert await rig.round_at(shard, LIMIT_MS) == 0
        assert await rig.round_at(shard, LIMIT_MS + 1) == 3


async def test_retention_bytes_of_zero_ends_the_active_segment_too(tmp_path: Path) -> None:
    async with rig_of(tmp_path, retention_ms="-1", retention_bytes="0") as (rig, shard):
        await put(rig, shard, timed_batch([START_MS], START_MS))
        assert await rig.round_at(shard, 1) == 1


async def test_without_a_limit_of_time_nothing_is_read(tmp_path: Path) -> None:
    async with rig_of(tmp_path, retention_ms="-1") as (rig, shard):
        await put(rig, shard, timed_batch([START_MS], START_MS))
        rig.written_at(shard, 0)
        assert await rig.round_at(shard, 10**12) == 0
        assert shard.active is not None and shard.active.read_back._scan is None


@pytest.mark.fault("node-thousands-idle-shards")
async def test_what_segments_take_is_added_up_where_a_limit_asks_for_it(tmp_path: Path) -> None:
    """That takes a check of each file, and pressure is checked each two seconds."""
    async with rig_of(tmp_path) as (rig, _):
        await rig.retention._check_pressure()
        assert rig.added_up == 0
        rig.schedule = RetentionSchedule(hard_limit_bytes=1)
        await rig.restart("stop")
        await rig.retention._check_pressure()
        assert rig.added_up == 1
