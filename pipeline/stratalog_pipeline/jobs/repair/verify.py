"""Verifies a bucket deeply: every byte of every committed segment against what the metadata and the manifests say.

Of a complete segment: manifest (the metadata's digest of it, its seal), index object (digest, seal, points equal to
those of the batches), key index (digest, equal to one built of the batches), each part with its own index,
the chain of digests from part to part up to the seal, and that no chunk is longer than that: no reader reads behind its
end, but a search for an undamaged copy compares sizes. Of a segment that is still being uploaded: its committed parts.
An object that cannot be reached now is not reported as damaged. It also reports objects that nothing names. They are
attempts, or newer than the metadata; no reader uses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from stratalog.connect.http_login import HttpLogin
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import BundleName, ObjectNames, SegmentObjectName
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.formats.segments.index_block import IndexBuilder
from stratalog.model.errors import Archived, Corrupt, NotFound, Unavailable
from stratalog.model.segment import RemotePart
from stratalog.objects import ObjectStore, open_store
from stratalog.stored.remote.indexes import check_index, check_key_run
from stratalog.stored.remote.parts import check_part_size, check_whole_part
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard
from stratalog_pipeline.jobs.repair.key_index_rebuild import KeyIndexRebuild, key_index_check
from stratalog_pipeline.jobs.repair.repair import Repaired, SegmentRepair, check_stored_size
from stratalog_pipeline.jobs.repair.repair_sources import open_source
from stratalog_pipeline.jobs.runners import OnProgress, OpenStore, Runner


@dataclass(frozen=True, slots=True)
class Finding:
    place: str
    what: str
    is_damage: bool = True
    """Else it could not be looked at now."""


@dataclass(frozen=True, slots=True)
class SegmentWork:
    cluster_id: str
    topic: str
    segment: CommittedSegment
    open_bucket: OpenStore = field(repr=False)


@dataclass(frozen=True, slots=True)
class SegmentVerified:
    topic: str
    objects: tuple[str, ...] = ()
    parts: int = 0
    batches: int = 0
    bytes: int = 0
    findings: tuple[Finding, ...] = ()
    is_archived: bool = False
    """Its data must be restored before they can be checked."""
    work: SegmentWork | None = None
    """Where something was found."""


@dataclass(slots=True)
class Verified:
    """What came of it. `unnamed_*` are objects that nothing names. `repaired`: objects that were put back, or that
    would be, in a dry run; `not_repaired`: why others were not. `findings` are those that are left."""

    cluster_id: str = ""
    segments: int = 0
    parts: int = 0
    batches: int = 0
    bytes: int = 0
    archived: int = 0
    """Segments whose data must be restored before they can be checked. They are not findings."""
    unnamed_objects: int = 0
    unnamed_bytes: int = 0
    repaired: list[str] = field(default_factory=list)
    not_repaired: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def verify(
    bucket: str,
    run: Runner,
    *,
    topics: Collection[str] | None = None,
    cluster_id: str | None = None,
    meta_url: str | None = None,
    meta_login: HttpLogin | None = None,
    repair_from: Sequence[str] = (),
    is_dry_run: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Verified:
    """`repair_from`: places that damaged objects are put back from, the first that has them whole
    (`repair_sources.open_source`); a dry run puts nothing.

    `meta_login`: how the meta service is asked; None: as the environment says.

    Raises: what finding out about the committed segments raises; what is wrong with one of them is a finding."""
    open_bucket = partial(open_store, bucket)
    result, works, sizes = asyncio.run(_prepare(open_bucket, topics, cluster_id, meta_url, meta_login))
    named: set[str] = set()
    for number, one in enumerate(run(verify_segment, works), 1):
        result.segments += 1
        result.parts += one.parts
        result.batches += one.batches
        result.bytes += one.bytes
        result.archived += one.is_archived
        if repair_from and one.work is not None and any(finding.is_damage for finding in one.findings):
            one = _repair(one.work, one, repair_from, is_dry_run, result)
        result.findings += one.findings
        named.update(one.objects)
        on_progress("verified", number, len(works))
    if topics is None:
        unnamed = sizes.keys() - named
        result.unnamed_objects, result.unnamed_bytes = len(unnamed), sum(sizes[key] for key in unnamed)
    result.findings.sort(key=lambda one: one.place)
    return result


def _repair(
    work: SegmentWork, found: SegmentVerified, places: Sequence[str], is_dry_run: bool, result: Verified
) -> SegmentVerified:
    """What is found afterwards."""

    async def run() -> Repaired:
        names = ObjectNames("", work.cluster_id)
        store = work.open_bucket()
        sources = [open_source(place, names) for place in places]
        try:
            return await SegmentRepair(store, names, work.segment, sources, is_dry_run=is_dry_run).repair()
        finally:
            await store.close()
            for source in sources:
                await source.close()

    repaired = asyncio.run(run())
    result.repaired += repaired.objects
    result.not_repaired += repaired.reasons
    return verify_segment(work) if repaired.objects and not is_dry_run else found


async def _prepare(
    open_bucket: OpenStore,
    topics: Collection[str] | None,
    cluster_id: str | None,
    meta_url: str | None,
    meta_login: HttpLogin | None,
) -> tuple[Verified, list[SegmentWork], dict[str, int]]:
    store = open_bucket()
    try:
        catalog = await Catalog.open(store, cluster_id=cluster_id, meta_url=meta_url, meta_login=meta_login)
        shards = await catalog.shards(topics, with_internal=topics is None)
        sizes = {} if topics is not None else await _data_objects(store, catalog.names)
        works = list(_works(catalog.names.cluster_id, shards, open_bucket))
        return Verified(catalog.names.cluster_id), works, sizes
    finally:
        await store.close()


def _works(cluster_id: str, shards: Iterable[CommittedShard], open_bucket: OpenStore) -> Iterable[SegmentWork]:
    for shard in shards:
        for segment in shard.segments:
            yield SegmentWork(cluster_id, shard.topic, segment, open_bucket)


async def _data_objects(store: ObjectStore, names: ObjectNames) -> dict[str, int]:
    """All that hold records, or say where they are."""
    found = {}
    for prefix in (names.data_prefix, names.bundles_prefix):
        async for info in store.list(prefix):
            if isinstance(names.parse(info.key), SegmentObjectName | BundleName):
                found[info.key] = info.size_bytes
    return found


# One segment --------------------------------------------------------------------------------------------------------
def verify_segment(work: SegmentWork) -> SegmentVerified:
    """For a task. A segment's parts are read one after another, for the digest goes through all of them."""
    return asyncio.run(_Segment(work).verify())


