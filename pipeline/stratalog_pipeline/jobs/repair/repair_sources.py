"""Sources for the replacement of a damaged object: another object store with the same keys, or the segment files of a
node, from which the object is rebuilt. `repair` checks everything that a source returns.

A node's sealed files never change, so they can be read on its machine while the node runs. Memory: the object.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Protocol

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.key_runs import KeyEntries, find_keys
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import (
    ObjectNames,
    SegmentObject,
    SegmentObjectName,
    index_file_name,
    segment_file_name,
)
from stratalog.formats.bucket.part import PART_HEADER_BYTES, encode_part
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, check_identity, decode_segment_header
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest_over, object_digest
from stratalog.formats.segments.index_block import (
    SEAL_LAYOUTS,
    IndexBuilder,
    decode_index_block,
    encode_index_block,
)
from stratalog.model.errors import Corrupt, NotFound
from stratalog.objects import ObjectStore, open_store

_SEGMENTS = Path("node", "segments")


class RepairSource(Protocol):
    place: str

    async def object_of(self, key: str, manifest: Manifest | None) -> bytes:
        """The object under a key of the bucket, unproven; of a packed chunk, the part in it. `manifest`: of the segment
        it belongs to, where that can be read. Raises: NotFound, Corrupt for what this source cannot give,
        Unavailable."""
        ...

    async def close(self) -> None: ...


def open_source(place: str, names: ObjectNames) -> RepairSource:
    """A node's data directory, or the URL of an object store."""
    path = Path(place)
    return NodeFiles(path, names) if (path / _SEGMENTS).is_dir() else StoreCopy(place)


class StoreCopy:
    """Another bucket: a replica of this one, an older copy that was put back beside it."""

    def __init__(self, url: str) -> None:
        self._store: ObjectStore = open_store(url)
        self.place = self._store.url

    async def object_of(self, key: str, manifest: Manifest | None) -> bytes:
        return await self._store.get(key)

    async def close(self) -> None:
        await self._store.close()


class NodeFiles:
    """The local tier of one node."""

    def __init__(self, data: Path, names: ObjectNames) -> None:
        self._segments = data / _SEGMENTS
        self._names = names
        self.place = str(data)

    async def close(self) -> None:
        """Nothing is open."""

    async def object_of(self, key: str, manifest: Manifest | None) -> bytes:
        name = self._names.parse(key)
        if manifest is None or not isinstance(name, SegmentObjectName) or name.segment != manifest.identity.key:
            raise NotFound(f"{key} cannot be built from files in {self.place}")
        return await asyncio.to_thread(self._make, key, name, manifest)

    def _make(self, key: str, name: SegmentObjectName, manifest: Manifest) -> bytes:
        with self._batches(manifest) as batches:
            match name.kind:
                case SegmentObject.CHUNK | SegmentObject.PACKED:
                    return _chunk(batches, name, manifest, self.place)
                case SegmentObject.INDEX:
                    return self._index(batches, manifest)
                case SegmentObject.KEYS:
                    run = next((one for one in manifest.key_runs if one.object_key == key), None)
                    if run is not None:
                        return _key_run(batches, run, manifest, self.place)
                case SegmentObject.MANIFEST:
                    pass
        raise NotFound(f"{key} cannot be built from files in {self.place}")

    def _folder(self, manifest: Manifest) -> Path:
        return self._segments / str(manifest.identity.topic_id) / str(manifest.identity.shard)

    @contextmanager
    def _batches(self, manifest: Manifest) -> Iterator[memoryview]:
        """All batches of a segment, as its file has them: proven by the seal's digest but for the records' CRCs."""
        identity, seal = manifest.identity, manifest.seal
        path = self._folder(manifest) / segment_file_name(identity.base_offset, identity.epoch)
        source = str(path)
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                whole = memoryview(mapped)
                try:
                    check_identity(decode_segment_header(whole, source=source), identity, source=source)
                    batches = whole[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + seal.size_bytes]
                    for _ in walk(
                        batches,
                        source=source,
                        verify=False,
                        expected_base_offset=identity.base_offset,
                        epoch=identity.epoch,
                    ):
                        pass
                    if extend_digest_over(EMPTY_DIGEST, batches) != seal.digest:
                        raise Corrupt("its batches are not those of the seal", source=source, position=0)
                    try:
                        yield batches
                    finally:
                        batches.release()
                finally:
                    whole.release()
        except (FileNotFoundError, ValueError) as error:
            raise NotFound(f"{source}: {error}") from error

    def _index(self, batches: memoryview, manifest: Manifest) -> bytes:
        """Neither its version nor the origin of its points' times follows from the manifest: an older release may have
        sealed what a newer one published. So each of them is tried."""
        path = self._folder(manifest) / index_file_name(manifest.identity.base_offset, manifest.identity.epoch)
        try:
            table = decode_index_block(path.read_bytes(), source=str(path)).table
        except FileNotFoundError as error:
            raise NotFound(str(error)) from error
        true, claimed = (
            IndexBuilder(manifest.identity.base_offset, has_true_times=has_true_times)
            for has_true_times in (True, False)
        )
        for at, batch in walk(batches, source=self.place, verify=False):
            for built in (true, claimed):
                built.append_batch(batch, batches[at : at + batch.size_bytes])
        for version, points in product(reversed(SEAL_LAYOUTS), (true.freeze(), claimed.freeze())):
            made = encode_index_block(manifest.identity, manifest.seal, points, table, version=version)
            if object_digest(made) == manifest.index_digest:
                return made
        raise Corrupt(
            "an index block of its batches has another digest than the manifest names, in each layout",
            source=str(path),
            position=0,
        )


