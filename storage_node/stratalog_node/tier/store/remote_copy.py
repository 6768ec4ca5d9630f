"""Checks a segment's copy in the object store: the manifest says what metadata says, and all it names is there.

A complete copy lies wholly in its own folder: the manifest, its index, perhaps a key index of the manifest's attempt,
and chunks that cover the segment. Where a
folder holds these and nothing else the listing alone tells that the copy is whole: no chunk can be missing or another,
and the sizes add up to what metadata knows. Where it holds more (other attempts), the manifest says which.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.formats.bucket.object_names import ObjectNames, SegmentObject, SegmentObjectName
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.manifests import ExpectedManifest, check_named_objects, read_manifest


def is_exactly(segment: Segment, objects: Sequence[SegmentObjectName], keys: Sequence[str]) -> bool:
    """Whether these are the named manifest of a complete segment, one index, no key index or one of the manifest's
    attempt that covers the segment once, and chunks that cover it once."""
    if segment.remote.manifest_key not in keys or segment.end_offset is None:
        return False
    kinds = [name.kind for name in objects]
    if kinds.count(SegmentObject.MANIFEST) != 1 or kinds.count(SegmentObject.INDEX) != 1:
        return False
    chunks = [name for name in objects if name.is_part]
    runs = [name for name in objects if name.kind is SegmentObject.KEYS]
    if runs:
        # Whoever put the manifest named the runs of its own attempt, and no other.
        manifest = next(name for name in objects if name.kind is SegmentObject.MANIFEST)
        attempt = (manifest.node_id, manifest.lock_epoch, manifest.attempt)
        if any((run.node_id, run.lock_epoch, run.attempt) != attempt for run in runs) or not _cover(segment, runs):
            return False
    return _cover(segment, chunks)


def _cover(segment: Segment, objects: Sequence[SegmentObjectName]) -> bool:
    """Each offset of a segment once."""
    offset = segment.base_offset
    for name in sorted(objects, key=lambda name: name.from_offset):
        if name.from_offset != offset or name.to_offset == offset:
            return False
        offset = name.to_offset
    return offset == segment.end_offset


async def check_remote_copy(store: ObjectStore, names: ObjectNames, segment: Segment) -> None:
    """See that a complete copy is still there. Cost: one LIST; a GET, too, where attempts were left in the folder.

    Raises: Corrupt, NotFound, and whatever the store raises while it is away.
    """
    assert segment.seal is not None and segment.remote.manifest_key is not None
    infos = [info async for info in store.list(names.segment_prefix(segment.key))]
    ours = [(info, name) for info in infos if isinstance(name := names.parse(info.key), SegmentObjectName)]
    sizes_add_up = sum(info.size_bytes for info, _ in ours) == segment.remote.size_bytes
    if sizes_add_up and is_exactly(segment, [name for _, name in ours], [info.key for info, _ in ours]):
        return
    manifest = await read_manifest(store, ExpectedManifest.of_segment(names.cluster_id, segment))
    check_named_objects(manifest, names.segment_prefix(segment.key), {info.key: info.size_bytes for info in infos})
