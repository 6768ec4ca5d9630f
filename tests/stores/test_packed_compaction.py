"""Chunks that a compaction packed are read by all that reads chunks, in real stores; and nothing of them is lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.manifest import PACKED_VERSIONS, decode_manifest
from stratalog.formats.bucket.object_names import SegmentObject, SegmentObjectName, is_packed
from stratalog.formats.bucket.packed_chunk import PACK_HEADER_BYTES, pack_to_size
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part
from stratalog.formats.envelope import Structure
from stratalog.model.commands.table_commands import AlterTopic
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.objects import ObjectStore, open_store, unpacking
from stratalog.objects.unpacking import UnpackingStore
from stratalog.stored.key_lookup import LookupCost, records_of
from stratalog_cli.entry import build_app
from stratalog_meta.bucket.rebuild import Rebuild
from stratalog_meta.bucket.restore import restore_cut
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.check.remote_segment import RemoteReport, check_what_manifest_names
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.store.remote_copy import check_remote_copy, is_exactly
from stratalog_pipeline.jobs.cost import Prices, cost_of
from stratalog_pipeline.jobs.repair.verify import verify
from stratalog_pipeline.jobs.runners import one_by_one
from support.cold_data import batch_at
from support.cold_reading import offsets, planned, put_metadata
from support.compacting import CompactWorld, compact_world
from support.small_cold_reads import SMALL, read_all

SEGMENTS, PARTS = 2, 120
END = 3 * SEGMENTS * PARTS


@pytest.fixture(params=["directory", pytest.param("versitygw", marks=pytest.mark.real_s3)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Real stores, which a job opens for itself."""
    if request.param == "directory":
        return str(tmp_path / "bucket")
    url: str = request.getfixturevalue("versitygw").url(f"packing/{tmp_path.name}")
    return url


@pytest.fixture
async def place(store: ObjectStore, store_url: str, tmp_path: Path) -> AsyncIterator[CompactWorld]:
    async with compact_world(store, store_url, tmp_path, has_key_index=True) as made:
        for number in range(SEGMENTS):
            base = 3 * PARTS * number
            await made.add([[batch_at(base + 3 * part, 3, epoch=number, value_bytes=400)] for part in range(PARTS)])
        yield made


async def packed_keys(place: CompactWorld) -> list[str]:
    return [part.object_key for manifest in await place.manifests() for part in manifest.parts]


def as_stored(store: ObjectStore) -> ObjectStore:
    """The store below, which unpacks nothing."""
    assert isinstance(store, UnpackingStore)
    return store._store


