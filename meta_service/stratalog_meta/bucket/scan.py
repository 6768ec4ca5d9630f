"""Looks through the bucket for a rebuild of the metadata: what lies there of each segment, and who wrote it.

One listing of the cluster's folder. Then every manifest that may count is read and checked, and each object that it
names must be listed at its length; of segments without a usable manifest the headers of their parts are read, in chunks
and in bundles. What cannot be read is named (`damaged`) and counts as not there. A manifest that is whole stays in use
where an object that it names is gone or short: the rest of its segment can be read, and the object may be put back; the
offsets that it held are named (`holes`).
Cost: a listing of everything, and one small read for each segment. Memory: the names of the segments' objects.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from uuid import UUID

from stratalog.formats.bucket.manifest import Manifest, manifest_digest
from stratalog.formats.bucket.object_names import (
    BundleName,
    ClaimName,
    CutName,
    MetaSnapshotName,
    ObjectNames,
    SegmentObject,
    SegmentObjectName,
)
from stratalog.formats.bucket.part import PART_HEADER_BYTES, PartHeader
from stratalog.machines.rebuild.meta_backups import FoundSnapshot
from stratalog.machines.rebuild.shard import FoundManifest, FoundSegment
from stratalog.machines.rebuild.table import FoundTopic, Scan
from stratalog.machines.tiering.part_chain import FoundPart
from stratalog.model.counting import counted
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemotePart, Segment, SegmentIdentity
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.bundles import part_of, read_bundle_entries
from stratalog.stored.remote.claims import read_claim
from stratalog.stored.remote.manifests import ExpectedManifest, check_manifest
from stratalog.stored.remote.parts import check_chunk_header, read_part_header

_AT_A_TIME: Final = 32
_LISTED_PER_STEP: Final = 1_000
T = TypeVar("T")
Step = Callable[[str], None]
"""Called with what was done since."""


@dataclass(slots=True)
class _Chunk:
    key: str
    size_bytes: int
    name: SegmentObjectName


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets `[base_offset, end_offset)` of a segment that cannot be read, for `object_key` is gone or cut."""

    segment: SegmentKey
    base_offset: int
    end_offset: int
    object_key: str
    why: str


@dataclass(slots=True)
class _Folder:
    sizes: dict[str, int] = field(default_factory=dict)
    """Of all that is listed there, by key."""
    manifests: list[FoundManifest] = field(default_factory=list)
    chunks: list[_Chunk] = field(default_factory=list)
    parts: list[FoundPart] = field(default_factory=list)

    @property
    def has_whole_manifest(self) -> bool:
        return any(manifest.is_whole for manifest in self.manifests)


@dataclass(slots=True)
class BucketScan:
    """What was found. `damaged` are keys of what could not be read, with the reason."""

    folders: dict[SegmentKey, _Folder] = field(default_factory=dict)
    bundles: list[tuple[str, int, BundleName]] = field(default_factory=list)
    lock_epochs: dict[int, int] = field(default_factory=dict)
    claims: dict[int, list[UUID]] = field(default_factory=lambda: defaultdict(list))
    identities: dict[UUID, SegmentIdentity] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)
    object_count: int = 0

    def note_writer(self, node_id: int, lock_epoch: int) -> None:
        self.lock_epochs[node_id] = max(lock_epoch, self.lock_epochs.get(node_id, 0))

    def note_identity(self, identity: SegmentIdentity) -> None:
        known = self.identities.get(identity.topic_id)
        if known is None or identity.created_ms < known.created_ms:
            self.identities[identity.topic_id] = identity

    def drop(self, segment: SegmentKey, part: RemotePart, reason: str) -> None:
        """A part that turned out not to be whole."""
        folder = self.folders[segment]
        folder.parts = [found for found in folder.parts if found.part != part]
        self.damaged[part.object_key] = reason

    def as_found(self, snapshots: Sequence[FoundSnapshot]) -> Scan:
        segments: dict[ShardKey, list[FoundSegment]] = defaultdict(list)
        for key, folder in self.folders.items():
            if folder.manifests or folder.parts:
                segments[key.shard_key].append(FoundSegment(key, tuple(folder.manifests), tuple(folder.parts)))
        topics = {topic_id: FoundTopic(one.topic, one.created_ms) for topic_id, one in self.identities.items()}
        return Scan(segments, topics, self.lock_epochs, self.claims, snapshots)


async def scan_bucket(store: ObjectStore, names: ObjectNames, known: Iterable[Segment], step: Step) -> BucketScan:
    """Raises what the store raises: no result is made from half a listing."""
    scan = BucketScan()
    await _list(store, names, scan, step)
    segments = {segment.key: segment for segment in known}
    await each(scan.folders.items(), lambda one: _read_folder(store, names, scan, one[0], one[1], segments, step))
    await each(scan.bundles, lambda one: _read_bundle(store, names, scan, one, step))
    return scan


async def _list(store: ObjectStore, names: ObjectNames, scan: BucketScan, step: Step) -> None:
    claims: list[tuple[str, ClaimName]] = []
    async for info in store.list(names.root):
        name = names.parse(info.key)
        scan.object_count += 1
        if scan.object_count % _LISTED_PER_STEP == 0:
            step(f"{counted(scan.object_count, 'object')} listed")
        match name:
            case SegmentObjectName():
                scan.note_writer(name.node_id, name.lock_epoch)
                folder = scan.folders.setdefault(name.segment, _Folder())
                folder.sizes[info.key] = info.size_bytes
                if name.is_part:
                    folder.chunks.append(_Chunk(info.key, info.size_bytes, name))
                elif name.kind is SegmentObject.MANIFEST:
                    folder.manifests.append(FoundManifest(info.key, name.to_offset, name.lock_epoch, name.attempt))
            case BundleName():
                scan.note_writer(name.node_id, name.lock_epoch)
                scan.bundles.append((info.key, info.size_bytes, name))
            case ClaimName():
                scan.note_writer(name.node_id, name.lock_epoch)
                claims.append((info.key, name))
            case MetaSnapshotName() | CutName() | None:
                pass
    for key, claim in claims:
        try:
            scan.claims[claim.node_id].append((await read_claim(store, names.cluster_id, claim, key)).nonce)
        except (Corrupt, NotFound) as error:
            scan.damaged[key] = str(error)


