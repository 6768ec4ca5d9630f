"""Names of objects in the bucket and of files in a node's directory (docs/formats.md section 11).

A name says who wrote it (node, write-lock epoch) and which attempt it is, so no two writers ever share one.
Invariant: parsing a name and building it again gives the same name; whatever does not is foreign and left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from stratalog.model.errors import InvalidRequest
from stratalog.model.ids import SegmentKey, ShardKey

_NUMBER = r"(0|[1-9][0-9]{0,18})"
_OFFSET = r"([0-9]{20})"
_UUID = r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_SEGMENT_OBJECT = re.compile(
    rf"data/{_UUID}/{_NUMBER}/{_OFFSET}-{_NUMBER}/"
    rf"{_OFFSET}-{_OFFSET}\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}\.(chunk|packed|index|keys|manifest)"
)
_BUNDLE_OBJECT = re.compile(rf"bundles/{_NUMBER}/{_NUMBER}/([0-9]{{12}})\.{_NUMBER}\.bundle")
_META_OBJECT = re.compile(rf"meta/([0-9]{{12}})-{_OFFSET}\.{_UUID}\.(?:([0-9]{{6}})\.piece|snapshot)")
_CUT_OBJECT = re.compile(r"cuts/([A-Za-z0-9][A-Za-z0-9._-]{0,99})\.cut")
_CLAIM_OBJECT = re.compile(rf"claims/{_NUMBER}/{_NUMBER}\.claim")
_INVENTORY_OBJECT = re.compile(rf"retired/{_NUMBER}/{_NUMBER}\.{_NUMBER}\.{_NUMBER}\.inventory")
_FILE = re.compile(rf"{_OFFSET}-{_NUMBER}\.(seg|idx)")
_OFFSET_LIMIT = 1 << 63
_ENDINGS_OF_PARTS = ("chunk", "packed", "bundle")


class SegmentObject(StrEnum):
    CHUNK = "chunk"
    PACKED = "packed"
    """A chunk whose batches are stored in zstd frames (docs/formats.md section 17)."""
    INDEX = "index"
    KEYS = "keys"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class SegmentObjectName:
    """An object of one segment; offsets `[from_offset, to_offset)`."""

    kind: SegmentObject
    segment: SegmentKey
    from_offset: int
    to_offset: int
    node_id: int
    lock_epoch: int
    attempt: int

    @property
    def is_part(self) -> bool:
        """Whether it holds batches, packed or not."""
        return self.kind in (SegmentObject.CHUNK, SegmentObject.PACKED)


@dataclass(frozen=True, slots=True)
class BundleName:
    node_id: int
    lock_epoch: int
    number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class InventoryName:
    """The list of what a node held when it was retired."""

    node_id: int
    begun_ms: int
    """Of the retirement."""
    by_node: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ClaimName:
    """The claim of one epoch of a node's write lock."""

    node_id: int
    lock_epoch: int


@dataclass(frozen=True, slots=True)
class MetaSnapshotName:
    """A piece of a snapshot of the metadata, or its head (`piece` is None)."""

    number: int
    version: int
    nonce: UUID
    piece: int | None = None


@dataclass(frozen=True, slots=True)
class CutName:
    """A consistent cut, under the name that a person gave it."""

    name: str


ObjectName: TypeAlias = SegmentObjectName | BundleName | ClaimName | InventoryName | MetaSnapshotName | CutName


