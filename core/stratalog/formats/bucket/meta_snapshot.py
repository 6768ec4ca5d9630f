"""The metadata as they lie in the bucket: pieces of records, and a head that names them (docs/formats.md section 14).

The head is put last, so a snapshot without one is none. Keys and values are the metadata store's own and opaque here.
A piece holds some MiB, so that a writer and a reader need memory for one of them, however large the metadata are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from stratalog.formats.batches.compression import Codec, compress, decompress
from stratalog.formats.envelope import Structure, open_envelope, seal_envelope
from stratalog.formats.fields import Buffer, FieldReader, FieldWriter
from stratalog.formats.identity import MAX_CLUSTER_ID_BYTES
from stratalog.formats.segments.digest import object_digest
from stratalog.model.errors import Corrupt

PIECE_BYTES: Final = 8 << 20
"""A piece is closed once its records reach this size."""
MAX_PIECE_BYTES: Final = 256 << 20
"""More than this no piece unpacks to: one record alone may be larger than PIECE_BYTES."""
_PIECE_ENTRY_BYTES: Final = 24
_MAX_KEY_BYTES: Final = 0xFFFF

Item = tuple[bytes, bytes]
"""Key and value of a stored record."""


@dataclass(frozen=True, slots=True)
class MetaSnapshotId:
    """`number` grows with each snapshot that a metadata store puts; `nonce` is of one try."""

    cluster_id: str
    number: int
    version: int
    nonce: UUID


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    size_bytes: int
    digest: bytes
    """`digest.object_digest` of the piece's object."""


@dataclass(frozen=True, slots=True)
class MetaSnapshotHead:
    id: MetaSnapshotId
    created_ms: int
    record_count: int
    pieces: tuple[SnapshotPiece, ...]


def encode_head(head: MetaSnapshotHead) -> bytes:
    out = FieldWriter()
    _write_id(out, head.id)
    out.natural(head.created_ms, "time")
    out.natural(head.record_count, "record count")
    out.natural(len(head.pieces), "piece count")
    for piece in head.pieces:
        out.natural(piece.size_bytes, "piece's size")
        out.digest(piece.digest, "piece's digest")
    return seal_envelope(Structure.META_SNAPSHOT, out.getvalue())


def decode_head(data: Buffer, *, source: str) -> MetaSnapshotHead:
    """`data` is the whole object. Raises: Corrupt."""
    fields = open_envelope(data, Structure.META_SNAPSHOT, source=source, position=0)
    snapshot_id = _read_id(fields)
    created_ms = fields.natural("time")
    record_count = fields.natural("record count")
    count = fields.count("piece count", _PIECE_ENTRY_BYTES)
    pieces = tuple(SnapshotPiece(fields.natural("piece's size"), fields.digest("piece's digest")) for _ in range(count))
    fields.finish()
    return MetaSnapshotHead(snapshot_id, created_ms, record_count, pieces)


def encode_pieces(snapshot_id: MetaSnapshotId, items: Iterable[Item]) -> Iterator[tuple[bytes, int]]:
    """The pieces, one after another, each with the number of its records. Cost: compression, 100 MB/s or so."""
    packed, count, number = bytearray(), 0, 0
    for key, value in items:
        assert len(key) <= _MAX_KEY_BYTES, "a record's key is short"
        packed += len(key).to_bytes(2, "big") + key + len(value).to_bytes(4, "big") + value
        count += 1
        if len(packed) >= PIECE_BYTES:
            yield _encode_piece(snapshot_id, number, bytes(packed)), count
            packed, count, number = bytearray(), 0, number + 1
    if count:
        yield _encode_piece(snapshot_id, number, bytes(packed)), count


def _encode_piece(snapshot_id: MetaSnapshotId, number: int, records: bytes) -> bytes:
    packed = compress(Codec.ZSTD, records)
    out = FieldWriter()
    _write_id(out, snapshot_id)
    out.natural(number, "piece")
    out.natural(len(records), "size of the records")
    out.natural(len(packed), "packed size")
    out.raw(packed)
    return seal_envelope(Structure.META_PIECE, out.getvalue())


def decode_piece(data: Buffer, snapshot_id: MetaSnapshotId, number: int, *, source: str) -> list[Item]:
    """The records of a piece, which must be the `number`th of that snapshot. Raises: Corrupt."""
    fields = open_envelope(data, Structure.META_PIECE, source=source, position=0)
    found, found_number = _read_id(fields), fields.natural("piece")
    if (found, found_number) != (snapshot_id, number):
        fields.refuse(f"it says that it is piece {found_number} of {found}, not piece {number} of {snapshot_id}")
    size = fields.natural("size of the records")
    if size > MAX_PIECE_BYTES:
        fields.refuse(f"its records have {size} bytes, the limit is {MAX_PIECE_BYTES}", back=8)
    packed = fields.read_bytes(fields.natural("packed size"), "packed records")
    fields.finish()
    records = bytes(decompress(Codec.ZSTD, packed, max(size, 1), source=source, position=0))
    if len(records) != size:
        raise Corrupt(f"its records have {len(records)} bytes, it claims {size}", source=source, position=0)
    return list(_items(records, source))


def piece_of(data: Buffer) -> SnapshotPiece:
    """As the head names it."""
    return SnapshotPiece(len(data), object_digest(data))


def _items(records: bytes, source: str) -> Iterator[Item]:
    fields = FieldReader(records, source=source, position=0)
    while fields.remaining:
        key_size = int.from_bytes(fields.read_bytes(2, "key's size"), "big")
        key = bytes(fields.read_bytes(key_size, "key"))
        yield key, bytes(fields.read_bytes(fields.u32("value's size"), "value"))


def _write_id(out: FieldWriter, snapshot_id: MetaSnapshotId) -> None:
    out.text(snapshot_id.cluster_id, MAX_CLUSTER_ID_BYTES, "cluster id")
    out.natural(snapshot_id.number, "number")
    out.natural(snapshot_id.version, "version")
    out.uuid(snapshot_id.nonce)


def _read_id(fields: FieldReader) -> MetaSnapshotId:
    return MetaSnapshotId(
        cluster_id=fields.text(MAX_CLUSTER_ID_BYTES, "cluster id"),
        number=fields.natural("number"),
        version=fields.natural("version"),
        nonce=fields.uuid("nonce"),
    )
