"""Cold reads: what is answered, what is fetched how often, what is never answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.formats.batches.record_batch import check_batch, walk
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.errors import Archived, Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects import ObjectStore, Operation, StoreSettings, open_store
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader
from support.cold_data import CLUSTER_ID, FIRST_TIME_MS, ColdShard, batch_at, batches_from
from support.hostile_batches import GARBAGE, claiming
from support.waiting import eventually

SMALL = ColdReadLimits(
    cache_bytes=4 << 20, window_min_bytes=64 << 10, window_max_bytes=1 << 20, block_bytes=64 << 10, bytes_per_s=None
)
MakeReader = Callable[..., ColdReader]


@pytest.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "store")
    opened = open_store(url, StoreSettings(backoff_ms=1, backoff_cap_ms=2))
    yield opened
    await opened.close()


@pytest.fixture
async def shard(store: ObjectStore) -> ColdShard:
    return ColdShard(store)


@pytest.fixture
async def make_reader(store: ObjectStore, shard: ColdShard) -> AsyncIterator[MakeReader]:
    made: list[ColdReader] = []

    def make(limits: ColdReadLimits = SMALL, reload: object = None, **more: object) -> ColdReader:
        async def from_shard(key: SegmentKey) -> Segment | None:
            return next((segment for segment in shard.segments if segment.key == key), None)

        made.append(ColdReader(store, shard.names, limits, reload or from_shard, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for reader in made:
        await reader.close()


async def read_all(
    reader: ColdReader, segments: Sequence[Segment], offset: int, end_offset: int, max_bytes: int = 100_000
) -> list[bytes]:
    """Read on from an offset to the end, as a consumer does; gives whole batches."""
    found: list[bytes] = []
    while offset < end_offset:
        pieces = await reader.read(segments, offset, max_bytes)
        assert pieces
        for piece in pieces:
            for at, header in walk(piece, source="answer"):
                found.append(bytes(piece[at : at + header.size_bytes]))
                offset = header.end_offset
    return found


# What is answered -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", [RemoteState.COMPLETE, RemoteState.PARTIAL])
@pytest.mark.parametrize("is_bundled", [False, True])
@pytest.mark.parametrize("max_bytes", [1, 700, 100_000, 1 << 30])
async def test_everything_comes_back_once_and_in_order(
    state: RemoteState, is_bundled: bool, max_bytes: int, shard: ColdShard, make_reader: MakeReader
) -> None:
    parts = [batches_from(n * 60, 20) for n in range(4)]
    await shard.add(parts, state=state, is_bundled=is_bundled)
    reader = make_reader()
    assert await read_all(reader, shard.segments, 0, shard.end_offset, max_bytes) == shard.batches


@pytest.mark.parametrize("state", [RemoteState.COMPLETE, RemoteState.PARTIAL])
async def test_a_large_part_is_read_in_blocks_and_comes_back_whole(
    state: RemoteState, shard: ColdShard, make_reader: MakeReader
) -> None:
    await shard.add([batches_from(0, 80, value_bytes=5_000), batches_from(240, 30, value_bytes=5_000)], state=state)
    reader = make_reader()
    assert await read_all(reader, shard.segments, 0, shard.end_offset) == shard.batches
    assert reader.stats.fetches > 10
    data_bytes = sum(map(len, shard.batches))
    assert data_bytes <= reader.stats.fetched_bytes < data_bytes * 1.05
    assert reader.stats.used_bytes == data_bytes


async def test_a_read_continues_across_the_end_of_a_segment(shard: ColdShard, make_reader: MakeReader) -> None:
    for number in range(5):
        epoch = len(shard.segments)
        state = RemoteState.PARTIAL if number == 4 else RemoteState.COMPLETE
        await shard.add([batches_from(shard.end_offset, 10, epoch=epoch)], state=state)
    reader = make_reader()
    assert await read_all(reader, shard.segments, 0, shard.end_offset) == shard.batches
    pieces = await reader.read(shard.segments, 0, 1 << 20)
    assert sum(map(len, pieces)) == sum(map(len, shard.batches)), "one read crosses all ends when all is there"


@pytest.mark.fault("read-inside-file-crosses")
async def test_an_answer_begins_with_the_batch_that_contains_the_offset(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    await shard.add([batches_from(0, 40, records=7, value_bytes=3_000), batches_from(280, 5, records=7)])
    reader = make_reader()
    for offset in [0, 6, 7, 100, 279, 280, 314]:
        pieces = await reader.read(shard.segments, offset, 1)
        header = check_batch(pieces[0], source="answer")
        assert header.base_offset <= offset < header.end_offset
        assert len(pieces) == 1


async def test_a_batch_larger_than_asked_is_answered_whole_and_alone(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([[batch_at(0, 3, value_bytes=300_000), batch_at(3, 1)]])
    pieces = await make_reader().read(shard.segments, 1, 10)
    assert b"".join(pieces) == shard.batches[0]


async def test_max_bytes_is_kept_when_more_than_one_batch_fits(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 100)])
    reader = make_reader()
    size = len(shard.batches[0])
    for count in [1, 2, 7]:
        assert sum(map(len, await reader.read(shard.segments, 0, size * count))) <= size * count
        assert sum(map(len, await reader.read(shard.segments, 0, size * count + 5))) <= size * count + 5


@pytest.mark.parametrize("offset", [-1, 30, 31, 1 << 50])
async def test_an_offset_that_is_not_in_the_cold_tier_is_not_found(
    offset: int, shard: ColdShard, make_reader: MakeReader
) -> None:
    await shard.add([batches_from(0, 10)])
    with pytest.raises(NotFound, match="cold tier"):
        await make_reader().read(shard.segments, offset, 1_000)


async def test_nothing_is_read_from_a_segment_that_was_never_uploaded(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    segment = await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    bare = replace(segment, remote=replace(segment.remote, state=RemoteState.NONE, parts=()))
    with pytest.raises(NotFound, match="nothing of this shard"):
        await make_reader().read([bare], 0, 1_000)
    with pytest.raises(NotFound):
        await make_reader().read([], 0, 1_000)


async def test_a_segment_that_is_not_wholly_uploaded_ends_the_walk(shard: ColdShard, make_reader: MakeReader) -> None:
    """Sealed, but its last part is not up yet; the next segment is. Nothing may be skipped."""
    first = await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    await shard.add([batches_from(30, 10, epoch=1)], state=RemoteState.PARTIAL)
    sealed_later = replace(first, end_offset=36)
    pieces = await make_reader().read([sealed_later, shard.segments[1]], 0, 1 << 20)
    assert b"".join(pieces) == b"".join(shard.batches[:10])


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
async def test_compressed_batches_are_not_opened_and_come_back_as_they_are(
    codec: int, shard: ColdShard, make_reader: MakeReader
) -> None:
    await shard.add([batches_from(0, 10, codec=codec)])
    assert await read_all(make_reader(), shard.segments, 0, 30) == shard.batches


# What is fetched --------------------------------------------------------------------------------------------------
async def test_many_groups_on_one_block_are_one_request(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    reader = make_reader()
    requests = shard.store.stats[Operation.GET].requests
    answers = await asyncio.gather(*(reader.read(shard.segments, 0, 1 << 20) for _ in range(20)))
    assert all(b"".join(answer) == b"".join(shard.batches) for answer in answers)
    assert shard.store.stats[Operation.GET].requests - requests == 1
    assert (reader.stats.misses, reader.stats.joined, reader.stats.fetches) == (1, 19, 1)


async def test_each_byte_is_fetched_once_for_two_groups_that_follow_each_other(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    await shard.add([batches_from(0, 80, value_bytes=5_000)])
    reader = make_reader()
    both = await asyncio.gather(*(read_all(reader, shard.segments, 0, shard.end_offset, 70_000) for _ in range(2)))
    assert both == [shard.batches, shard.batches]
    data_bytes = sum(map(len, shard.batches))
    assert reader.stats.fetched_bytes < data_bytes * 1.05
    assert reader.stats.used_bytes == 2 * data_bytes


async def test_a_sequential_reader_finds_its_data_fetched_ahead(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 100, value_bytes=5_000)])
    reader = make_reader()
    await read_all(reader, shard.segments, 0, shard.end_offset, 40_000)
    assert reader.stats.misses <= 2, "only the first steps are waited for"
    status = reader.window(shard.segments[0].key.shard_key)
    assert status is not None
    assert status.window_bytes == 1 << 20


async def test_a_single_look_fetches_its_block_alone(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 100, value_bytes=5_000)])
    reader = make_reader()
    await reader.read(shard.segments, 150, 1)
    await eventually(lambda: reader.stats.in_flight_bytes == 0)
    assert reader.stats.fetches == 1


async def test_read_ahead_never_holds_more_than_its_memory(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 300, value_bytes=5_000)])
    limits = replace(SMALL, cache_bytes=512 << 10, window_max_bytes=4 << 20, max_concurrency=2)
    reader = make_reader(limits)
    found: list[bytes] = []
    offset = 0
    while offset < shard.end_offset:
        for piece in await reader.read(shard.segments, offset, 30_000):
            for at, header in walk(piece, source="answer"):
                found.append(bytes(piece[at : at + header.size_bytes]))
                offset = header.end_offset
        assert reader.stats.held_bytes + reader.stats.in_flight_bytes <= limits.cache_bytes + 2 * (80 << 10)
    assert found == shard.batches


async def test_what_is_not_read_in_time_halves_the_window_and_stays(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 200, value_bytes=5_000)])
    now_ms = 0
    reader = make_reader(replace(SMALL, unread_ttl_ms=150), now_ms=lambda: now_ms)
    offset = 0
    for _ in range(12):
        pieces = await reader.read(shard.segments, offset, 40_000)
        offset = [header.end_offset for _, header in walk(pieces[-1], source="answer")][-1]
    key = shard.segments[0].key.shard_key
    before = reader.window(key)
    assert before is not None
    await eventually(lambda: reader.stats.in_flight_bytes == 0)
    held_bytes, fetches = reader.stats.held_bytes, reader.stats.fetches
    now_ms = 160
    await eventually(lambda: reader.stats.late_blocks > 0)
    assert reader.stats.late_bytes >= reader.stats.late_blocks * (32 << 10)
    after = reader.window(key)
    assert after is not None
    assert after.window_bytes == before.window_bytes // 2
    assert reader.stats.held_bytes == held_bytes
    now_ms = 1_000
    await eventually(lambda: (window := reader.window(key)) is not None and window.window_bytes == 64 << 10)
    pieces = await reader.read(shard.segments, offset, 100_000)
    assert b"".join(pieces).startswith(shard.batches[offset // 3])
    assert reader.stats.fetches == fetches, "it is still there"
    rest = await read_all(reader, shard.segments, offset, shard.end_offset)
    assert rest == shard.batches[offset // 3 :]


@pytest.mark.fault("cold-readers-far-apart")
async def test_a_group_far_behind_another_finds_what_that_one_fetched(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    """However long after: a block goes when its room is needed, not by time."""
    await shard.add([batches_from(0, 150, value_bytes=5_000)])
    now_ms = 0
    reader = make_reader(now_ms=lambda: now_ms)
    await read_all(reader, shard.segments, 0, shard.end_offset)
    fetched_bytes = reader.stats.fetched_bytes
    now_ms = 3_600_000
    assert await read_all(reader, shard.segments, 0, shard.end_offset) == shard.batches
    assert reader.stats.fetched_bytes == fetched_bytes


# Cancelled readers --------------------------------------------------------------------------------------------------
@pytest.mark.fault("reader-gives-midway")
async def test_a_cancelled_reader_does_not_take_the_fetch_from_the_others(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    """F43, F47: at every moment of a read's life."""
    await shard.add([batches_from(0, 60, value_bytes=5_000)])
    for steps in range(30):
        reader = make_reader()
        victim = asyncio.ensure_future(reader.read(shard.segments, 0, 1 << 20))
        other = asyncio.ensure_future(reader.read(shard.segments, 0, 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        victim.cancel()
        with suppress(asyncio.CancelledError):
            await victim
        assert b"".join(await other) == shard.batches[0]
        again = await reader.read(shard.segments, 0, 1)
        assert b"".join(again) == shard.batches[0]


async def test_a_reader_that_gives_up_leaves_the_block_for_the_next(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    reader = make_reader()
    task = asyncio.ensure_future(reader.read(shard.segments, 0, 1))
    await eventually(lambda: reader.stats.misses == 1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await eventually(lambda: reader.stats.fetches == 1 and reader.stats.in_flight_bytes == 0)
    await reader.read(shard.segments, 0, 1)
    assert (reader.stats.fetches, reader.stats.hits) == (1, 1)


async def test_closing_notifies_the_readers_that_wait(shard: ColdShard, make_reader: MakeReader) -> None:
    await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    reader = make_reader()
    first = asyncio.ensure_future(reader.read(shard.segments, 0, 1))
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(Unavailable, match="stopping"):
        await first
    with pytest.raises(Unavailable):
        await reader.read(shard.segments, 0, 1)


# What is never answered -------------------------------------------------------------------------------------------
async def flip(shard: ColdShard, key: str, at: int) -> None:
    """Change one byte of an object, as a bad disk would."""
    body = bytearray(await shard.store.get(key))
    body[at] ^= 0x40
    await shard.store.delete([key])
    await shard.store.put(key, [bytes(body)])


@pytest.mark.fault("index-lost-wrong-data")
@pytest.mark.parametrize("at", [20, 300, 520, 600, 3_000, -10])
async def test_a_flipped_bit_is_never_answered(at: int, shard: ColdShard, make_reader: MakeReader) -> None:
    segment = await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    part = segment.remote.parts[0]
    await flip(shard, part.object_key, at)
    reader = make_reader()
    is_in_index = at < 0
    if is_in_index:
        # A small part's own index is not needed to read it forwards.
        assert b"".join(await reader.read(shard.segments, 0, 1 << 20)) == b"".join(shard.batches)
        return
    with pytest.raises(Corrupt) as caught:
        await reader.read(shard.segments, 0, 1 << 20)
    assert caught.value.source == part.object_key
    assert reader.stats.corrupt_ranges == 2, "asked for again: it might have been damaged on its way"
    assert reader.stats.held_bytes == 0


async def test_a_flipped_bit_in_a_large_part_spoils_only_its_block(shard: ColdShard, make_reader: MakeReader) -> None:
    segment = await shard.add([batches_from(0, 80, value_bytes=5_000)], state=RemoteState.PARTIAL)
    key = segment.remote.parts[0].object_key
    await flip(shard, key, 600_000)
    reader = make_reader()
    found = 0
    with pytest.raises(Corrupt, match=key):
        while True:
            for piece in await reader.read(shard.segments, found * 3, 50_000):
                for at, header in walk(piece, source="answer"):
                    assert bytes(piece[at : at + header.size_bytes]) == shard.batches[found]
                    found += 1
    assert 30 < found < 40


@pytest.mark.fault("segment-crosses-epochs-data")
async def test_another_segments_part_is_never_answered(shard: ColdShard, make_reader: MakeReader) -> None:
    """Metadata that points at the wrong object, or an object under a wrong name."""
    one = await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    other = ColdShard(shard.store, shard=4, topic_id=shard.topic_id)
    two = await other.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    wrong = replace(one, remote=replace(one.remote, parts=two.remote.parts))
    with pytest.raises(Corrupt, match="shard 4"):
        await make_reader().read([wrong], 0, 1_000)
    foreign = ColdShard(shard.store, names=ObjectNames("", "another-cluster"), topic_id=shard.topic_id)
    three = await foreign.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    wrong = replace(one, remote=replace(one.remote, parts=three.remote.parts))
    with pytest.raises(Corrupt, match="another-cluster"):
        await make_reader().read([wrong], 0, 1_000)


async def test_a_part_that_is_shorter_than_metadata_says_is_damage(shard: ColdShard, make_reader: MakeReader) -> None:
    segment = await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    part = segment.remote.parts[0]
    body = await shard.store.get(part.object_key)
    await shard.store.delete([part.object_key])
    await shard.store.put(part.object_key, [body[:-1]])
    with pytest.raises(Corrupt, match="chunk"):
        await make_reader().read(shard.segments, 0, 1_000)


async def test_a_manifest_that_is_not_the_one_metadata_means_is_refused(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    segment = await shard.add([batches_from(0, 10)])
    assert segment.seal is not None
    for wrong in (
        replace(segment, remote=replace(segment.remote, manifest_digest=bytes(16))),
        replace(segment, seal=replace(segment.seal, digest=bytes(16))),
        replace(segment, key=segment.key._replace(shard=9)),
    ):
        with pytest.raises(Corrupt, match="manifest"):
            await make_reader().read([wrong], 0, 1_000)
    await flip(shard, segment.remote.manifest_key or "", 200)
    with pytest.raises(Corrupt, match="manifest"):
        await make_reader().read([segment], 0, 1_000)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


async def is_asked(reader: ColdReader, segments: Sequence[Segment], match: str) -> int:
    """Read once, refused. Returns how many ranges were fetched for it."""
    before = reader.stats.corrupt_ranges
    with pytest.raises(Corrupt, match=match):
        await reader.read(segments, 0, 1_000)
    return reader.stats.corrupt_ranges - before


@pytest.mark.fault("refused-range-read-again")
@pytest.mark.parametrize("state", [RemoteState.PARTIAL, RemoteState.COMPLETE])
async def test_a_refused_range_is_asked_for_again_after_pauses_that_grow(
    state: RemoteState, shard: ColdShard, make_reader: MakeReader
) -> None:
    """Of a block, or of a manifest."""
    clock = Clock()
    segment = await shard.add([batches_from(0, 10)], state=state)
    key = segment.remote.manifest_key or segment.remote.parts[0].object_key
    await flip(shard, key, 300)
    reader = make_reader(now_ms=clock)
    assert await is_asked(reader, shard.segments, key) == 2, "the first answer may have been damaged on its way"
    for pause_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        clock.now_ms += pause_ms - 1
        assert await is_asked(reader, shard.segments, key) == 0
        assert segment.key in reader.refused.by_segment() and key in reader.refused.by_segment()[segment.key]
        clock.now_ms += 1
        assert await is_asked(reader, shard.segments, key) == 2
    await flip(shard, key, 300)
    clock.now_ms += 60_000
    assert await read_all(reader, shard.segments, 0, 30) == shard.batches
    assert reader.refused.by_segment() == {}


@pytest.mark.fault("refused-range-read-again")
async def test_a_refused_range_is_asked_for_at_once_when_the_metadata_change(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    segment = await shard.add([batches_from(0, 10)])
    wrong = replace(segment, remote=replace(segment.remote, manifest_digest=bytes(16)))
    reader = make_reader(now_ms=Clock())
    assert await is_asked(reader, [wrong], "manifest") == 2
    assert await is_asked(reader, [wrong], "manifest") == 0
    assert await read_all(reader, [segment], 0, 30) == shard.batches


@pytest.mark.fault("lifecycle-rule-moved-object")
@pytest.mark.parametrize("state", [RemoteState.PARTIAL, RemoteState.COMPLETE])
async def test_data_in_an_archive_class_is_asked_for_after_pauses_and_read_once_it_was_restored(
    state: RemoteState, shard: ColdShard, make_reader: MakeReader, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a block, or of a manifest. A hundred consumers that wait ask the store no more often than one."""
    clock, asked = Clock(), 0
    segment = await shard.add([batches_from(0, 10)], state=state)

    async def refuse(*_: object) -> bytes:
        nonlocal asked
        asked += 1
        raise Archived(f"request {asked}: it must be restored", "GLACIER", asked > 1)

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", refuse)
        patch.setattr(store, "get_range_view", refuse)
        reader = make_reader(now_ms=clock)
        for requests, pause_ms in enumerate((1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000), 1):
            for _ in range(3):
                with pytest.raises(Archived, match=f"request {requests}: it must be restored") as raised:
                    await reader.read(shard.segments, 0, 1_000)
            assert (asked, reader.stats.archived_ranges) == (requests, requests)
            assert (raised.value.storage_class, raised.value.is_restoring) == ("GLACIER", requests > 1)
            assert reader.refused.archived_by_segment() == {segment.key: str(raised.value)}
            assert reader.refused.by_segment() == {}, "it is not damaged"
            clock.now_ms += pause_ms
    assert await read_all(reader, shard.segments, 0, 30) == shard.batches
    assert reader.refused.archived_by_segment() == {}


@pytest.mark.fault("refused-range-read-again")
async def test_what_is_whole_beside_a_refused_range_is_read(shard: ColdShard, make_reader: MakeReader) -> None:
    batches = batches_from(0, 20)
    segment = await shard.add([batches[:10], batches[10:]], state=RemoteState.PARTIAL)
    await flip(shard, segment.remote.parts[0].object_key, 300)
    reader = make_reader(now_ms=Clock())
    for _ in range(2):
        with pytest.raises(Corrupt):
            await reader.read(shard.segments, 0, 1_000)
        assert await read_all(reader, shard.segments, 30, 60) == batches[10:]
    assert reader.stats.corrupt_ranges == 2 and reader.stats.in_flight_bytes == 0


# Objects that go away ---------------------------------------------------------------------------------------------
@pytest.mark.fault("object-replaced-reader")
async def test_a_reader_follows_its_data_into_the_object_that_compaction_made(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    batches = batches_from(0, 20)
    segment = await shard.add([batches[:10], batches[10:]], state=RemoteState.PARTIAL, is_bundled=True)
    stale = list(shard.segments)
    await shard.move(segment, [batches])
    reader = make_reader()
    assert await read_all(reader, stale, 0, 60) == batches
    assert reader.stats.reloads >= 1


@pytest.mark.fault("retention-changes-read-asks")
async def test_an_object_that_is_lost_is_unavailable_not_absent(shard: ColdShard, make_reader: MakeReader) -> None:
    segment = await shard.add([batches_from(0, 10)], state=RemoteState.PARTIAL)
    await shard.store.delete([segment.remote.parts[0].object_key])
    reader = make_reader()
    with pytest.raises(Unavailable, match="gone"):
        await reader.read(shard.segments, 0, 1_000)
    assert reader.stats.reloads == 1

    async def deleted(_: SegmentKey) -> Segment | None:
        return None

    with pytest.raises(Unavailable, match="log start"):
        await make_reader(SMALL, deleted).read(shard.segments, 0, 1_000)


# Times ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("start-trim-inside-batch")
@pytest.mark.parametrize("state", [RemoteState.COMPLETE, RemoteState.PARTIAL])
@pytest.mark.parametrize("codec", [0, 4])
async def test_a_record_is_found_by_its_time_exactly(
    state: RemoteState, codec: int, shard: ColdShard, make_reader: MakeReader
) -> None:
    """Before, equal, between, after; inside compressed batches; with ties and times that fall (F39)."""
    times = [1_000, 1_000, 1_005, 900, 1_020, 1_010, 1_030, 1_030, 1_025, 1_050]
    batches = [
        batch_at(n * 10, 10, times_ms=[t + n * 100 for t in times], value_bytes=3_000, codec=codec) for n in range(20)
    ]
    segment = await shard.add([batches[:8], batches[8:9], batches[9:]], state=state)
    everything = [(n * 10 + i, t + n * 100) for n in range(20) for i, t in enumerate(times)]
    reader = make_reader()
    for wanted in [0, 899, 900, 1_000, 1_001, 1_006, 1_049, 1_050, 1_051, 1_777, 2_945, 2_949, 2_950, 2_951, 9_999]:
        expected = next(((offset, t) for offset, t in everything if t >= wanted), None)
        assert await reader.find_by_time(segment, wanted) == expected, wanted
    assert await reader.offset_of_max_timestamp(segment) == (199, 2_950)


@pytest.mark.fault("look-large-batch-batch")
@pytest.mark.parametrize("state", [RemoteState.COMPLETE, RemoteState.PARTIAL])
async def test_a_batch_with_invalid_records_hides_nothing_behind_it_and_the_log_start_holds(
    state: RemoteState, shard: ColdShard, make_reader: MakeReader
) -> None:
    """It claims a later time than all others have."""
    batches = [batch_at(n * 10, 10, times_ms=[1_000 * n + i for i in range(10)]) for n in range(6)]
    batches[2] = claiming(GARBAGE, 10, 900_000, base_offset=20)
    segment = await shard.add([batches[:3], batches[3:]], state=state)
    reader = make_reader()
    assert await reader.find_by_time(segment, 1_005) == (15, 1_005)
    assert await reader.find_by_time(segment, 3_004) == (34, 3_004)
    assert await reader.find_by_time(segment, 5_010) is None
    assert await reader.find_by_time(segment, 1_005, 17) == (17, 1_007)
    assert await reader.find_by_time(segment, 0, 25) == (30, 3_000)
    assert await reader.find_by_time(segment, 1_005, 60) is None


async def test_a_time_search_of_a_sealed_segment_reads_index_and_one_block(
    shard: ColdShard, make_reader: MakeReader
) -> None:
    segment = await shard.add([batches_from(0, 200, value_bytes=5_000)])
    reader = make_reader()
    assert await reader.find_by_time(segment, FIRST_TIME_MS + 300) == (300, FIRST_TIME_MS + 300)
    assert reader.stats.fetches == 1
    assert reader.stats.index_fetches == 4, "manifest, index block, part header, part index"
    assert await reader.find_by_time(segment, FIRST_TIME_MS + 301) == (301, FIRST_TIME_MS + 301)
    assert (reader.stats.fetches, reader.stats.index_fetches) == (1, 4)


async def test_a_segment_with_nothing_remote_has_no_times(shard: ColdShard, make_reader: MakeReader) -> None:
    segment = await shard.add([batches_from(0, 1)], state=RemoteState.PARTIAL)
    bare = replace(segment, remote=replace(segment.remote, state=RemoteState.NONE, parts=()))
    assert await make_reader().find_by_time(bare, 0) is None
    assert await make_reader().offset_of_max_timestamp(bare) is None


def test_the_cluster_id_of_the_fixtures_is_the_readers() -> None:
    assert ObjectNames("", CLUSTER_ID).cluster_id == CLUSTER_ID
