"""Segments of a topic with index.keys=true are completed with a key index, which lives and goes with them."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from stratalog.formats.batches.record_batch import check_batch
from stratalog.formats.batches.records import Record, decode_records, encode_batch
from stratalog.formats.bucket.key_index import decode_key_page, key_hash
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import SegmentObject, SegmentObjectName
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.segments.digest import object_digest
from stratalog.model.commands.table_commands import AdvanceLogStart
from stratalog.model.segment import Segment
from stratalog_node.check.remote_segment import check_remote_segment
from stratalog_node.tier.store.remote_copy import check_remote_copy
from support.faulty_store import Fault
from support.tier_rig import RIG_LIMITS, RigCopy, RigShard, TierRig
from support.waiting import eventually

LONG_MS = 4_000_000


def append(rig: TierRig, shard: RigShard, keys: list[bytes | None], value: bytes = b"value", codec: int = 0) -> None:
    active = shard.segments[-1]
    copy = shard.copies.setdefault(active.key, RigCopy(active.key))
    records = [Record(copy.end_offset + n, rig.clock.now_ms, key, value) for n, key in enumerate(keys)]
    batch = encode_batch(records, base_offset=copy.end_offset, epoch=active.epoch, compression=codec)
    copy.batches.append(batch)
    copy.headers.append(check_batch(batch, source="rig"))
    rig.commit(shard)


async def offsets_of(rig: TierRig, manifest: Manifest, key: bytes) -> list[int]:
    """As a reader finds them: a page of each run, then the batches that it names."""
    found = []
    hashed = key_hash(key)
    for run in manifest.key_runs:
        page = await rig.store.inner.get_range(run.object_key, *run.page_range(hashed))
        for entry in decode_key_page(page, run, hashed, manifest.seal.digest).entries:
            part = manifest.parts[entry.part]
            start = part.position + entry.position
            assert entry.position >= PART_HEADER_BYTES
            batch = await rig.store.inner.get_range(part.object_key, start, start + entry.size_bytes)
            check_batch(batch, source=part.object_key)
            found += [record.offset for record in decode_records(batch) if record.key == key]
    return found


async def completed(rig: TierRig, shard: RigShard) -> Segment:
    segment = await rig.seal(shard)
    await rig.until(lambda: rig.is_complete(segment))
    return rig.remote(segment)


async def test_every_record_of_a_key_is_found_in_chunks_and_in_parts_that_came_home() -> None:
    rng = random.Random(7)
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(index_keys="true"))
        await rig.start_uploader()
        expected: dict[bytes, list[int]] = {}
        for number in range(120):
            if number % 30 == 0:
                await rig.settle()  # what came by now goes by bundle
            keys: list[bytes | None] = [b"%d" % rng.randrange(40) if rng.random() < 0.9 else None for _ in range(5)]
            base = number * 5
            for at, key in enumerate(keys):
                if key is not None:
                    expected.setdefault(key, []).append(base + at)
            append(rig, shard, keys, rng.randbytes(1_000), codec=number % 5)
        segment = await completed(rig, shard)
        manifest = await rig.manifest(segment)
        assert len(manifest.parts) > 1
        assert len(manifest.key_runs) == 1
        for key, offsets in expected.items():
            assert await offsets_of(rig, manifest, key) == offsets
        assert await offsets_of(rig, manifest, b"nobody") == []
        await rig.check()
        assert rig.stats.key_indexes_built == 1


async def test_a_topic_that_does_not_ask_gets_no_key_index() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        append(rig, shard, [b"a"])
        manifest = await rig.manifest(await completed(rig, shard))
        assert manifest.key_runs == ()
        assert not [key for key in await rig.store.keys() if key.endswith(".keys")]


async def test_an_index_of_many_keys_continues_in_further_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.tier.uploads.key_indexer.RUN_ENTRIES", 20)
    monkeypatch.setattr("stratalog.formats.bucket.key_runs.GROUP_BYTES", 400)
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(index_keys="true"))
        await rig.start_uploader()
        for number in range(40):
            append(rig, shard, [b"%d" % number, b"often", b"%d" % (number + 1)])
        manifest = await rig.manifest(await completed(rig, shard))
        assert len(manifest.key_runs) > 3
        assert manifest.key_runs[0].from_offset == 0
        assert manifest.key_runs[-1].to_offset == manifest.seal.end_offset
        assert await offsets_of(rig, manifest, b"17") == [16 * 3 + 2, 17 * 3]
        assert await offsets_of(rig, manifest, b"often") == [number * 3 + 1 for number in range(40)]


async def test_a_segment_without_any_key_has_an_index_that_says_so() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(index_keys="true"))
        await rig.start_uploader()
        append(rig, shard, [None, None])
        manifest = await rig.manifest(await completed(rig, shard))
        assert [run.entries for run in manifest.key_runs] == [0]
        assert await offsets_of(rig, manifest, b"a") == []


async def test_an_unreadable_batch_costs_the_index_and_not_the_segment() -> None:
    """A node does not look inside: what a client sends as records need not be any."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(index_keys="true"))
        await rig.start_uploader()
        append(rig, shard, [b"a"])
        copy = shard.copies[shard.segments[-1].key]
        broken = bytearray(encode_batch([Record(1, 5, b"b", b"value")], base_offset=1, epoch=shard.segments[-1].epoch))
        broken[61] = 0x7E  # the record's size
        struct.pack_into(">I", broken, 17, crc32c(bytes(broken[21:])))
        copy.batches.append(bytes(broken))
        copy.headers.append(check_batch(bytes(broken), source="rig"))
        rig.commit(shard)
        segment = await completed(rig, shard)
        assert (await rig.manifest(segment)).key_runs == ()
        assert rig.stats.key_indexes_built == 0
        await rig.check()


