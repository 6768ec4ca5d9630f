"""The pipeline's readers refuse an object that is not the one they mean, and take the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import Corrupt, NotFound
from stratalog.objects import open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedSegment
from stratalog_pipeline.cold.cutting import OffsetRange, ranges_within
from stratalog_pipeline.cold.part_records import fetch_part
from stratalog_pipeline.jobs.repair.merge_segment import MergeWork, merge_segment
from stratalog_pipeline.jobs.repair.verify import SegmentWork, verify_segment
from support.cold_reading import Kept
from support.wrong_objects import (
    CUT_BY_A_BYTE,
    WRONG_SEALS,
    Bucket,
    fill,
    name_index_of_seal,
    name_manifest_of_seal,
    wrong_indexes,
    wrong_manifests,
    wrong_parts,
)

Reader: TypeAlias = Callable[[Bucket], Awaitable[object]]


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    store = open_store("memory:")
    yield await fill(store)
    await store.close()


def committed(bucket: Bucket) -> CommittedSegment:
    segment = bucket.complete
    assert segment.end_offset is not None
    remote = segment.remote
    return CommittedSegment(
        segment.key, segment.end_offset, (), remote.manifest_key, remote.manifest_digest, segment.seal
    )


async def by_catalog(bucket: Bucket) -> object:
    return await Catalog(bucket.store, bucket.names).manifest_of(committed(bucket))


async def fetch(bucket: Bucket) -> object:
    segment = committed(bucket)
    planned, *_ = ranges_within("cold", segment, [bucket.part], segment.seal, OffsetRange(0, segment.end_offset))
    return await fetch_part(bucket.store, bucket.names, planned)


async def verify(bucket: Bucket) -> None:
    work = SegmentWork(bucket.names.cluster_id, "cold", committed(bucket), lambda: Kept(bucket.store))  # type: ignore[arg-type, return-value]
    found = await asyncio.to_thread(verify_segment, work)
    if found.findings:
        raise Corrupt(str(found.findings), source="report", position=0)


async def merge(bucket: Bucket) -> None:
    remote, seal = bucket.complete.remote, bucket.complete.seal
    assert seal is not None and remote.manifest_key is not None and remote.manifest_digest is not None
    work = MergeWork(
        cluster_id=bucket.names.cluster_id,
        topic="cold",
        key=bucket.complete.key,
        seal=seal,
        manifest_key=remote.manifest_key,
        manifest_digest=remote.manifest_digest,
        lock_epoch=9,
        target_bytes=64 << 20,
        is_dry_run=False,
        is_packing=False,
        open_bucket=lambda: Kept(bucket.store),  # type: ignore[arg-type, return-value]
    )
    merged = await asyncio.to_thread(merge_segment, work)
    if merged.fault:
        raise Corrupt(merged.fault, source="report", position=0)


READERS: dict[str, Reader] = {"catalog": by_catalog, "fetch": fetch, "verify": verify, "merge": merge}
OF_MANIFESTS = ("catalog", "verify", "merge")
OF_PARTS = ("fetch", "verify", "merge")


@pytest.mark.parametrize("reader", READERS)
async def test_the_right_objects_are_taken(bucket: Bucket, reader: str) -> None:
    await READERS[reader](bucket)


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("reader", OF_MANIFESTS)
async def test_wrong_manifests_are_refused(bucket: Bucket, reader: str) -> None:
    for wrong, body in (await wrong_manifests(bucket)).items():
        await bucket.replace(bucket.complete.remote.manifest_key or "", body)
        await refuses(reader, bucket, f"a manifest {wrong}")


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("what", WRONG_SEALS)
@pytest.mark.parametrize("reader", OF_MANIFESTS)
async def test_a_manifest_of_the_right_digest_and_a_wrong_seal_record_is_refused(
    bucket: Bucket, reader: str, what: str
) -> None:
    await name_manifest_of_seal(bucket, what)
    await refuses(reader, bucket, f"a manifest of a seal record with another {what}")


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("reader", OF_PARTS)
async def test_wrong_parts_are_refused(bucket: Bucket, reader: str) -> None:
    for wrong, body in (await wrong_parts(bucket)).items():
        if (reader, wrong) == ("fetch", CUT_BY_A_BYTE):
            continue  # that byte is missing in the index, which it does not use
        await bucket.replace(bucket.part.object_key, body)
        await refuses(reader, bucket, f"a part {wrong}")


@pytest.mark.fault("wrong-object-under-name")
async def test_wrong_indexes_are_refused(bucket: Bucket) -> None:
    key = (await bucket.manifest()).index_key
    for wrong, body in (await wrong_indexes(bucket)).items():
        await bucket.replace(key, body)
        await refuses("verify", bucket, f"an index {wrong}")


@pytest.mark.fault("wrong-object-under-name")
@pytest.mark.parametrize("what", WRONG_SEALS)
async def test_an_index_of_the_right_digest_and_a_wrong_seal_record_is_refused(bucket: Bucket, what: str) -> None:
    await name_index_of_seal(bucket, what)
    await refuses("verify", bucket, f"an index of a seal record with another {what}")


async def refuses(reader: str, bucket: Bucket, what: str) -> None:
    try:
        await READERS[reader](bucket)
    except (Corrupt, NotFound):
        return
    pytest.fail(f"{reader} took {what}")
