"""Reads parts of segments: their headers, their indexes, and whole parts with every batch.

A part is checked against what the metadata or a manifest say of it (`RemotePart`), and against the attempt in the name
of its object. Functions named `check_` are pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from stratalog.formats.bucket.object_names import SegmentObjectName, attempt_in_name, is_packed
from stratalog.formats.bucket.part import (
    PART_HEADER_BYTES,
    PartHeader,
    PartIndex,
    check_part,
    decode_part_header,
    decode_part_index,
)
from stratalog.formats.fields import Buffer
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.expected import check_identity, check_same

MAX_PART_BYTES: Final = 1 << 30
"""No part is read whole that claims more."""

_READS_AT_A_TIME: Final = 8


# Checks -------------------------------------------------------------------------------------------------------------
def check_part_header(data: Buffer, cluster_id: str, segment: SegmentKey, part: RemotePart) -> PartHeader:
    """The header at the front of `data`, which may hold more. Raises: Corrupt; WrongObject for another part's."""
    header = decode_part_header(data, source=part.object_key, position=part.position)
    _check_is_part(header, cluster_id, segment, part)
    return header


def check_part_index(data: Buffer, header: PartHeader, part: RemotePart) -> PartIndex:
    """The index of a part whose header was checked, from its own bytes. Raises: Corrupt."""
    return decode_part_index(data, header, source=part.object_key, position=part.position + header.index_position)


def check_index_at_end(tail: memoryview, header: PartHeader, part: RemotePart) -> PartIndex:
    """The index of a part whose header was checked, from the last bytes of the part. Raises: Corrupt."""
    size = header.index_size_bytes
    if size > len(tail):
        raise Corrupt(
            f"part claims an index of {size} bytes, points 64 KiB apart have at most {len(tail)}",
            source=part.object_key,
            position=part.position,
        )
    return check_part_index(tail[len(tail) - size :], header, part)


def check_whole_part(
    body: Buffer, cluster_id: str, segment: SegmentKey, part: RemotePart, *, digest_before: bytes | None = None
) -> PartIndex:
    """All of a part: header, batches, index, digests. `digest_before`: of the segment's batches before the part, where
    that is known. Raises: Corrupt; WrongObject for a sound part that is another one."""
    index = check_part(body, source=part.object_key, position=part.position)
    header = index.header
    _check_is_part(header, cluster_id, segment, part)
    if digest_before is not None:
        check_same("part", part.object_key, part.position, ("digest before it", header.digest_before, digest_before))
    return index


def check_chunk_header(
    head: Buffer, cluster_id: str, name: SegmentObjectName, object_key: str, stored_bytes: int
) -> tuple[PartHeader, RemotePart]:
    """The header of a chunk that is known by its name and its stored size, and where its part lies. The stored size of
    a packed chunk says nothing about the part's. Raises: Corrupt, WrongObject."""
    header = decode_part_header(head, source=object_key, position=0)
    size_bytes = header.size_bytes if is_packed(object_key) else stored_bytes
    part = RemotePart(object_key, 0, size_bytes, name.from_offset, name.to_offset)
    _check_is_part(header, cluster_id, name.segment, part)
    return header, part


def check_whole_chunk(body: Buffer, cluster_id: str, name: SegmentObjectName, object_key: str) -> PartIndex:
    """A whole chunk (unpacked) that is known by its name. Raises: Corrupt, WrongObject."""
    part = RemotePart(object_key, 0, len(body), name.from_offset, name.to_offset)
    return check_whole_part(body, cluster_id, name.segment, part)


def check_part_size(part: RemotePart) -> None:
    """Before a part is read whole. Raises: Corrupt for a size that no part has."""
    if not PART_HEADER_BYTES < part.size_bytes <= MAX_PART_BYTES:
        raise Corrupt(f"part claims {part.size_bytes} bytes", source=part.object_key, position=part.position)


def _check_is_part(header: PartHeader, cluster_id: str, segment: SegmentKey, part: RemotePart) -> None:
    source, position = part.object_key, part.position
    check_identity("part", header.identity, cluster_id, segment, source, position)
    check_same(
        "part",
        source,
        position,
        ("first offset", header.base_offset, part.base_offset),
        ("end offset", header.end_offset, part.end_offset),
        ("size", header.size_bytes, part.size_bytes),
    )
    attempt = attempt_in_name(source)
    if attempt is not None:
        check_same("part", source, position, ("attempt", header.attempt, attempt))


# Reads --------------------------------------------------------------------------------------------------------------
async def read_part_header(store: ObjectStore, cluster_id: str, segment: SegmentKey, part: RemotePart) -> PartHeader:
    """Raises: Corrupt, WrongObject, NotFound, and whatever the store raises while it is away."""
    head = await store.get_range(part.object_key, part.position, part.position + PART_HEADER_BYTES)
    return check_part_header(head, cluster_id, segment, part)


async def read_part_index(store: ObjectStore, cluster_id: str, segment: SegmentKey, part: RemotePart) -> PartIndex:
    """Header and index, in two small requests. Raises: as `read_part_header`."""
    header = await read_part_header(store, cluster_id, segment, part)
    start = part.position + header.index_position
    data = await store.get_range(part.object_key, start, start + header.index_size_bytes)
    return check_part_index(data, header, part)


async def read_packed_sizes(store: ObjectStore, parts: Sequence[RemotePart]) -> tuple[int, ...]:
    """Of each part, how many bytes its packed chunk has in the store; 0 for one that is not packed. Empty where none
    is, as manifests have it. Raises: NotFound, and whatever the store raises while it is away."""
    if not any(is_packed(part.object_key) for part in parts):
        return ()

    async def size_of(key: str) -> int:
        return (await store.head(key)).size_bytes if is_packed(key) else 0

    sizes: list[int] = []
    for start in range(0, len(parts), _READS_AT_A_TIME):
        some = parts[start : start + _READS_AT_A_TIME]
        sizes += await asyncio.gather(*(size_of(part.object_key) for part in some))
    return tuple(sizes)
