"""Chunks of complete segments are merged while readers continue; a job that ended anywhere leaves nothing half done."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.bucket.object_names import is_packed
from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK, COMPACTION_WRITER
from stratalog.model.commands.table_commands import AcquireLock, AdvanceLogStart, DeleteTopic
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.objects import ObjectStore, open_store
from stratalog.stored.key_lookup import LookupCost, records_of
from stratalog_cli.entry import build_app
from stratalog_meta.bucket.rebuild import Rebuild
from stratalog_meta.bucket.restore import restore_cut
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_pipeline.jobs.repair.key_index_rebuild import runs_to_merge
from stratalog_pipeline.jobs.repair.merge_segment import Merged, MergeWork
from stratalog_pipeline.jobs.runners import one_by_one
from support.cold_data import batch_at
from support.cold_reading import offsets, planned, put_metadata
from support.compacting import CompactWorld, compact_world
from support.small_cold_reads import SMALL, read_all


@pytest.fixture(params=["directory", pytest.param("versitygw", marks=pytest.mark.real_s3)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Real stores, which a job opens for itself."""
    if request.param == "directory":
        return str(tmp_path / "bucket")
    url: str = request.getfixturevalue("versitygw").url(f"compaction/{tmp_path.name}")
    return url


@pytest.fixture
async def place(store: ObjectStore, store_url: str, tmp_path: Path) -> AsyncIterator[CompactWorld]:
    async with compact_world(store, store_url, tmp_path, has_key_index=True) as made:
        yield made


def small_parts(base: int, count: int, epoch: int) -> list[list[bytes]]:
    """Of one batch with three records each."""
    return [[batch_at(base + 3 * number, 3, epoch=epoch, value_bytes=200)] for number in range(count)]


async def fill(place: CompactWorld, segments: int = 2, parts: int = 120) -> None:
    for number in range(segments):
        await place.add(small_parts(3 * parts * number, parts, number))


# What comes of it ---------------------------------------------------------------------------------------------------
async def test_small_chunks_become_few_large_ones_of_the_same_bytes(place: CompactWorld) -> None:
    await fill(place)
    before = await place.segments()
    told = await place.compact()
    after = await place.segments()
    assert (told.segments, told.merged, told.objects_before, told.not_merged) == (2, 2, 240, [])
    assert told.objects_after <= 6 and place.shown == [("compacted", 1, 2), ("compacted", 2, 2)]
    assert [one.seal for one in after] == [one.seal for one in before], "the digest stays"
    manifests = await place.manifests()
    assert sum(len(manifest.parts) for manifest in manifests) == told.objects_after
    assert [one.remote.size_bytes for one in after] < [one.remote.size_bytes for one in before]
    checked = await place.verify()
    assert (checked.findings, checked.batches, checked.parts) == ([], 240, told.objects_after)
    ranges = await planned(place.store, ["cold"], meta_url=place.meta_url)
    assert await offsets(place.store, place.cold.names.cluster_id, ranges) == list(range(720))


@pytest.mark.fault("merge-chunks-killed-midway")
async def test_the_second_run_finds_nothing_to_do(place: CompactWorld) -> None:
    await fill(place)
    await place.compact()
    before = await place.segments()
    objects = [info.key async for info in place.store.list("")]
    told = await place.compact()
    assert (told.segments, told.merged, told.bytes_put) == (2, 0, 0)
    assert await place.segments() == before
    assert [info.key async for info in place.store.list("")] == objects


async def test_a_dry_run_reports_and_changes_nothing(place: CompactWorld) -> None:
    await fill(place)
    before = await place.world.client.snapshot()
    objects = [info.key async for info in place.store.list("")]
    told = await place.compact(is_dry_run=True)
    assert (told.merged, told.objects_before) == (2, 240) and told.objects_after <= 6
    assert await place.world.client.snapshot() == before
    assert [info.key async for info in place.store.list("")] == objects


async def test_a_part_that_is_large_enough_stays_where_it_is(place: CompactWorld) -> None:
    large = [batch_at(60, 1, value_bytes=80_000)]
    parts = [*small_parts(0, 20, 0), large, *[[batch_at(61 + n, 1)] for n in range(20)]]
    await place.add(parts)
    (before,) = await place.manifests()
    told = await place.compact()
    (after,) = await place.manifests()
    assert (told.objects_before, told.objects_after) == (41, 3)
    assert after.parts[1] == before.parts[20] and told.bytes_put < 80_000 + 64_000
    assert (await place.verify()).findings == []


