"""Cold reads when readers outnumber the memory: nothing is held beyond it, little is fetched twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from stratalog.formats.batches.record_batch import walk
from stratalog.machines.reading.cold_rates import ColdLimits
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.settings.process import ProcessSettings
from stratalog_node.shards.copies.cold_reads import ReadFor
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.cold.remote_reads import cold_read_limits
from support.cold_data import ColdShard, batch_at, batches_from
from support.cold_trace import READ_BYTES, SHARD_BYTES, ten_groups
from support.counting_store import CountingStore
from support.waiting import eventually

MIB = 1 << 20
DEFAULT = replace(cold_read_limits(ProcessSettings()), bytes_per_s=None)
BATCH_BYTES = 60_000


@dataclass
class Bench:
    """Shards that hold the same batches, and one node's cold reader."""

    store: CountingStore
    shards: list[ColdShard]
    reader: ColdReader
    limits: ColdReadLimits
    peak_bytes: int = 0

    @property
    def data_bytes(self) -> int:
        return sum(map(len, self.shards[0].batches))

    def measure_peak(self) -> None:
        cache = self.reader._cache
        index_bytes = self.reader._index.held_bytes
        self.peak_bytes = max(self.peak_bytes, cache.held_bytes + cache.reserved_bytes + index_bytes)

    async def step(self, shard: ColdShard, offset: int, max_bytes: int) -> int:
        """One read; the offset after it."""
        pieces = await self.reader.read(shard.segments, offset, max_bytes)
        self.measure_peak()
        for piece in pieces:
            for at, header in walk(piece, source="answer", verify=False):
                assert header.base_offset == offset
                assert bytes(piece[at : at + header.size_bytes]) == shard.batches[offset]
                offset = header.end_offset
        return offset

    async def read_all(self, shard: ColdShard, max_bytes: int) -> None:
        offset = 0
        while offset < shard.end_offset:
            offset = await self.step(shard, offset, max_bytes)


Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Bench] = []

    async def make(
        shards: int,
        part_bytes: int,
        parts: int = 1,
        limits: ColdReadLimits = DEFAULT,
        batch_bytes: int = BATCH_BYTES,
        **more: Callable[[], int],
    ) -> Bench:
        store = CountingStore()
        number = part_bytes // batch_bytes
        batches = batches_from(0, parts * number, records=1, value_bytes=batch_bytes)
        cut = [batches[n * number : (n + 1) * number] for n in range(parts)]
        all_shards = [ColdShard(store, shard=number) for number in range(shards)]
        for shard in all_shards:
            await shard.add(cut, state=RemoteState.PARTIAL)

        async def reload(_: SegmentKey) -> Segment | None:
            return None

        bench = Bench(store, all_shards, ColdReader(store, all_shards[0].names, limits, reload, **more), limits)
        store.on_get = bench.measure_peak
        made.append(bench)
        return bench

    yield make
    for bench in made:
        await bench.reader.close()


@pytest.mark.fault("cold-readers-blocks-fit")
@pytest.mark.parametrize("max_bytes", [256 << 10, MIB])
async def test_two_hundred_readers_at_once_take_turns_and_nothing_is_fetched_twice(make: Make, max_bytes: int) -> None:
    """At the default memory 26 blocks fit: they wait for one another, a block each."""
    bench = await make(200, 6 * MIB)
    await asyncio.gather(*(bench.read_all(shard, max_bytes) for shard in bench.shards))
    total = 200 * bench.data_bytes
    assert bench.store.bytes_got < 1.05 * total
    assert bench.store.gets < 2 * total / DEFAULT.range_bytes, "indexes included"
    assert bench.reader.stats.waits > 0
    assert bench.reader.stats.evicted_unread_blocks == 0
    assert bench.peak_bytes <= DEFAULT.cache_bytes


