"""Groups of the consumer protocol in the group log: what is written is read, and damage is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.groups.group_log import ConsumersChangedEntry, ConsumersEntry, decode_entry, encode_entry
from stratalog.model.errors import Corrupt
from stratalog.model.groups.consumer_group import (
    ClassicSide,
    ConsumerGroupChange,
    ConsumerGroupRecord,
    ConsumerMember,
    MemberState,
)
from stratalog.model.groups.group import MemberProtocol
from stratalog.model.ids import ShardKey

texts = st.text(max_size=20)
topic_ids = st.uuids(version=4)
shards = st.frozensets(st.builds(ShardKey, topic_ids, st.integers(0, 2**31 - 1)), max_size=8)
epochs = st.integers(0, 2**31 - 1)
protocols = st.lists(st.builds(MemberProtocol, texts, st.binary(max_size=20)), max_size=3).map(tuple)
members = st.builds(
    ConsumerMember,
    member_id=texts,
    instance_id=st.none() | texts,
    rack_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=epochs,
    topic_names=st.lists(texts, max_size=4).map(tuple),
    topic_regex=texts,
    assignor=texts,
    epoch=st.integers(-2, 2**31 - 1),
    previous_epoch=epochs,
    state=st.sampled_from(MemberState),
    assigned=shards,
    revoking=shards,
    target=shards,
    classic=st.none() | st.builds(ClassicSide, epochs, protocols),
)
counts = st.dictionaries(topic_ids, st.integers(0, 2**32 - 1), max_size=4)
records = st.builds(
    ConsumerGroupRecord,
    epochs,
    epochs,
    epochs,
    texts,
    counts,
    st.lists(members, max_size=4).map(lambda found: {member.member_id: member for member in found}),
)
changes = st.builds(
    ConsumerGroupChange,
    epochs,
    epochs,
    epochs,
    texts,
    counts,
    st.lists(members, max_size=4).map(tuple),
    st.lists(texts, max_size=4).map(tuple),
)
entries = st.builds(ConsumersEntry, texts, records, epochs) | st.builds(ConsumersChangedEntry, texts, changes, epochs)


@given(entries)
def test_what_is_written_is_read(entry: ConsumersEntry | ConsumersChangedEntry) -> None:
    key, value = encode_entry(entry)
    assert decode_entry(key, value, source="log", position=0) == entry


@given(entries, st.data())
def test_what_is_cut_short_or_too_long_is_refused(
    entry: ConsumersEntry | ConsumersChangedEntry, data: st.DataObject
) -> None:
    key, value = encode_entry(entry)
    assert value is not None
    for damaged in (value[: data.draw(st.integers(0, len(value) - 1))], value + b"\x00"):
        with pytest.raises(Corrupt):
            decode_entry(key, damaged, source="log", position=0)


@given(entries, st.data())
def test_other_bytes_are_read_as_something_or_refused(
    entry: ConsumersEntry | ConsumersChangedEntry, data: st.DataObject
) -> None:
    key, value = encode_entry(entry)
    assert value is not None
    at = data.draw(st.integers(0, len(value) - 1))
    damaged = value[:at] + bytes([data.draw(st.integers(0, 255))]) + value[at + 1 :]
    with contextlib.suppress(Corrupt):
        decode_entry(key, damaged, source="log", position=0)