def _range_of(batches: memoryview, from_offset: int, to_offset: int, source: str) -> tuple[int, int]:
    """Where the batches of these offsets lie. Raises: Corrupt where none begins or ends there."""
    places = {header.base_offset: at for at, header in walk(batches, source=source, verify=False)}
    places[max((header.end_offset for _, header in walk(batches, source=source, verify=False)), default=0)] = len(
        batches
    )
    if from_offset not in places or to_offset not in places:
        raise Corrupt(f"no run of batches covers exactly [{from_offset}, {to_offset})", source=source, position=0)
    return places[from_offset], places[to_offset]


def _chunk(batches: memoryview, name: SegmentObjectName, manifest: Manifest, source: str) -> bytes:
    start, end = _range_of(batches, name.from_offset, name.to_offset, source)
    before = extend_digest_over(EMPTY_DIGEST, batches[:start])
    data = bytes(batches[start:end])
    headers = [header for _, header in walk(data, source=source, position=start)]  # with CRCs
    identity = manifest.identity
    pieces, _ = encode_part(identity, name.from_offset, name.to_offset, data, headers, before, name.attempt)
    return b"".join(pieces)


def _key_run(batches: memoryview, run: KeyRun, manifest: Manifest, source: str) -> bytes:
    entries = KeyEntries()
    for number, part in enumerate(manifest.parts):
        if part.end_offset <= run.from_offset or part.base_offset >= run.to_offset:
            continue
        part_start, _ = _range_of(batches, part.base_offset, part.end_offset, source)
        from_offset, to_offset = max(part.base_offset, run.from_offset), min(part.end_offset, run.to_offset)
        start, end = _range_of(batches, from_offset, to_offset, source)
        data = bytes(batches[start:end])
        positions = [0, *(at + header.size_bytes for at, header in walk(data, source=source, position=start))]
        for group, keys in find_keys(data, BatchHeaders(data, positions), source=source):
            at = group.positions + (start - part_start) + PART_HEADER_BYTES
            entries.add(keys, number, at, group.ends - group.positions)
    pages, _ = entries.take_run(manifest.seal.digest, run.buckets)
    return b"".join(pages)
