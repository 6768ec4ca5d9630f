"""Restores damaged or missing objects of committed segments from another bucket or from a node's files.

An object is replaced only by one that is proven to be the one that the manifest (or, for a manifest, the metadata)
names. An index is proven by its digest. Parts are proven by identity, offsets and CRCs, and because they lead from the
digest before them to the one behind them, of undamaged neighbours or of the seal. Only the end of a segment that is not
sealed has no known digest: it is accepted by its name and by the data before it. An undamaged object is never changed.
Order: first the right bytes are in memory; then the damaged object is deleted and the right one put under the same
name, because names are never overwritten. A crash between the two leaves the object missing, as unreadable as before,
and the next run puts it. Until then readers of that object fail as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import ObjectNames, is_one_part, is_packed
from stratalog.formats.bucket.packed_chunk import pack_to_size
from stratalog.formats.bucket.part import PartHeader
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.model.errors import Corrupt, NotFound, StratalogError
from stratalog.model.segment import RemotePart
from stratalog.objects import ObjectStore
from stratalog.stored.remote.indexes import check_index, check_key_run
from stratalog.stored.remote.manifests import check_manifest
from stratalog.stored.remote.parts import check_whole_part
from stratalog_pipeline.cold.catalog import manifest_expected
from stratalog_pipeline.cold.committed import CommittedSegment
from stratalog_pipeline.jobs.put_once import put_once
from stratalog_pipeline.jobs.repair.repair_sources import RepairSource

_Check: TypeAlias = Callable[[bytes], None]
"""Raises Corrupt for bytes that are not the object that is named."""


@dataclass(slots=True)
class Repaired:
    """Keys of objects that were put back, or would be; and why others were not."""

    objects: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class SegmentRepair:
    """One segment of one bucket. Raises: Unavailable when the bucket cannot be reached."""

    def __init__(
        self,
        store: ObjectStore,
        names: ObjectNames,
        segment: CommittedSegment,
        sources: Sequence[RepairSource],
        *,
        is_dry_run: bool,
    ) -> None:
        self._store = store
        self._names = names
        self._segment = segment
        self._sources = sources
        self._is_dry_run = is_dry_run
        self._manifest: Manifest | None = None
        self._told = Repaired()
        self._missing: set[str] = set()

    async def repair(self) -> Repaired:
        segment = self._segment
        if segment.manifest_key is not None:
            body = await self._repair_object(segment.manifest_key, self._check_manifest)
            if body is None:
                return self._told
            self._manifest = check_manifest(body, manifest_expected(self._names.cluster_id, segment))
        await self._repair_parts(segment.parts if self._manifest is None else self._manifest.parts)
        if self._manifest is not None:
            manifest = self._manifest
            await self._repair_object(manifest.index_key, partial(_check_index, manifest))
            for run in manifest.key_runs:
                await self._repair_object(run.object_key, partial(_check_run, run))
        return self._told

    # Objects that are proven by themselves ------------------------------------------------------------------------
    async def _repair_object(self, key: str, check: _Check) -> bytes | None:
        """The object as it should be, put back where it was not. None where it cannot be had."""
        body = await self._present(key, check)
        if body is not None:
            return body
        for source in self._sources:
            body = await self._from(source, key, check)
            if body is not None:
                await self._put_back(key, body)
                return body
        return None

    async def _present(self, key: str, check: _Check) -> bytes | None:
        try:
            if self._manifest is not None:
                await check_stored_size(self._store, self._manifest, key)
            body = await self._store.get(key)
            check(body)
            return body
        except NotFound:
            self._missing.add(key)
        except Corrupt:
            pass
        return None

    async def _from(self, source: RepairSource, key: str, check: _Check) -> bytes | None:
        try:
            body = await source.object_of(key, self._manifest)
            check(body)
            return body
        except StratalogError as error:
            self._told.reasons.append(f"{key}: {source.place}: {error}")
            return None

    async def _as_stored(self, key: str, part: bytes) -> bytes | None:
        """What is under a part's key: where it is packed, a packed chunk of the size that the manifest names."""
        if self._manifest is None or not is_packed(key):
            return part
        try:
            size_bytes = self._manifest.object_sizes[key]
            return await asyncio.to_thread(pack_to_size, part, size_bytes, source=key)
        except Corrupt as error:
            self._told.reasons.append(f"{key}: {error}")
            return None

    async def _put_back(self, key: str, body: bytes) -> None:
        if not self._is_dry_run:
            if key not in self._missing:
                await self._store.delete([key])
            await put_once(self._store, key, body)
        self._told.objects.append(key)

    # Parts, which are proven together -----------------------------------------------------------------------------
    async def _repair_parts(self, parts: Sequence[RemotePart]) -> None:
        by_object: dict[str, list[RemotePart]] = {}
        for part in parts:
            by_object.setdefault(part.object_key, []).append(part)
        whole: dict[int, PartHeader] = {}
        """By their first offsets."""
        for key, those in by_object.items():
            await self._present(key, partial(self._check_parts, those, whole))
        damaged = {key: those for key, those in by_object.items() if any(one.base_offset not in whole for one in those)}
        if not damaged:
            return
        seal = None if self._manifest is None else self._manifest.seal.digest
        mixed: dict[str, RepairSource] = {}
        for chosen in (mixed, *(dict.fromkeys(damaged, source) for source in self._sources)):
            headers = dict(whole)
            for key, those in damaged.items():
                for source in self._sources if chosen is mixed else (chosen[key],):
                    if await self._from(source, key, partial(self._check_parts, those, headers)) is not None:
                        chosen[key] = source
                        break
            proven = proven_parts(parts, whole, headers, seal)
            for key, those in list(damaged.items()):
                if key in chosen and all(one.base_offset in proven for one in those):
                    body = await self._from(chosen[key], key, partial(self._check_parts, those, {}))
                    body = body if body is None else await self._as_stored(key, body)
                    if body is not None:
                        await self._put_back(key, body)
                        whole |= {one.base_offset: headers[one.base_offset] for one in those}
                        del damaged[key]
            if not damaged:
                return

    def _check_parts(self, parts: Iterable[RemotePart], headers: dict[int, PartHeader], body: bytes) -> None:
        """Checks each part by itself, and adds its header to `told`."""
        found = {}
        for part in parts:
            data = memoryview(body)[part.position : part.position + part.size_bytes]
            source = part.object_key
            header = check_whole_part(data, self._names.cluster_id, self._segment.key, part).header
            found[part.base_offset] = header
            if is_one_part(source) and len(body) != part.size_bytes:
                raise Corrupt(f"it has {len(body)} bytes, not {part.size_bytes}", source=source, position=0)
        headers |= found

    def _check_manifest(self, body: bytes) -> None:
        check_manifest(body, manifest_expected(self._names.cluster_id, self._segment))


