"""A copy of a disk and metadata put back from an older one: the bucket tells, and nothing in it is lost."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.formats.bucket.claim import Claim, decode_claim, encode_claim
from stratalog.machines.table.locks import EARLIER_HOLDERS
from stratalog.model.commands.table_commands import AcquireLock, AdvanceLogStart
from stratalog.model.segment import Segment
from stratalog_meta.stores.memory import MemoryStore
from support.faulty_store import Fault, FaultyStore
from support.tier_rig import NODE_ID, RIG_LIMITS, RigShard, TierRig
from support.waiting import eventually

LONG_MS = 4_000_000


def _copy_of(rig: TierRig) -> MemoryStore:
    """The metadata as it is now, on another disk."""
    copied = MemoryStore()
    copied._items = copy.deepcopy(rig.meta_store._items)
    return copied


@asynccontextmanager
async def _copied(rig: TierRig, meta_store: MemoryStore) -> AsyncIterator[TierRig]:
    async with TierRig(meta_store=meta_store, bucket_of=rig) as copied:
        yield copied


async def _filled(rig: TierRig, shard: RigShard, batches: int = 70) -> None:
    for _ in range(batches):
        rig.append(shard, 1_000)
    await rig.settle()


async def _sealed(rig: TierRig, shard: RigShard) -> Segment:
    sealed = await rig.seal(shard)
    await rig.until(lambda: rig.is_complete(sealed))
    return sealed


async def _sweep_everything(rig: TierRig) -> None:
    janitor = rig.janitor()
    for _ in range(3):
        rig.advance(LONG_MS)
        await janitor.sweep_now()
        await janitor.delete_once()


async def _own(rig: TierRig) -> str:
    return rig.names.claim(node_id=NODE_ID, lock_epoch=rig.uploader.status().lock_epoch or 0)


@pytest.mark.fault("disk-cloned-metadata-restored")
async def test_metadata_that_is_older_than_the_bucket_neither_uploads_nor_sweeps() -> None:
    """Chunks, index and manifest of later segments, and a bundle with a topic it never heard of, all stay."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        await _filled(rig, shard)
        old = _copy_of(rig)
        await _filled(rig, shard)
        await rig.crash_uploader()
        rig.shards.announce(shard)
        await rig.start_uploader()
        await _sealed(rig, shard)
        await _filled(rig, shard)
        unheard = rig.shard(await rig.create_topic("unheard"))
        rig.append(unheard)
        await rig.settle()
        live = await rig.check()
        await rig.uploader.close()
        async with _copied(rig, old) as later:
            await later.start_uploader()
            await later.until(lambda: later.uploader.claim.fork)
            assert "claims/1/2.claim" in (later.uploader.claim.fork or "")
            await _sweep_everything(later)
            assert live <= set(await rig.store.keys())
            assert (later.stats.is_forked, later.stats.forks_found) == (1, 1)
            assert later.uploader.status().lock_epoch is None, "nothing is uploaded"


@pytest.mark.fault("disk-cloned-metadata-restored")
async def test_a_restart_of_a_copy_does_not_make_it_the_true_one() -> None:
    """Its epochs grow with each start, and pass those of the other; its past stays unknown to its metadata."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        await _filled(rig, shard)
        await rig.crash_uploader()
        old = _copy_of(rig)
        await rig.start_uploader()
        await _filled(rig, shard)
        live = await rig.check()
        async with _copied(rig, old) as clone:
            for _ in range(5):
                await clone.start_uploader()
                await clone.until(lambda: clone.uploader.claim.fork)
                await clone.crash_uploader()
            assert (await clone.meta.perform(AcquireLock("tier/1", "look", 1))).epoch > 2
            await clone.start_uploader()
            await _sweep_everything(clone)
        assert live <= set(await rig.store.keys())
        assert await rig.store.claims() == [await _own(rig)]


@pytest.mark.fault("disk-cloned-metadata-restored")
async def test_a_copy_that_started_while_this_node_ran_stops_it_before_its_next_sweep() -> None:
    """The copy's metadata knows this life, so it may claim the next epoch; then this one must stop."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        await _filled(rig, shard)
        twin = _copy_of(rig)
        await _filled(rig, shard)
        live = await rig.check()
        async with _copied(rig, twin) as clone:
            await clone.start_uploader()
            await clone.until(lambda: clone.uploader.status().lock_epoch == 2)
            await _sweep_everything(clone)
            assert live <= set(await rig.store.keys()), "what it has not committed itself it does not take for garbage"
            await _sweep_everything(rig)
            await rig.until(lambda: rig.uploader.claim.fork)
            assert rig.uploader.status().lock_epoch is None
            assert live <= set(await rig.store.keys())


