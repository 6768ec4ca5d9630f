"""Reads the index blocks and the key indexes of complete segments, each against the manifest that names it."""

from __future__ import annotations

from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import SegmentObjectName
from stratalog.formats.fields import Buffer
from stratalog.formats.segments.digest import object_digest
from stratalog.formats.segments.index_block import IndexBlock, decode_index_block
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.expected import check_identity, check_same, check_seal


def check_index(body: Buffer, manifest: Manifest) -> IndexBlock:
    """`body` is the whole object. Raises: Corrupt; WrongObject for a sound index that the manifest does not name."""
    source = manifest.index_key
    check_same(
        "index",
        source,
        0,
        ("size", len(body), manifest.index_size_bytes),
        ("digest", object_digest(body), manifest.index_digest),
    )
    block = decode_index_block(body, source=source)
    check_identity("index", block.identity, manifest.identity.cluster_id, manifest.identity.key, source)
    check_seal("index", block.seal, manifest.seal, source)
    return block


async def read_index(store: ObjectStore, manifest: Manifest) -> IndexBlock:
    """Raises: Corrupt, WrongObject, NotFound, and whatever the store raises while it is away."""
    return check_index(await store.get(manifest.index_key), manifest)


def check_index_under_name(body: Buffer, cluster_id: str, name: SegmentObjectName, source: str) -> IndexBlock:
    """An index of which only the name is known. Raises: Corrupt, WrongObject."""
    block = decode_index_block(body, source=source)
    check_identity("index", block.identity, cluster_id, name.segment, source)
    check_same("index", source, 0, ("end offset", block.seal.end_offset, name.to_offset))
    return block


def check_key_run(body: Buffer, run: KeyRun) -> None:
    """That a run of a key index is the one that the manifest names. Raises: WrongObject."""
    check_same(
        "key index",
        run.object_key,
        0,
        ("size", len(body), run.size_bytes),
        ("digest", object_digest(body), run.digest),
    )