async def _read_folder(
    store: ObjectStore,
    names: ObjectNames,
    scan: BucketScan,
    key: SegmentKey,
    folder: _Folder,
    known: dict[SegmentKey, Segment],
    step: Step,
) -> None:
    segment = known.get(key)
    read = [await _read_manifest(store, names, scan, key, one, folder, segment) for one in folder.manifests]
    able = [one for one in read if one is not None]
    whole = [one for one in able if not one.holes]
    if able:
        # The one that the metadata name, or one that agrees with it: chunks were merged since, and the old ones swept.
        named = None if segment is None else segment.remote.manifest_key
        chosen = whole or [max(able, key=lambda one: (one.found.key == named, -len(one.holes), one.found.lock_epoch))]
        scan.holes += chosen[0].holes
        folder.manifests = [one.found for one in chosen]
    else:
        folder.manifests = []
    if folder.has_whole_manifest:
        step(f"segment {key.base_offset}-{key.epoch}")
        return
    for chunk in folder.chunks:
        try:
            head = await store.get_range(chunk.key, 0, PART_HEADER_BYTES)
            header, part = check_chunk_header(head, names.cluster_id, chunk.name, chunk.key, chunk.size_bytes)
        except (Corrupt, NotFound) as error:
            scan.damaged[chunk.key] = str(error)
            continue
        folder.parts.append(_found(part, header, chunk.name.lock_epoch, chunk.name.attempt))
        scan.note_identity(header.identity)
    step(f"segment {key.base_offset}-{key.epoch}")


@dataclass(frozen=True, slots=True)
class _ReadManifest:
    found: FoundManifest
    holes: tuple[Hole, ...]


async def _read_manifest(
    store: ObjectStore,
    names: ObjectNames,
    scan: BucketScan,
    key: SegmentKey,
    found: FoundManifest,
    folder: _Folder,
    known: Segment | None,
) -> _ReadManifest | None:
    """None for one that cannot be used: it is not whole, or of another segment than the one that the snapshot knows, or
    all that it lacks can be made of its parts."""
    try:
        body = await store.get(found.key)
        is_named = known is not None and known.remote.manifest_key == found.key
        digest = known.remote.manifest_digest if known is not None and is_named else None
        seal = None if known is None else known.seal
        expected = ExpectedManifest(names.cluster_id, key, found.key, found.end_offset, digest, seal)
        manifest = check_manifest(body, expected)
        holes = tuple(holes_of(manifest, folder.sizes))
        if holes and not {hole.object_key for hole in holes} & {part.object_key for part in manifest.parts}:
            raise NotFound(f"{holes[0].object_key}: {holes[0].why}")
    except (Corrupt, NotFound) as error:
        scan.damaged[found.key] = str(error)
        return None
    scan.note_identity(manifest.identity)
    size_bytes = manifest.copy_bytes + len(body)
    read = replace(found, seal=manifest.seal, digest=manifest_digest(body), size_bytes=size_bytes, is_whole=not holes)
    return _ReadManifest(read, holes)


def holes_of(manifest: Manifest, sizes: Mapping[str, int]) -> Iterator[Hole]:
    """What of a segment cannot be read, by the lengths of the objects that are there. Without its index, all of it."""
    key, seal = manifest.identity.key, manifest.seal
    spans = {part.object_key: (part.base_offset, part.end_offset) for part in manifest.parts}
    for name, size_bytes in manifest.object_sizes.items():
        found = sizes.get(name)
        if found is not None and found >= size_bytes:
            continue
        why = "it is gone" if found is None else f"it has {found:,} bytes, {size_bytes:,} are needed"
        yield Hole(key, *spans.get(name, (seal.base_offset, seal.end_offset)), name, why)


async def _read_bundle(
    store: ObjectStore, names: ObjectNames, scan: BucketScan, bundle: tuple[str, int, BundleName], step: Step
) -> None:
    """Its parts, of segments that have no manifest."""
    key, size, name = bundle
    try:
        entries = await read_bundle_entries(store.get_range, names.cluster_id, name, key, size)
    except (Corrupt, NotFound) as error:
        scan.damaged[key] = str(error)
        return
    for entry in entries:
        segment = entry.identity.key
        folder = scan.folders.setdefault(segment, _Folder())
        if folder.has_whole_manifest:
            continue
        part = part_of(entry, key)
        try:
            header = await read_part_header(store, names.cluster_id, segment, part)
        except (Corrupt, NotFound) as error:
            scan.damaged[key] = str(error)
            continue
        folder.parts.append(_found(part, header, name.lock_epoch, name.attempt))
        scan.note_identity(header.identity)
    step("bundle")


def _found(part: RemotePart, header: PartHeader, lock_epoch: int, attempt: int) -> FoundPart:
    return FoundPart(part, header.digest_before, header.digest_after, lock_epoch, attempt)


async def each(things: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
    """Run all of them, this many at a time; the first error ends it."""
    waiting = iter(list(things))

    async def work() -> None:
        for thing in waiting:
            await do(thing)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_A_TIME):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
