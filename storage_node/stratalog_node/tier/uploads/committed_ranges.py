"""What the object store holds of an unsealed segment, part by part, for a shard that lost it
(`shards/restart/healing.py`).

Each part is read whole and checked in full: its identity against metadata, CRCs, offsets, index, digests. A folder
with a manifest is of a segment that was finished once: metadata that call it unfinished are older than the object
store, and a shard that went on from there would give offsets a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.model.errors import Conflict, Corrupt, NotFound, Unavailable
from stratalog.model.segment import RemotePart, Segment
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.parts import check_whole_part
from stratalog_node.shards.copies.cold_reads import CommittedRange
from stratalog_node.tier.store import wrong_store


class CommittedRanges:
    def __init__(self, store: ObjectStore, names: ObjectNames, timeout_ms: int) -> None:
        self._store = store
        self._names = names
        self._timeout_ms = timeout_ms

    async def read(self, segment: Segment, from_offset: int) -> AsyncGenerator[CommittedRange]:
        """Everything committed from the batch boundary `from_offset` on, in order.

        Raises: Corrupt, NotFound, Unavailable, also when it is another store than the one that holds the data; Conflict
        when metadata are older than the store. Memory: one part.
        """
        await self._refuse_finished(segment)
        for part in segment.remote.parts:
            if part.end_offset > from_offset:
                yield await self._read(segment, part, from_offset)
                from_offset = part.end_offset

    async def _refuse_finished(self, segment: Segment) -> None:
        async with asyncio.timeout(self._timeout_ms / 1_000):
            async for info in self._store.list(self._names.segment_prefix(segment.key)):
                name = self._names.parse(info.key)
                if isinstance(name, SegmentObjectName) and name.kind is SegmentObject.MANIFEST:
                    raise Conflict(
                        f"{info.key} says that segment {segment.key} is finished, metadata do not: they are older than "
                        "the object store; put the newest copy of DIR/meta back, then restart"
                    )

    async def _read(self, segment: Segment, part: RemotePart, from_offset: int) -> CommittedRange:
        try:
            async with asyncio.timeout(self._timeout_ms / 1_000):
                body = await self._store.get_range(part.object_key, part.position, part.position + part.size_bytes)
        except NotFound:
            async with asyncio.timeout(self._timeout_ms / 1_000):
                is_wrong = await wrong_store.has_nothing(self._store, self._names)
            if not is_wrong:
                raise
            raise Unavailable(wrong_store.words(self._store, self._names)) from None
        except TimeoutError as error:
            raise Unavailable(f"get {part.object_key}: no answer within {self._timeout_ms} ms") from error
        return await asyncio.to_thread(self._check, segment, part, body, from_offset)

    def _check(self, segment: Segment, part: RemotePart, body: bytes, from_offset: int) -> CommittedRange:
        header = check_whole_part(body, self._names.cluster_id, segment.key, part).header
        batches = memoryview(body)[PART_HEADER_BYTES : header.index_position]
        if from_offset <= part.base_offset:
            return CommittedRange(part.base_offset, part.end_offset, batches, header.digest_after)
        for position, batch in walk(batches, source=part.object_key, verify=False):
            if batch.base_offset == from_offset:
                return CommittedRange(from_offset, part.end_offset, batches[position:], header.digest_after)
        raise Corrupt(f"no batch begins at offset {from_offset}", source=part.object_key, position=part.position)
