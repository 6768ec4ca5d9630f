"""The key index of a sealed segment: in which batches records of a key are (docs/formats.md section 16).

It consists of runs, each an object of its own over a range of the segment's offsets. A run is a table of pages of one
size, one for each bucket of hashes, so the position of a key's page follows from the run's bucket count: one range read
yields the batches, one more reads such a batch. Entries that do not fit into a page, because one key is in very many
batches, are stored after the pages and cost one more read. A hash is a hint: a reader compares the key's bytes.
Runs are made in `key_runs`, which needs numpy; this needs nothing. Raises: Corrupt.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from stratalog.formats.envelope import (
    ENVELOPE_BYTES,
    PREAMBLE_BYTES,
    Structure,
    open_envelope,
    open_fixed,
    seal_envelope,
    seal_fixed,
)
from stratalog.formats.fields import DIGEST_BYTES, Buffer, FieldReader, FieldWriter
from stratalog.model.batch import BATCH_HEADER_BYTES
from stratalog.model.errors import Corrupt

KEY_PAGE_BYTES: Final = 4096
KEY_ENTRY_BYTES: Final = 20
_PAGE_HEAD_BYTES: Final = PREAMBLE_BYTES + DIGEST_BYTES + 5 * 8
_OVERFLOW_HEAD_BYTES: Final = ENVELOPE_BYTES + DIGEST_BYTES + 2 * 8
KEY_PAGE_ENTRIES: Final = (KEY_PAGE_BYTES - _PAGE_HEAD_BYTES) // KEY_ENTRY_BYTES
MAX_KEY_RUN_ENTRIES: Final = 1 << 24
"""No run has more: a writer ends a run far below this, and continues in the next."""
MAX_HASHED_KEY_BYTES: Final = 64
"""A longer key is hashed by its digest."""

_ENTRY = struct.Struct(">IIIq")
assert _ENTRY.size == KEY_ENTRY_BYTES
_MASK = (1 << 64) - 1
HASH_FACTOR: Final = 0x9E3779B97F4A7C15
FINAL_FACTORS: Final = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)


@dataclass(frozen=True, slots=True)
class KeyRun:
    """What a manifest says of a run: records at `[from_offset, to_offset)` of the segment."""

    object_key: str
    size_bytes: int
    digest: bytes
    """`digest.object_digest` of all its bytes."""
    buckets: int
    entries: int
    from_offset: int
    to_offset: int

    @property
    def fault(self) -> str | None:
        """Why this is not a run; None when it may be one."""
        if not 1 <= self.buckets <= self.size_bytes // KEY_PAGE_BYTES:
            return f"a key run of {self.size_bytes} bytes claims {self.buckets} buckets"
        room = self.size_bytes - self.buckets * (KEY_PAGE_BYTES - KEY_PAGE_ENTRIES * KEY_ENTRY_BYTES)
        if self.entries > min(MAX_KEY_RUN_ENTRIES, room // KEY_ENTRY_BYTES):
            return f"a key run of {self.size_bytes} bytes claims {self.entries} entries"
        if self.from_offset >= self.to_offset:
            return f"a key run claims offsets [{self.from_offset}, {self.to_offset})"
        return None

    def page_range(self, key_hash: int) -> tuple[int, int]:
        """Which bytes of the run tell of a key."""
        start = bucket_of(key_hash, self.buckets) * KEY_PAGE_BYTES
        return start, start + KEY_PAGE_BYTES


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A batch that may have a record of the key."""

    part: int
    """Which of the manifest's parts."""
    position: int
    """Of the batch, from the part's first byte."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KeyPage:
    """What a page tells of one hash. `overflow` are the bytes of the run that tell the rest; empty for nothing."""

    entries: tuple[KeyEntry, ...]
    overflow: tuple[int, int] = (0, 0)


def key_hash(key: bytes) -> int:
    """64 bits. The same as `key_runs.key_hashes` makes of many keys at once."""
    if len(key) > MAX_HASHED_KEY_BYTES:
        key = xxhash.xxh3_128_digest(key)
    value = len(key) * HASH_FACTOR & _MASK
    for at in range(0, len(key), 8):
        word = int.from_bytes(key[at : at + 8], "little")
        value = (value ^ word) * HASH_FACTOR & _MASK
        value ^= value >> 32
    for factor in FINAL_FACTORS:
        value ^= value >> 33
        value = value * factor & _MASK
    return value ^ value >> 33


def bucket_of(hashed: int, buckets: int) -> int:
    return (hashed >> 32) % buckets


def tail_of(hashed: int) -> int:
    """What tells hashes of one bucket apart."""
    return hashed & 0xFFFFFFFF


def encode_key_page(
    digest: bytes, bucket: int, buckets: int, entries: Buffer, overflow_position: int, overflow_size: int
) -> bytes:
    """`entries`: as they are stored, at most KEY_PAGE_ENTRIES; `digest`: the segment's."""
    out = FieldWriter()
    out.digest(digest, "segment's digest")
    out.natural(bucket, "bucket")
    out.natural(buckets, "bucket count")
    out.natural(len(entries) // KEY_ENTRY_BYTES, "entry count")
    out.natural(overflow_position, "overflow position")
    out.natural(overflow_size, "overflow size")
    out.raw(entries)
    out.pad_to(KEY_PAGE_BYTES - PREAMBLE_BYTES, "key page")
    return seal_fixed(Structure.KEY_PAGE, out.getvalue())


def encode_key_overflow(digest: bytes, bucket: int, entries: Buffer) -> bytes:
    out = FieldWriter()
    out.digest(digest, "segment's digest")
    out.natural(bucket, "bucket")
    out.natural(len(entries) // KEY_ENTRY_BYTES, "entry count")
    out.raw(entries)
    return seal_envelope(Structure.KEY_OVERFLOW, out.getvalue())


def decode_key_page(data: Buffer, run: KeyRun, hashed: int, digest: bytes) -> KeyPage:
    """What the bytes at `run.page_range(hashed)` say of that hash. `digest`: the segment's. Raises: Corrupt."""
    position, _ = run.page_range(hashed)
    bucket = bucket_of(hashed, run.buckets)
    if len(memoryview(data)) != KEY_PAGE_BYTES:
        raise Corrupt(f"a key page of {len(memoryview(data))} bytes", source=run.object_key, position=position)
    fields = open_fixed(data, Structure.KEY_PAGE, KEY_PAGE_BYTES, source=run.object_key, position=position)
    _check_place(fields, digest, bucket)
    buckets = fields.natural("bucket count")
    if buckets != run.buckets:
        fields.refuse(f"key page is one of {buckets}, its run has {run.buckets}", back=8)
    count = fields.natural("entry count")
    if count > KEY_PAGE_ENTRIES:
        fields.refuse(f"key page claims {count} entries, {KEY_PAGE_ENTRIES} fit", back=8)
    start, size = fields.natural("overflow position"), fields.natural("overflow size")
    is_none = start == size == 0
    most = run.size_bytes - start
    if not is_none and not (start >= run.buckets * KEY_PAGE_BYTES and _OVERFLOW_HEAD_BYTES <= size <= most):
        fields.refuse(f"key page names {size} bytes at {start} of a run of {run.size_bytes}", back=16)
    entries = _take_entries(fields, count, tail_of(hashed))
    fields.zeros_to_end()
    return KeyPage(entries, (start, start + size))


def decode_key_overflow(data: Buffer, run: KeyRun, hashed: int, digest: bytes, position: int) -> tuple[KeyEntry, ...]:
    """What else the run says of that hash; `data` are the bytes that its page named, from `position` on. Raises:
    Corrupt."""
    fields = open_envelope(data, Structure.KEY_OVERFLOW, source=run.object_key, position=position)
    _check_place(fields, digest, bucket_of(hashed, run.buckets))
    count = fields.count("entry count", KEY_ENTRY_BYTES)
    entries = _take_entries(fields, count, tail_of(hashed))
    fields.finish()
    return entries


def _check_place(fields: FieldReader, digest: bytes, bucket: int) -> None:
    found = fields.digest("segment's digest")
    if found != digest:
        fields.refuse(f"key index of a segment with digest {found.hex()}, expected {digest.hex()}", back=DIGEST_BYTES)
    found_bucket = fields.natural("bucket")
    if found_bucket != bucket:
        fields.refuse(f"key index of bucket {found_bucket}, expected {bucket}", back=8)


def _take_entries(fields: FieldReader, count: int, tail: int) -> tuple[KeyEntry, ...]:
    raw = fields.read_bytes(count * KEY_ENTRY_BYTES, "entries")
    found = []
    for found_bucket, part, size, position in _ENTRY.iter_unpack(raw):
        if found_bucket != tail:
            continue
        if position < 0 or size < BATCH_HEADER_BYTES:
            fields.refuse(f"an entry names a batch of {size} bytes at {position}", back=count * KEY_ENTRY_BYTES)
        found.append(KeyEntry(part, position, size))
    return tuple(found)