async def check_stored_size(store: ObjectStore, manifest: Manifest, key: str) -> None:
    """Checks that a chunk of a complete segment has no bytes behind its last part. Raises: Corrupt, NotFound,
    Unavailable."""
    size_bytes = manifest.object_sizes.get(key)
    if size_bytes is None or not is_one_part(key):
        return
    found = (await store.head(key)).size_bytes
    if found != size_bytes:
        raise Corrupt(f"it has {found} bytes, the manifest says {size_bytes}", source=key, position=size_bytes)


def proven_parts(
    parts: Sequence[RemotePart],
    whole: Mapping[int, PartHeader],
    headers: Mapping[int, PartHeader],
    seal_digest: bytes | None,
) -> set[int]:
    """First offsets of the candidates (in `told`, not in `whole`) that lead, together with neighbouring candidates,
    from one known digest to another. The end of a segment without a seal has no known digest. Pure."""
    proven: set[int] = set()
    run: list[int] = []
    digest: bytes | None = EMPTY_DIGEST
    for part in parts:
        header = headers.get(part.base_offset)
        if part.base_offset in whole:
            header = whole[part.base_offset]
            if digest == header.digest_before:
                proven.update(run)
            run, digest = [], header.digest_after
        elif header is None or header.digest_before != digest:
            run, digest = [], None
        else:
            run.append(part.base_offset)
            digest = header.digest_after
    if seal_digest is None or digest == seal_digest:
        proven.update(run)
    return proven


def _check_index(manifest: Manifest, body: bytes) -> None:
    check_index(body, manifest)


def _check_run(run: KeyRun, body: bytes) -> None:
    check_key_run(body, run)