@pytest.mark.fault("disk-cloned-metadata-restored")
async def test_a_copy_that_sees_the_other_write_stops_too() -> None:
    """Objects of an earlier epoch that are younger than this node's claim."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        await _filled(rig, shard)
        async with _copied(rig, _copy_of(rig)) as clone:
            await clone.start_uploader()
            await clone.until(lambda: clone.uploader.status().lock_epoch == 2)
            rig.advance(LONG_MS)
            await _filled(rig, shard)
            live = await rig.check()
            await _sweep_everything(clone)
            await clone.until(lambda: clone.uploader.claim.fork)
            assert "a copy of node 1 is alive" in (clone.uploader.claim.fork or "")
            assert live <= set(await rig.store.keys())


@pytest.mark.fault("disk-cloned-metadata-restored")
async def test_objects_from_a_time_when_the_stores_clock_was_ahead_are_of_no_copy() -> None:
    """The clock of a directory is the machine's own: set right, it must not make a node its own stranger for years."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        rig.clock.now_ms += 1_000 * LONG_MS
        await rig.start_uploader()
        await _filled(rig, shard)
        await rig.uploader.close()
        rig.step_back(1_000 * LONG_MS)
        await rig.start_uploader()
        await _filled(rig, shard)
        live = await rig.check()
        await _sweep_everything(rig)
        assert rig.uploader.claim.fork is None and rig.stats.sweeps == 3
        rig.advance(1_000 * LONG_MS)
        await _sweep_everything(rig)
        assert rig.uploader.claim.fork is None, "nor when the clock gets there again"
        assert live <= set(await rig.store.keys())


async def test_the_next_life_of_the_same_disk_takes_over_the_claims() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        for life in range(1, 5):
            await rig.start_uploader()
            await _filled(rig, shard, 3)
            assert rig.uploader.claim.fork is None
            assert await rig.store.claims() == [rig.names.claim(node_id=NODE_ID, lock_epoch=life)], "one is kept"
            if life % 2:
                await rig.crash_uploader()
            else:
                await rig.uploader.close()
        data = await rig.store.inner.get((await rig.store.claims())[0])
        claim = decode_claim(data, source="claim")
        assert (claim.cluster_id, claim.node_id, claim.lock_epoch) == (rig.cluster_id, NODE_ID, 4)


def _unlisted(store: FaultyStore) -> None:
    store.hangs = lambda prefix: "claims" in prefix


def _unwritten(store: FaultyStore) -> None:
    store.decide = lambda key: Fault.SLOW_DOWN if "claims" in key else Fault.NONE


def _undeleted(store: FaultyStore) -> None:
    store.undeletable = lambda key: "claims" in key


@pytest.mark.fault("object-store-works-part")
@pytest.mark.parametrize("denied", [_unlisted, _unwritten, _undeleted])
async def test_a_node_knows_its_own_claims_after_any_number_of_lives(denied: Callable[[FaultyStore], None]) -> None:
    """A store that does only a part of what it should, and a node that is started again and again meanwhile."""
    async with TierRig(replace(RIG_LIMITS, call_timeout_ms=20)) as rig:
        shard = rig.shard(await rig.create_topic())
        rig.store.has_faulty_claims = True
        await rig.start_uploader()
        await _filled(rig, shard, 3)
        await rig.crash_uploader()
        denied(rig.store)
        for _ in range(EARLIER_HOLDERS + 4):
            rig.store.requests.clear()
            await rig.start_uploader()
            await rig.until(lambda: rig.store.requests.total() > 6)
            await rig.crash_uploader()
        rig.store.hangs = rig.store.undeletable = lambda _: False
        rig.store.decide = None
        await rig.start_uploader()
        await _filled(rig, shard, 3)
        assert rig.uploader.claim.fork is None
        assert await rig.store.claims() == [await _own(rig)]


@pytest.mark.fault("object-store-works-part")
async def test_lives_with_a_wrong_store_do_not_make_the_right_one_a_strangers() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        await _filled(rig, shard, 3)
        await rig.crash_uploader()
        async with TierRig(meta_store=_copy_of(rig)) as wrong:
            for _ in range(EARLIER_HOLDERS + 4):
                await wrong.start_uploader()
                await wrong.until(lambda: wrong.uploader.claim.fork)
                await wrong.crash_uploader()
            later = _copy_of(wrong)
        async with _copied(rig, later) as right:
            await right.start_uploader()
            await right.until(lambda: right.uploader.status().lock_epoch)
            assert right.uploader.claim.fork is None


@pytest.mark.fault("answer-claim-put-lost")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.CUT, Fault.TAKEN, Fault.SLOW_DOWN])
async def test_a_claim_whose_answer_was_lost_is_read_back(fault: Fault) -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        rig.store.has_faulty_claims = True
        rig.store.script.append(fault)
        await rig.start_uploader()
        await _filled(rig, shard, 3)
        assert rig.uploader.claim.fork is None
        assert len(await rig.store.claims()) == 1
        await rig.check()


