"""Puts the records of one complete segment into fewer, larger objects: the same batches, byte for byte.

Neighbouring parts become one part, a chunk object of its own; a part that is large enough stays where it is, and so
does the index. A key index is built again, for it names parts by number. Then it checks that the store has every object
that the new manifest names, puts the manifest, and reads it back. It changes no existing object. A reader that uses the
metadata reads the new objects once the metadata name the manifest; a reader that lists only the bucket may read them at
once, because they hold the same records. If packing is requested, a new chunk is packed if that saves enough. A part
that stays alone is packed, too, if its beginning compresses well. A chunk that was packed before is always packed
again. Everything that is read is checked: CRCs, offsets, and the digest from part to part up to the seal's. For a task.
Memory: the parts of one merged object twice, packed once more, and with a key index one run of it.
Raises: Corrupt, NotFound, Unavailable; with any of them the segment is as it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.manifest import Manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import ObjectNames, is_packed
from stratalog.formats.bucket.packed_chunk import is_worth_packing, pack_part
from stratalog.formats.bucket.part import (
    LEAST_OVERHEAD_BYTES,
    PART_HEADER_BYTES,
    PartHeader,
    encode_part,
)
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.machines.tiering.chunk_merging import COMPACTION_WRITER, merge_groups
from stratalog.model.errors import Archived, Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, SealRecord
from stratalog.objects import BucketClasses, ObjectStore
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import check_part_size, check_whole_part, read_part_header
from stratalog_pipeline.jobs.put_once import put_once
from stratalog_pipeline.jobs.repair.key_index_rebuild import KeyIndexRebuild, runs_to_merge

_READS_AT_A_TIME: Final = 16
_READ_BYTES: Final = 16 << 20
"""Parts are fetched side by side, at most this many bytes at a time, one however large."""
_ATTEMPT_SPAN: Final = 1 << 48
_LOOKED_AT_BYTES: Final = 1 << 20
"""Of a part, to see whether it is worth packing."""


@dataclass(frozen=True, slots=True)
class MergeWork:
    """A COMPLETE segment, as the metadata know it."""

    cluster_id: str
    topic: str
    key: SegmentKey
    seal: SealRecord
    manifest_key: str
    manifest_digest: bytes
    lock_epoch: int
    target_bytes: int
    is_dry_run: bool
    is_packing: bool
    open_bucket: Callable[[], ObjectStore] = field(repr=False)
    storage_class: str = ""
    """Of the chunks that are put; empty: the bucket's default."""
    open_classes: Callable[[], BucketClasses | None] | None = field(default=None, repr=False)
    """Given for a segment that is to be archived: all its chunks are put in `storage_class`, unless they are there."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of a segment. `manifest_key` is None where nothing was put."""

    work: MergeWork
    parts_before: int = 0
    parts_after: int = 0
    bytes_put: int = 0
    """Of chunks and key index; in a dry run, what it would be without the key index and unpacked, about."""
    packed: int = 0
    """Objects that were packed, or in a dry run would be."""
    unpacked_bytes: int = 0
    """Of the parts in them."""
    packed_bytes: int = 0
    runs_before: int = 0
    runs_after: int = 0
    """Of its key index."""
    manifest_key: str | None = None
    manifest_digest: bytes = b""
    size_bytes: int = 0
    """Of the whole copy."""
    is_archived: bool = False
    """All its chunks were put in an archive class, or in a dry run would be."""
    is_left_archived: bool = False
    """Its chunks are in such a class, so it stays as it is."""
    fault: str = ""
    """Why it stays as it is."""


def merge_segment(work: MergeWork) -> Merged:
    """Merges one segment. An object that cannot be read or put is reported, and ends the work on this segment."""

    async def run() -> Merged:
        store = work.open_bucket()
        try:
            return await _Merging(work, store).merge()
        except Archived:
            return Merged(work, is_left_archived=True)
        except (Corrupt, NotFound) as error:
            return Merged(work, fault=f"{error}: run `stratalog pipeline verify`")
        except StratalogError as error:
            return Merged(work, fault=str(error))
        finally:
            await store.close()

    return asyncio.run(run())