@pytest.mark.fault("cold-readers-blocks-fit")
@pytest.mark.parametrize("readers", [30, 200])
async def test_readers_that_come_one_after_another_get_smaller_ranges(make: Make, readers: int) -> None:
    """Each reads on only when all others had their turn: no waiting helps, and each gets what there is room for."""
    bench = await make(readers, 6 * MIB, limits=replace(DEFAULT, patience_ms=10))
    room_bytes = DEFAULT.cache_bytes - DEFAULT.index_bytes
    offsets = [0] * readers
    rounds = 0
    while any(offset < bench.shards[0].end_offset for offset in offsets):
        for number, shard in enumerate(bench.shards):
            if offsets[number] < shard.end_offset:
                offsets[number] = await bench.step(shard, offsets[number], 128 << 10)
        rounds += 1
        if rounds == 15:
            gets, used, got = bench.store.gets, bench.reader.stats.used_bytes, bench.store.bytes_got
    used, got = bench.reader.stats.used_bytes - used, bench.store.bytes_got - got
    assert bench.reader.stats.evicted_unread_blocks > 0
    assert got < 1.3 * used, "what is fetched is read, once ranges have found their size"
    ideal_bytes = min(DEFAULT.range_bytes, room_bytes / readers)
    assert bench.store.gets - gets < 2 * used / ideal_bytes
    assert bench.peak_bytes <= DEFAULT.cache_bytes