async def test_a_key_is_found_as_before(place: CompactWorld) -> None:
    await fill(place)
    await place.compact()
    await place.delete_what_metadata_do_not_name()
    for offset in (0, 359, 360, 719):
        cost, got = LookupCost(), []
        for manifest in await place.manifests():
            got += [record async for record in records_of(place.store, manifest, b"%d" % offset, cost)]
        assert [record.offset for record in got] == [offset]
        assert (cost.pages, cost.reads) == (2, 1)


async def test_runs_of_a_key_index_become_one(place: CompactWorld) -> None:
    place.cold.key_run_parts = 30
    await fill(place)
    before = await place.manifests()
    dry = await place.compact(is_dry_run=True)
    told = await place.compact()
    after = await place.manifests()

    assert [len(manifest.key_runs) for manifest in (*before, *after)] == [4, 4, 1, 1]
    assert (dry.key_runs_before, dry.key_runs_after) == (told.key_runs_before, told.key_runs_after) == (8, 2)
    assert [manifest.key_runs[0].entries for manifest in after] == [360, 360]
    await place.delete_what_metadata_do_not_name()
    assert (await place.verify()).findings == []
    for offset in (0, 91, 359, 360, 719):
        cost, got = LookupCost(), []
        for manifest in after:
            got += [record async for record in records_of(place.store, manifest, b"%d" % offset, cost)]
        assert [record.offset for record in got] == [offset]
        assert (cost.pages, cost.reads) == (2, 1), "two range reads in its segment, one in the other"


async def test_runs_become_one_where_no_chunk_is_to_be_merged(place: CompactWorld) -> None:
    await fill(place, 1)
    await place.compact()
    (whole,) = await place.manifests()
    place.cold.key_run_parts = 1
    large = [
        [batch_at(360 + 300 * part + 3 * number, 3, epoch=1, value_bytes=600) for number in range(100)]
        for part in range(4)
    ]
    await place.add(large)
    told = await place.compact()
    again = await place.compact()
    after = await place.manifests()

    assert (told.merged, told.objects_before, told.objects_after) == (1, 4, 4)
    assert (told.key_runs_before, told.key_runs_after) == (4, 1)
    assert after[0] == whole and len(after[1].key_runs) == 1
    assert (again.merged, again.not_merged) == (0, [])
    await place.delete_what_metadata_do_not_name()
    assert (await place.verify()).findings == []