async def test_a_key_index_is_kept_by_the_sweep_and_checked_and_purged_with_its_segment() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(index_keys="true"))
        await rig.start_uploader()
        append(rig, shard, [b"a", b"b"])
        segment = await completed(rig, shard)
        manifest = await rig.manifest(segment)
        run = manifest.key_runs[0]
        assert object_digest(await rig.store.inner.get(run.object_key)) == run.digest
        listed = {
            info.key: info.size_bytes async for info in rig.store.inner.list(rig.names.segment_prefix(segment.key))
        }
        assert run.object_key in listed
        assert sum(listed.values()) == segment.remote.size_bytes, "all of its objects are counted"
        rig.advance(LONG_MS)
        rig.store.requests.clear()
        assert (await rig.janitor().sweep_now()).orphans == 0
        assert rig.store.requests["get"] == 0, "a clean folder is told by its listing"
        await check_remote_copy(rig.store, rig.names, segment)
        assert (await check_remote_segment(rig.store, rig.names.cluster_id, segment)).findings == []

        await rig.store.inner.delete([run.object_key])
        found = (await check_remote_segment(rig.store, rig.names.cluster_id, segment)).findings
        assert [finding.place for finding in found] == [run.object_key]

        await rig.store.inner.put(run.object_key, [b"x" * run.size_bytes])
        found = (await check_remote_segment(rig.store, rig.names.cluster_id, segment)).findings
        assert [finding.place for finding in found] == [run.object_key]

        await rig.meta.perform(AdvanceLogStart(shard.key, 2))
        await eventually(lambda: shard.log_start_offset == 2)
        rig.advance(60_001)
        assert await rig.janitor().delete_once() == 1
        assert await rig.store.keys() == []


@pytest.mark.parametrize("which", ["index", "keys", "manifest"])
async def test_a_completion_that_fails_midway_is_tried_again_and_leaves_orphans_that_go(which: str) -> None:
    async with TierRig(RIG_LIMITS) as rig:
        shard = rig.shard(await rig.create_topic(index_keys="true"))
        await rig.start_uploader()
        append(rig, shard, [b"a"])
        await rig.settle()
        refused: list[str] = []

        def decide(key: str) -> Fault:
            if key.endswith(f".{which}") and not refused:
                refused.append(key)
                return Fault.LOST_ANSWER
            return Fault.NONE

        rig.store.decide = decide
        segment = await completed(rig, shard)
        manifest = await rig.manifest(segment)
        assert await offsets_of(rig, manifest, b"a") == [0]
        rig.advance(LONG_MS)
        await rig.janitor().sweep_now()
        names = [rig.names.parse(key) for key in await rig.store.keys() if "/data/" in key]
        kinds = sorted(name.kind for name in names if isinstance(name, SegmentObjectName))
        assert kinds == sorted(set(SegmentObject) - {SegmentObject.PACKED}), "one of each is left"