@pytest.mark.fault("cold-readers-far-apart")
async def test_ten_groups_at_different_positions_fetch_little_twice(make: Make) -> None:
    """The recorded trace, with read-ahead: `support.cold_trace`. Every byte of it is a sixteenth, blocks a little more,
    and groups are closer together for that."""
    scale = 16
    now_ms = 0
    limits = replace(DEFAULT, cache_bytes=DEFAULT.cache_bytes // scale, window_max_bytes=MIB, block_bytes=96 << 10)
    step_bytes = READ_BYTES // scale // 2
    bench = await make(1, 6 * MIB // scale, SHARD_BYTES // (6 * MIB), limits, step_bytes - 200, now_ms=lambda: now_ms)
    [shard] = bench.shards
    batch_bytes = len(shard.batches[0])
    for access in ten_groups(speed=0.7):
        now_ms = access.now_ms
        offset, end_offset = access.offset * 2 // READ_BYTES, -(access.end_offset * -2 // READ_BYTES)
        while offset < min(end_offset, shard.end_offset):
            offset = await bench.step(shard, offset, (end_offset - offset) * batch_bytes)
    stats = bench.reader.stats
    assert stats.used_bytes > 4 * bench.data_bytes, "groups read the same"
    assert stats.fetched_bytes < 1.1 * bench.data_bytes
    assert bench.store.bytes_got < 1.15 * bench.data_bytes, "indexes included"
    reasons = stats.evicted_passed_blocks, stats.evicted_far_blocks, stats.evicted_late_blocks
    assert stats.evicted_blocks == sum(reasons)
    assert min(*reasons, stats.refetched_bytes) > 0
    assert stats.refetched_bytes < 0.1 * bench.data_bytes
    assert bench.peak_bytes <= limits.cache_bytes


@pytest.mark.fault("cold-readers-far-apart")
async def test_two_groups_further_apart_than_fits_share_what_can_be_shared(make: Make) -> None:
    """The second is twice as far behind as there is memory. The old blocks that it will reach last go first, so that
    it finds part of them; the least recently used would all be gone."""
    now_ms = 0
    limits = replace(DEFAULT, cache_bytes=6 * MIB, window_max_bytes=MIB, block_bytes=128 << 10)
    bench = await make(1, MIB, 40, limits, now_ms=lambda: now_ms)
    [shard] = bench.shards
    first = second = 0
    while second < shard.end_offset:
        now_ms += 50
        if first < shard.end_offset:
            first = await bench.step(shard, first, 128 << 10)
        if now_ms > 4_000:
            second = await bench.step(shard, second, 128 << 10)
    assert bench.reader.stats.fetched_bytes < 1.85 * bench.data_bytes
    assert bench.peak_bytes <= limits.cache_bytes


# Shares of clients ---------------------------------------------------------------------------------------------------
@pytest.mark.fault("cold-replay-starves")
@pytest.mark.parametrize("memory", [48 * MIB, 2 * MIB])
async def test_a_client_that_replays_many_shards_leaves_another_half_of_the_store(make: Make, memory: int) -> None:
    """Whether they wait for a place among the requests, or for memory."""
    limits = replace(DEFAULT, cache_bytes=memory, max_concurrency=2, window_max_bytes=MIB, block_bytes=128 << 10)
    ticks = count()  # a clock of its own, on which no reader is late because the machine is busy
    bench = await make(41, 4 * MIB, limits=limits, now_ms=lambda: next(ticks) // 50)
    tail, others = bench.shards[0], bench.shards[1:]
    gets: list[str] = []
    bench.store.on_key = gets.append

    async def read_all(shard: ColdShard, client: str) -> None:
        offset = 0
        while offset < shard.end_offset:
            pieces = await bench.reader.read(shard.segments, offset, 256 << 10, read_for=ReadFor(client, ColdLimits()))
            offset = [header.end_offset for _, header in walk(pieces[-1], source="answer", verify=False)][-1]

    replay = [asyncio.ensure_future(read_all(shard, "replay")) for shard in others]
    await eventually(lambda: len(gets) > 4)
    begun = len(gets)
    await read_all(tail, "tail")
    own = gets.count(tail.segments[0].remote.parts[0].object_key)
    assert own >= 5
    assert len(gets) - begun <= 20 * own, "40 readers wait, and each of the tail's requests waits for few of theirs"
    await asyncio.gather(*replay)


@pytest.mark.fault("cold-replay-starves")
async def test_a_client_above_its_rate_waits_and_another_does_not(make: Make) -> None:
    now_ms = 0
    bench = await make(1, 6 * MIB, now_ms=lambda: now_ms)
    [shard] = bench.shards
    limits = ColdLimits(client=MIB)
    await bench.reader.read(shard.segments, 0, 1_100_000, read_for=ReadFor("fast", limits))
    waits = asyncio.ensure_future(bench.reader.read(shard.segments, 0, 1, read_for=ReadFor("fast", limits)))
    await eventually(lambda: bench.reader.stats.throttled > 0)
    assert bench.reader.stats.throttle_ms > 0
    assert await bench.reader.read(shard.segments, 0, 1, read_for=ReadFor("other", limits))
    assert not waits.done()
    now_ms += 1_000
    assert await waits


@pytest.mark.fault("cold-replay-starves")
async def test_a_read_that_is_given_up_while_it_waits_for_its_rate_owes_nothing_more(make: Make) -> None:
    now_ms = 0
    bench = await make(1, 6 * MIB, now_ms=lambda: now_ms)
    [shard] = bench.shards
    read_for = ReadFor("fast", ColdLimits(topic=MIB))
    await bench.reader.read(shard.segments, 0, 1_100_000, read_for=read_for)
    owed_ms = bench.reader._rates.wait_ms(shard.topic_id, "fast", read_for.limits, now_ms)
    for _ in range(3):
        waits = asyncio.ensure_future(bench.reader.read(shard.segments, 0, 1, read_for=read_for))
        await asyncio.sleep(0)
        waits.cancel()
        with suppress(asyncio.CancelledError):
            await waits
    assert bench.reader._rates.wait_ms(shard.topic_id, "fast", read_for.limits, now_ms) == owed_ms > 0


async def test_ranges_that_grow_again_take_what_is_there_in_smaller_pieces(make: Make) -> None:
    bench = await make(1, 6 * MIB)
    [shard] = bench.shards
    ranges = bench.reader._shard(shard.segments[0].key.shard_key).range
    for _ in range(3):
        ranges.went_unread(ranges.size_bytes(ranges.level))
    await bench.read_all(shard, 100_000)
    fetches, fetched_bytes = bench.reader.stats.fetches, bench.reader.stats.fetched_bytes
    assert fetches > 2 * bench.data_bytes / bench.limits.range_bytes
    assert fetched_bytes < 1.01 * bench.data_bytes
    ranges.rest()
    await bench.read_all(shard, MIB)
    assert bench.reader.stats.fetched_bytes == fetched_bytes


@pytest.mark.fault("cold-reads-partitions-large")
async def test_a_small_memory_is_never_passed_by_many_partitions(make: Make) -> None:
    limits = replace(DEFAULT, cache_bytes=4 * MIB, window_max_bytes=2 * MIB)
    bench = await make(200, MIB, limits=limits)
    await asyncio.gather(*(bench.step(shard, 0, MIB) for shard in bench.shards))
    await asyncio.gather(*(bench.read_all(shard, 100_000) for shard in bench.shards))
    assert bench.peak_bytes <= limits.cache_bytes


@pytest.mark.fault("cold-reads-partitions-large")
async def test_a_batch_larger_than_all_of_the_memory_is_fetched_alone(make: Make) -> None:
    limits = replace(DEFAULT, cache_bytes=MIB, window_max_bytes=MIB, patience_ms=1)
    bench = await make(4, MIB, limits=limits)
    large = ColdShard(bench.store, shard=99)
    await large.add([[batch_at(0, 1, value_bytes=3 * MIB)]], state=RemoteState.PARTIAL)
    answers = await asyncio.gather(
        bench.reader.read(large.segments, 0, 1), *(bench.step(shard, 0, MIB) for shard in bench.shards)
    )
    assert b"".join(answers[0]) == large.batches[0]
    assert bench.peak_bytes <= len(large.batches[0]) + 2_000 + limits.index_bytes


@pytest.mark.fault("cold-reads-partitions-large")
async def test_small_answers_hold_no_large_blocks(make: Make) -> None:
    """Clients that do not take their answers would else hold all of the memory."""
    bench = await make(1, 6 * MIB)
    (piece,) = await bench.reader.read(bench.shards[0].segments, 0, 100_000)
    assert isinstance(piece, bytes)
    (piece,) = await bench.reader.read(bench.shards[0].segments, 0, 2 * MIB)
    assert isinstance(piece, memoryview)


async def test_an_answer_is_cut_to_what_may_be_answered_when_the_data_is_there(make: Make) -> None:
    bench = await make(1, 6 * MIB)
    shard = bench.shards[0]
    pieces = await bench.reader.read(shard.segments, 0, 2 * MIB, lambda wanted: min(wanted, 130_000))
    assert sum(map(len, pieces)) == 2 * len(shard.batches[0])


@pytest.mark.fault("store-answers-cold-requests")
async def test_requests_that_are_never_answered_do_not_hold_up_other_shards(make: Make) -> None:
    """As many as may run at a time: each gives its place to the next after a while and waits on beside."""
    bench = await make(20, MIB, limits=replace(DEFAULT, slot_ms=20))
    hung = {shard.segments[0].remote.parts[0].object_key for shard in bench.shards[: DEFAULT.max_concurrency]}
    bench.store.hangs = hung.__contains__
    stuck = [asyncio.ensure_future(bench.step(shard, 0, MIB)) for shard in bench.shards[: DEFAULT.max_concurrency]]
    await eventually(lambda: bench.store.in_flight == len(stuck))
    await asyncio.gather(*(bench.read_all(shard, MIB) for shard in bench.shards[DEFAULT.max_concurrency :]))
    assert not any(task.done() for task in stuck)
    for task in stuck:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.fault("store-answers-cold-requests")
async def test_shards_whose_requests_were_not_answered_leave_room_for_the_others(make: Make) -> None:
    """However many there are: so few of them are asked for at a time that neither places nor memory run out."""
    limits = replace(DEFAULT, slot_ms=5)
    bench = await make(50, MIB, limits=limits)
    bad, good = bench.shards[:40], bench.shards[40:]
    hung = {shard.segments[0].remote.parts[0].object_key for shard in bad}
    bench.store.hangs = hung.__contains__

    bench.store.gives_up.set()
    answers = await asyncio.gather(*(bench.step(shard, 0, MIB) for shard in bad), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    bench.store.gives_up.clear()

    stuck = [asyncio.ensure_future(bench.step(shard, 0, MIB)) for shard in bad]
    await eventually(lambda: bench.store.in_flight == limits.max_concurrency)
    await asyncio.gather(*(bench.read_all(shard, MIB) for shard in good))
    assert bench.store.in_flight == limits.max_concurrency
    bench.store.hangs = lambda _: False
    bench.store.gives_up.set()
    await asyncio.gather(*stuck, return_exceptions=True)
    await asyncio.gather(*(bench.read_all(shard, MIB) for shard in bad))