class ObjectNames:
    """Builds and parses the keys of one cluster below one prefix (which may be empty)."""

    __slots__ = ("_root", "cluster_id", "prefix")

    def __init__(self, prefix: str, cluster_id: str) -> None:
        self.prefix = prefix.strip("/")
        self.cluster_id = cluster_id
        if not cluster_id or "/" in cluster_id:
            raise InvalidRequest(f"cluster id {cluster_id!r} cannot be part of a key: it is empty or has a slash")
        self._root = f"{self.prefix}/{cluster_id}/" if self.prefix else f"{cluster_id}/"

    # Prefixes, for listing ------------------------------------------------------------------------------------------
    @property
    def root(self) -> str:
        """Everything of this cluster lies below it; ends with a slash."""
        return self._root

    @property
    def data_prefix(self) -> str:
        return f"{self._root}data/"

    @property
    def bundles_prefix(self) -> str:
        return f"{self._root}bundles/"

    @property
    def meta_prefix(self) -> str:
        return f"{self._root}meta/"

    @property
    def cuts_prefix(self) -> str:
        return f"{self._root}cuts/"

    def topic_prefix(self, topic_id: UUID) -> str:
        return f"{self._root}data/{topic_id}/"

    def shard_prefix(self, shard: ShardKey) -> str:
        return f"{self._root}data/{shard.topic_id}/{shard.shard}/"

    def segment_prefix(self, segment: SegmentKey) -> str:
        return f"{self._root}data/{segment.topic_id}/{segment.shard}/{_stem(segment.base_offset, segment.epoch)}/"

    def node_bundles_prefix(self, node_id: int) -> str:
        return f"{self._root}bundles/{node_id}/"

    def node_claims_prefix(self, node_id: int) -> str:
        return f"{self._root}claims/{node_id}/"

    # Building -------------------------------------------------------------------------------------------------------
    def chunk(
        self, segment: SegmentKey, from_offset: int, to_offset: int, *, node_id: int, lock_epoch: int, attempt: int
    ) -> str:
        return self.build(
            SegmentObjectName(SegmentObject.CHUNK, segment, from_offset, to_offset, node_id, lock_epoch, attempt)
        )

    def packed(
        self, segment: SegmentKey, from_offset: int, to_offset: int, *, node_id: int, lock_epoch: int, attempt: int
    ) -> str:
        return self.build(
            SegmentObjectName(SegmentObject.PACKED, segment, from_offset, to_offset, node_id, lock_epoch, attempt)
        )

    def index(
        self, segment: SegmentKey, from_offset: int, to_offset: int, *, node_id: int, lock_epoch: int, attempt: int
    ) -> str:
        return self.build(
            SegmentObjectName(SegmentObject.INDEX, segment, from_offset, to_offset, node_id, lock_epoch, attempt)
        )

    def manifest(
        self, segment: SegmentKey, from_offset: int, to_offset: int, *, node_id: int, lock_epoch: int, attempt: int
    ) -> str:
        return self.build(
            SegmentObjectName(SegmentObject.MANIFEST, segment, from_offset, to_offset, node_id, lock_epoch, attempt)
        )

    def keys(
        self, segment: SegmentKey, from_offset: int, to_offset: int, *, node_id: int, lock_epoch: int, attempt: int
    ) -> str:
        return self.build(
            SegmentObjectName(SegmentObject.KEYS, segment, from_offset, to_offset, node_id, lock_epoch, attempt)
        )

    def bundle(self, *, node_id: int, lock_epoch: int, number: int, attempt: int) -> str:
        return self.build(BundleName(node_id, lock_epoch, number, attempt))

    def claim(self, *, node_id: int, lock_epoch: int) -> str:
        return self.build(ClaimName(node_id, lock_epoch))

    def build(self, name: ObjectName) -> str:
        """Raises: InvalidRequest for a number that a name cannot hold."""
        match name:
            case SegmentObjectName(kind, segment, from_offset, to_offset, node_id, lock_epoch, attempt):
                offsets = f"{from_offset:020d}-{to_offset:020d}"
                key = f"{self.segment_prefix(segment)}{offsets}.{node_id}.{lock_epoch}.{attempt}.{kind}"
            case BundleName(node_id, lock_epoch, number, attempt):
                key = f"{self._root}bundles/{node_id}/{lock_epoch}/{number:012d}.{attempt}.bundle"
            case ClaimName(node_id, lock_epoch):
                key = f"{self._root}claims/{node_id}/{lock_epoch}.claim"
            case InventoryName(node_id, begun_ms, by_node, attempt):
                key = f"{self._root}retired/{node_id}/{begun_ms}.{by_node}.{attempt}.inventory"
            case CutName(cut):
                key = f"{self._root}cuts/{cut}.cut"
            case MetaSnapshotName(number, version, nonce, piece):
                ending = "snapshot" if piece is None else f"{piece:06d}.piece"
                key = f"{self._root}meta/{number:012d}-{version:020d}.{nonce}.{ending}"
        if self.parse(key) != name:
            raise InvalidRequest(f"no object key can be made for {name}: a number is negative or too large")
        return key

    # Parsing --------------------------------------------------------------------------------------------------------
    def parse(self, key: str) -> ObjectName | None:
        """What a key names; None for a foreign one."""
        if not key.startswith(self._root):
            return None
        below = key[len(self._root) :]
        if found := _SEGMENT_OBJECT.fullmatch(below):
            topic_id, shard, base, epoch, from_offset, to_offset, node_id, lock_epoch, attempt, kind = found.groups()
            segment = SegmentKey(UUID(topic_id), int(shard), int(epoch), int(base))
            name = SegmentObjectName(
                SegmentObject(kind),
                segment,
                int(from_offset),
                int(to_offset),
                int(node_id),
                int(lock_epoch),
                int(attempt),
            )
            fits = name.segment.base_offset <= name.from_offset <= name.to_offset < _OFFSET_LIMIT
            return name if fits else None
        if found := _BUNDLE_OBJECT.fullmatch(below):
            return BundleName(*(int(group) for group in found.groups()))
        if found := _CUT_OBJECT.fullmatch(below):
            return CutName(found[1])
        if found := _META_OBJECT.fullmatch(below):
            piece = None if found[4] is None else int(found[4])
            return MetaSnapshotName(int(found[1]), int(found[2]), UUID(found[3]), piece)
        if found := _CLAIM_OBJECT.fullmatch(below):
            return ClaimName(int(found[1]), int(found[2]))
        if found := _INVENTORY_OBJECT.fullmatch(below):
            return InventoryName(*(int(group) for group in found.groups()))
        return None


