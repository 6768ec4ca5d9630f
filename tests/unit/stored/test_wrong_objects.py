"""Every reader of the bucket refuses an object that is not the one it means, and takes the right one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

import pytest

from stratalog.formats.bucket.object_names import BundleName, ClaimName, ObjectNames, SegmentObjectName
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.machines.rebuild.shard import PlannedSegment
from stratalog.machines.tiering.part_chain import FoundPart
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.segment import RemoteCopy, RemoteState, Segment
from stratalog.objects import open_store
from stratalog.objects.limits import TransferLimits
from stratalog.stored.remote.bundles import check_whole_bundle, read_bundle_entries
from stratalog.stored.remote.claims import read_claim
from stratalog.stored.remote.indexes import check_index_under_name, read_index
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import check_whole_chunk, check_whole_part, read_part_header, read_part_index
from stratalog_cli.doctor.bucket import check_bucket
from stratalog_cli.doctor.examination import Examination
from stratalog_meta.bucket.publish import DamagedPart, SegmentPublisher, Writer
from stratalog_meta.bucket.scan import scan_bucket
from stratalog_node.check.remote_segment import check_remote_segment
from stratalog_node.tier.cold.cold_limits import ColdReadLimits, ColdReadStats
from stratalog_node.tier.cold.cold_reader import ColdReader
from stratalog_node.tier.cold.refused_ranges import RefusedRanges
from stratalog_node.tier.cold.remote_index import RemoteIndex
from stratalog_node.tier.uploads.committed_ranges import CommittedRanges
from support.wrong_objects import (
    CUT_BY_A_BYTE,
    LOCK_EPOCH,
    NODE_ID,
    OLDER_ATTEMPT,
    WRONG_SEALS,
    Bucket,
    fill,
    name_index_of_seal,
    name_manifest_of_seal,
    wrong_bundles,
    wrong_claims,
    wrong_indexes,
    wrong_manifests,
    wrong_parts,
)

Reader: TypeAlias = Callable[[Bucket], Awaitable[object]]
"""Raises when it refuses an object."""
LIMITS = ColdReadLimits()


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    store = open_store("memory:")
    yield await fill(store)
    await store.close()


# Readers that report ------------------------------------------------------------------------------------------------
async def verify_on_a_node(bucket: Bucket, segment: Segment) -> None:
    report = await check_remote_segment(bucket.store, bucket.names.cluster_id, segment)
    _refuse(report.findings)


async def run_doctor(bucket: Bucket) -> None:
    seen = Examination("bucket", lambda *_: None)
    await check_bucket(bucket.store, None, seen)
    _refuse([finding for finding in seen.findings if finding.severity == "error"])


async def scan_for_a_rebuild(bucket: Bucket) -> None:
    scan = await scan_bucket(bucket.store, bucket.names, bucket.segments, lambda *_: None)
    _refuse(list(scan.damaged.items()))


def _refuse(findings: Sequence[object]) -> None:
    if findings:
        raise Corrupt(str(findings), source="report", position=0)


@asynccontextmanager
async def remote_index(bucket: Bucket) -> AsyncIterator[RemoteIndex]:
    transfers = TransferLimits(bytes_per_s=None, concurrency=8, slot_ms=1_000)
    with ThreadPoolExecutor(1) as threads:
        index = RemoteIndex(
            bucket.store, bucket.names.cluster_id, LIMITS, transfers, threads, ColdReadStats(), RefusedRanges(lambda: 0)
        )
        yield index
        await index.close()


async def read_cold(bucket: Bucket, segment: Segment) -> None:
    async def reload(_: object) -> Segment:
        return segment

    reader = ColdReader(bucket.store, bucket.names, LIMITS, reload)
    try:
        assert await reader.read([segment], segment.base_offset, 1 << 20)
    finally:
        await reader.close()


# Manifests ----------------------------------------------------------------------------------------------------------
async def manifest_by_metadata(bucket: Bucket) -> object:
    return await read_manifest(bucket.store, ExpectedManifest.of_segment(bucket.names.cluster_id, bucket.complete))


async def manifest_by_name(bucket: Bucket) -> object:
    key = bucket.complete.remote.manifest_key or ""
    name = bucket.names.parse(key)
    assert isinstance(name, SegmentObjectName)
    return await read_manifest(bucket.store, ExpectedManifest.of_name(bucket.names.cluster_id, name, key))


async def manifest_of_cold_reads(bucket: Bucket) -> object:
    async with remote_index(bucket) as index:
        return await index.manifest(bucket.complete)


MANIFEST_READERS: dict[str, Reader] = {
    "the room, by metadata": manifest_by_metadata,
    "the room, by name": manifest_by_name,
    "a node's index of the bucket": manifest_of_cold_reads,
    "a node's cold read": lambda bucket: read_cold(bucket, bucket.complete),
    "verify on a node": lambda bucket: verify_on_a_node(bucket, bucket.complete),
    "a rebuild's scan": scan_for_a_rebuild,
    "doctor": run_doctor,
}
MANIFESTS = (
    *("of another cluster", "of another shard", OLDER_ATTEMPT, "of another segment"),
    *("empty", "cut in its header", CUT_BY_A_BYTE, "of hostile lengths"),
)


@pytest.mark.parametrize("reader", MANIFEST_READERS)
async def test_the_right_manifest_is_taken(bucket: Bucket, reader: str) -> None:
    await MANIFEST_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("wrong", MANIFESTS)
@pytest.mark.parametrize("reader", MANIFEST_READERS)
async def test_a_wrong_manifest_is_refused(bucket: Bucket, reader: str, wrong: str) -> None:
    if (MANIFEST_READERS[reader], wrong) == (manifest_by_name, OLDER_ATTEMPT):
        pytest.skip("a manifest does not say which attempt it is")
    bodies = await wrong_manifests(bucket)
    assert bodies.keys() == set(MANIFESTS)
    await bucket.replace(bucket.complete.remote.manifest_key or "", bodies[wrong])
    await refuses(MANIFEST_READERS[reader], bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("what", WRONG_SEALS)
@pytest.mark.parametrize("reader", MANIFEST_READERS)
async def test_a_manifest_of_the_right_digest_and_a_wrong_seal_record_is_refused(
    bucket: Bucket, reader: str, what: str
) -> None:
    if MANIFEST_READERS[reader] is manifest_by_name and what != "end offset":
        pytest.skip("a name has no size and no digest")
    await name_manifest_of_seal(bucket, what)
    await refuses(MANIFEST_READERS[reader], bucket)


# Parts --------------------------------------------------------------------------------------------------------------
def as_partial(bucket: Bucket) -> Segment:
    """The first segment, as the metadata had it when only its first chunk was committed."""
    part = bucket.part
    return replace(
        bucket.complete, end_offset=None, seal=None, remote=RemoteCopy(RemoteState.PARTIAL, part.end_offset, (part,))
    )


async def part_header(bucket: Bucket) -> object:
    return await read_part_header(bucket.store, bucket.names.cluster_id, bucket.complete.key, bucket.part)


async def part_index(bucket: Bucket) -> object:
    return await read_part_index(bucket.store, bucket.names.cluster_id, bucket.complete.key, bucket.part)


async def whole_part(bucket: Bucket) -> object:
    body = await bucket.store.get(bucket.part.object_key)
    return check_whole_part(body, bucket.names.cluster_id, bucket.complete.key, bucket.part)


async def whole_chunk_by_name(bucket: Bucket) -> object:
    name = bucket.names.parse(bucket.part.object_key)
    assert isinstance(name, SegmentObjectName)
    body = await bucket.store.get(bucket.part.object_key)
    return check_whole_chunk(body, bucket.names.cluster_id, name, bucket.part.object_key)


async def blocks_of_cold_reads(bucket: Bucket) -> object:
    async with remote_index(bucket) as index:
        return await index.part_blocks(bucket.complete.key, bucket.part)


async def header_of_cold_reads(bucket: Bucket) -> object:
    async with remote_index(bucket) as index:
        return await index.part_header(bucket.complete.key, bucket.part)


async def heal_a_disk(bucket: Bucket) -> object:
    await bucket.store.delete([bucket.complete.remote.manifest_key or ""])
    ranges = CommittedRanges(bucket.store, bucket.names, 10_000)
    return [one async for one in ranges.read(as_partial(bucket), bucket.complete.base_offset)]


async def scan_without_manifest(bucket: Bucket) -> None:
    await bucket.store.delete([bucket.complete.remote.manifest_key or ""])
    await scan_for_a_rebuild(bucket)


async def publish_again(bucket: Bucket) -> None:
    """As a rebuild and a restore do."""
    names = ObjectNames("", "copied")
    publisher = SegmentPublisher(bucket.store, names, Writer(9, 9), 1_700_000_000_000, bucket.names.cluster_id)
    found = FoundPart(bucket.part, EMPTY_DIGEST, EMPTY_DIGEST, 0, 0)
    planned = PlannedSegment(bucket.complete.key, bucket.part.end_offset, None, None, (found,))
    await publisher.publish(planned, "cold", ())


PART_READERS: dict[str, Reader] = {
    "the room, a header": part_header,
    "the room, an index": part_index,
    "the room, a whole part": whole_part,
    "the room, a whole chunk by name": whole_chunk_by_name,
    "a node's index of the bucket, blocks": blocks_of_cold_reads,
    "a node's index of the bucket, header": header_of_cold_reads,
    "a node's cold read": lambda bucket: read_cold(bucket, as_partial(bucket)),
    "verify on a node": lambda bucket: verify_on_a_node(bucket, as_partial(bucket)),
    "the healing of a disk": heal_a_disk,
    "a rebuild's scan": scan_without_manifest,
    "a rebuild's publisher": publish_again,
    "doctor": run_doctor,
}
READ_NO_END = (part_header, header_of_cold_reads)
"""Read the header alone."""
PARTS = (
    *("of another cluster", "of another shard", OLDER_ATTEMPT, "of another segment", "of other offsets"),
    *("empty", "cut in its header", CUT_BY_A_BYTE),
    *("of a hostile length of its data", "of a hostile length of its index"),
)


@pytest.mark.parametrize("reader", PART_READERS)
async def test_the_right_part_is_taken(bucket: Bucket, reader: str) -> None:
    await PART_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("wrong", PARTS)
@pytest.mark.parametrize("reader", PART_READERS)
async def test_a_wrong_part_is_refused(bucket: Bucket, reader: str, wrong: str) -> None:
    if wrong == CUT_BY_A_BYTE and PART_READERS[reader] in READ_NO_END:
        pytest.skip("it does not read that byte")
    bodies = await wrong_parts(bucket)
    assert bodies.keys() == set(PARTS)
    await bucket.replace(bucket.part.object_key, bodies[wrong])
    await refuses(PART_READERS[reader], bucket)


# Indexes ------------------------------------------------------------------------------------------------------------
async def index_by_manifest(bucket: Bucket) -> object:
    return await read_index(bucket.store, await bucket.manifest())


async def index_by_name(bucket: Bucket) -> object:
    key = (await bucket.manifest()).index_key
    name = bucket.names.parse(key)
    assert isinstance(name, SegmentObjectName)
    return check_index_under_name(await bucket.store.get(key), bucket.names.cluster_id, name, key)


async def index_of_cold_reads(bucket: Bucket) -> object:
    async with remote_index(bucket) as index:
        return await index.index_block(bucket.complete)


INDEX_READERS: dict[str, Reader] = {
    "the room, by manifest": index_by_manifest,
    "the room, by name": index_by_name,
    "a node's index of the bucket": index_of_cold_reads,
    "verify on a node": lambda bucket: verify_on_a_node(bucket, bucket.complete),
    "doctor": run_doctor,
}
INDEXES = (
    *("of another cluster", "of another shard", "of another segment"),
    *("empty", "cut in its header", CUT_BY_A_BYTE, "of hostile lengths"),
)


@pytest.mark.parametrize("reader", INDEX_READERS)
async def test_the_right_index_is_taken(bucket: Bucket, reader: str) -> None:
    await INDEX_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("wrong", INDEXES)
@pytest.mark.parametrize("reader", INDEX_READERS)
async def test_a_wrong_index_is_refused(bucket: Bucket, reader: str, wrong: str) -> None:
    if (INDEX_READERS[reader], wrong) == (index_by_name, "of hostile lengths"):
        pytest.skip("a name has no size of the segment")
    bodies = await wrong_indexes(bucket)
    assert bodies.keys() == set(INDEXES)
    await bucket.replace((await bucket.manifest()).index_key, bodies[wrong])
    await refuses(INDEX_READERS[reader], bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("what", WRONG_SEALS)
@pytest.mark.parametrize("reader", INDEX_READERS)
async def test_an_index_of_the_right_digest_and_a_wrong_seal_record_is_refused(
    bucket: Bucket, reader: str, what: str
) -> None:
    if INDEX_READERS[reader] is index_by_name and what != "end offset":
        pytest.skip("a name has no size and no digest")
    await name_index_of_seal(bucket, what)
    await refuses(INDEX_READERS[reader], bucket)


# Bundles and claims -------------------------------------------------------------------------------------------------
async def bundle_entries(bucket: Bucket) -> object:
    name = bucket.names.parse(bucket.bundle)
    assert isinstance(name, BundleName)
    size_bytes = (await bucket.store.head(bucket.bundle)).size_bytes
    return await read_bundle_entries(bucket.store.get_range, bucket.names.cluster_id, name, bucket.bundle, size_bytes)


async def whole_bundle(bucket: Bucket) -> object:
    name = bucket.names.parse(bucket.bundle)
    assert isinstance(name, BundleName)
    return check_whole_bundle(await bucket.store.get(bucket.bundle), bucket.names.cluster_id, name, bucket.bundle)


BUNDLE_READERS: dict[str, Reader] = {
    "the room, its directory": bundle_entries,
    "the room, all of it": whole_bundle,
    "a rebuild's scan": scan_for_a_rebuild,
    "doctor": run_doctor,
}
BUNDLES = (
    *("of another cluster", "of another node", "of another lock epoch", "of another number", OLDER_ATTEMPT),
    *("empty", "cut in its header", CUT_BY_A_BYTE, "of a hostile directory"),
)


@pytest.mark.parametrize("reader", BUNDLE_READERS)
async def test_the_right_bundle_is_taken(bucket: Bucket, reader: str) -> None:
    await BUNDLE_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("wrong", BUNDLES)
@pytest.mark.parametrize("reader", BUNDLE_READERS)
async def test_a_wrong_bundle_is_refused(bucket: Bucket, reader: str, wrong: str) -> None:
    bodies = await wrong_bundles(bucket)
    assert bodies.keys() == set(BUNDLES)
    await bucket.replace(bucket.bundle, bodies[wrong])
    await refuses(BUNDLE_READERS[reader], bucket)


async def claim_by_name(bucket: Bucket) -> object:
    name = ClaimName(NODE_ID, LOCK_EPOCH)
    return await read_claim(bucket.store, bucket.names.cluster_id, name, bucket.claim)


CLAIM_READERS: dict[str, Reader] = {
    "the room": claim_by_name,
    "a rebuild's scan": scan_for_a_rebuild,
    "doctor": run_doctor,
}
CLAIMS = ("of another cluster", "of another node", "of an older epoch", "empty", "cut in its header", CUT_BY_A_BYTE)


@pytest.mark.parametrize("reader", CLAIM_READERS)
async def test_the_right_claim_is_taken(bucket: Bucket, reader: str) -> None:
    await CLAIM_READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("wrong", CLAIMS)
@pytest.mark.parametrize("reader", CLAIM_READERS)
async def test_a_wrong_claim_is_refused(bucket: Bucket, reader: str, wrong: str) -> None:
    bodies = wrong_claims(bucket)
    assert bodies.keys() == set(CLAIMS)
    await bucket.replace(bucket.claim, bodies[wrong])
    await refuses(CLAIM_READERS[reader], bucket)


async def refuses(read: Reader, bucket: Bucket) -> None:
    with pytest.raises((Corrupt, NotFound, DamagedPart)):
        await read(bucket)
