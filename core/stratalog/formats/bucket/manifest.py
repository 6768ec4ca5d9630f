"""The manifest of a sealed segment in the object store: seal record, parts, index, perhaps a key index (docs/formats.md
section 8).

Invariant: the parts cover the seal's offsets in order, without gap or overlap; so do the runs of a key index. One
encoding per manifest, so equal manifests have equal digests. Written once, read back and checked before the segment
counts as COMPLETE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.object_names import is_packed
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.envelope import Structure, identify, open_envelope, seal_envelope, version_in
from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.identity import read_identity, write_identity
from stratalog.formats.segments.digest import object_digest
from stratalog.formats.segments.seal import SealLayout, read_seal, seal_fault, write_seal
from stratalog.model.errors import InvalidRequest
from stratalog.model.segment import RemotePart, SealRecord, SegmentIdentity

MAX_OBJECT_KEY_BYTES = 1024

PACKED_VERSIONS = {Structure.MANIFEST: 5, Structure.KEYED_MANIFEST: 4}
"""Of manifests with packed parts; so a reader that knows none refuses them by their version."""


class _Layout(NamedTuple):
    seal: SealLayout
    has_packed: bool


_LAYOUTS: Final = {
    Structure.MANIFEST: {
        2: _Layout(SealLayout.FIRST, has_packed=False),
        3: _Layout(SealLayout.FIRST, has_packed=True),
        4: _Layout(SealLayout.TIMES_KNOWN, has_packed=False),
        5: _Layout(SealLayout.TIMES_KNOWN, has_packed=True),
    },
    Structure.KEYED_MANIFEST: {
        1: _Layout(SealLayout.FIRST, has_packed=False),
        2: _Layout(SealLayout.FIRST, has_packed=True),
        3: _Layout(SealLayout.TIMES_KNOWN, has_packed=False),
        4: _Layout(SealLayout.TIMES_KNOWN, has_packed=True),
    },
}
"""The versions that can be read, and what each of them has."""

_MIN_PART_ENTRY_BYTES = 34
_MIN_KEY_RUN_BYTES = 58


@dataclass(frozen=True, slots=True)
class Manifest:
    """`index_digest` is `digest.object_digest` of the index object's bytes."""

    identity: SegmentIdentity
    seal: SealRecord
    parts: tuple[RemotePart, ...]
    index_key: str
    index_size_bytes: int
    index_digest: bytes
    key_runs: tuple[KeyRun, ...] = ()
    """Of the key index; none where the segment has no such index."""
    packed_sizes: tuple[int, ...] = ()
    """Where parts are packed, of each part: bytes of its object, 0 for one that is not packed."""

    @property
    def total_bytes(self) -> int:
        """Of the parts, unpacked."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def copy_bytes(self) -> int:
        """Of all that the manifest names, as it is stored; its own come on top."""
        stored = self.total_bytes
        for part, packed_size in zip(self.parts, self.packed_sizes, strict=False):
            stored -= part.size_bytes - packed_size if packed_size else 0
        return stored + self.index_size_bytes + sum(run.size_bytes for run in self.key_runs)

    @property
    def object_sizes(self) -> dict[str, int]:
        """What the manifest names: each object, and how many bytes it needs."""
        sizes = {self.index_key: self.index_size_bytes}
        sizes |= {run.object_key: run.size_bytes for run in self.key_runs}
        for part in self.parts:
            sizes[part.object_key] = max(sizes.get(part.object_key, 0), part.position + part.size_bytes)
        sizes |= {part.object_key: size for part, size in zip(self.parts, self.packed_sizes, strict=False) if size}
        return sizes


def encode_manifest(manifest: Manifest) -> bytes:
    """Raises: InvalidRequest when the parts do not cover the seal's offsets."""
    fault = _fault(manifest)
    if fault is not None:
        raise InvalidRequest(f"manifest of segment {manifest.identity.key}: {fault}")
    out = FieldWriter()
    write_identity(out, manifest.identity)
    write_seal(out, manifest.seal, epoch=manifest.identity.epoch, base_offset=manifest.identity.base_offset)
    out.text(manifest.index_key, MAX_OBJECT_KEY_BYTES, "index key")
    out.natural(manifest.index_size_bytes, "index size")
    out.digest(manifest.index_digest, "index digest")
    out.natural(manifest.total_bytes, "total size")
    out.natural(len(manifest.parts), "part count")
    for part in manifest.parts:
        out.text(part.object_key, MAX_OBJECT_KEY_BYTES, "part's object key")
        out.natural(part.position, "part's position")
        out.natural(part.size_bytes, "part's size")
        out.natural(part.base_offset, "part's first offset")
        out.natural(part.end_offset, "part's end offset")
    for packed_size in manifest.packed_sizes:
        out.natural(packed_size, "packed size")
    structure = Structure.KEYED_MANIFEST if manifest.key_runs else Structure.MANIFEST
    version = PACKED_VERSIONS[structure] if manifest.packed_sizes else None
    if not manifest.key_runs:
        return seal_envelope(structure, out.getvalue(), version=version)
    out.natural(len(manifest.key_runs), "count of key runs")
    for run in manifest.key_runs:
        out.text(run.object_key, MAX_OBJECT_KEY_BYTES, "key run's object key")
        out.natural(run.size_bytes, "key run's size")
        out.digest(run.digest, "key run's digest")
        out.natural(run.buckets, "key run's buckets")
        out.natural(run.entries, "key run's entries")
        out.natural(run.from_offset, "key run's first offset")
        out.natural(run.to_offset, "key run's end offset")
    return seal_envelope(structure, out.getvalue(), version=version)


