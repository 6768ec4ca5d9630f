"""Reads manifests of complete segments.

A manifest that the metadata name is checked against their digest and seal record, one that is found by its name
against that name. Cost: a GET; a large manifest is decoded on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.formats.bucket.manifest import Manifest, decode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import SegmentObjectName
from stratalog.formats.fields import Buffer
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord, Segment
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.expected import RESTORE, check_identity, check_same, check_seal

_DECODED_AT_ONCE_BYTES: Final = 64 << 10
"""A larger manifest is decoded on a thread."""


@dataclass(frozen=True, slots=True)
class ExpectedManifest:
    """The manifest that a reader means."""

    cluster_id: str
    segment: SegmentKey
    object_key: str
    end_offset: int | None
    digest: bytes | None
    """Of its bytes; None where the reader knows the manifest by its name alone, and trusts its checksum."""
    seal: SealRecord | None
    """None where the reader does not know the segment's seal record."""

    @classmethod
    def of_segment(cls, cluster_id: str, segment: Segment) -> ExpectedManifest:
        """Requires: the segment is COMPLETE. Raises: Unavailable while the metadata name no manifest."""
        remote = segment.remote
        if remote.manifest_key is None:
            raise Unavailable(
                f"segment {segment.key}: metadata calls it complete and names no manifest; wait for the metadata to "
                "load"
            )
        digest = remote.manifest_digest or b""
        return cls(cluster_id, segment.key, remote.manifest_key, segment.end_offset, digest, segment.seal)

    @classmethod
    def of_name(
        cls, cluster_id: str, name: SegmentObjectName, object_key: str, seal: SealRecord | None = None
    ) -> ExpectedManifest:
        """By the name of the object, and by the seal record where that is known."""
        return cls(cluster_id, name.segment, object_key, name.to_offset, None, seal)


def check_manifest(body: Buffer, expected: ExpectedManifest) -> Manifest:
    """`body` is the whole object. Raises: Corrupt; WrongObject for a sound manifest that is not the expected one."""
    source = expected.object_key
    if expected.digest is not None:
        check_same("manifest", source, 0, ("digest", manifest_digest(body), expected.digest))
    manifest = decode_manifest(body, source=source)
    check_identity("manifest", manifest.identity, expected.cluster_id, expected.segment, source)
    if expected.end_offset is not None:
        check_same("manifest", source, 0, ("end offset", manifest.seal.end_offset, expected.end_offset))
    if expected.seal is not None:
        check_seal("manifest", manifest.seal, expected.seal, source)
    return manifest


def check_named_objects(manifest: Manifest, folder: str, sizes: Mapping[str, int]) -> None:
    """That all a manifest names lies in the segment's folder at its length. `sizes`: of the objects that the store
    has, by key. Their contents are not read. Raises: Corrupt, NotFound."""
    place = f"manifest of {manifest.identity.key}"
    for object_key, size_bytes in manifest.object_sizes.items():
        if not object_key.startswith(folder):
            raise Corrupt(f"{object_key} is outside the segment's folder", source=place, position=0)
        found = sizes.get(object_key)
        if found is None:
            raise NotFound(f"the {place} names {object_key}, which is not in the object store: {RESTORE}")
        check_same("object", object_key, 0, ("size", found, size_bytes))


async def read_manifest(store: ObjectStore, expected: ExpectedManifest) -> Manifest:
    """Raises: Corrupt, WrongObject, NotFound, and whatever the store raises while it is away."""
    body = await store.get(expected.object_key)
    if len(body) > _DECODED_AT_ONCE_BYTES:
        return await asyncio.to_thread(check_manifest, body, expected)
    return check_manifest(body, expected)