async def test_runs_that_are_too_large_together_stay_apart(
    place: CompactWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.cold.key_run_parts = 20
    await fill(place, 1)
    monkeypatch.setattr(
        "stratalog_pipeline.jobs.repair.merge_segment.runs_to_merge", partial(runs_to_merge, most_entries=150)
    )
    told = await place.compact()
    (after,) = await place.manifests()

    assert (told.key_runs_before, told.key_runs_after) == (6, 3)
    assert [run.entries for run in after.key_runs] == [120, 120, 120]
    assert (await place.verify()).findings == []


async def test_only_the_topics_that_are_asked_for_are_merged(place: CompactWorld) -> None:
    await fill(place)
    await place.world.topic("other")
    assert (await place.compact(topics=("other",))).segments == 0
    assert (await place.compact(topics=("other", "cold"))).merged == 2
    with pytest.raises(NotFound, match="no topic nowhere"):
        await place.compact(topics=("nowhere",))


@pytest.mark.slow
async def test_ten_thousand_chunks_become_few(store: ObjectStore, store_url: str, tmp_path: Path) -> None:
    async with compact_world(store, store_url, tmp_path) as place:
        await place.add([[batch_at(number, 1, value_bytes=40)] for number in range(10_000)])
        told = await place.compact(target_bytes=64 << 20)
        assert (told.objects_before, told.objects_after) == (10_000, 1)
        gone = await place.delete_what_metadata_do_not_name()
        assert len(gone) == 10_001, "chunks, and the manifest that named them"
        assert (await place.verify()).findings == []


# While others read --------------------------------------------------------------------------------------------------
@pytest.mark.fault("chunks-merged-readers-hold")
async def test_readers_continue_while_manifests_are_swapped_and_after_the_old_objects_went(place: CompactWorld) -> None:
    await fill(place)

    async def reload(key: SegmentKey) -> Segment | None:
        return next((one for one in await place.segments() if one.key == key), None)

    known = await place.segments()
    plan = await planned(place.store, ["cold"], meta_url=place.meta_url)
    cluster_id, everything = place.cold.names.cluster_id, list(range(720))
    reader = ColdReader(place.store, place.cold.names, SMALL, reload)
    try:
        merging = asyncio.create_task(place.compact())
        rounds = 0
        while not merging.done() or not rounds:
            assert await read_all(reader, known, 0, 720) == place.cold.batches, "of the old objects"
            assert await offsets(place.store, cluster_id, plan) == everything
            rounds += 1
        assert (await merging).merged == 2
        assert await offsets(place.store, cluster_id, plan) == everything, "a plan of before is good for the grace"
        assert await place.delete_what_metadata_do_not_name()
        assert await offsets(place.store, cluster_id, plan) == everything, "and is made again behind it"
    finally:
        await reader.close()
    cold = ColdReader(place.store, place.cold.names, SMALL, reload)
    try:
        assert await read_all(cold, known, 0, 720) == place.cold.batches, "with metadata of before"
    finally:
        await cold.close()


@pytest.mark.fault("chunks-merged-readers-hold")
async def test_metadata_of_before_in_the_bucket_lead_to_the_new_manifest(place: CompactWorld) -> None:
    """A snapshot of the metadata from before the merging names manifests that are gone: retention did not delete
    them."""
    await fill(place)
    view = await place.world.client.snapshot()
    await put_metadata(place.store, place.cold.names.cluster_id, view.topics, view.shards)
    await place.compact()
    await place.delete_what_metadata_do_not_name()
    ranges = await planned(place.store, ["cold"])
    assert await offsets(place.store, place.cold.names.cluster_id, ranges) == list(range(720))


# What goes wrong ----------------------------------------------------------------------------------------------------
@pytest.mark.fault("merge-chunks-killed-midway")
@pytest.mark.parametrize("is_packing", [False, True])
async def test_a_job_that_dies_between_two_segments_is_gone_on_with_by_the_next(
    place: CompactWorld, is_packing: bool
) -> None:
    class Died(BaseException):
        pass

    def dies(work: Any, pieces: Any) -> Any:
        for number, piece in enumerate(pieces):
            done: Merged = work(pickle.loads(pickle.dumps(piece)))
            assert done.manifest_key is not None
            if number:  # its objects are in the bucket, and no metadata name them
                raise Died
            yield pickle.loads(pickle.dumps(done))

    await fill(place, segments=3)
    with pytest.raises(Died):
        await place.compact(run=dies, is_packing=is_packing)
    assert [len(one.parts) <= 3 for one in await place.manifests()] == [True, False, False]
    assert (await place.verify()).findings == []
    told = await place.compact(is_packing=is_packing)
    assert (told.segments, told.merged) == (3, 2)
    attempts = await place.delete_what_metadata_do_not_name()
    assert any(f".{COMPACTION_WRITER}." in key and key.endswith(".manifest") for key in attempts)
    checked = await place.verify()
    assert (checked.findings, checked.batches, checked.unnamed_objects) == ([], 360, 0)


@pytest.mark.fault("chunk-merged-damaged")
async def test_what_is_damaged_stays_as_it_is_and_is_reported(place: CompactWorld) -> None:
    await fill(place)
    (manifest, _) = await place.manifests()
    damaged = manifest.parts[60].object_key
    body = bytearray(await place.store.get(damaged))
    body[700] ^= 1
    await place.store.delete([damaged])
    await place.store.put(damaged, [bytes(body)])
    before = await place.segments()
    told = await place.compact()
    assert (told.segments, told.merged, len(told.not_merged)) == (2, 1, 1)
    assert damaged in told.not_merged[0].why and "segment 0-0 of shard 0 of topic cold" in told.not_merged[0].segment
    assert (await place.segments())[0] == before[0]


@pytest.mark.fault("merge-chunks-killed-midway")
async def test_a_segment_that_goes_meanwhile_is_reported_and_holds_nothing_up(place: CompactWorld) -> None:
    await fill(place)
    loop, client = asyncio.get_running_loop(), place.world.client
    shard = place.active.key.shard_key

    def deletes_first(work: Any, pieces: Any) -> Any:
        for merged in one_by_one(work, pieces):
            asyncio.run_coroutine_threadsafe(client.perform(AdvanceLogStart(shard, 360)), loop).result()
            yield merged

    told = await place.compact(run=deletes_first)
    assert (told.merged, len(told.not_merged)) == (1, 1)
    assert "DELETED" in told.not_merged[0].why
    await client.perform(DeleteTopic(place.active.key.topic_id))
    assert (await place.compact()).segments == 0


@pytest.mark.fault("merge-chunks-killed-midway")
async def test_a_job_whose_lock_passed_on_swaps_nothing(place: CompactWorld) -> None:
    await fill(place)
    loop, client, clock = asyncio.get_running_loop(), place.world.client, place.world.clock
    before = await place.segments()

    def loses_it(work: Any, pieces: Any) -> Any:
        for merged in one_by_one(work, pieces):
            clock.now_ms += 3_600_000
            taken = client.perform(AcquireLock(COMPACTION_LOCK, "somebody", 1_000))
            asyncio.run_coroutine_threadsafe(taken, loop).result()
            yield merged

    with pytest.raises(Fenced):
        await place.compact(run=loses_it, lease_ms=3_600_000)
    assert await place.segments() == before


@pytest.mark.fault("store-accepted-merged-chunk")
async def test_a_copy_of_the_bucket_is_not_mistaken_for_the_bucket(place: CompactWorld, tmp_path: Path) -> None:
    """Metadata would name what only the copy has."""
    await fill(place)
    mirror = open_store(str(tmp_path / "mirror"))
    try:
        async for info in place.store.list(""):
            await mirror.put(info.key, [await place.store.get(info.key)])
        copied = {info.key async for info in mirror.list("")}
        await place.add(small_parts(720, 3, 2))
        known = await place.segments()
        for is_dry_run in (False, True):
            with pytest.raises(NotFound, match="bucket"):
                await replace(place, bucket=str(tmp_path / "mirror")).compact(is_dry_run=is_dry_run)
        assert await place.segments() == known
        assert {info.key async for info in mirror.list("")} == copied
    finally:
        await mirror.close()


async def test_one_job_at_a_time(place: CompactWorld) -> None:
    await fill(place, segments=1)
    await place.world.client.perform(AcquireLock(COMPACTION_LOCK, "another", 60_000))
    with pytest.raises(Conflict, match="held by 'another'"):
        await place.compact(lease_ms=20)
    place.world.clock.now_ms += 60_000
    assert (await place.compact()).merged == 1


@pytest.mark.parametrize("target", [0, 1 << 40])
async def test_an_object_has_a_size_that_memory_can_hold(place: CompactWorld, target: int) -> None:
    with pytest.raises(InvalidRequest, match="an object of"):
        await place.compact(target_bytes=target)


def test_work_names_no_credentials() -> None:
    work = MergeWork.__dataclass_fields__["open_bucket"]
    assert not work.repr, "the bucket's URL may hold them"


async def test_the_command_answers_programs(place: CompactWorld) -> None:
    await fill(place)

    def run(*words: str) -> Any:
        command = ["pipeline", "compact", "--bucket", place.bucket, "--meta", place.meta_url, "--threads", "0"]
        ran = CliRunner().invoke(build_app(("pipeline",)), [*command, "--output", "json", *words])
        return ran.exit_code, json.loads(ran.stdout) if ran.exit_code == 0 else ran.stderr

    code, told = await asyncio.to_thread(run, "--topics", "cold", "--dry-run")
    assert (code, told["merged"], told["objects_before"], told["objects_after"]) == (0, 2, 240, 2)
    code, told = await asyncio.to_thread(run, "--object-bytes", "1MiB")
    assert (code, told["merged"], told["not_merged"]) == (0, 2, [])
    assert [len(manifest.parts) for manifest in await place.manifests()] == [1, 1]
    code, refusal = await asyncio.to_thread(run, "--object-bytes", "many")
    assert code == 2 and "such as 64MiB" in refusal


@pytest.mark.fault("merge-chunks-killed-midway")
@pytest.mark.parametrize("is_packing", [False, True])
async def test_a_process_that_is_killed_midway_leaves_each_segment_as_it_was_or_merged(
    place: CompactWorld, is_packing: bool
) -> None:
    await fill(place, segments=12)
    command = [sys.executable, "-m", "stratalog_cli.entry", "pipeline", "compact", "--bucket", place.bucket]
    command += ["--meta", place.meta_url, "--threads", "0", "--output", "json", *(["--pack"] if is_packing else [])]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(120):
            while not any(one.remote.replaced_ms for one in await place.segments()):
                assert process.returncode is None, "it ended before it merged anything"
    finally:
        process.kill()
        await process.wait()
    manifests = await place.manifests()
    counts = [len(manifest.parts) for manifest in manifests]
    assert counts[0] == 1 and set(counts) <= {1, 120}
    assert is_packed(manifests[0].parts[0].object_key) is is_packing
    assert (await place.verify()).findings == []
    place.world.clock.now_ms += 30_001  # the lease of the killed one
    told = await place.compact(target_bytes=64 << 20, is_packing=is_packing)
    assert (told.segments, told.merged, told.not_merged) == (12, counts.count(120), [])
    assert (await place.compact(target_bytes=64 << 20, is_packing=is_packing)).merged == 0
    await place.delete_what_metadata_do_not_name()
    checked = await place.verify()
    assert (checked.findings, checked.batches, checked.parts) == ([], 1_440, 12)


@pytest.mark.parametrize("is_swept", [False, True])
async def test_metadata_are_made_again_of_a_bucket_whose_chunks_were_merged(
    place: CompactWorld, is_swept: bool
) -> None:
    await fill(place)
    view = await place.world.client.snapshot()
    cluster_id = place.cold.names.cluster_id
    await put_metadata(place.store, cluster_id, view.topics, view.shards)
    await place.compact()
    named = [(await place.segments())[number].remote.manifest_key for number in range(2)]
    if is_swept:
        await place.delete_what_metadata_do_not_name()
    target = MemoryStore()
    told = await Rebuild(place.store, [1], place.world.clock, lambda *_: None).run(cluster_id, target)
    (shard,) = told.plan.shards
    assert (told.lost, told.gone, told.damaged, told.segments_published) == ([], [], {}, 1), "the active one"
    found = [one.manifest.key for one in shard.segments[:2] if one.manifest is not None]
    before = [one.remote.manifest_key for one in view.shards[0].segments[:2]]
    assert found == (named if is_swept else before), "the one that metadata named, while it is there"
    epochs = {lock.name: lock.epoch for lock in told.plan.locks}
    assert epochs[COMPACTION_LOCK] == 2, "above every epoch that a name in the bucket has"


@pytest.mark.fault("different-nodes-sweep-old")
async def test_metadata_are_made_again_of_the_manifest_whose_objects_are_all_there(place: CompactWorld) -> None:
    """The one that older metadata name may lie there still though another writer's sweep took chunks that it names."""
    await fill(place)
    view = await place.world.client.snapshot()
    cluster_id = place.cold.names.cluster_id
    await put_metadata(place.store, cluster_id, view.topics, view.shards)
    await place.compact()
    named = [segment.remote.manifest_key for segment in (await place.segments())[:2]]
    await place.delete_what_metadata_do_not_name(but_manifests=True)
    target = MemoryStore()
    told = await Rebuild(place.store, [1], place.world.clock, lambda *_: None).run(cluster_id, target)
    (shard,) = told.plan.shards
    assert [one.manifest.key for one in shard.segments[:2] if one.manifest is not None] == named
    assert told.lost == []


@pytest.mark.fault("merge-chunks-snapshot-read")
async def test_who_goes_by_the_bucket_alone_reads_what_was_merged(place: CompactWorld) -> None:
    """Not by a manifest that is due to be swept, however late the write lock under which it was put."""
    await fill(place)
    view = await place.world.client.snapshot()
    for segment in await place.segments():
        before = segment.remote.manifest_key or ""
        late = place.cold.names.manifest(
            segment.key, segment.base_offset, segment.end_offset or 0, node_id=3, lock_epoch=9, attempt=1
        )
        await place.store.put(late, [await place.store.get(before)])
    old = await planned(place.store, ["cold"])
    await place.compact()
    assert len(await planned(place.store, ["cold"])) < 10
    await place.delete_what_metadata_do_not_name(but_manifests=True)
    assert await offsets(place.store, place.cold.names.cluster_id, old[:3]) == list(range(9))
    (shard,) = view.shards
    cut = Cut(place.cold.names.cluster_id, "today", 1, tuple(view.topics), (CutShard(shard.key, 0, 699, 2),))
    restored = await restore_cut(place.store, cut, MemoryStore(), [1], 1, lambda *_: None)
    assert restored.segments == 2
