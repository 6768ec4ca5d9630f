"""Entries of the group log: there and back, sizes as documented, and no guess about what is unknown."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.groups.group_log import (
    GroupEntry,
    LogEntry,
    LogOpened,
    MemberEntry,
    OffsetEntry,
    SnapshotBegun,
    SnapshotEnded,
    decode_entry,
    encode_entry,
)
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog.model.groups.group import CommittedOffset, GroupRecord, MemberProtocol, MemberRecord
from stratalog.model.ids import ShardKey

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
texts = st.text(max_size=20)
members = st.builds(
    MemberRecord,
    texts,
    st.none() | texts,
    texts,
    texts,
    i32,
    i32,
    st.lists(st.builds(MemberProtocol, texts, st.binary(max_size=30)), max_size=3).map(tuple),
    st.binary(max_size=30),
)
records = st.builds(
    GroupRecord, i32, st.none() | texts, st.none() | texts, st.none() | texts, st.lists(members, max_size=3).map(tuple)
)
entries = st.one_of(
    st.builds(
        OffsetEntry,
        texts,
        st.builds(ShardKey, st.uuids(), st.integers(0, (1 << 32) - 1)),
        st.none() | st.builds(CommittedOffset, i64, i32, texts, i64, i64),
    ),
    st.builds(GroupEntry, texts, records, i64),
    st.builds(GroupEntry, texts, st.none(), st.just(-1)),
    st.builds(MemberEntry, texts, i32, members, i64),
    st.builds(SnapshotBegun, st.integers(0, (1 << 63) - 1)),
    st.builds(SnapshotEnded, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)),
    st.builds(LogOpened, i32, i64),
)


def decode(key: bytes | None, value: bytes | None) -> LogEntry:
    return decode_entry(key, value, source="test", position=7)


@given(entries)
def test_every_entry_comes_back_as_it_was(entry: LogEntry) -> None:
    assert decode(*encode_entry(entry)) == entry


@given(entries, st.data())
def test_an_entry_cut_short_is_refused(entry: LogEntry, data: st.DataObject) -> None:
    key, value = encode_entry(entry)
    whole = value if value is not None else key
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Corrupt):
        decode(key, cut) if value is not None else decode(cut, None)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_corrupt(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(Corrupt):
        decode(key, value)


def test_an_offset_takes_as_many_bytes_as_the_page_says() -> None:
    key, value = encode_entry(OffsetEntry("orders", ShardKey(TOPIC, 3), CommittedOffset(5, 1, "ab", 9)))
    assert key == b"\x01\x01\x00\x06orders" + TOPIC.bytes + b"\x00\x00\x00\x03"
    assert value is not None and len(value) == 33 + 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"\x02\x01\x00\x01g", b""),
        (b"\x01\x09", b"\x01"),
        (b"\x01\x02\x00\x01g", b"\x02"),
        (b"\x01\x02\x00\x01gg", None),
        (b"\x01\x03", b"\x01\x07" + bytes(16)),
    ],
    ids=["no key", "key version", "kind", "value version", "bytes left over", "edge"],
)
def test_what_a_newer_release_wrote_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Corrupt):
        decode(key, value)


def test_a_claimed_count_does_not_make_the_reader_run_long() -> None:
    key, value = encode_entry(GroupEntry("g", GroupRecord(1, None, None, None, ()), 0))
    assert value is not None
    with pytest.raises(Corrupt, match="cannot hold"):
        decode(key, value[:-4] + b"\xff\xff\xff\xff")


def test_a_name_beyond_the_format_is_refused_when_it_is_written() -> None:
    with pytest.raises(InvalidRequest):
        encode_entry(GroupEntry("x" * 70_000, None, -1))
