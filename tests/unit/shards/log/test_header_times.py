"""Producers that write any number into `maxTimestamp`: look-ups, seals and retention go by the times of the records.

Kafka computes the field itself, so it answers as if the header said what the records do. Recorded with Kafka 4.3.1 and
`RawClient.produce` of records at now - 5000, and now - 4000, - 1000, - 2000, uncompressed and with gzip, under headers
that claim -1, the last record's time, or half an hour ahead, and confluent_kafka's `AdminClient.list_offsets`: for the
times now - 6000, - 4500, - 3000, - 1000, - 500 the offsets are 0, 1, 2, 2, -1, and for MAX_TIMESTAMP 2, each time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.segments.index_block import decode_index_block, encode_index_block
from stratalog.model.segment import TimesKnown
from stratalog_node.serve.producing.produce import offer
from stratalog_node.shards.log.shard_log import ShardLog
from support.hostile_batches import GARBAGE, claiming, timed_batch
from support.shard_rig import START_MS, Asked, ShardRig
from support.tiered_shards import TieredShardRig
from support.waiting import eventually

PLACES = ("active", "sealed", "cold")


class Sent(NamedTuple):
    """One batch: what its records and its header say, from START_MS on, and whether the segment ends behind it."""

    times_ms: list[int]
    claimed_ms: int
    codec: Codec
    ends_segment: bool


async def put(rig: ShardRig, shard: ShardLog, batch: bytes) -> int:
    asked = Asked()
    faulty = offer(shard, memoryview(bytearray(batch)), 9, -1, asked, 0, rig.clock())
    assert faulty is None, faulty
    rig.tick()
    await eventually(lambda: asked.is_acknowledged)
    return asked.offset


async def offset_at(shard: ShardLog, time_ms: int) -> int | None:
    found = await shard.offset_for_time(START_MS + time_ms)
    return None if found is None else found.offset


async def placed(rig: TieredShardRig, shard: ShardLog, place: str) -> None:
    """Everything that was written is sealed, or sealed and in the bucket alone."""
    if place == "active":
        return
    shard.ask_roll(rig.clock())
    await rig.all_sealed()
    if place == "cold":
        await rig.uploaded()
        await eventually(lambda: all(segment.remote.manifest_key for segment in shard.segments[:-1]))
        for segment in shard.segments[:-1]:
            await rig.copies.free_local(shard, segment.key)


@pytest.mark.fault("producer-writes-wrong-maxtimestamp")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("claimed_ms", [-1, START_MS, START_MS + 9 * 60_000])
async def test_a_lookup_by_time_finds_the_record_whatever_the_header_claims(
    tmp_path: Path, place: str, claimed_ms: int
) -> None:
    """One record with time now and -1 in the header: ListOffsets answered -1, and Kafka answers its offset."""
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(remote_storage_enable="true")
        await put(rig, shard, timed_batch([START_MS + 1_000], claimed_ms))
        await put(rig, shard, timed_batch([START_MS + 10, START_MS + 5_000, START_MS + 20], claimed_ms))
        await placed(rig, shard, place)
        assert await offset_at(shard, 0) == 0
        assert await offset_at(shard, 1_001) == 2
        assert await offset_at(shard, 5_000) == 2
        assert await offset_at(shard, 5_001) is None
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest[:2] == (2, START_MS + 5_000)


@pytest.mark.parametrize("codec", Codec)
async def test_the_seal_has_the_times_of_the_records(tmp_path: Path, codec: Codec) -> None:
    async with TieredShardRig(tmp_path) as rig:
        shard = await rig.shard_of(remote_storage_enable="true")
        await put(rig, shard, timed_batch([START_MS + 50, START_MS + 70, START_MS + 60], -1, codec))
        await put(rig, shard, timed_batch([START_MS + 40], START_MS + 600_000, codec))
        await placed(rig, shard, "sealed")
        seal = shard.segments[0].seal
        assert seal is not None
        assert (seal.first_timestamp_ms, seal.max_timestamp_ms) == (START_MS + 40, START_MS + 70)
        assert seal.times_known is TimesKnown.ALL


async def test_a_seal_says_so_where_a_batch_cannot_be_opened(tmp_path: Path) -> None:
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await put(rig, shard, timed_batch([START_MS + 50], -1))
        await put(rig, shard, claiming(GARBAGE, 3, START_MS + 100, Codec.GZIP))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        seal = shard.segments[0].seal
        assert seal is not None
        assert (seal.max_timestamp_ms, seal.times_known) == (START_MS + 50, TimesKnown.PARTLY)


@pytest.mark.fault("older-release-sealed-segment")
async def test_a_segment_that_an_older_release_sealed_is_searched_by_its_records(tmp_path: Path) -> None:
    """Its seal and its index block hold what headers claimed: nothing is skipped because of that."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        for number in range(3):
            await put(rig, shard, timed_batch([START_MS + 1_000 * number] * 10, -1))
        shard.ask_roll(rig.clock())
        await rig.all_sealed()
        key = shard.segments[0].key
        path = rig.layout.index(key)
        block = decode_index_block(path.read_bytes(), source=str(path))
        old_seal = replace(block.seal, first_timestamp_ms=-1, max_timestamp_ms=-1, times_known=TimesKnown.CLAIMED)
        path.write_bytes(encode_index_block(block.identity, old_seal, block.points, block.table, version=2))
        copy = shard.copies[key.epoch]
        rig.context.sealed_points.forget(copy)
        shard.context.catalog._shards[shard.key].segments[0] = replace(shard.segments[0], seal=old_seal)
        assert shard.segments[0].seal == old_seal
        assert await offset_at(shard, 1_000) == 10
        assert await offset_at(shard, 2_001) is None
        newest = await shard.offset_of_max_timestamp()
        assert newest is not None and newest[:2] == (20, START_MS + 2_000)


