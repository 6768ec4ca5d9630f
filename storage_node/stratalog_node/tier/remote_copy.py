"""Checks a segment's copy in the object store: the manifest says what metadata says, and all it names is there.

Used before a copy counts as complete, and again before the local one is freed (F37). Cost: one GET and one LIST of the
segment's folder, whatever its size: a complete copy lies wholly in its own folder.
"""

from __future__ import annotations

from stratalog.formats.manifest import Manifest, decode_manifest, manifest_digest
from stratalog.formats.object_names import ObjectNames
from stratalog.model.errors import Corrupt, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord
from stratalog.objects.store import ObjectStore


async def check_remote_copy(
    store: ObjectStore,
    names: ObjectNames,
    key: SegmentKey,
    seal: SealRecord,
    manifest_key: str,
    expected_digest: bytes,
) -> Manifest:
    """Returns the manifest. Raises: Corrupt, NotFound, and whatever the store raises while it is away."""
    manifest = await read_manifest(store, manifest_key, expected_digest)
    if (manifest.identity.key, manifest.seal) != (key, seal):
        raise Corrupt("manifest is of another segment or another seal", source=manifest_key, position=0)
    folder = names.segment_prefix(key)
    sizes = {info.key: info.size_bytes async for info in store.list(folder)}
    expected = {part.object_key: part.position + part.size_bytes for part in manifest.parts}
    expected[manifest.index_key] = manifest.index_size_bytes
    for object_key, size_bytes in expected.items():
        if not object_key.startswith(folder):
            raise Corrupt(f"part lies in {object_key}, outside the segment's folder", source=manifest_key, position=0)
        found = sizes.get(object_key)
        if found is None:
            raise NotFound(f"{manifest_key} names {object_key}, which is not in the object store")
        if found != size_bytes:
            raise Corrupt(f"object has {found} bytes, the manifest says {size_bytes}", source=object_key, position=0)
    return manifest


async def read_manifest(store: ObjectStore, manifest_key: str, expected_digest: bytes) -> Manifest:
    """A manifest whose digest is the expected one. Raises: Corrupt, NotFound."""
    data = await store.get(manifest_key)
    digest = manifest_digest(data)
    if digest != expected_digest:
        raise Corrupt(
            f"manifest has digest {digest.hex()}, metadata says {expected_digest.hex()}",
            source=manifest_key,
            position=0,
        )
    return decode_manifest(data, source=manifest_key)