class _Segment:
    def __init__(self, work: SegmentWork) -> None:
        self._work = work
        self._objects: list[str] = []
        self._parts = self._batches = self._bytes = 0
        self._built = IndexBuilder(work.segment.base_offset, has_true_times=True)
        self._keys: KeyIndexRebuild | None = None

    async def verify(self) -> SegmentVerified:
        store = self._work.open_bucket()
        findings: tuple[Finding, ...] = ()
        is_archived = False
        try:
            await self._check(store)
        except Archived:
            is_archived = True
        except Corrupt as error:
            findings = (Finding(f"{error.source}: byte {error.position}", error.reason),)
        except NotFound as error:
            findings = (Finding(self._words(), f"an object of it is gone: {error}"),)
        except Unavailable as error:
            findings = (Finding(self._words(), f"could not be read now: {error}", is_damage=False),)
        finally:
            await store.close()
        counted = (self._parts, self._batches, self._bytes)
        work = self._work if findings else None
        return SegmentVerified(self._work.topic, tuple(self._objects), *counted, findings, is_archived, work)

    def _words(self) -> str:
        key = self._work.segment.key
        return f"segment {key.base_offset}-{key.epoch} of shard {key.shard} of topic {self._work.topic}"

    async def _check(self, store: ObjectStore) -> None:
        segment = self._work.segment
        catalog = Catalog(store, ObjectNames("", self._work.cluster_id))
        if segment.manifest_key is not None:
            self._objects.append(segment.manifest_key)
        parts, seal = await catalog.parts_of(segment)
        self._objects += [part.object_key for part in parts]
        if segment.manifest_key is not None:
            self._objects.append(catalog.manifests[segment.manifest_key].index_key)
            await self._take_key_index(store, catalog.manifests[segment.manifest_key])
        digest = EMPTY_DIGEST
        for number, part in enumerate(parts):
            check_part_size(part)
            body = await store.get_range(part.object_key, part.position, part.position + part.size_bytes)
            digest = await asyncio.to_thread(self._check_part, number, body, part, digest)
        if self._keys is not None:
            await asyncio.to_thread(self._keys.finish)
        if segment.manifest_key is None or seal is None:
            return
        if (digest, self._built.size_bytes) != (seal.digest, seal.size_bytes):
            raise Corrupt(
                f"its parts have {self._built.size_bytes} bytes and digest {digest.hex()}, the seal says "
                f"{seal.size_bytes} and {seal.digest.hex()}",
                source=segment.manifest_key,
                position=0,
            )
        await self._check_index(store, catalog, segment.manifest_key)
        for key in dict.fromkeys(self._objects):
            await check_stored_size(store, catalog.manifests[segment.manifest_key], key)

    async def _take_key_index(self, store: ObjectStore, manifest: Manifest) -> None:
        """Its objects are what the manifest names; what is in them is compared once the parts were read."""
        for run in manifest.key_runs:
            self._objects.append(run.object_key)
            body = await store.get(run.object_key)
            check_key_run(body, run)
            self._bytes += len(body)
        if manifest.key_runs:
            self._keys = key_index_check(manifest)

    def _check_part(self, number: int, body: bytes, part: RemotePart, digest: bytes) -> bytes:
        source, position = part.object_key, part.position
        header = check_whole_part(
            body, self._work.cluster_id, self._work.segment.key, part, digest_before=digest
        ).header
        data = memoryview(body)[PART_HEADER_BYTES : header.index_position]
        at = position + PART_HEADER_BYTES
        positions = [0]
        for start, batch in walk(data, source=source, position=at, verify=False):
            positions.append(start + batch.size_bytes)
            self._built.append_batch(batch, data[start : start + batch.size_bytes])
        if self._keys is not None:
            self._keys.add_part(number, bytes(data), positions, source)
        self._parts += 1
        self._batches += header.batch_count
        self._bytes += len(body)
        return header.digest_after

    async def _check_index(self, store: ObjectStore, catalog: Catalog, manifest_key: str) -> None:
        manifest = catalog.manifests[manifest_key]
        body = await store.get(manifest.index_key)
        block = check_index(body, manifest)
        seal, built = replace(block.seal, times_known=manifest.seal.times_known), self._built.freeze()
        # Times that clients claimed differ from those of the records, and nothing is concluded from them.
        is_same = block.points == built if block.points.has_true_times else block.points.has_places_of(built)
        if seal != manifest.seal or not is_same:
            raise Corrupt("it is not the index of the segment's batches", source=manifest.index_key, position=0)
        self._bytes += len(body)
