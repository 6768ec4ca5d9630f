"""Finds the records of a key in complete segments that have a key index: a range read for the key's page, one for each
batch that it names (docs/formats.md section 16).

Batches that lie next to each other are read at once, up to READ_BYTES. Everything is checked: page, batch, that offsets
and epoch are the segment's; and the key's bytes are compared, for a hash is a hint. Storage nodes are not asked.
Memory: a read and its records. Raises: Corrupt, and whatever the store raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.formats.key_index import KeyEntry, decode_key_overflow, decode_key_page, key_hash
from stratalog.formats.manifest import Manifest
from stratalog.formats.record_batch import walk
from stratalog.formats.records import MAX_DECODED_BYTES, Record, decode_records
from stratalog.model.errors import Corrupt
from stratalog.objects import ObjectStore

READ_BYTES: Final = 4 << 20
"""Of neighbouring batches in one read; a batch may be larger."""


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
    run, of which most segments have one; one more where the key is in very many batches."""
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
    store: ObjectStore, manifest: Manifest, key: bytes, cost: LookupCost, *, max_decoded_bytes: int = MAX_DECODED_BYTES
) -> AsyncIterator[Record]:
    """The records of a key in a segment with a key index, offsets rising. A batch that has more than so many bytes
    decompressed is Corrupt."""
    entries = await entries_of(store, manifest, key, cost)
    for some in neighbours(entries):
        part = manifest.parts[some[0].part]
        start = part.position + some[0].position
        end = part.position + some[-1].position + some[-1].size_bytes
        data = await _read(store, part.object_key, start, end, cost)
        cost.reads += 1
        for record in await asyncio.to_thread(_records_in, data, some, manifest, start, key, max_decoded_bytes):
            yield record


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


def _records_in(
    data: bytes, entries: Iterable[KeyEntry], manifest: Manifest, start: int, key: bytes, max_bytes: int
) -> list[Record]:
    """Of these batches, which are all of `data`."""
    found: list[Record] = []
    view, at = memoryview(data), 0
    for entry in entries:
        part = manifest.parts[entry.part]
        source, position = part.object_key, start + at
        batch = view[at : at + entry.size_bytes]
        for _, header in walk(batch, source=source, position=position, epoch=manifest.identity.epoch):
            if header.size_bytes != entry.size_bytes:
                raise Corrupt("the key index names another batch than the one here", source=source, position=position)
            if not part.base_offset <= header.base_offset < header.end_offset <= part.end_offset:
                raise Corrupt(
                    f"a batch has offsets [{header.base_offset}, {header.end_offset}), its part "
                    f"[{part.base_offset}, {part.end_offset})",
                    source=source,
                    position=position,
                )
        records = decode_records(batch, max_bytes=max_bytes, source=source, position=position)
        found += (one for one in records if one.key == key)
        at += entry.size_bytes
    return found


async def _read(store: ObjectStore, object_key: str, start: int, end: int, cost: LookupCost) -> bytes:
    body = await store.get_range(object_key, start, end)
    cost.bytes += len(body)
    return body