def is_packed(object_key: str) -> bool:
    """Whether an object of this key is a packed chunk: positions that metadata name count in what it unpacks to."""
    return object_key.endswith(f".{SegmentObject.PACKED}")


def is_one_part(object_key: str) -> bool:
    """Whether an object of this key is just one part, packed or not. A bundle holds many."""
    return object_key.endswith((f".{SegmentObject.CHUNK}", f".{SegmentObject.PACKED}"))


def attempt_in_name(object_key: str) -> int | None:
    """Which attempt wrote the object, by its key; None for a key that names no chunk, packed chunk or bundle."""
    stem, _, ending = object_key.rpartition(".")
    if ending not in _ENDINGS_OF_PARTS:
        return None
    number = stem.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else None


def segment_file_name(base_offset: int, epoch: int) -> str:
    return f"{_stem(base_offset, epoch)}.seg"


def index_file_name(base_offset: int, epoch: int) -> str:
    return f"{_stem(base_offset, epoch)}.idx"


def parse_segment_file_name(name: str) -> tuple[int, int] | None:
    """(base offset, epoch) of a `.seg` file; None for any other name."""
    return _parse_file_name(name, "seg")


def parse_index_file_name(name: str) -> tuple[int, int] | None:
    """(base offset, epoch) of an `.idx` file; None for any other name."""
    return _parse_file_name(name, "idx")


def _parse_file_name(name: str, suffix: str) -> tuple[int, int] | None:
    found = _FILE.fullmatch(name)
    if found is None or found[3] != suffix or int(found[1]) >= _OFFSET_LIMIT:
        return None
    return int(found[1]), int(found[2])


def _stem(base_offset: int, epoch: int) -> str:
    return f"{base_offset:020d}-{epoch}"
