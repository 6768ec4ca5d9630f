"""A key index finds each batch that has a key, whatever the keys are, and nothing that is damaged is believed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.batches.batch_scan import scan_batches
from stratalog.formats.batches.records import Record, decode_records, encode_batch
from stratalog.formats.bucket.key_index import (
    KEY_PAGE_BYTES,
    KEY_PAGE_ENTRIES,
    KeyEntry,
    KeyRun,
    decode_key_overflow,
    decode_key_page,
    key_hash,
)
from stratalog.formats.bucket.key_runs import FILL, KeyEntries, find_keys, key_hashes
from stratalog.formats.segments.digest import object_digest
from stratalog.model.errors import Corrupt

DIGEST = b"seal digest 0123"
KEYS = st.one_of(st.binary(max_size=3), st.binary(max_size=70), st.binary(min_size=60, max_size=200))


@given(st.lists(KEYS, max_size=30), st.binary(max_size=9))
def test_many_keys_are_hashed_as_each_of_them(keys: list[bytes], before: bytes) -> None:
    data = before + b"".join(keys)
    sizes = np.array([len(key) for key in keys], np.int64)
    places = len(before) + np.cumsum(sizes) - sizes
    assert key_hashes(data, places, sizes).tolist() == [key_hash(key) for key in keys]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0),
        (b"a", 0x1AB7D1D0779DAD0D),
        (b"abcdefghi", 0x8A820371CBC0CF00),
        (b"x" * 64, 0xD1E34117C663D862),
        (b"x" * 65, 0x0FE544CD6E584C64),
    ],
)
def test_a_hash_is_the_same_in_every_release(key: bytes, expected: int) -> None:
    assert key_hash(key) == expected


@dataclass
class Built:
    """A run over batches that lie back to back in one part, behind 512 bytes of header."""

    run: KeyRun
    body: bytes

    def find(self, key: bytes) -> list[KeyEntry]:
        hashed = key_hash(key)
        start, end = self.run.page_range(hashed)
        page = decode_key_page(self.body[start:end], self.run, hashed, DIGEST)
        found = list(page.entries)
        if page.overflow[1]:
            at, end = page.overflow
            found += decode_key_overflow(self.body[at:end], self.run, hashed, DIGEST, at)
        return found


def build(batches: list[bytes]) -> Built:
    data = b"".join(batches)
    headers = BatchHeaders(data, scan_batches(data, base_offset=0, epoch=3, source="it").positions)
    entries = KeyEntries()
    for group, found in find_keys(data, headers, source="it"):
        entries.add(found, 0, group.positions + 512, group.ends - group.positions)
    count = entries.count
    pages, buckets = entries.take_run(DIGEST)
    assert entries.count == 0
    body = b"".join(pages)
    run = KeyRun("it", len(body), object_digest(body), buckets, count, 0, 1)
    assert run.fault is None
    return Built(run, body)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    keys = st.sampled_from(draw(st.lists(st.none() | KEYS, min_size=1, max_size=8)))
    found, offset = [], 0
    for _ in range(draw(st.integers(1, 5)) * draw(st.sampled_from((1, 1, 40)))):
        records = [
            Record(offset + number, 5, key, b"value") for number, key in enumerate(draw(st.lists(keys, max_size=4)))
        ] or [Record(offset, 5, None, None)]
        is_control = draw(st.integers(0, 9)) == 0
        found.append(
            encode_batch(
                records, base_offset=offset, epoch=3, compression=draw(st.integers(0, 4)), is_control=is_control
            )
        )
        offset += len(records)
    return found


@given(batches())
def test_each_batch_of_a_key_is_found_in_the_order_of_offsets(found: list[bytes]) -> None:
    built = build(found)
    expected: dict[bytes, list[KeyEntry]] = {}
    at = 512
    for batch in found:
        if not batch[22] & 0x20:
            for key in dict.fromkeys(record.key for record in decode_records(batch) if record.key is not None):
                expected.setdefault(key, []).append(KeyEntry(0, at, len(batch)))
        at += len(batch)
    for key, places in expected.items():
        assert built.find(key) == places
    assert built.run.entries == sum(map(len, expected.values()))


def test_a_key_of_very_many_batches_continues_behind_the_pages() -> None:
    count = 3 * KEY_PAGE_ENTRIES
    found = [encode_batch([Record(n, 5, b"hot", b"")], base_offset=n, epoch=3) for n in range(count)]
    built = build(found)
    assert len(built.body) > built.run.buckets * KEY_PAGE_BYTES
    assert [entry.position for entry in built.find(b"hot")] == [512 + n * len(found[0]) for n in range(count)]
    assert built.find(b"cold") == []


def test_different_keys_fit_into_their_pages_and_cost_about_thirty_bytes_each() -> None:
    count = 40 * FILL
    keys = [b"flight-%d" % number for number in range(count)]
    found = [
        encode_batch([Record(at + n, 5, keys[at + n], b"") for n in range(FILL)], base_offset=at, epoch=3)
        for at in range(0, count, FILL)
    ]
    built = build(found)
    assert built.run.buckets == 40
    assert len(built.body) == 40 * KEY_PAGE_BYTES
    assert all(len(built.find(key)) == 1 for key in keys[::97])


@given(batches(), st.data())
def test_what_a_damaged_index_says_is_refused(found: list[bytes], draw: st.DataObject) -> None:
    built = build(found)
    damaged = bytearray(built.body)
    at = draw.draw(st.integers(0, len(damaged) - 1), label="byte")
    damaged[at] ^= 1 << draw.draw(st.integers(0, 7), label="bit")
    keys = [record.key for batch in found for record in decode_records(batch) if record.key is not None]
    whole = {key: built.find(key) for key in keys}
    built.body = bytes(damaged)
    for key, places in whole.items():
        try:
            assert built.find(key) == places, "another page was damaged"
        except Corrupt as error:
            assert error.source == "it"


def test_a_page_of_another_bucket_run_or_segment_is_refused() -> None:
    keys = [b"%d" % number for number in range(400)]
    built = build([encode_batch([Record(n, 5, key, b"") for n, key in enumerate(keys)], base_offset=0, epoch=3)])
    hashed = next(key_hash(key) for key in keys if built.run.page_range(key_hash(key))[0] == 0)
    first, second = built.body[:KEY_PAGE_BYTES], built.body[KEY_PAGE_BYTES : 2 * KEY_PAGE_BYTES]
    for data, digest, words in (
        (second, DIGEST, "bucket 1, expected 0"),
        (first, bytes(16), "of a segment with digest"),
        (first[:-1], DIGEST, "of 4095 bytes"),
    ):
        with pytest.raises(Corrupt, match=words):
            decode_key_page(data, built.run, hashed, digest)
