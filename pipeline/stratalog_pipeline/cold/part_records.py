"""Reads parts from the bucket, checks them, and returns their records as Arrow tables.

It checks that a part's header is the planned one, the CRC of each batch, that offsets and epoch continue, and the
digest over the part, which also continues from part to part of a segment. A part that was moved after planning (parts
of a bundle move to their segment's folder when the segment is complete) is found through the segment's manifest. A
thread fetches and checks some parts while the one before is decoded. Memory: the parts fetched ahead (32 MiB, or one
part), and the table that is being returned.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.batch_scan import BatchPlaces, scan_batches
from stratalog.formats.bucket.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.formats.bucket.part import PART_HEADER_BYTES, PartHeader
from stratalog.formats.segments.digest import extend_digest_over
from stratalog.machines.tiering.chunk_merging import last_to_stay
from stratalog.model.errors import Corrupt, NotFound
from stratalog.objects import ObjectStore, open_store
from stratalog.stored.remote.expected import RESTORE, WrongObject
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import check_part_header, check_part_size
from stratalog_pipeline.cold.committed import CommittedSegment
from stratalog_pipeline.cold.cutting import OffsetRange, PartRange, ranges_within
from stratalog_pipeline.decode.columns import UnreadBatch, Wanted, batches_to_columns

WINDOW_BYTES: Final = 32 << 20
WINDOW_PARTS: Final = 32
"""Parts fetched ahead: each small part costs a request, and each request takes time."""


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """The batches of a part; all were checked."""

    planned: PartRange
    header: PartHeader
    data: memoryview
    places: BatchPlaces


def read_tables(
    bucket: str,
    cluster_id: str,
    ranges: Iterable[PartRange],
    wanted: Wanted,
    unread: Callable[[UnreadBatch], None] | None = None,
) -> Iterator[Any]:
    """Arrow record batches of the records of these ranges, in order. `wanted` says which columns and times. `unread`:
    as of `batches_to_columns`.

    For one task's thread; it opens the store and closes it. Raises: Corrupt, NotFound for what is gone, Unavailable.
    """
    with PartFetcher(lambda: open_store(bucket), ObjectNames("", cluster_id)) as fetcher:
        for part in fetcher.fetch(ranges):
            yield from tables_of(part, wanted, unread)


def tables_of(part: CheckedPart, wanted: Wanted, unread: Callable[[UnreadBatch], None] | None = None) -> Iterator[Any]:
    """`unread`: as of `batches_to_columns`."""
    planned = part.planned
    of_part = replace(
        wanted,
        from_offset=max(planned.from_offset, wanted.from_offset),
        to_offset=min(planned.to_offset, wanted.to_offset),
    )
    headers = BatchHeaders(part.data, part.places.positions)
    yield from batches_to_columns(
        part.data,
        headers,
        topic=planned.topic,
        shard=planned.segment.shard,
        wanted=of_part,
        source=planned.part.object_key,
        unread=unread,
    )


class PartFetcher:
    """Fetches parts ahead of their reader: at most `window_parts` and `window_bytes` at a time, and one part however
    large. A context manager. Its store uses an event loop in a thread of its own, which also checks parts."""

    def __init__(
        self,
        open_it: Callable[[], ObjectStore],
        names: ObjectNames,
        *,
        window_bytes: int = WINDOW_BYTES,
        window_parts: int = WINDOW_PARTS,
    ) -> None:
        self._open_it = open_it
        self._names = names
        self._window_bytes = window_bytes
        self._window_parts = window_parts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stratalog-fetch", daemon=True)
        self._store: ObjectStore | None = None
        self._waiting: deque[tuple[Future[list[CheckedPart]], PartRange]] = deque()

    def __enter__(self) -> PartFetcher:
        self._thread.start()
        try:
            self._store = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for future, _planned in self._waiting:
            future.cancel()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def fetch(self, ranges: Iterable[PartRange]) -> Iterator[CheckedPart]:
        """Checked parts, in order; the digest continues from part to part of a segment."""
        before: CheckedPart | None = None
        left = iter(ranges)
        upcoming = next(left, None)
        while upcoming is not None or self._waiting:
            while upcoming is not None and self._has_room(upcoming.part.size_bytes):
                future = asyncio.run_coroutine_threadsafe(self._fetch_one(upcoming), self._loop)
                self._waiting.append((future, upcoming))
                upcoming = next(left, None)
            future, planned = self._waiting.popleft()
            for part in _result(future, planned):
                _check_goes_on(before, part)
                yield part
                before = part

    def _has_room(self, size_bytes: int) -> bool:
        held = sum(planned.part.size_bytes for _, planned in self._waiting)
        return not self._waiting or (
            len(self._waiting) < self._window_parts and held + size_bytes <= self._window_bytes
        )

    # On the loop ----------------------------------------------------------------------------------------------------
    async def _open(self) -> ObjectStore:
        return self._open_it()

    async def _close(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._store is not None:
            await self._store.close()

    async def _fetch_one(self, planned: PartRange) -> list[CheckedPart]:
        assert self._store is not None, "it was opened"
        try:
            return [await fetch_part(self._store, self._names, planned)]
        except NotFound:
            moved = await relocate(self._store, self._names, planned)
        return [await self._fetch_named(one) for one in moved]

    async def _fetch_named(self, planned: PartRange) -> CheckedPart:
        """By a manifest that was read just now."""
        assert self._store is not None, "it was opened"
        try:
            return await fetch_part(self._store, self._names, planned)
        except NotFound as error:
            part = planned.part
            reason = "the object is gone, and the segment's manifest names it"
            raise Corrupt(reason, source=part.object_key, position=part.position) from error


def _result(future: Future[list[CheckedPart]], planned: PartRange) -> list[CheckedPart]:
    """Raises: Corrupt, which says what is affected and what to do."""
    try:
        return future.result()
    except Corrupt as error:
        affected = (
            f"the object holds records of offsets {planned.from_offset} to {planned.to_offset} of shard "
            f"{planned.segment.shard} of topic {planned.topic}"
        )
        is_advised = isinstance(error, WrongObject)
        reason = f"{error.reason}; {affected}" if is_advised else f"{error.reason}; {affected}. {RESTORE}"
        raise Corrupt(reason, source=error.source, position=error.position) from error


async def fetch_part(store: ObjectStore, names: ObjectNames, planned: PartRange) -> CheckedPart:
    """Raises: Corrupt, NotFound, Unavailable."""
    part = planned.part
    check_part_size(part)
    body = await store.get_range(part.object_key, part.position, part.position + part.size_bytes)
    return check_planned(body, names.cluster_id, planned)


def check_planned(body: bytes, cluster_id: str, planned: PartRange) -> CheckedPart:
    """That the bytes are the part that was planned, and whole. Raises: Corrupt."""
    part, source = planned.part, planned.part.object_key
    header = check_part_header(body, cluster_id, planned.segment, part)
    if header.size_bytes != len(body):
        raise Corrupt(
            f"part has {header.size_bytes} bytes, {len(body)} were read", source=source, position=part.position
        )
    data = memoryview(body)[PART_HEADER_BYTES : header.index_position]
    at = part.position + PART_HEADER_BYTES
    places = scan_batches(data, base_offset=header.base_offset, epoch=planned.segment.epoch, source=source, position=at)
    digests = (
        ("ends at", places.end_offset, header.end_offset),
        ("number of batches:", len(places.base_offsets), header.batch_count),
        ("has digest", extend_digest_over(header.digest_before, data).hex(), header.digest_after.hex()),
        ("continues from digest", header.digest_before.hex(), _hex(planned.digest_before, header.digest_before)),
        ("leads to digest", header.digest_after.hex(), _hex(planned.digest_after, header.digest_after)),
    )
    for what, found, wanted in digests:
        if found != wanted:
            raise Corrupt(f"part {what} {found}, expected {wanted}", source=source, position=part.position)
    return CheckedPart(planned, header, data, places)


def _hex(known: bytes | None, otherwise: bytes) -> str:
    return (otherwise if known is None else known).hex()


def _check_goes_on(before: CheckedPart | None, part: CheckedPart) -> None:
    if before is None or before.planned.segment != part.planned.segment:
        return
    if before.header.end_offset == part.header.base_offset and before.header.digest_after != part.header.digest_before:
        raise Corrupt(
            f"part continues from digest {part.header.digest_before.hex()}, the one before, "
            f"{before.planned.part.object_key}, leads to {before.header.digest_after.hex()}",
            source=part.planned.part.object_key,
            position=part.planned.part.position,
        )


async def relocate(store: ObjectStore, names: ObjectNames, planned: PartRange) -> list[PartRange]:
    """Where the records of a part lie now that its object is gone. Raises: NotFound when they are nowhere."""
    found: list[tuple[tuple[bool, int, int], str]] = []
    async for info in store.list(names.segment_prefix(planned.segment)):
        name = names.parse(info.key)
        if isinstance(name, SegmentObjectName) and name.kind is SegmentObject.MANIFEST:
            found.append((last_to_stay(name.node_id, name.lock_epoch, name.attempt), info.key))
    if not found:
        raise NotFound(
            f"{planned.part.object_key} is gone, and no manifest says where offsets {planned.from_offset} to "
            f"{planned.to_offset} of shard {planned.segment.shard} of topic {planned.topic} are now: retention, a "
            "deleted topic, or damage. Plan the read again"
        )
    _, key = max(found)
    name = names.parse(key)
    assert isinstance(name, SegmentObjectName), "it was listed by its name"
    manifest = await read_manifest(store, ExpectedManifest.of_name(names.cluster_id, name, key))
    segment = CommittedSegment(planned.segment, manifest.seal.end_offset, (), key, None, manifest.seal)
    wanted = OffsetRange(planned.from_offset, planned.to_offset)
    return ranges_within(planned.topic, segment, manifest.parts, manifest.seal, wanted)
