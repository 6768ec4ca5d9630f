"""What the object store says about its own data: manifests, index blocks, part headers and part indexes.

Everything is checked against metadata before it is kept: a manifest against its digest and the seal record, an index
block against the manifest, a part's header against the part that metadata names. Kept by least recent use, bounded by
bytes. One fetch at a time for each thing, which a cancelled reader does not cancel (F43).
Lives on the event loop; large answers are decoded on the caller's threads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.part import PART_HEADER_BYTES, PartHeader
from stratalog.formats.segments.index_block import IndexBlock
from stratalog.model.errors import Archived, Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, RemoteState, Segment
from stratalog.objects.limits import TransferLimits
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.indexes import check_index
from stratalog.stored.remote.manifests import ExpectedManifest, check_manifest
from stratalog.stored.remote.parts import check_index_at_end, check_part_header
from stratalog_node.single_flight import SingleFlight
from stratalog_node.tier.cold.cold_limits import ColdReadLimits, ColdReadStats
from stratalog_node.tier.cold.refused_ranges import RefusedRanges
from stratalog_node.tier.cold.remote_blocks import (
    PartBlocks,
    RemoteBlock,
    cut_part,
    largest_index_bytes,
    whole_part_block,
)

Known: TypeAlias = Manifest | IndexBlock | PartBlocks
V = TypeVar("V")
_Key: TypeAlias = tuple[str, int]
"""An object's key, and a position in it; -1 is the whole object."""

_PART_ENTRY_BYTES = 200
_BLOCK_ENTRY_BYTES = 300
"""What an entry takes in memory, about."""


class ObjectGone(Unavailable):
    """An object that metadata named is not there: it was moved by a compaction, deleted with its segment, or lost."""


@contextmanager
def object_gone(object_key: str) -> Iterator[None]:
    """Turn a store's NotFound into ObjectGone: "the object is gone" is not "there is no such offset"."""
    try:
        yield
    except NotFound as error:
        raise ObjectGone(f"object {object_key} is gone: read the segment's metadata again ({error})") from error


async def ask_again(attempt: Callable[[], Awaitable[V]]) -> V:
    """What comes back damaged once may have been damaged on its way; what is damaged twice is damaged at rest."""
    try:
        return await attempt()
    except Corrupt:
        pass  # and drop the first answer: the error refers to its bytes
    return await attempt()