@pytest.mark.fault("answer-claim-put-lost")
async def test_a_life_that_died_right_after_its_claim_is_recognised() -> None:
    """The nonce is durable in metadata before the claim is put."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        rig.store.has_faulty_claims = True
        rig.store.script.append(Fault.HANG_LANDED)
        await rig.start_uploader()
        await rig.until(lambda: rig.store.puts)
        await rig.crash_uploader()
        await rig.start_uploader()
        await _filled(rig, shard, 3)
        assert rig.uploader.claim.fork is None and rig.uploader.status().lock_epoch == 2


async def test_a_claim_costs_a_listing_when_it_is_looked_at_again() -> None:
    async with TierRig() as rig:
        await rig.create_topic()
        rig.store.has_faulty_claims = True
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().lock_epoch)
        rig.store.requests.clear()
        assert await rig.uploader.hold_claim() is not None
        assert dict(rig.store.requests) == {"list": 1}


@pytest.mark.fault("disk-cloned-metadata-restored")
async def test_deleting_the_foreign_claims_lets_the_node_continue() -> None:
    """The way out that the message names: what the other wrote stays, unexplained."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        stranger = rig.names.claim(node_id=NODE_ID, lock_epoch=7)
        claim = Claim(rig.cluster_id, NODE_ID, "other", 7, UUID(int=9))
        await rig.store.put(stranger, [encode_claim(claim)])
        foreign = rig.names.chunk(shard.segments[0].key, 0, 1, node_id=NODE_ID, lock_epoch=7, attempt=1)
        await rig.store.put(foreign, [b"x"])
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.claim.fork)
        await rig.store.delete([stranger])
        rig.uploader.lock.ask_again()
        await _filled(rig, shard, 3)
        rig.advance(LONG_MS)
        report = await rig.janitor().sweep_now()
        assert report.unexplained == [foreign] and foreign in await rig.store.keys()
        assert rig.stats.is_forked == 0


async def test_while_a_copy_is_alive_no_local_copy_is_freed_and_no_object_deleted() -> None:
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic(local_retention_ms="1"))
        await rig.start_uploader()
        rig.append(shard)
        sealed = await _sealed(rig, shard)
        claim = Claim(rig.cluster_id, NODE_ID, "other", 7, UUID(int=9))
        await rig.store.put(rig.names.claim(node_id=NODE_ID, lock_epoch=7), [encode_claim(claim)])
        assert await rig.uploader.hold_claim() is None
        rig.advance(LONG_MS)
        await rig.retention(may_free=lambda: rig.uploader.claim.fork is None).run_once()
        assert shard.has_local(sealed.key)
        await rig.meta.perform(AdvanceLogStart(shard.key, 1))
        await eventually(lambda: shard.log_start_offset == 1)
        before = await rig.store.keys()
        rig.advance(LONG_MS)
        assert await rig.janitor().delete_once() == 0
        assert await rig.store.keys() == before
        assert [segment.key for segment in await rig.deleted()] == [sealed.key], "it waits for its purge"


@pytest.mark.fault("bundle-without-references-holds")
async def test_a_bundle_with_a_part_that_metadata_never_heard_of_is_kept_told_and_counted() -> None:
    """Its directory is read before it is deleted."""
    async with TierRig() as rig:
        known = rig.shard(await rig.create_topic("known"))
        await rig.start_uploader()
        await rig.until(lambda: rig.uploader.status().lock_epoch == 1)
        old = _copy_of(rig)
        unheard = rig.shard(await rig.create_topic("unheard"))
        rig.append(known)
        rig.append(unheard)
        await rig.settle()
        (bundle,) = await rig.store.keys(rig.names.bundles_prefix)
        await rig.uploader.close()
        async with _copied(rig, old) as later:
            await later.start_uploader()
            await later.until(lambda: later.uploader.status().lock_epoch == 2)
            later.advance(LONG_MS)
            report = await later.janitor().sweep_now()
            assert bundle in await rig.store.keys()
            assert report.unexplained == [bundle] and later.stats.bundles_unexplained == 1
            await later.uploader.close()


@pytest.mark.fault("node-started-bucket-hold")
async def test_a_store_without_the_clusters_data_gets_nothing_until_an_operator_confirms_it() -> None:
    """A mistyped --bucket, or a directory that is not mounted: the log would lie in two stores, each with holes."""
    async with TierRig() as rig:
        shard = rig.shard(await rig.create_topic())
        await rig.start_uploader()
        await _filled(rig, shard)
        await rig.crash_uploader()
        async with TierRig(meta_store=_copy_of(rig)) as wrong:
            await wrong.start_uploader()
            await wrong.until(lambda: wrong.uploader.claim.fork)
            assert "holds nothing of cluster" in (wrong.uploader.claim.fork or "")
            assert not await wrong.store.keys() and wrong.stats.is_forked == 1
            await wrong.crash_uploader()
            await wrong.store.inner.put(f"{wrong.names.root}the-old-one-is-lost", [b""])
            await wrong.start_uploader()
            await wrong.until(lambda: wrong.uploader.status().lock_epoch)
            assert wrong.uploader.claim.fork is None and await wrong.store.claims()
