"""What nodes do with a segment whose chunks were merged by the job: nothing that readers need goes, the rest does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.model.commands.table_commands import AcquireLock, DeleteTopic, ReplaceManifest
from stratalog.model.errors import Fenced
from stratalog.model.metadata import Lock
from stratalog.model.segment import Segment
from stratalog_pipeline.jobs.repair.merge_segment import Merged, MergeWork, merge_segment
from support.cold_reading import Kept
from support.tier_rig import TierRig

GRACE_MS = 600_001


@pytest.fixture(params=[False, True], ids=["merged", "packed"], autouse=True)
def packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it holds for packed chunks as well."""
    monkeypatch.setattr(Packing, "is_asked_for", bool(request.param))


class Packing:
    is_asked_for = False


async def complete_segment(rig: TierRig) -> Segment:
    """Of several chunks; the oldest ones are older than any grace."""
    shard = rig.shard(await rig.create_topic())
    await rig.start_uploader()
    for _ in range(3):
        for _ in range(70):
            rig.append(shard, 1_000, is_text=Packing.is_asked_for)
        await rig.settle()
    sealed = await rig.seal(shard)
    await rig.until(lambda: rig.is_complete(sealed))
    rig.advance(GRACE_MS)
    return rig.remote(sealed)


def work_of(rig: TierRig, segment: Segment, lock: Lock, store: Kept) -> MergeWork:
    remote, seal = segment.remote, segment.seal
    assert seal is not None and remote.manifest_key is not None and remote.manifest_digest is not None
    return MergeWork(
        rig.cluster_id,
        "flights",
        segment.key,
        seal,
        remote.manifest_key,
        remote.manifest_digest,
        lock.epoch,
        1 << 20,
        False,
        Packing.is_asked_for,
        lambda: store,  # type: ignore[arg-type, return-value]  # the rig's own, which stays open
    )


async def merged(rig: TierRig, segment: Segment, lock: Lock) -> Merged:
    done = await asyncio.to_thread(merge_segment, work_of(rig, segment, lock, Kept(rig.store)))
    assert done.manifest_key is not None, done.fault
    assert done.packed == (done.parts_after if Packing.is_asked_for else 0)
    return done


def swap(lock: Lock, done: Merged) -> ReplaceManifest:
    return ReplaceManifest(
        lock, done.work.key, done.work.manifest_digest, done.manifest_key or "", done.manifest_digest, done.size_bytes
    )


@pytest.mark.fault("chunks-merged-readers-hold")
async def test_the_old_objects_stay_for_the_grace_after_the_swap_and_then_go() -> None:
    async with TierRig() as rig:
        segment = await complete_segment(rig)
        old = await rig.check()
        lock = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-1", 60_000))
        done = await merged(rig, segment, lock)
        assert done.parts_before > done.parts_after == 1
        assert (await rig.janitor().sweep_now()).orphans == 0, "what the job put waits for its lock"
        await rig.meta.perform(swap(lock, done))
        await rig.until(lambda: rig.remote(segment).remote.manifest_key == done.manifest_key)
        assert (await rig.janitor().sweep_now()).orphans == 0, "readers may hold the old manifest, however old it is"
        assert old <= set(await rig.store.keys())
        rig.advance(GRACE_MS)
        await rig.janitor().sweep_now()
        now = await rig.check()
        data = {key for key in await rig.store.keys() if "/data/" in key}
        assert data == now, "nothing but what metadata name"
        assert len(now) == 3 and len(now & old) == 1, "manifest and chunk are new, the index is the one that was there"
        assert (await rig.janitor().sweep_now()).orphans == 0


async def test_a_merged_chunk_is_put_in_the_class_of_its_topic_and_nothing_else_is() -> None:
    classes: dict[str, str] = {}

    class Noting(Kept):
        async def put(self, key: str, body: Sequence[bytes], storage_class: str = "") -> None:
            classes[key.rpartition(".")[2]] = storage_class
            await rig.store.put(key, body)

    async with TierRig() as rig:
        segment = await complete_segment(rig)
        lock = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-1", 60_000))
        work = replace(work_of(rig, segment, lock, Noting(rig.store)), storage_class="GLACIER_IR")
        done = await asyncio.to_thread(merge_segment, work)
        assert done.manifest_key is not None, done.fault
    assert classes == {"packed" if Packing.is_asked_for else "chunk": "GLACIER_IR", "manifest": ""}


