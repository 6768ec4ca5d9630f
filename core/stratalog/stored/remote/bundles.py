"""Reads bundles: what parts a bundle holds, of which segments, and where they lie.

The bundle's own header is compared with the object's name, and each entry of its directory with the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from stratalog.formats.bucket.bundle import (
    BUNDLE_HEADER_BYTES,
    BUNDLE_TRAILER_BYTES,
    BundleEntry,
    BundleHeader,
    BundleTrailer,
    check_bundle,
    decode_bundle_directory,
    decode_bundle_header,
    decode_bundle_trailer,
)
from stratalog.formats.bucket.object_names import BundleName
from stratalog.formats.bucket.part import PartHeader
from stratalog.formats.fields import Buffer
from stratalog.model.errors import Corrupt
from stratalog.model.segment import RemotePart
from stratalog.stored.remote.expected import check_same
from stratalog.stored.remote.parts import check_part_header

GetRange: TypeAlias = Callable[[str, int, int], Awaitable[bytes]]
"""Reads bytes `[start, end)` of an object."""


async def read_bundle_trailer(get_range: GetRange, object_key: str, size_bytes: int) -> BundleTrailer:
    """Of an object of `size_bytes`. Raises: Corrupt, NotFound, and what `get_range` raises."""
    if size_bytes < BUNDLE_HEADER_BYTES + BUNDLE_TRAILER_BYTES:
        raise Corrupt(f"{size_bytes} bytes are not a bundle", source=object_key, position=size_bytes)
    tail = await get_range(object_key, size_bytes - BUNDLE_TRAILER_BYTES, size_bytes)
    return decode_bundle_trailer(tail, source=object_key, object_size=size_bytes)


async def read_bundle_entries(
    get_range: GetRange, cluster_id: str, name: BundleName, object_key: str, size_bytes: int
) -> tuple[BundleEntry, ...]:
    """The directory, in three small reads. Raises: Corrupt, WrongObject, NotFound, and what `get_range` raises."""
    trailer = await read_bundle_trailer(get_range, object_key, size_bytes)
    head = await get_range(object_key, 0, BUNDLE_HEADER_BYTES)
    _check_header(decode_bundle_header(head, source=object_key), cluster_id, name, object_key)
    start, end = trailer.directory_position, trailer.directory_position + trailer.directory_size_bytes
    directory = await get_range(object_key, start, end)
    entries = decode_bundle_directory(directory, trailer, source=object_key)
    for entry in entries:
        _check_entry(entry, cluster_id, object_key)
    return entries


def part_of(entry: BundleEntry, object_key: str) -> RemotePart:
    """The part that an entry of a bundle names."""
    return RemotePart(object_key, entry.position, entry.size_bytes, entry.base_offset, entry.end_offset)


def check_whole_bundle(
    body: Buffer, cluster_id: str, name: BundleName, object_key: str
) -> list[tuple[BundleEntry, PartHeader]]:
    """Everything in a bundle, every batch included. Raises: Corrupt, WrongObject."""
    header, entries = check_bundle(body, source=object_key)
    _check_header(header, cluster_id, name, object_key)
    view = memoryview(body)
    return [
        (
            entry,
            check_part_header(view[entry.position :], cluster_id, entry.identity.key, part_of(entry, object_key)),
        )
        for entry in entries
    ]


def _check_header(header: BundleHeader, cluster_id: str, name: BundleName, source: str) -> None:
    check_same(
        "bundle",
        source,
        0,
        ("cluster", header.cluster_id, cluster_id),
        ("node", header.node_id, name.node_id),
        ("lock epoch", header.lock_epoch, name.lock_epoch),
        ("number", header.number, name.number),
        ("attempt", header.attempt, name.attempt),
    )


def _check_entry(entry: BundleEntry, cluster_id: str, source: str) -> None:
    check_same("entry of a bundle", source, entry.position, ("cluster", entry.identity.cluster_id, cluster_id))