async def test_what_is_searched_by_time_is_not_read_again(tmp_path: Path) -> None:
    """A look-up opens what was written since the last one, and the seal opens only the rest."""
    async with ShardRig(tmp_path) as rig:
        shard = await rig.shard_of()
        await put(rig, shard, timed_batch([START_MS + 1], -1))
        assert shard.active is not None
        active = shard.active
        assert await offset_at(shard, 1) == 0
        assert active.read_back._scan is not None and active.read_back._scan.position == active.size_bytes
        await put(rig, shard, timed_batch([START_MS + 2], -1))
        assert await offset_at(shard, 2) == 1
        assert active.read_back._scan is not None and active.read_back._scan.position == active.size_bytes


sent = st.builds(
    Sent,
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(-1, 12),
    st.sampled_from((Codec.NONE, Codec.LZ4)),
    st.booleans(),
)


@pytest.mark.fault("producer-writes-wrong-maxtimestamp")
@given(st.lists(sent, min_size=1, max_size=6), st.sampled_from(PLACES), st.integers(0, 6))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_look_ups_answer_as_a_list_of_records_does(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Sent], place: str, start: int
) -> None:
    """Kafka's rule: the first offset whose time is at or after that asked for; for -3 the first with the greatest."""
    async with TieredShardRig(tmp_path_factory.mktemp("shard")) as rig:
        shard = await rig.shard_of(remote_storage_enable="true")
        log: list[int] = []
        for one in batches:
            claimed_ms = -1 if one.claimed_ms < 0 else START_MS + one.claimed_ms
            batch = timed_batch([START_MS + time_ms for time_ms in one.times_ms], claimed_ms, one.codec)
            assert parse_header(batch).max_timestamp_ms == claimed_ms
            assert await put(rig, shard, batch) == len(log)
            log += one.times_ms
            if one.ends_segment:
                shard.ask_roll(rig.clock())
        await rig.all_sealed()
        await placed(rig, shard, place)
        start = min(start, len(log))
        await shard.delete_records_before(start)
        for time_ms in range(14):
            first = next((n for n in range(start, len(log)) if log[n] >= time_ms), None)
            assert await offset_at(shard, time_ms) == first, (log, time_ms)
        newest = await shard.offset_of_max_timestamp()
        expected = max(range(start, len(log)), key=lambda n: (log[n], -n), default=None)
        assert (None if newest is None else newest.offset) == expected