def decode_manifest(data: Buffer, *, source: str) -> Manifest:
    """`data` is the whole object. Raises: Corrupt."""
    has_keys = identify(memoryview(data)[:8]) is Structure.KEYED_MANIFEST
    structure = Structure.KEYED_MANIFEST if has_keys else Structure.MANIFEST
    found, layouts = version_in(data), _LAYOUTS[structure]
    version = found if found in layouts else structure.version
    layout = layouts[version]
    fields = open_envelope(data, structure, source=source, position=0, version=version)
    identity = read_identity(fields)
    seal = read_seal(fields, epoch=identity.epoch, base_offset=identity.base_offset, layout=layout.seal)
    index_key = fields.text(MAX_OBJECT_KEY_BYTES, "index key")
    index_size_bytes = fields.natural("index size")
    index_digest = fields.digest("index digest")
    total_bytes = fields.natural("total size")
    parts = tuple(_read_part(fields) for _ in range(fields.count("part count", _MIN_PART_ENTRY_BYTES)))
    packed_sizes: tuple[int, ...] = ()
    if layout.has_packed:
        packed_sizes = tuple(fields.natural("packed size") for _ in parts)
        if not any(packed_sizes):
            fields.refuse("manifest with packed parts has none")
    runs: tuple[KeyRun, ...] = ()
    if has_keys:
        runs = tuple(_read_key_run(fields) for _ in range(fields.count("count of key runs", _MIN_KEY_RUN_BYTES)))
        if not runs:
            fields.refuse("manifest with a key index has no run of it")
    fields.finish()
    manifest = Manifest(identity, seal, parts, index_key, index_size_bytes, index_digest, runs, packed_sizes)
    if manifest.total_bytes != total_bytes:
        fields.refuse(f"parts have {manifest.total_bytes} bytes, the manifest claims {total_bytes}")
    fault = _fault(manifest)
    if fault is not None:
        fields.refuse(fault)
    return manifest


def manifest_digest(data: Buffer) -> bytes:
    """The digest of a manifest's bytes, as the meta store keeps it."""
    return object_digest(data)


def _read_part(fields: FieldReader) -> RemotePart:
    return RemotePart(
        object_key=fields.text(MAX_OBJECT_KEY_BYTES, "part's object key"),
        position=fields.natural("part's position"),
        size_bytes=fields.natural("part's size"),
        base_offset=fields.natural("part's first offset"),
        end_offset=fields.natural("part's end offset"),
    )


def _read_key_run(fields: FieldReader) -> KeyRun:
    return KeyRun(
        object_key=fields.text(MAX_OBJECT_KEY_BYTES, "key run's object key"),
        size_bytes=fields.natural("key run's size"),
        digest=fields.digest("key run's digest"),
        buckets=fields.natural("key run's buckets"),
        entries=fields.natural("key run's entries"),
        from_offset=fields.natural("key run's first offset"),
        to_offset=fields.natural("key run's end offset"),
    )


def _fault(manifest: Manifest) -> str | None:
    """What is wrong between the fields of a manifest; None when they agree."""
    seal = manifest.seal
    fault = seal_fault(seal, epoch=manifest.identity.epoch, base_offset=manifest.identity.base_offset)
    if fault is not None:
        return fault
    expected = seal.base_offset
    for number, part in enumerate(manifest.parts):
        if part.base_offset != expected:
            return f"part {number} begins at offset {part.base_offset}, expected {expected}"
        if part.end_offset <= part.base_offset:
            return f"part {number} ends at offset {part.end_offset}, not above its base {part.base_offset}"
        expected = part.end_offset
    if expected != seal.end_offset:
        return f"the parts end at offset {expected}, the seal at {seal.end_offset}"
    needed = seal.size_bytes + PART_HEADER_BYTES * len(manifest.parts)
    if manifest.total_bytes < needed:
        return f"the parts have {manifest.total_bytes} bytes, seal and part headers need {needed}"
    return _packed_fault(manifest) or _runs_fault(manifest)


def _packed_fault(manifest: Manifest) -> str | None:
    sizes = manifest.packed_sizes
    if sizes and (len(sizes) != len(manifest.parts) or not any(sizes)):
        return f"{len(sizes)} packed sizes for {len(manifest.parts)} parts"
    for number, part in enumerate(manifest.parts):
        size = sizes[number] if sizes else 0
        if is_packed(part.object_key) != (size > 0):
            return f"part {number} has a packed size of {size} and is in {part.object_key}"
        if size and part.position:
            return f"part {number} begins at byte {part.position} of a packed chunk"
    return None


def _runs_fault(manifest: Manifest) -> str | None:
    if not manifest.key_runs:
        return None
    expected = manifest.seal.base_offset
    for run in manifest.key_runs:
        if run.fault is not None:
            return run.fault
        if run.from_offset != expected:
            return f"a key run begins at offset {run.from_offset}, expected {expected}"
        expected = run.to_offset
    if expected != manifest.seal.end_offset:
        return f"the key runs end at offset {expected}, the seal at {manifest.seal.end_offset}"
    return None
