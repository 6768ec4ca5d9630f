"""What of a bucket counts as committed, and how it is cut into work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.objects import ObjectStore, open_store
from stratalog_meta.api.server import MetaServer
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.cutting import Asked, GapInLog, cut, take_bytes
from support.cold_data import CLUSTER_ID, FIRST_TIME_MS, ColdShard, batch_at, batches_from
from support.cold_reading import offsets, planned, put_cut, put_metadata, put_rig_metadata, put_shard
from support.counting_store import CountingStore
from support.empty_listings import EmptyListings
from support.hostile_batches import with_header_times
from support.tier_rig import TierRig


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    store = open_store("memory:")
    yield store
    await store.close()


def two_parts(base: int) -> list[list[bytes]]:
    """30 offsets."""
    return [batches_from(base, 5), batches_from(base + 15, 5)]


# What is committed --------------------------------------------------------------------------------------------------
async def test_sealed_segments_are_found_without_any_metadata(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await cold.add([batches_from(30, 5, epoch=1)], is_bundled=True)
    ranges = await planned(store, ["cold"])
    assert [(one.topic, one.segment.shard, one.from_offset, one.to_offset) for one in ranges] == [
        ("cold", 3, 0, 15),
        ("cold", 3, 15, 30),
        ("cold", 3, 30, 45),
    ]
    assert await offsets(store, CLUSTER_ID, ranges) == list(range(45))


@pytest.mark.fault("bucket-attempts-committed-committed")
async def test_parts_that_no_metadata_name_are_attempts_and_are_not_read(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await cold.add([batches_from(30, 5, epoch=1)], state=RemoteState.PARTIAL)
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(30))


@pytest.mark.fault("bucket-attempts-committed-committed")
async def test_committed_parts_are_read_as_far_as_the_newest_metadata_say(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    partial = await cold.add([batches_from(30, 5, epoch=1)], state=RemoteState.PARTIAL, is_bundled=True)
    await put_shard(cold, until=1)
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(30))
    await put_shard(cold)
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(45))
    await cold.put_parts(  # another attempt at what follows, which was never committed
        replace_identity(cold, partial.epoch, partial.base_offset), [batches_from(30, 9, epoch=1)]
    )
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(45))


def replace_identity(cold: ColdShard, epoch: int, base_offset: int):  # type: ignore[no-untyped-def]
    from stratalog.model.segment import SegmentIdentity

    return SegmentIdentity(CLUSTER_ID, cold.topic_id, "cold", cold.shard, epoch, base_offset, FIRST_TIME_MS)


async def test_what_was_sealed_after_the_newest_metadata_is_read_by_its_manifest(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await put_shard(cold)
    await cold.add([batches_from(30, 5, epoch=1)])
    await cold.add([batches_from(45, 5, epoch=2)])
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(60))


@pytest.mark.fault("topic-shard-segment-newer")
@pytest.mark.parametrize("asked", [None, ["cold"]])
async def test_a_topic_that_the_newest_metadata_do_not_know_yet_is_reported_by_its_manifests(
    store: ObjectStore, asked: list[str] | None
) -> None:
    older = ColdShard(store)
    await older.add(two_parts(0))
    await put_shard(older, topic="older")
    await ColdShard(store).add([batches_from(0, 5)])
    ranges = await planned(store, asked)
    assert await offsets(store, CLUSTER_ID, [one for one in ranges if one.topic == "cold"]) == list(range(15))
    assert {one.topic for one in ranges} == ({"cold"} if asked else {"cold", "older"})


@pytest.mark.fault("topic-shard-segment-newer")
async def test_a_shard_that_was_added_since_is_reported_by_its_manifests(store: ObjectStore) -> None:
    first = ColdShard(store, shard=0)
    await first.add(two_parts(0))
    await put_shard(first)
    await ColdShard(store, shard=1, topic_id=first.topic_id).add([batches_from(0, 5)])
    assert {(one.topic, one.segment.shard) for one in await planned(store, ["cold"])} == {("cold", 0), ("cold", 1)}


async def test_a_topic_that_was_deleted_is_not_read_though_its_objects_lie_there(store: ObjectStore) -> None:
    gone, kept = ColdShard(store), ColdShard(store)
    await gone.add(two_parts(0))
    await kept.add([batches_from(0, 5)])
    deleted = replace(gone.segments[0], state=SegmentState.DELETED, deleted_ms=1)
    topic = Topic("cold", kept.topic_id, 4, 1, {}, 1)
    shards = [Shard(ShardKey(kept.topic_id, n), 0, tuple(kept.segments) if n == 3 else ()) for n in range(4)]
    await put_metadata(store, CLUSTER_ID, [topic], shards, [deleted])
    assert {one.segment.topic_id for one in await planned(store)} == {kept.topic_id}


async def test_nothing_is_read_behind_a_segment_that_is_not_committed_to_its_end(store: ObjectStore) -> None:
    cold = ColdShard(store)
    partial = await cold.add([batches_from(0, 5)], state=RemoteState.PARTIAL)
    cold.segments[0] = replace(partial, end_offset=30)  # sealed at 30, in the bucket up to 15
    cold.batches += batches_from(15, 5)
    await cold.add([batches_from(30, 5, epoch=1)])
    await put_shard(cold)
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(15))


@pytest.mark.fault("retention-deletes-records-reader")
async def test_segments_that_expired_since_move_the_start_of_the_log(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await cold.add([batches_from(30, 5, epoch=1)])
    await put_shard(cold)
    oldest = cold.segments[0].remote.manifest_key
    assert oldest is not None
    await store.delete([oldest])
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(30, 45))
    with pytest.raises(GapInLog, match="offsets 10 to 30 of shard 3 of topic cold are gone"):
        await planned(store, asked=Asked(from_offset=10))
    allowed = await planned(store, asked=Asked(from_offset=10, is_gap_allowed=True))
    assert await offsets(store, CLUSTER_ID, allowed) == list(range(30, 45))


@pytest.mark.fault("listing-empty-snapshot-there")
async def test_segments_that_a_listing_lacks_are_not_taken_for_expired(store: ObjectStore) -> None:
    """An archive would have passed them for good."""
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await put_shard(cold)
    answers = EmptyListings(store)
    answers.is_empty = lambda prefix: prefix.startswith(cold.names.data_prefix)
    with pytest.raises(Unavailable, match=r"does not list .* which is there"):
        await planned(answers)  # type: ignore[arg-type]
    answers.is_empty = lambda prefix: False
    assert await offsets(store, CLUSTER_ID, await planned(answers)) == list(range(30))  # type: ignore[arg-type]


async def test_records_below_the_log_start_are_not_read(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await put_shard(cold, log_start_offset=7)
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(7, 30))


async def test_a_hole_between_sealed_segments_is_an_error_where_no_metadata_explain_it(store: ObjectStore) -> None:
    cold = ColdShard(store)
    for epoch in range(3):
        await cold.add([batches_from(15 * epoch, 5, epoch=epoch)])
    middle = cold.segments[1].remote.manifest_key
    assert middle is not None
    await store.delete([middle])
    with pytest.raises(Corrupt, match="offset 15 of shard 3 is in no segment"):
        await planned(store)


async def test_of_several_attempts_at_a_manifest_the_newest_counts(store: ObjectStore) -> None:
    cold = ColdShard(store)
    segment = await cold.add(two_parts(0))
    key = segment.remote.manifest_key
    assert key is not None
    await store.put(key.replace(".1.1.3.", ".1.2.1."), [await store.get(key)])
    assert await offsets(store, CLUSTER_ID, await planned(store)) == list(range(30))


async def test_a_topic_that_is_not_there_is_said_to_be_missing(store: ObjectStore) -> None:
    await ColdShard(store).add(two_parts(0))
    with pytest.raises(NotFound, match="no topic other"):
        await planned(store, ["other", "cold"])


async def test_several_clusters_in_a_bucket_are_distinguished(store: ObjectStore) -> None:
    await ColdShard(store).add(two_parts(0))
    from stratalog.formats.bucket.object_names import ObjectNames

    await ColdShard(store, names=ObjectNames("", "other")).add([batches_from(0, 5)])
    with pytest.raises(InvalidRequest, match=f"{CLUSTER_ID}, other"):
        await planned(store)
    assert len(await planned(store, cluster_id="other")) == 1


async def test_real_uploads_are_read_with_and_without_the_meta_service() -> None:
    async with TierRig() as rig:
        topic = await rig.create_topic()
        shard = rig.shard(topic)
        await rig.start_uploader()
        for _ in range(40):
            rig.append(shard, 4000)
        await rig.seal(shard)
        for _ in range(30):
            rig.append(shard, 4000)
        await rig.settle()
        await put_rig_metadata(rig)
        alone = await planned(rig.store, ["flights"])
        assert await offsets(rig.store, rig.cluster_id, alone) == list(range(70))
        server = MetaServer(rig.meta)
        try:
            asked = await planned(rig.store, ["flights"], meta_url=await server.start("127.0.0.1", 0))
        finally:
            await server.close()
        assert asked == alone


# Snapshots ----------------------------------------------------------------------------------------------------------
async def test_a_snapshot_is_read_as_it_was_whatever_came_after(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await cold.add([batches_from(30, 5, epoch=1)])
    await put_cut(cold, "friday", 4, 37, 1)
    await cold.add([batches_from(45, 5, epoch=2)])
    await put_shard(cold, log_start_offset=45)
    ranges = await planned(store, snapshot_name="friday")
    assert await offsets(store, CLUSTER_ID, ranges) == list(range(4, 37))


async def test_a_snapshot_of_which_something_is_gone_is_an_error(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await cold.add([batches_from(30, 5, epoch=1)])
    await put_cut(cold, "friday", 4, 37, 1)
    gone = cold.segments[1].remote.manifest_key
    assert gone is not None
    await store.delete([gone])
    with pytest.raises(Corrupt, match="needs offsets 4 to 37"):
        await planned(store, snapshot_name="friday")


async def test_an_unknown_snapshot_is_said_to_be_missing(store: ObjectStore) -> None:
    await ColdShard(store).add(two_parts(0))
    with pytest.raises(NotFound, match="no snapshot 'monday'"):
        await planned(store, snapshot_name="monday")


# Cutting ------------------------------------------------------------------------------------------------------------
async def test_one_busy_shard_is_cut_into_many_pieces_of_work(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add([[batch_at(n, 1, value_bytes=2000)] for n in range(40)])
    ranges = await planned(store)
    works = cut(ranges, 10_000)
    assert len(works) > 8
    assert all(work.size_bytes <= 10_000 for work in works)
    assert [one for work in works for one in work.ranges] == ranges


async def test_a_part_larger_than_a_piece_of_work_is_one_by_itself(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    assert [len(work.ranges) for work in cut(await planned(store), 1)] == [1, 1]


async def test_only_parts_that_hold_wanted_offsets_are_planned(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    (only,) = await planned(store, asked=Asked(from_offset=16, to_offset=20))
    assert (only.from_offset, only.to_offset, only.part.base_offset) == (16, 20, 15)
    assert await offsets(store, CLUSTER_ID, [only]) == [16, 17, 18, 19]


async def test_segments_whose_newest_time_is_too_old_are_not_planned(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    await cold.add([batches_from(30, 5, epoch=1)])
    ranges = await planned(store, asked=Asked(from_ms=FIRST_TIME_MS + 31))
    assert {one.segment.epoch for one in ranges} == {1}
    assert await offsets(store, CLUSTER_ID, ranges, from_ms=FIRST_TIME_MS + 31) == list(range(31, 45))


@pytest.mark.fault("producer-writes-wrong-maxtimestamp")
@pytest.mark.parametrize("claimed_ms", [-1, FIRST_TIME_MS, FIRST_TIME_MS + 10**9])
async def test_records_are_found_by_their_times_whatever_headers_claim(store: ObjectStore, claimed_ms: int) -> None:
    """`pipeline export --from-ms` of a topic whose producer leaves `maxTimestamp` at -1 wrote no row."""
    cold = ColdShard(store)
    for epoch in range(3):
        (batch,) = batches_from(10 * epoch, 1, records=10, epoch=epoch)
        await cold.add([[with_header_times(batch, max_ms=claimed_ms)]])
    for from_offset in (0, 5, 10, 19, 25, 30):
        from_ms = FIRST_TIME_MS + from_offset
        ranges = await planned(store, asked=Asked(from_ms=from_ms))
        assert await offsets(store, CLUSTER_ID, ranges, from_ms=from_ms) == list(range(from_offset, 30))


async def test_other_topics_and_shards_are_not_planned(store: ObjectStore) -> None:
    for shard in (1, 2):
        await ColdShard(store, shard=shard).add(two_parts(0))
    assert {one.segment.shard for one in await planned(store, asked=Asked(shards=frozenset({2})))} == {2}
    assert await planned(store, asked=Asked(topics=frozenset({"other"}))) == []


async def test_a_limit_of_bytes_takes_at_least_one_part(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    ranges = await planned(store)
    assert take_bytes(ranges, 1) == ranges[:1]
    assert take_bytes(ranges, 1 << 30) == ranges


async def test_manifests_are_read_once_by_a_catalog(store: ObjectStore) -> None:
    cold = ColdShard(store)
    await cold.add(two_parts(0))
    catalog = await Catalog.open(store, cluster_id=CLUSTER_ID)
    for _ in range(3):
        await catalog.ranges(await catalog.shards(None), Asked())
    assert len(catalog.manifests) == 1


async def test_ten_thousand_small_chunks_are_planned_with_two_reads() -> None:
    store = CountingStore()
    cold = ColdShard(store)
    await cold.add([[batch_at(n, 1, value_bytes=1)] for n in range(10_000)])
    ranges = await planned(store, cluster_id=CLUSTER_ID)
    assert len(ranges) == 10_000
    assert store.gets <= 2
    works = cut(ranges, 1 << 20)
    assert sum(len(work.ranges) for work in works) == 10_000
    assert await offsets(store, CLUSTER_ID, works[-1].ranges) == [one.from_offset for one in works[-1].ranges]
