"""Searches, sweeps, claims, checks before a deletion, and restores refuse an object that is not the one they mean.

The same corpus as in `test_wrong_objects.py`. What deletes must, besides, delete nothing when it refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from stratalog.event_loop.fair_turns import FairTurns
from stratalog.formats.bucket.manifest import encode_manifest
from stratalog.machines.tiering.bundles import BundleLimits
from stratalog.machines.tiering.claims import name_ending
from stratalog.model.cut import Cut, CutShard
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.metadata import Lock, Node, Snapshot
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic
from stratalog.objects import open_store
from stratalog_meta.bucket.restore import restore_cut
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.admin.find import Finder, SearchRequest
from stratalog_node.leaving.node_verifier import NodeVerifier
from stratalog_node.tier.store.claim import ClaimOwner, EpochClaim, Forked
from stratalog_node.tier.store.remote_copy import check_remote_copy
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.sweep.bundle_keeper import BundleKeeper
from stratalog_node.tier.sweep.orphan_sweep import OrphanSweep
from support.tier_rig import RIG_LIMITS
from support.wrong_objects import (
    CUT_BY_A_BYTE,
    LOCK_EPOCH,
    NODE_ID,
    OLDER_ATTEMPT,
    TOPIC_ID,
    WRONG_SEALS,
    Bucket,
    fill,
    name_manifest_of_seal,
    wrong_bundles,
    wrong_claims,
    wrong_indexes,
    wrong_manifests,
    wrong_parts,
)

Reader: TypeAlias = Callable[[Bucket], Awaitable[object]]
"""Raises when it refuses an object."""
MUCH_LATER_MS = 1 << 50
CLAIM_NONCE = UUID(int=5)


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    store = open_store("memory:")
    yield await fill(store)
    await store.close()


async def keys_of(bucket: Bucket) -> set[str]:
    return {info.key async for info in bucket.store.list("")}


# What a node asks of its parts ---------------------------------------------------------------------------------------
class Metadata:
    """A meta service, as the sweeps read it."""

    def __init__(self, segments: Iterable[Segment], log_start_offset: int) -> None:
        self._segments = tuple(segments)
        self._log_start_offset = log_start_offset

    async def snapshot(self) -> Snapshot:
        shard_key = self._segments[0].key.shard_key
        listed = tuple(one for one in self._segments if one.base_offset >= self._log_start_offset)
        return Snapshot(1, (), (Shard(shard_key, self._log_start_offset, listed),), ())

    async def deleted_segments(self) -> list[Segment]:
        return []

    async def purged_topics(self) -> frozenset[UUID]:
        return frozenset()


def uploader_of(bucket: Bucket) -> Any:
    async def hold_claim() -> Lock:
        return Lock(f"tier/{NODE_ID}", "node-1/1", 9, 0)

    return SimpleNamespace(
        names=bucket.names,
        hold_claim=hold_claim,
        claim=SimpleNamespace(witness=lambda *_: None),
        attempts=SimpleNamespace(is_protected=lambda _: False),
        stats=TierStats(),
    )


# Readers ------------------------------------------------------------------------------------------------------------
async def search_for_a_key(bucket: Bucket) -> None:
    segment = bucket.complete
    view = SimpleNamespace(
        key=segment.key.shard_key, log_start_offset=0, high_watermark=segment.end_offset, segments=[segment]
    )
    services: Any = SimpleNamespace(
        node_id=NODE_ID,
        cluster_id=bucket.names.cluster_id,
        topic=lambda name: SimpleNamespace(name=name, topic_id=TOPIC_ID, shard_count=segment.key.shard + 1),
        readable=lambda _: [view],
        catalog=SimpleNamespace(leader_of=lambda _: (NODE_ID, 0)),
        store=bucket.store,
    )
    answer = await Finder(services, FairTurns()).find(SearchRequest("cold", b"3"))
    (segment_not_searched,) = answer.not_searched
    if not segment_not_searched.is_unindexed:  # the right manifest names no key index
        raise Corrupt(segment_not_searched.why, source="search", position=0)


async def verify_a_leaving_node(bucket: Bucket) -> None:
    catalog: Any = SimpleNamespace(
        shard_keys=lambda: [bucket.complete.key.shard_key],
        segments=lambda _: [bucket.complete],
        reads_bucket=lambda _: True,
    )
    unused: Any = None
    verifier = NodeVerifier(2, catalog, unused, unused, unused, bucket.store, unused, bucket.names.cluster_id)
    leaving = Retirement("disk-1", RetireMode.OFFLOAD, RetireStep.VERIFY, 0, 0)
    seen = await verifier.verify(Node(NODE_ID, "disk-1", "localhost", 9092, retirement=leaving))
    assert seen.segments == 1
    if seen.unconfirmed:
        raise Corrupt(seen.words, source="report", position=0)


async def sweep_orphans(bucket: Bucket) -> None:
    """An older attempt of the first chunk lies beside the segment that the metadata name: an orphan."""
    part = bucket.part
    orphan = bucket.names.chunk(
        bucket.complete.key, part.base_offset, part.end_offset, node_id=NODE_ID, lock_epoch=1, attempt=1
    )
    await bucket.replace(orphan, b"an older attempt")
    before = await keys_of(bucket)
    catalog: Any = SimpleNamespace(segment=lambda key: next((one for one in bucket.segments if one.key == key), None))
    sweep = OrphanSweep(
        node_id=NODE_ID,
        meta=Metadata(bucket.segments, 0),  # type: ignore[arg-type]  # has what a sweep asks of it
        catalog=catalog,
        store=bucket.store,
        uploader=uploader_of(bucket),
        grace_ms=1,
        clock_ms=lambda: MUCH_LATER_MS,
        call_timeout_ms=10_000,
        expired_writers=SimpleNamespace(writers=list),  # type: ignore[arg-type]  # as above
    )
    await sweep.run_once()
    deleted = before - await keys_of(bucket)
    if deleted:
        assert deleted == {orphan}
        return
    raise Corrupt("the folder was not swept", source="report", position=0)


async def keep_bundles(bucket: Bucket) -> None:
    """Retention has deleted all that the bundle holds, so the bundle is due to be deleted."""
    before = await keys_of(bucket)
    keeper = BundleKeeper(
        node_id=NODE_ID,
        meta=Metadata(bucket.segments, 1_000),  # type: ignore[arg-type]  # has what a pass asks of it
        store=bucket.store,
        uploader=uploader_of(bucket),
        limits=BundleLimits(),
        clock_ms=lambda: MUCH_LATER_MS,
        call_timeout_ms=10_000,
    )
    await keeper.run_once()
    deleted = before - await keys_of(bucket)
    if keeper.unexplained:
        assert not deleted and keeper.unexplained == [bucket.bundle]
        raise Corrupt("the bundle is left alone", source="report", position=0)
    assert deleted == {bucket.bundle}


def epoch_claim(bucket: Bucket) -> EpochClaim:
    owner = ClaimOwner(NODE_ID, "disk", CLAIM_NONCE)
    return EpochClaim(owner, bucket.names, bucket.store, RIG_LIMITS, TierStats(), lambda: True, lambda: 0)


async def hold_an_epoch(bucket: Bucket) -> None:
    await epoch_claim(bucket).hold(Lock(f"tier/{NODE_ID}", f"node-1{name_ending(CLAIM_NONCE)}", LOCK_EPOCH, 0))


async def list_lives(bucket: Bucket) -> None:
    assert await epoch_claim(bucket).listed() == [name_ending(CLAIM_NONCE)]


async def restore_a_snapshot(bucket: Bucket) -> None:
    """Of the two complete segments. A restore that refuses an object leaves the new metadata empty."""
    last = bucket.segments[1]
    assert last.end_offset is not None
    topic = Topic("cold", TOPIC_ID, last.key.shard + 1, 1, {}, 0)
    shard = CutShard(last.key.shard_key, 0, last.end_offset, last.epoch)
    cut = Cut(bucket.names.cluster_id, "yesterday", 0, (topic,), (shard,))
    target = MemoryStore()
    try:
        await restore_cut(bucket.store, cut, target, [7], 1_700_000_000_000, lambda *_: None)
    except Corrupt:
        await target.close()
        assert not await target.load()
        raise
    await target.close()
    assert await target.load()


# Manifests ----------------------------------------------------------------------------------------------------------
MANIFEST_READERS: dict[str, Reader] = {
    "a search for a key": search_for_a_key,
    "the check of a leaving node": verify_a_leaving_node,
    "the check before a local copy goes": lambda bucket: check_remote_copy(bucket.store, bucket.names, bucket.complete),
    "the orphan sweep": sweep_orphans,
    "a restore": restore_a_snapshot,
}


@pytest.mark.parametrize("reader", MANIFEST_READERS)
async def test_the_right_manifest_is_taken(bucket: Bucket, reader: str) -> None:
    await MANIFEST_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("reader", MANIFEST_READERS)
async def test_wrong_manifests_are_refused(bucket: Bucket, reader: str) -> None:
    for wrong, body in (await wrong_manifests(bucket)).items():
        if (MANIFEST_READERS[reader], wrong) == (restore_a_snapshot, OLDER_ATTEMPT):
            continue  # a manifest does not say which attempt it is, and a restore knows no digest of it
        await bucket.replace(bucket.complete.remote.manifest_key or "", body)
        await refuses(MANIFEST_READERS[reader], bucket, f"a manifest {wrong}")


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("what", WRONG_SEALS)
@pytest.mark.parametrize("reader", MANIFEST_READERS)
async def test_a_manifest_of_the_right_digest_and_a_wrong_seal_record_is_refused(
    bucket: Bucket, reader: str, what: str
) -> None:
    if MANIFEST_READERS[reader] is restore_a_snapshot and what != "end offset":
        pytest.skip("a restore knows the manifest by its name, which has no size and no digest")
    await name_manifest_of_seal(bucket, what)
    await refuses(MANIFEST_READERS[reader], bucket, f"a manifest of a seal record with another {what}")


# Parts and indexes --------------------------------------------------------------------------------------------------
LENGTH_READERS: dict[str, Reader] = {
    name: MANIFEST_READERS[name] for name in ("the check of a leaving node", "the check before a local copy goes")
}
"""These compare the lengths of the objects that a manifest names, and do not open them."""


@pytest.mark.fault("wrong-object-under-name")
async def test_a_restore_refuses_wrong_parts(bucket: Bucket) -> None:
    for wrong, body in (await wrong_parts(bucket)).items():
        await bucket.replace(bucket.part.object_key, body)
        await refuses(restore_a_snapshot, bucket, f"a part {wrong}")


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("reader", LENGTH_READERS)
@pytest.mark.parametrize("what", ["part", "index"])
async def test_objects_of_another_length_are_refused(bucket: Bucket, reader: str, what: str) -> None:
    key = bucket.part.object_key if what == "part" else (await bucket.manifest()).index_key
    right = await bucket.store.get(key)
    corpus = await wrong_parts(bucket) if what == "part" else await wrong_indexes(bucket)
    wrong = {name: body for name, body in corpus.items() if len(body) != len(right)}
    assert {"empty", CUT_BY_A_BYTE} <= wrong.keys()
    for name, body in (wrong | {"longer by a byte": right + b"\0"}).items():
        await bucket.replace(key, body)
        await refuses(LENGTH_READERS[reader], bucket, f"{what} {name}")


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("reader", LENGTH_READERS)
async def test_an_object_outside_the_segments_folder_is_refused(bucket: Bucket, reader: str) -> None:
    """Its owner deletes it without asking about this segment."""
    manifest = await bucket.manifest()
    first, *others = manifest.parts
    of_another_shard = bucket.complete.key._replace(shard=bucket.complete.key.shard + 1)
    elsewhere = bucket.names.chunk(
        of_another_shard, first.base_offset, first.end_offset, node_id=NODE_ID, lock_epoch=1, attempt=99
    )
    await bucket.store.put(elsewhere, [await bucket.store.get(first.object_key)])
    moved = replace(manifest, parts=(replace(first, object_key=elsewhere), *others))
    await bucket.name_manifest(encode_manifest(moved))
    await refuses(LENGTH_READERS[reader], bucket, "a part in the folder of another shard")


# Bundles and claims -------------------------------------------------------------------------------------------------
async def test_the_bundle_keeper_deletes_the_right_bundle(bucket: Bucket) -> None:
    await keep_bundles(bucket)


@pytest.mark.fault("wrong-object-under-name")
async def test_the_bundle_keeper_leaves_wrong_bundles_alone(bucket: Bucket) -> None:
    for wrong, body in (await wrong_bundles(bucket)).items():
        await bucket.replace(bucket.bundle, body)
        await refuses(keep_bundles, bucket, f"a bundle {wrong}")


CLAIM_READERS: dict[str, Reader] = {"the hold of an epoch": hold_an_epoch, "the list of lives": list_lives}


@pytest.mark.parametrize("reader", CLAIM_READERS)
async def test_the_right_claim_is_taken(bucket: Bucket, reader: str) -> None:
    await CLAIM_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("reader", CLAIM_READERS)
async def test_wrong_claims_are_refused(bucket: Bucket, reader: str) -> None:
    """As claims that cannot be read, not as those of a fork, for which a person would look for another process."""
    for wrong, body in wrong_claims(bucket).items():
        await bucket.replace(bucket.claim, body)
        try:
            await refuses(CLAIM_READERS[reader], bucket, f"a claim {wrong}")
        except Forked as error:
            pytest.fail(f"a claim {wrong} was taken for that of a fork: {error}")


async def refuses(read: Reader, bucket: Bucket, what: str) -> None:
    try:
        await read(bucket)
    except (Corrupt, NotFound):
        return
    pytest.fail(f"it took {what}")