# What is read -------------------------------------------------------------------------------------------------------
async def test_readers_continue_while_chunks_are_packed_and_after_the_old_objects_went(place: CompactWorld) -> None:
    async def reload(key: SegmentKey) -> Segment | None:
        return next((one for one in await place.segments() if one.key == key), None)

    known, seals = await place.segments(), [one.seal for one in await place.segments()]
    reader = ColdReader(place.store, place.cold.names, SMALL, reload)
    try:
        assert await read_all(reader, known, 0, END) == place.cold.batches
        told = await place.compact(is_packing=True)
        assert told.merged == SEGMENTS and told.packed == told.objects_after >= 4 and told.not_merged == []
        assert told.packed_bytes < told.unpacked_bytes / 3 and told.bytes_put > told.packed_bytes
        assert await place.delete_what_metadata_do_not_name()
        assert await read_all(reader, known, 0, END) == place.cold.batches, "with metadata of before"
    finally:
        await reader.close()
    assert all(map(is_packed, await packed_keys(place)))
    assert [one.seal for one in await place.segments()] == seals
    again = ColdReader(place.store, place.cold.names, SMALL, reload)
    try:
        for start in (0, 1, 359, 360, END - 1):
            got = await again.read(await place.segments(), start, 1)
            assert b"".join(map(bytes, got)) == place.cold.batches[start // 3]
    finally:
        await again.close()


async def test_a_topic_that_asks_for_compression_is_packed_without_being_told_so(place: CompactWorld) -> None:
    assert (await place.compact()).packed == 0
    await place.world.client.perform(AlterTopic(place.active.key.topic_id, {"remote.compression": "zstd"}))
    told = await place.compact()
    assert told.packed == told.objects_after > 0
    assert all(map(is_packed, await packed_keys(place)))


async def test_everything_that_checks_a_bucket_finds_it_whole(place: CompactWorld) -> None:
    await place.compact(is_packing=True)
    await place.delete_what_metadata_do_not_name()
    checked = await place.verify()
    assert (checked.findings, checked.batches, checked.unnamed_objects) == ([], SEGMENTS * PARTS, 0)
    for segment, manifest in zip(await place.segments(), await place.manifests(), strict=True):
        await check_remote_copy(place.store, place.cold.names, segment)
        report = RemoteReport(end_offset=segment.base_offset)
        await check_what_manifest_names(place.store, manifest, report)
        assert report.findings == []
        assert {key: (await place.store.head(key)).size_bytes for key in manifest.object_sizes} == manifest.object_sizes
        folder = [info async for info in place.store.list(place.cold.names.segment_prefix(segment.key))]
        assert sum(info.size_bytes for info in folder) == segment.remote.size_bytes, "as it is stored"
        names = [place.cold.names.parse(info.key) for info in folder]
        ours = [name for name in names if isinstance(name, SegmentObjectName)]
        assert is_exactly(segment, ours, [info.key for info in folder])
    cost = await cost_of(place.store, Prices(), meta_url=place.meta_url)
    assert sum(row.bytes for row in cost.rows) == sum([info.size_bytes async for info in place.store.list("")])


async def test_records_and_keys_are_found_as_before(place: CompactWorld) -> None:
    await place.compact(is_packing=True)
    await place.delete_what_metadata_do_not_name()
    ranges = await planned(place.store, ["cold"], meta_url=place.meta_url)
    assert await offsets(place.store, place.cold.names.cluster_id, ranges) == list(range(END))
    for offset in (0, 359, 360, END - 1):
        cost, got = LookupCost(), []
        for manifest in await place.manifests():
            got += [record async for record in records_of(place.store, manifest, b"%d" % offset, cost)]
        assert [record.offset for record in got] == [offset]


async def test_a_range_of_the_part_reads_only_the_frames_that_cover_it(place: CompactWorld) -> None:
    await place.compact(is_packing=True, target_bytes=64 << 20)
    manifest = (await place.manifests())[0]
    (part,) = manifest.parts
    store = open_store(place.bucket)
    try:
        whole = await store.get(part.object_key)
        assert check_part(whole, source="whole").header.digest_after == manifest.seal.digest
        for start, end in ((0, 1), (0, PART_HEADER_BYTES), (500, 520), (70_000, 70_001), (0, len(whole))):
            assert await store.get_range(part.object_key, start, end) == whole[start:end]
        with pytest.raises(Corrupt, match=f"of a part of {len(whole)} bytes"):
            await store.get_range(part.object_key, 0, len(whole) + 1)
        got = await asyncio.gather(*(store.get_range(part.object_key, at, at + 900) for at in range(0, 90_000, 900)))
        assert b"".join(got) == whole[:90_000]
        (packed_size,) = manifest.packed_sizes
        assert (await store.head(part.object_key)).size_bytes == packed_size < len(whole)
        with pytest.raises(NotFound):
            await store.get_range(part.object_key.replace("00-", "01-"), 0, 600)
    finally:
        await store.close()


@pytest.mark.fault("node-consumers-read-verifies")
async def test_a_read_of_a_few_bytes_is_not_behind_reads_of_whole_parts(
    place: CompactWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads have frames of whole parts to open; each read ends, and gets what it asked for."""
    await place.compact(is_packing=True, target_bytes=64 << 20)
    keys, store = await packed_keys(place), open_store(place.bucket)
    monkeypatch.setattr(unpacking, "STEP_BYTES", 1)
    try:
        whole = {key: await store.get(key) for key in keys}
        ended: list[int] = []
        fetch, all_fetched = as_stored(store).get_range_view, asyncio.Event()
        fetched: list[memoryview] = []

        async def together(key: str, start: int, end: int) -> memoryview:
            fetched.append(await fetch(key, start, end))
            data = fetched[-1]
            if len(fetched) == 5 * len(keys):
                all_fetched.set()
            await all_fetched.wait()
            return data

        monkeypatch.setattr(as_stored(store), "get_range_view", together)

        async def read(key: str, start: int, end: int) -> None:
            assert await store.get_range_view(key, start, end) == whole[key][start:end]
            ended.append(end - start)

        wholes = [read(key, 0, len(whole[key])) for key in keys for _ in range(4)]
        await asyncio.gather(*wholes, *(read(key, 600, 700) for key in keys))
        assert ended[: len(keys)] == [100] * len(keys), "first, though they were asked for last"
    finally:
        await store.close()


async def test_a_reader_that_knows_no_packed_chunks_refuses_the_manifest_by_its_version(place: CompactWorld) -> None:
    await place.compact(is_packing=True)
    for segment in await place.segments():
        body = await place.store.get(segment.remote.manifest_key or "")
        assert int.from_bytes(body[8:10], "big") == PACKED_VERSIONS[Structure.KEYED_MANIFEST]
        assert Structure.KEYED_MANIFEST.version < PACKED_VERSIONS[Structure.KEYED_MANIFEST]
        assert decode_manifest(body, source="it").packed_sizes


@pytest.mark.parametrize("has_manifests", [True, False])
async def test_metadata_are_made_again_of_packed_chunks(place: CompactWorld, has_manifests: bool) -> None:
    view = await place.world.client.snapshot()
    cluster_id = place.cold.names.cluster_id
    await put_metadata(place.store, cluster_id, view.topics, view.shards)
    await place.compact(is_packing=True)
    await place.delete_what_metadata_do_not_name()
    if not has_manifests:
        await place.store.delete([segment.remote.manifest_key or "" for segment in await place.segments()])
    target = MemoryStore()
    told = await Rebuild(place.store, [1], place.world.clock, lambda *_: None).run(cluster_id, target)
    (shard,) = told.plan.shards
    assert (told.lost, told.gone) == ([], [])
    if has_manifests:
        named = [segment.remote.manifest_key for segment in await place.segments()]
        assert [one.manifest.key for one in shard.segments[:2] if one.manifest is not None] == named
        return
    made = [info.key async for info in place.store.list("") if info.key.endswith(".manifest")]
    assert len(made) >= SEGMENTS, "put anew, of the packed chunks"
    for key in made:
        manifest = decode_manifest(await place.store.get(key), source=key)
        if manifest.seal.size_bytes:
            assert all(manifest.packed_sizes)
            assert {one: (await place.store.head(one)).size_bytes for one in manifest.object_sizes} == (
                manifest.object_sizes
            )


async def test_a_cut_is_restored_from_packed_chunks(place: CompactWorld) -> None:
    view = await place.world.client.snapshot()
    await place.compact(is_packing=True)
    await place.delete_what_metadata_do_not_name()
    (shard,) = view.shards
    cut = Cut(place.cold.names.cluster_id, "today", 1, tuple(view.topics), (CutShard(shard.key, 0, END, SEGMENTS),))
    restored = await restore_cut(place.store, cut, MemoryStore(), [1], 1, lambda *_: None)
    ranges = await planned(place.store, ["cold"], cluster_id=restored.cluster_id)
    assert await offsets(place.store, restored.cluster_id, ranges) == list(range(END))


# What is packed, and when -------------------------------------------------------------------------------------------
async def test_what_was_merged_before_is_packed_later_and_then_stays(place: CompactWorld) -> None:
    await place.compact()
    before = await place.manifests()
    dry = await place.compact(is_packing=True, is_dry_run=True)
    assert (dry.merged, dry.packed) == (SEGMENTS, dry.objects_before) and await place.manifests() == before
    told = await place.compact(is_packing=True)
    assert (told.merged, told.objects_before) == (SEGMENTS, told.objects_after)
    packed = await place.manifests()
    for old, new in zip(before, packed, strict=True):
        assert [replace(part, object_key="") for part in old.parts] == [
            replace(part, object_key="") for part in new.parts
        ], "positions and sizes are those of the unpacked parts"
        assert (old.seal, old.index_digest) == (new.seal, new.index_digest)
        assert [run.digest for run in old.key_runs] == [run.digest for run in new.key_runs]
    for is_packing in (True, False):
        assert (await place.compact(is_packing=is_packing)).merged == 0
    assert await place.manifests() == packed
    larger = await place.compact(target_bytes=64 << 20)
    assert larger.packed == larger.merged == SEGMENTS, "what was packed is never unpacked by a merging"
    await place.delete_what_metadata_do_not_name()
    assert (await place.verify()).findings == [] and all(map(is_packed, await packed_keys(place)))


def noisy_batch(base: int) -> bytes:
    """Data that a codec cannot make smaller."""
    noise = random.Random(base)
    records = [Record(base + n, 1_700_000_000_000, None, noise.randbytes(900)) for n in range(8)]
    return encode_batch(records, base_offset=base, epoch=0, compression=4)


async def test_what_clients_compressed_stays_unpacked(store: ObjectStore, store_url: str, tmp_path: Path) -> None:
    async with compact_world(store, store_url, tmp_path) as place:
        await place.add([[noisy_batch(8 * n)] for n in range(3)])
        for told in (await place.compact(is_packing=True), await place.compact(is_packing=True)):
            assert (told.packed, told.not_merged) == (0, [])
        assert len(await packed_keys(place)) == 1 and not any(map(is_packed, await packed_keys(place)))
        assert (await place.verify()).findings == []


# What goes wrong ----------------------------------------------------------------------------------------------------
async def test_damage_is_found_by_its_object_and_repaired_from_a_copy(place: CompactWorld, tmp_path: Path) -> None:
    await place.compact(is_packing=True)
    await place.delete_what_metadata_do_not_name()
    keys = await packed_keys(place)
    stored = {key: await as_stored(place.store).get(key) for key in keys}
    mirror = open_store(str(tmp_path / "mirror"))
    try:
        for key, body in stored.items():
            await mirror.put(key, [body])
    finally:
        await mirror.close()
    reader = open_store(place.bucket)
    try:
        whole = {key: await reader.get(key) for key in keys}
        for at in (20, PACK_HEADER_BYTES + 40, -3):
            body = bytearray(stored[keys[0]])
            body[at] ^= 1
            await place.store.delete([keys[0]])
            await place.store.put(keys[0], [bytes(body)])
            (finding,) = (await place.verify()).findings
            assert keys[0] in finding.place
            told = await asyncio.to_thread(
                verify, place.bucket, one_by_one, meta_url=place.meta_url, repair_from=[str(tmp_path / "mirror")]
            )
            assert (told.repaired, told.findings) == ([keys[0]], [])
            assert await reader.get(keys[0]) == whole[keys[0]], "also for who has read it before"
        await place.store.delete([keys[-1]])
        told = await asyncio.to_thread(
            verify, place.bucket, one_by_one, meta_url=place.meta_url, repair_from=[str(tmp_path / "mirror")]
        )
        assert (told.repaired, told.findings) == ([keys[-1]], [])
    finally:
        await reader.close()
    for segment in await place.segments():
        await check_remote_copy(place.store, place.cold.names, segment)


@pytest.mark.fault("object-chunk-longer-manifest")
@pytest.mark.parametrize("is_packing", [True, False], ids=["packed", "merged"])
async def test_a_chunk_that_is_longer_than_the_manifest_says_is_named_and_repaired(
    place: CompactWorld, tmp_path: Path, is_packing: bool
) -> None:
    """Nodes free no local copy and mount nothing where the sizes differ, and say why on request."""
    await place.compact(is_packing=is_packing)
    await place.delete_what_metadata_do_not_name()
    (key, *_) = await packed_keys(place)
    whole = await as_stored(place.store).get(key)
    (segment, _), (manifest, _) = await place.segments(), await place.manifests()
    mirrors = {name: open_store(str(tmp_path / name)) for name in ("longer", "right")}
    for mirror, body in zip(mirrors.values(), (whole + b"junk", whole), strict=True):
        await mirror.put(key, [body])
        await mirror.close()
    await place.store.delete([key])
    await place.store.put(key, [whole, bytes(40)])
    with pytest.raises(Corrupt):
        await check_remote_copy(place.store, place.cold.names, segment)
    (finding,) = (await place.verify()).findings
    assert key in finding.place and f"has {len(whole) + 40} bytes, the manifest says {len(whole)}" in finding.what
    report = RemoteReport(end_offset=segment.base_offset)
    await check_what_manifest_names(place.store, manifest, report)
    assert [one.place for one in report.findings] == [key]
    examined = await asyncio.to_thread(CliRunner().invoke, build_app(("doctor",)), ["doctor", place.bucket])
    assert examined.exit_code == 1 and str(len(whole) + 40) in examined.output

    told = await asyncio.to_thread(
        verify,
        place.bucket,
        one_by_one,
        meta_url=place.meta_url,
        repair_from=[str(tmp_path / name) for name in mirrors],
    )
    assert (told.repaired, told.findings) == ([key], [])
    assert await as_stored(place.store).get(key) == whole
    await check_remote_copy(place.store, place.cold.names, segment)


async def test_an_object_that_was_packed_in_another_way_is_read_by_a_reader_that_knew_the_one_before(
    place: CompactWorld,
) -> None:
    await place.compact(is_packing=True)
    key = (await packed_keys(place))[0]
    reader = open_store(place.bucket)
    try:
        part = await reader.get(key)
        size = (await reader.head(key)).size_bytes
        await place.store.delete([key])
        await place.store.put(key, [pack_to_size(part[:], size + 64, source=key)])
        assert await reader.get_range(key, 0, len(part)) == part
    finally:
        await reader.close()


async def test_the_command_packs(place: CompactWorld) -> None:
    def run(*words: str) -> Any:
        ran = CliRunner().invoke(build_app(("pipeline", "dump")), [*words])
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    words = ["pipeline", "compact", "--bucket", place.bucket, "--meta", place.meta_url, "--threads", "0"]
    told = json.loads(await asyncio.to_thread(run, *words, "--pack", "--output", "json"))
    assert told["packed"] == SEGMENTS and told["packed_bytes"] < told["unpacked_bytes"] / 3
    key = (await packed_keys(place))[0]
    name = place.cold.names.parse(key)
    assert isinstance(name, SegmentObjectName) and name.kind is SegmentObject.PACKED
    shown = await asyncio.to_thread(run, "dump", key, "--bucket", place.bucket, "--output", "json")
    kinds = [json.loads(line)["kind"] for line in shown.splitlines()]
    assert kinds.count("batch") == PARTS
