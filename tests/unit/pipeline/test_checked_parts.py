"""Parts are checked before a record of them is handed out, and found again when they were moved."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.segment import RemoteState
from stratalog.objects import ObjectStore, open_store
from stratalog.stored.remote.expected import WrongObject
from stratalog_pipeline.cold.part_records import PartFetcher, check_planned
from support.cold_data import CLUSTER_ID, ColdShard, batches_from
from support.cold_reading import Kept, offsets, planned, put_shard
from support.counting_store import CountingStore


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    store = open_store("memory:")
    yield store
    await store.close()


async def two_segments(store: ObjectStore) -> ColdShard:
    cold = ColdShard(store)
    await cold.add([batches_from(0, 5), batches_from(15, 5)])
    await cold.add([batches_from(30, 5, epoch=1)])
    return cold


@pytest.mark.fault("chunk-bundle-manifest-damaged")
@pytest.mark.parametrize("at", [0, 20, 100, 300, 511, 512, 540, 700, 900, -1])
async def test_no_bit_of_a_part_but_its_index_can_change_unseen(store: ObjectStore, at: int) -> None:
    await two_segments(store)
    first = (await planned(store))[0]
    body = await store.get(first.part.object_key)
    index_begins = len(body) - 32
    place = at if at >= 0 else index_begins - 1
    damaged = bytearray(body)
    damaged[place] ^= 0x10
    with pytest.raises(Corrupt, match="chunk"):
        check_planned(bytes(damaged), CLUSTER_ID, first)
    assert len(check_planned(body, CLUSTER_ID, first).places.base_offsets) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, part=replace(one.part, end_offset=one.part.end_offset + 1)),
        lambda one: replace(one, segment=one.segment._replace(epoch=7)),
        lambda one: replace(one, segment=one.segment._replace(shard=4)),
        lambda one: replace(one, digest_before=b"x" * 16),
        lambda one: replace(one, digest_after=b"x" * 16),
    ],
)
async def test_a_whole_part_that_is_not_the_planned_one_is_refused(
    store: ObjectStore, change: Callable[..., object]
) -> None:
    await two_segments(store)
    first = (await planned(store))[0]
    body = await store.get(first.part.object_key)
    with pytest.raises(Corrupt):
        check_planned(body, CLUSTER_ID, change(first))  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match="part has cluster"):
        check_planned(body, "another-cluster", first)


async def test_a_part_of_other_records_under_the_same_offsets_does_not_continue(store: ObjectStore) -> None:
    """Both are whole; only the digest tells that they are not of one log."""
    cold = await two_segments(store)
    ranges = await planned(store)
    other = ColdShard(store, shard=cold.shard, topic_id=cold.topic_id, attempts=50)
    await other.add([batches_from(0, 5, value_bytes=60), batches_from(15, 5)], state=RemoteState.PARTIAL)
    stranger = replace(ranges[1], part=other.segments[0].remote.parts[1], digest_after=None)
    with pytest.raises(Corrupt, match="continues from digest"):
        await offsets(store, CLUSTER_ID, [ranges[0], stranger])


@pytest.mark.fault("bundled-parts-move-segment")
async def test_a_part_that_came_home_since_it_was_planned_is_found_again(store: ObjectStore) -> None:
    cold = ColdShard(store)
    partial = await cold.add([batches_from(0, 5), batches_from(15, 5)], state=RemoteState.PARTIAL, is_bundled=True)
    await put_shard(cold)
    ranges = await planned(store)
    assert {one.part.object_key for one in ranges} == {partial.remote.parts[0].object_key}
    # The segment is completed in chunks of other bounds, and the bundle goes.
    home = ColdShard(store, shard=cold.shard, topic_id=cold.topic_id, attempts=50)
    await home.add([batches_from(0, 7), batches_from(21, 3)])
    await store.delete([partial.remote.parts[0].object_key])
    assert await offsets(store, CLUSTER_ID, ranges) == list(range(30))


async def test_a_part_that_is_nowhere_is_said_to_be_gone(store: ObjectStore) -> None:
    cold = ColdShard(store)
    partial = await cold.add([batches_from(0, 5)], state=RemoteState.PARTIAL)
    await put_shard(cold)
    ranges = await planned(store)
    await store.delete([partial.remote.parts[0].object_key])
    with pytest.raises(NotFound, match="offsets 0 to 15 of shard 3 of topic cold"):
        await offsets(store, CLUSTER_ID, ranges)


async def test_a_manifest_of_another_segment_under_the_name_is_refused(store: ObjectStore) -> None:
    cold = await two_segments(store)
    first, second = (segment.remote.manifest_key for segment in cold.segments)
    assert first is not None and second is not None
    body = await store.get(second)
    await store.delete([first])
    await store.put(first, [body])
    with pytest.raises(WrongObject, match="manifest has epoch 1, expected 0"):
        await planned(store)


async def test_small_parts_are_fetched_many_at_a_time_within_the_window() -> None:
    store = CountingStore()
    cold = ColdShard(store)
    await cold.add([batches_from(3 * n, 1) for n in range(60)])
    ranges = await planned(store, cluster_id=CLUSTER_ID)
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, store.in_flight)

    store.on_get = look
    store.answer_crowds_of(32)
    assert await offsets(store, CLUSTER_ID, ranges) == list(range(180))
    assert most == 32


async def test_a_reader_that_stops_early_leaves_nothing_running(store: ObjectStore) -> None:
    await two_segments(store)
    ranges = await planned(store)

    def read_one() -> int:
        before = threading.active_count()
        with PartFetcher(lambda: Kept(store), ObjectNames("", CLUSTER_ID)) as fetcher:
            next(fetcher.fetch(ranges))
        return threading.active_count() - before

    assert await asyncio.to_thread(read_one) == 0


def test_damage_is_the_same_error_in_another_process() -> None:
    """Tasks of Spark hand it over pickled."""
    error = Corrupt("it is torn", source="a.chunk", position=7)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (Corrupt, "a.chunk: at byte 7: it is torn")
    assert (again.reason, again.source, again.position) == ("it is torn", "a.chunk", 7)
