"""Finds the records of a key in complete segments that have a key index: a range read for the key's page, one for each
batch that it names (docs/formats.md section 16).

Batches that lie next to each other are read at once, up to READ_BYTES. Everything is checked: page, batch, that offsets
and epoch are the segment's; and the key's bytes are compared, for a hash is a hint. Storage nodes are not asked.
A few bytes of a batch may be megabytes of records. Memory: a read; on the thread, a batch decompressed; of the key's
records those of OPENED_BYTES and a batch more. Raises: Corrupt, and whatever the store raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import MAX_DECODED_BYTES, FramePace, KeyMatches, Record, records_of_key
from stratalog.formats.bucket.key_index import KeyEntry, decode_key_overflow, decode_key_page, key_hash
from stratalog.formats.bucket.manifest import Manifest
from stratalog.model.errors import Corrupt
from stratalog.objects import ObjectStore

READ_BYTES: Final = 4 << 20
"""Of neighbouring batches in one read; a batch may be larger."""
OPENED_BYTES: Final = 16 << 20
"""Of records, decompressed: where a piece of work on a thread ends, behind the batch that reaches it."""

T = TypeVar("T")


class OffLoop(Protocol):
    """Does work on a thread."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


async def _on_any_thread(work: Callable[[], T], /) -> T:
    return await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Opening:
    """How batches are opened: what one may have decompressed (more is Corrupt), where, and at whose pace."""

    max_bytes: int = MAX_DECODED_BYTES
    off_loop: OffLoop = _on_any_thread
    pace: FramePace = iter


@dataclass(slots=True)
class LookupCost:
    """What was read so far."""

    pages: int = 0
    """Range reads of key indexes."""
    reads: int = 0
    """Range reads of batches."""
    bytes: int = 0


async def entries_of(store: ObjectStore, manifest: Manifest, key: bytes, cost: LookupCost) -> list[KeyEntry]:
    """Which batches may have the key, offsets rising. Requires: the manifest has a key index. Cost: a range read per
    run (most segments have one run), and one more if the key is in very many batches."""
    hashed, digest = key_hash(key), manifest.seal.digest
    found: list[KeyEntry] = []
    for run in manifest.key_runs:
        start, end = run.page_range(hashed)
        page = decode_key_page(await _read(store, run.object_key, start, end, cost), run, hashed, digest)
        cost.pages += 1
        entries = page.entries
        start, end = page.overflow
        if end:
            data = await _read(store, run.object_key, start, end, cost)
            entries += await asyncio.to_thread(decode_key_overflow, data, run, hashed, digest, start)
            cost.pages += 1
        for entry in entries:
            _check_fits(entry, manifest, run.object_key)
        found += entries
    return found


def _check_fits(entry: KeyEntry, manifest: Manifest, source: str) -> None:
    parts = manifest.parts
    if entry.part >= len(parts) or entry.position + entry.size_bytes > parts[entry.part].size_bytes:
        raise Corrupt(
            f"an entry names {entry.size_bytes} bytes at {entry.position} of part {entry.part}: no part has them",
            source=source,
            position=0,
        )


async def records_of(
    store: ObjectStore,
    manifest: Manifest,
    key: bytes,
    cost: LookupCost,
    *,
    from_offset: int = 0,
    limit: int | None = None,
    opening: Opening = Opening(),
) -> AsyncIterator[Record]:
    """The records of a key in a segment with a key index, offsets rising: at most `limit`, from an offset on."""
    left = limit
    for some in neighbours(await entries_of(store, manifest, key, cost)):
        part = manifest.parts[some[0].part]
        start = part.position + some[0].position
        end = part.position + some[-1].position + some[-1].size_bytes
        data = await _read(store, part.object_key, start, end, cost)
        cost.reads += 1
        opener = _Opener(data, some, manifest, key, from_offset, opening)
        first = 0
        while first < len(some):
            piece = await opening.off_loop(partial(opener.records_from, first, left))
            for record in piece.records:
                yield record
            first = piece.behind
            left = None if left is None else left - len(piece.records)
            if left == 0:
                return


def neighbours(entries: Sequence[KeyEntry]) -> Iterator[Sequence[KeyEntry]]:
    """Runs of batches that lie back to back, at most READ_BYTES each, or one batch."""
    first = 0
    for at in range(1, len(entries) + 1):
        if at < len(entries):
            start, before, now = entries[first], entries[at - 1], entries[at]
            is_next = now.part == start.part and now.position == before.position + before.size_bytes
            if is_next and now.position + now.size_bytes - start.position <= READ_BYTES:
                continue
        if first < at:
            yield entries[first:at]
        first = at


class _Opened(NamedTuple):
    records: list[Record]
    behind: int
    """The number of the entry to continue with."""


@dataclass(frozen=True, slots=True)
class _Opener:
    """Batches that were read: these entries, which are all of `data`."""

    data: bytes
    entries: Sequence[KeyEntry]
    manifest: Manifest
    key: bytes
    from_offset: int
    opening: Opening

    def records_from(self, first: int, limit: int | None) -> _Opened:
        """Of batches from one entry on, until OPENED_BYTES or the limit are reached."""
        found: list[Record] = []
        opened_bytes = 0
        for number in range(first, len(self.entries)):
            left = None if limit is None else limit - len(found)
            if opened_bytes >= OPENED_BYTES or left == 0:
                return _Opened(found, number)
            records, size_bytes = self._open(self.entries[number], left)
            found += records
            opened_bytes += size_bytes
        return _Opened(found, len(self.entries))

    def _open(self, entry: KeyEntry, limit: int | None) -> KeyMatches:
        part = self.manifest.parts[entry.part]
        source, position = part.object_key, part.position + entry.position
        at = entry.position - self.entries[0].position
        batch = memoryview(self.data)[at : at + entry.size_bytes]
        should_follow = False
        for _, header in walk(batch, source=source, position=position, epoch=self.manifest.identity.epoch):
            if header.size_bytes != entry.size_bytes:
                raise Corrupt("the key index names another batch than the one here", source=source, position=position)
            if not part.base_offset <= header.base_offset < header.end_offset <= part.end_offset:
                raise Corrupt(
                    f"a batch has offsets [{header.base_offset}, {header.end_offset}), its part "
                    f"[{part.base_offset}, {part.end_offset})",
                    source=source,
                    position=position,
                )
            should_follow = header.end_offset > self.from_offset
        if not should_follow:
            return KeyMatches([], 0)
        return records_of_key(
            batch,
            self.key,
            from_offset=self.from_offset,
            limit=limit,
            pace=self.opening.pace,
            max_bytes=self.opening.max_bytes,
            source=source,
            position=position,
        )


async def _read(store: ObjectStore, object_key: str, start: int, end: int, cost: LookupCost) -> bytes:
    body = await store.get_range(object_key, start, end)
    cost.bytes += len(body)
    return body
