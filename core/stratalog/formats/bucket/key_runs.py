"""Makes the runs of a key index (docs/formats.md section 16) of the keys of many batches, by arrays. Pure.

Requires: the batches were checked (CRC, offsets). What cannot be opened raises Corrupt: such a segment gets no index.
Cost: about 0.6 us per record, and a step in Python per page of 4 KiB. For a thread. Memory: 8 MiB of records at a time
and some 100 bytes for each of them; of a run 28 bytes per entry, three times that while it is put in order.
Needs numpy, which a node loads only for a topic that asks for such an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from stratalog.formats.batches.batch_bodies import groups_of
from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.record_frames import Longs, find_frames
from stratalog.formats.batches.records import MAX_DECODED_BYTES
from stratalog.formats.bucket.key_index import (
    FINAL_FACTORS,
    HASH_FACTOR,
    KEY_ENTRY_BYTES,
    KEY_PAGE_BYTES,
    KEY_PAGE_ENTRIES,
    MAX_HASHED_KEY_BYTES,
    encode_key_overflow,
    encode_key_page,
)
from stratalog.formats.fields import Buffer

GROUP_BYTES: Final = 8 << 20
FILL: Final = KEY_PAGE_ENTRIES * 7 // 10
"""Entries per page on average: of different keys, one page in a million is too small."""

_LAYOUT: Final = np.dtype([("tail", ">u4"), ("part", ">u4"), ("size", ">u4"), ("position", ">i8")])
assert _LAYOUT.itemsize == KEY_ENTRY_BYTES
Hashes = npt.NDArray[np.uint64]


class KeysFound(NamedTuple):
    """Each key once for each batch that has it."""

    hashes: Hashes
    batch: Longs
    """Which of the batches that were given, for each hash."""


class KeyEntries:
    """What goes into the next run. Entries are added as their batches follow one another."""

    def __init__(self) -> None:
        self._hashes: list[Hashes] = []
        self._entries: list[npt.NDArray[Any]] = []
        self.count = 0

    def add(self, found: KeysFound, part: int, positions: Longs, sizes: Longs) -> None:
        """`positions` and `sizes`: of the batches, positions from the start of the part."""
        if not found.hashes.size:
            return
        entries = np.empty(found.hashes.size, _LAYOUT)
        entries["tail"] = (found.hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        entries["part"] = part
        entries["size"] = sizes[found.batch]
        entries["position"] = positions[found.batch]
        self._hashes.append(found.hashes)
        self._entries.append(entries)
        self.count += entries.size

    def take_run(self, digest: bytes, buckets: int | None = None) -> tuple[list[bytes], int]:
        """The bytes of a run of all that was added, and how many buckets it has; nothing is left. `digest`: the
        segment's. `buckets`: of a run that is built again."""
        hashes = np.concatenate(self._hashes) if self._hashes else np.empty(0, np.uint64)
        entries = np.concatenate(self._entries, dtype=_LAYOUT) if self._entries else np.empty(0, _LAYOUT)
        self._hashes, self._entries, self.count = [], [], 0
        buckets = buckets or max(1, -(-hashes.size // FILL))
        bucket = (hashes >> np.uint64(32)) % np.uint64(buckets)
        # Stable: entries of one hash stay in the order of their offsets.
        stored = memoryview(entries[np.lexsort((hashes & np.uint64(0xFFFFFFFF), bucket))].tobytes())
        ends = np.cumsum(np.bincount(bucket.astype(np.int64), minlength=buckets)) * KEY_ENTRY_BYTES
        return _pages(digest, stored, ends.tolist()), buckets


def _pages(digest: bytes, stored: memoryview, ends: Sequence[int]) -> list[bytes]:
    buckets, most = len(ends), KEY_PAGE_ENTRIES * KEY_ENTRY_BYTES
    pages: list[bytes] = []
    behind: list[bytes] = []
    at, overflow_at = 0, buckets * KEY_PAGE_BYTES
    for bucket, end in enumerate(ends):
        rest = b"" if end - at <= most else encode_key_overflow(digest, bucket, stored[at + most : end])
        place = overflow_at if rest else 0
        pages.append(encode_key_page(digest, bucket, buckets, stored[at : min(end, at + most)], place, len(rest)))
        if rest:
            behind.append(rest)
            overflow_at += len(rest)
        at = end
    return pages + behind


# Keys of batches ----------------------------------------------------------------------------------------------------
def find_keys(data: bytes, headers: BatchHeaders, *, source: str) -> Iterable[tuple[BatchHeaders, KeysFound]]:
    """Group by group: its batches, and their keys. Control batches and records without a key have none.

    Raises: Corrupt, TooLarge."""
    wanted = np.flatnonzero((headers.longs("record_count") > 0) & ~headers.is_control)
    chosen = headers if wanted.size == len(headers) else headers.only(wanted)
    for group, bodies in groups_of(
        data, chosen, source=source, max_batch_bytes=MAX_DECODED_BYTES, group_bytes=GROUP_BYTES
    ):
        frames = find_frames(bodies)
        rows = np.flatnonzero(frames.key_size >= 0)
        hashes = key_hashes(bodies.data, frames.key_at[rows], frames.key_size[rows])
        yield group, _each_once(hashes, frames.batch[rows])


def _each_once(hashes: Hashes, batch: Longs) -> KeysFound:
    order = np.lexsort((hashes, batch))
    hashes, batch = hashes[order], batch[order]
    is_new = np.ones(hashes.size, np.bool_)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (batch[1:] != batch[:-1])
    return KeysFound(hashes[is_new], batch[is_new])


_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def key_hashes(data: Buffer, at: Longs, size: Longs) -> Hashes:
    """The hashes of the keys at these places, as `key_index.key_hash` makes them. No size may be below 0."""
    if len(data) < 8:
        data = bytes(data) + bytes(8 - len(data))
    lengths = size.copy()
    long = np.flatnonzero(size > MAX_HASHED_KEY_BYTES)
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    factor = np.uint64(HASH_FACTOR)
    hashes = lengths.astype(np.uint64) * factor
    for first in range(0, MAX_HASHED_KEY_BYTES, 8):
        rows = np.flatnonzero((lengths > first) & (lengths <= MAX_HASHED_KEY_BYTES))
        if not rows.size:
            break
        place = at[rows] + first
        # The last bytes of the data do not fill a word: they are the upper bytes of the last word.
        start = np.minimum(place, words.size - 1)
        word = words[start] >> ((place - start) * 8).astype(np.uint64)
        word &= _MASKS[np.minimum(lengths[rows] - first, 8)]
        value = (hashes[rows] ^ word) * factor
        hashes[rows] = value ^ (value >> np.uint64(32))
    hashes = _finished(hashes)
    if long.size:
        digests = b"".join(
            xxhash.xxh3_128_digest(data[start : start + length])
            for start, length in zip(at[long].tolist(), size[long].tolist(), strict=True)
        )
        places = np.arange(long.size, dtype=np.int64) * 16
        hashes[long] = key_hashes(digests, places, np.full(long.size, 16, np.int64))
    return hashes


def _finished(hashes: Hashes) -> Hashes:
    for factor in FINAL_FACTORS:
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(33))