class RemoteIndex:
    """Finds its way in the object store for one node's cold reads."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        limits: ColdReadLimits,
        transfers: TransferLimits,
        threads: Executor,
        stats: ColdReadStats,
        refused: RefusedRanges,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._index_bytes = limits.index_bytes
        self._range_bytes = limits.range_bytes
        self._transfers = transfers
        self._threads = threads
        self._stats = stats
        self._refused = refused
        self._known: OrderedDict[_Key, tuple[Known, int]] = OrderedDict()
        self._flights: SingleFlight[_Key, Known] = SingleFlight()
        self.held_bytes = 0

    # What is known now ------------------------------------------------------------------------------------------
    def parts_now(self, segment: Segment) -> Sequence[RemotePart] | None:
        """The segment's parts in order; None when its manifest must be fetched first."""
        remote = segment.remote
        if remote.state is RemoteState.COMPLETE:
            known = self._cached(_manifest_key(segment))
            return known.parts if isinstance(known, Manifest) else None
        return remote.parts

    def is_large(self, part: RemotePart, level: int = 0) -> bool:
        """Whether a part is cut into blocks by its index; smaller ones are fetched whole."""
        return part.size_bytes > 2 * (self._range_bytes >> level)

    def block_at(self, segment: SegmentKey, part: RemotePart, offset: int, level: int) -> RemoteBlock | None:
        """The block of a part that contains `offset`, halved `level` times; None when the part's index must be fetched
        first."""
        if not self.is_large(part, level):
            return whole_part_block(segment, part)
        known = self.blocks_now(segment, part)
        if known is None:
            return None
        return known.slice_at(offset, self._range_bytes >> level) if level else known.blocks[known.at(offset)]

    def blocks_now(self, segment: SegmentKey, part: RemotePart) -> PartBlocks | None:
        """A large part's blocks; None when its index must be fetched first."""
        known = self._cached((part.object_key, part.position))
        return known if isinstance(known, PartBlocks) else None

    # Fetching ---------------------------------------------------------------------------------------------------
    async def manifest(self, segment: Segment) -> Manifest:
        """The manifest of a COMPLETE segment. Raises: Corrupt if it is not the one that the metadata name; what the
        store raises."""
        found = await self._learn(_manifest_key(segment), lambda: self._fetch_manifest(segment), segment.key, segment)
        assert isinstance(found, Manifest)
        return found

    async def index_block(self, segment: Segment) -> IndexBlock:
        """The index block of a COMPLETE segment."""
        manifest = await self.manifest(segment)
        found = await self._learn(
            (manifest.index_key, -1), lambda: self._fetch_index_block(segment, manifest), segment.key, segment
        )
        assert isinstance(found, IndexBlock)
        return found

    async def part_blocks(self, segment: SegmentKey, part: RemotePart) -> PartBlocks:
        """The blocks of a large part: two small requests at once."""
        found = await self._learn(
            (part.object_key, part.position), lambda: self._fetch_part_blocks(segment, part), segment, part
        )
        assert isinstance(found, PartBlocks)
        return found

    async def part_header(self, segment: SegmentKey, part: RemotePart) -> PartHeader:
        """A part's own header, not kept: for times, of segments that have no index block yet."""

        async def ask() -> PartHeader:
            head = await self._range(part.object_key, part.position, part.position + PART_HEADER_BYTES)
            return await self._in_thread(lambda: check_part_header(head, self._cluster_id, segment, part))

        name = (part.object_key, part.position, PART_HEADER_BYTES)
        return await self._unless_refused(name, part, segment, ask)

    def forget(self, segment: Segment) -> None:
        """Metadata has changed, or an object was gone: learn again."""
        parts = segment.remote.parts
        if segment.remote.state is RemoteState.COMPLETE:
            parts = self.parts_now(segment) or ()
            self._drop(_manifest_key(segment))
        for part in parts:
            self._drop((part.object_key, part.position))

    async def close(self) -> None:
        await self._flights.close()

    # Inside -----------------------------------------------------------------------------------------------------
    async def _learn(
        self, key: _Key, fetch: Callable[[], Coroutine[Any, Any, tuple[Known, int]]], segment: SegmentKey, meant: object
    ) -> Known:
        """`meant`: what the metadata say of it."""
        known = self._cached(key)
        if known is not None:
            return known

        async def work() -> Known:
            found, size_bytes = await self._unless_refused(key, meant, segment, lambda: ask_again(fetch))
            self._keep(key, found, size_bytes)
            return found

        return await self._flights.join(key, work)

    async def _unless_refused(
        self, name: Hashable, meant: object, segment: SegmentKey, ask: Callable[[], Awaitable[V]]
    ) -> V:
        self._refused.check(name, meant)
        try:
            found = await ask()
        except (Corrupt, Archived) as error:
            self._stats.archived_ranges += isinstance(error, Archived)
            self._refused.refused(name, meant, segment, error)
            raise
        self._refused.accepted(name)
        return found

    def _cached(self, key: _Key) -> Known | None:
        entry = self._known.get(key)
        if entry is None:
            return None
        self._known.move_to_end(key)
        return entry[0]

    def _keep(self, key: _Key, found: Known, size_bytes: int) -> None:
        self._drop(key)
        self._known[key] = (found, size_bytes)
        self.held_bytes += size_bytes
        # The newest stays, whatever its size: its reader is about to use it.
        while self.held_bytes > self._index_bytes and len(self._known) > 1:
            self._drop(next(iter(self._known)))

    def _drop(self, key: _Key) -> None:
        if (entry := self._known.pop(key, None)) is not None:
            self.held_bytes -= entry[1]

    async def _fetch_manifest(self, segment: Segment) -> tuple[Manifest, int]:
        expected = ExpectedManifest.of_segment(self._cluster_id, segment)
        data = await self._whole(expected.object_key, 0)
        manifest = await self._in_thread(lambda: check_manifest(data, expected))
        return manifest, len(data) + _PART_ENTRY_BYTES * len(manifest.parts)

    async def _fetch_index_block(self, segment: Segment, manifest: Manifest) -> tuple[IndexBlock, int]:
        data = await self._whole(manifest.index_key, manifest.index_size_bytes)
        block = await self._in_thread(lambda: check_index(data, manifest))
        return block, len(data)

    async def _fetch_part_blocks(self, segment: SegmentKey, part: RemotePart) -> tuple[PartBlocks, int]:
        end = part.position + part.size_bytes
        head, tail = await asyncio.gather(
            self._range(part.object_key, part.position, part.position + PART_HEADER_BYTES),
            self._range(part.object_key, end - largest_index_bytes(part), end),
        )

        def check() -> PartBlocks:
            header = check_part_header(head, self._cluster_id, segment, part)
            index = check_index_at_end(tail, header, part)
            return cut_part(segment, part, index, self._range_bytes)

        blocks = await self._in_thread(check)
        return blocks, _BLOCK_ENTRY_BYTES * len(blocks.blocks) + len(tail)

    async def _whole(self, object_key: str, size_bytes: int) -> bytes:
        async with self._transfers.transfer(size_bytes):
            with object_gone(object_key):
                data = await self._store.get(object_key)
        self._count(len(data))
        return data

    async def _range(self, object_key: str, start: int, end: int) -> memoryview:
        async with self._transfers.transfer(end - start):
            with object_gone(object_key):
                data = await self._store.get_range_view(object_key, start, end)
        self._count(len(data))
        return data

    def _count(self, size_bytes: int) -> None:
        self._stats.index_fetches += 1
        self._stats.fetched_bytes += size_bytes

    async def _in_thread(self, check: Callable[[], V]) -> V:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, check)
        except Corrupt:
            self._stats.corrupt_ranges += 1
            raise


def _manifest_key(segment: Segment) -> _Key:
    key = segment.remote.manifest_key
    if key is None:
        raise Unavailable(
            f"segment {segment.key}: metadata calls it complete and names no manifest; wait for the metadata to load"
        )
    return (key, -1)