class _Merging:
    def __init__(self, work: MergeWork, store: ObjectStore) -> None:
        self._work = work
        self._store = store
        self._names = ObjectNames("", work.cluster_id)
        self._attempt = secrets.randbelow(_ATTEMPT_SPAN)
        self._digest = EMPTY_DIGEST
        self._keys: KeyIndexRebuild | None = None
        self._runs: list[tuple[KeyRun, bytes]] = []
        self._packed_sizes: dict[str, int] = {}
        self._packed = self._unpacked_bytes = self._packed_bytes = 0
        self._bytes_put = 0

    async def merge(self) -> Merged:
        work = self._work
        manifest = await self._manifest()
        if self._is_archiving and await asyncio.to_thread(self._has_archived, manifest):
            return Merged(work, is_left_archived=True)
        groups = merge_groups(manifest.parts, work.target_bytes, LEAST_OVERHEAD_BYTES)
        before, after = len(manifest.parts), len(groups)
        self._packed_sizes = dict(
            zip((part.object_key for part in manifest.parts), manifest.packed_sizes, strict=False)
        )
        packs = [await self._is_to_pack(group) for group in groups]
        moved = [group for group, is_packing in zip(groups, packs, strict=True) if self._is_moved(group, is_packing)]
        run_groups = runs_to_merge(manifest.key_runs)
        result = Merged(
            work,
            before,
            after,
            runs_before=len(manifest.key_runs),
            runs_after=len(run_groups),
            is_archived=self._is_archiving and bool(moved),
        )
        is_merging_runs = result.runs_after < result.runs_before
        if work.is_dry_run or not (moved or is_merging_runs):
            size_bytes = sum(part.size_bytes for group in moved for part in group)
            return replace(result, bytes_put=size_bytes, packed=sum(packs))
        if manifest.key_runs:
            self._keys = KeyIndexRebuild(manifest.seal.digest, run_groups, self._take_run)
        attempt = self._next_attempt()
        parts: list[RemotePart] = []
        runs: list[KeyRun] = []
        for number, group in enumerate(groups):
            parts.append(await self._take_group(number, group, packs[number], manifest))
            runs += await self._put_runs(attempt)
        if self._digest != work.seal.digest:
            raise Corrupt(
                f"its parts lead to digest {self._digest.hex()}, the seal says {work.seal.digest.hex()}",
                source=work.manifest_key,
                position=0,
            )
        if self._keys is not None:
            await asyncio.to_thread(self._keys.finish)
            runs += await self._put_runs(attempt)
        if tuple(parts) == manifest.parts and not is_merging_runs:
            return replace(result, bytes_put=self._bytes_put)
        sizes = tuple(self._packed_sizes.get(part.object_key, 0) for part in parts)
        packed_sizes = sizes if any(sizes) else ()
        merged = replace(manifest, parts=tuple(parts), key_runs=tuple(runs), packed_sizes=packed_sizes)
        await self._look_for(merged)
        key, digest, size_bytes = await self._put_manifest(merged, attempt)
        return replace(
            result,
            bytes_put=self._bytes_put,
            packed=self._packed,
            unpacked_bytes=self._unpacked_bytes,
            packed_bytes=self._packed_bytes,
            manifest_key=key,
            manifest_digest=digest,
            size_bytes=size_bytes,
        )

    @property
    def _is_archiving(self) -> bool:
        return self._work.open_classes is not None

    def _is_moved(self, group: Sequence[RemotePart], is_packing: bool) -> bool:
        return len(group) > 1 or is_packing or self._is_archiving

    def _has_archived(self, manifest: Manifest) -> bool:
        """Whether all chunks are in an archive class. A restored one can be read, and must not be put again."""
        assert self._work.open_classes is not None, "it is to be archived"
        classes = self._work.open_classes()
        assert classes is not None, "the driver has looked"
        with classes:
            folder = self._names.segment_prefix(self._work.key)
            archived = {one.key for one in classes.list(folder) if one.is_archived}
        return bool(manifest.parts) and all(part.object_key in archived for part in manifest.parts)

    def _next_attempt(self) -> int:
        self._attempt += 1
        return self._attempt

    async def _manifest(self) -> Manifest:
        work = self._work
        end_offset, digest = work.seal.end_offset, work.manifest_digest
        expected = ExpectedManifest(work.cluster_id, work.key, work.manifest_key, end_offset, digest, work.seal)
        return await read_manifest(self._store, expected)

    # Parts ----------------------------------------------------------------------------------------------------------
    async def _is_to_pack(self, group: Sequence[RemotePart]) -> bool:
        if len(group) > 1:
            return self._work.is_packing or any(is_packed(part.object_key) for part in group)
        part = group[0]
        if is_packed(part.object_key):
            return self._is_archiving
        if not self._work.is_packing:
            return False
        start = part.position + PART_HEADER_BYTES
        end = part.position + min(part.size_bytes, PART_HEADER_BYTES + _LOOKED_AT_BYTES)
        if end <= start:
            return False  # not a part: the reader of the whole part reports what it is
        return await asyncio.to_thread(is_worth_packing, await self._store.get_range(part.object_key, start, end))

    async def _take_group(
        self, number: int, group: Sequence[RemotePart], is_packing: bool, manifest: Manifest
    ) -> RemotePart:
        if not self._is_moved(group, is_packing) and self._keys is None:
            part = group[0]
            self._goes_on(await read_part_header(self._store, self._work.cluster_id, self._work.key, part), part)
            return part
        digest_before = self._digest
        pieces: list[memoryview] = []
        for some in _side_by_side(group):
            bodies = await asyncio.gather(*(self._read(part) for part in some))
            for part, body in zip(some, bodies, strict=True):
                header = await asyncio.to_thread(self._check, part, body)
                pieces.append(memoryview(body)[PART_HEADER_BYTES : header.index_position])
        data = await asyncio.to_thread(b"".join, pieces)
        pieces.clear()
        if self._keys is not None:
            await asyncio.to_thread(self._take_keys, self._keys, number, data, group[0].object_key)
        if not self._is_moved(group, is_packing):
            return group[0]
        return await self._put_chunk(group, data, is_packing, digest_before, manifest)

    async def _read(self, part: RemotePart) -> bytes:
        check_part_size(part)
        return await self._store.get_range(part.object_key, part.position, part.position + part.size_bytes)

    def _check(self, part: RemotePart, body: bytes) -> PartHeader:
        header = check_whole_part(body, self._work.cluster_id, self._work.key, part).header
        self._goes_on(header, part)
        return header

    def _goes_on(self, header: PartHeader, part: RemotePart) -> None:
        if header.digest_before != self._digest:
            raise Corrupt(
                f"part continues from digest {header.digest_before.hex()}, the parts before it lead to "
                f"{self._digest.hex()}",
                source=part.object_key,
                position=part.position,
            )
        self._digest = header.digest_after

    async def _put_chunk(
        self, group: Sequence[RemotePart], data: bytes, is_packing: bool, digest_before: bytes, manifest: Manifest
    ) -> RemotePart:
        base_offset, end_offset, attempt = group[0].base_offset, group[-1].end_offset, self._next_attempt()
        source = group[0].object_key

        def encode() -> bytes:
            headers = (header for _, header in walk(data, source=source, verify=False))
            pieces, digest_after = encode_part(
                manifest.identity, base_offset, end_offset, data, headers, digest_before, attempt
            )
            assert digest_after == self._digest, "the same batches have the same digest"
            return b"".join(pieces)

        body = await asyncio.to_thread(encode)
        packed = await asyncio.to_thread(pack_part, body, source=source) if is_packing else None
        if packed is None and not self._is_moved(group, False):
            return group[0]
        name = self._names.chunk if packed is None else self._names.packed
        key = name(
            self._work.key,
            base_offset,
            end_offset,
            node_id=COMPACTION_WRITER,
            lock_epoch=self._work.lock_epoch,
            attempt=attempt,
        )
        await self._put(key, body if packed is None else packed, self._work.storage_class)
        if packed is not None:
            self._packed_sizes[key] = len(packed)
            self._packed += 1
            self._unpacked_bytes += len(body)
            self._packed_bytes += len(packed)
        return RemotePart(key, 0, len(body), base_offset, end_offset)

    # Key index, manifest --------------------------------------------------------------------------------------------
    def _take_keys(self, keys: KeyIndexRebuild, number: int, data: bytes, source: str) -> None:
        positions = [0, *(at + header.size_bytes for at, header in walk(data, source=source, verify=False))]
        keys.add_part(number, data, positions, source)

    def _take_run(self, run: KeyRun, body: bytes, entries: int) -> None:
        if entries != run.entries:
            raise Corrupt(
                f"it has {run.entries} entries, the segment's batches give {entries}", source=run.object_key, position=0
            )
        self._runs.append((run, body))

    async def _put_runs(self, attempt: int) -> list[KeyRun]:
        put = []
        for run, body in self._runs:
            key = self._names.keys(
                self._work.key,
                run.from_offset,
                run.to_offset,
                node_id=COMPACTION_WRITER,
                lock_epoch=self._work.lock_epoch,
                attempt=attempt,
            )
            await self._put(key, body)
            put.append(replace(run, object_key=key, size_bytes=len(body), digest=object_digest(body)))
        self._runs.clear()
        return put

    async def _look_for(self, manifest: Manifest) -> None:
        """All that it names, at its length: what it takes the place of is swept."""
        needed = list(manifest.object_sizes.items())
        for start in range(0, len(needed), _READS_AT_A_TIME):
            some = needed[start : start + _READS_AT_A_TIME]
            found = await asyncio.gather(*(self._store.head(key) for key, _ in some))
            for (key, size_bytes), info in zip(some, found, strict=True):
                if info.size_bytes != size_bytes:
                    raise Corrupt(f"it has {info.size_bytes} bytes, not {size_bytes}", source=key, position=0)

    async def _put_manifest(self, manifest: Manifest, attempt: int) -> tuple[str, bytes, int]:
        body = encode_manifest(manifest)
        key = self._names.manifest(
            self._work.key,
            manifest.seal.base_offset,
            manifest.seal.end_offset,
            node_id=COMPACTION_WRITER,
            lock_epoch=self._work.lock_epoch,
            attempt=attempt,
        )
        await put_once(self._store, key, body)
        if await self._store.get(key) != body:
            raise Corrupt("it does not read back as it was put", source=key, position=0)
        return key, manifest_digest(body), manifest.copy_bytes + len(body)

    async def _put(self, key: str, body: bytes, storage_class: str = "") -> None:
        await put_once(self._store, key, body, storage_class)
        self._bytes_put += len(body)


def _side_by_side(parts: Sequence[RemotePart]) -> list[list[RemotePart]]:
    portions: list[list[RemotePart]] = []
    held = 0
    for part in parts:
        if not portions or len(portions[-1]) == _READS_AT_A_TIME or held + part.size_bytes > _READ_BYTES:
            portions.append([])
            held = 0
        portions[-1].append(part)
        held += part.size_bytes
    return portions