@pytest.mark.fault("different-nodes-sweep-old")
async def test_no_chunk_goes_before_the_last_manifest_that_may_name_it() -> None:
    """Each writer's leavings are swept by another node, at another time; who lists the bucket alone reads any manifest
    that lies there."""
    async with TierRig() as rig:
        segment = await complete_segment(rig)
        old = await rig.check()
        named = await rig.store.get(segment.remote.manifest_key or "")
        another = rig.names.manifest(segment.key, 0, segment.end_offset or 0, node_id=7, lock_epoch=1, attempt=1)
        await rig.store.put(another, [named])
        lock = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-1", 60_000))
        done = await merged(rig, segment, lock)
        await rig.meta.perform(swap(lock, done))
        await rig.until(lambda: rig.remote(segment).remote.manifest_key == done.manifest_key)
        rig.advance(GRACE_MS)
        await rig.janitor().sweep_now()
        left = set(await rig.store.keys())
        assert segment.remote.manifest_key not in left, "this node's own"
        assert another in left, "it is another's to sweep"
        assert old - left == {segment.remote.manifest_key}
        await rig.store.delete([another])
        await rig.janitor().sweep_now()
        assert {key for key in await rig.store.keys() if "/data/" in key} == await rig.check()


@pytest.mark.fault("merge-chunks-killed-midway")
async def test_what_a_job_put_that_died_goes_once_its_lease_is_over_and_cannot_be_named_after_that() -> None:
    async with TierRig() as rig:
        segment = await complete_segment(rig)
        named = await rig.check()
        lock = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-1", 2 * GRACE_MS))
        done = await merged(rig, segment, lock)
        rig.advance(GRACE_MS)
        assert (await rig.janitor().sweep_now()).orphans == 0, "its lease lasts: it may still name them"
        rig.advance(GRACE_MS)
        assert (await rig.janitor().sweep_now()).orphans == 2
        assert await rig.check() == named == {key for key in await rig.store.keys() if "/data/" in key}
        with pytest.raises(Fenced):
            await rig.meta.perform(swap(lock, done))
        rig.advance(1)
        again = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-2", 60_000))
        await rig.meta.perform(swap(again, await merged(rig, segment, again)))
        await rig.until(lambda: rig.remote(segment).remote.manifest_key != segment.remote.manifest_key)
        assert replace(rig.remote(segment), remote=segment.remote) == segment, "nothing else of it changed"
        await rig.check()


@pytest.mark.fault("store-accepted-merged-chunk")
@pytest.mark.parametrize("kept_bytes", [None, 100])
async def test_what_a_store_took_and_does_not_have_whole_is_never_named(kept_bytes: int | None) -> None:
    """What it was made of goes once the metadata name it: so the store is asked before that."""

    class Careless(Kept):
        async def put(self, key: str, body: Sequence[bytes], storage_class: str = "") -> None:
            if not key.endswith((".chunk", ".packed")):
                await rig.store.put(key, body)
            elif kept_bytes is not None:
                await rig.store.put(key, [b"".join(body)[:kept_bytes]])

    async with TierRig() as rig:
        segment = await complete_segment(rig)
        lock = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-1", 60_000))
        done = await asyncio.to_thread(merge_segment, work_of(rig, segment, lock, Careless(rig.store)))
        assert done.manifest_key is None and (".packed" if Packing.is_asked_for else ".chunk") in done.fault
        await rig.check()


async def test_a_merged_segment_is_deleted_whole() -> None:
    async with TierRig() as rig:
        segment = await complete_segment(rig)
        lock = await rig.meta.perform(AcquireLock(COMPACTION_LOCK, "job-1", 60_000))
        await rig.meta.perform(swap(lock, await merged(rig, segment, lock)))
        await rig.until(lambda: rig.remote(segment).remote.replaced_ms)
        topic = rig.catalog.topic_by_id(segment.key.topic_id)
        assert topic is not None
        await rig.meta.perform(DeleteTopic(topic.topic_id))
        await rig.until(lambda: rig.catalog.topic_by_id(topic.topic_id) is None)
        rig.advance(120_000)
        await rig.janitor().delete_once()
        assert [key for key in await rig.store.keys() if "/data/" in key] == []
