"""Produce and Fetch answers of any shape are what kafka-python reads, in every version; requests go the other way."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.kafka.fetch import AbortedTransaction, EpochEnd, FetchedPartition, decode_fetch, encode_fetch_response
from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.produce import (
    LeaderHint,
    NodeEndpoint,
    ProducedPartition,
    RecordError,
    decode_produce,
    encode_produce_response,
)
from support.control_bench import message
from support.kafka_oracle import decode_response, frame_of, request_class

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAME = st.text(max_size=200) | st.from_regex(r"[a-z._-]{1,249}", fullmatch=True)
TEXT = st.none() | st.text(max_size=150)

PRODUCED = st.builds(
    ProducedPartition,
    I32,
    I16,
    I64,
    I64,
    I64,
    TEXT,
    st.none() | st.builds(LeaderHint, I32, I32),
    st.lists(st.builds(RecordError, I32, TEXT), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(
    version=st.integers(3, 11),
    topics=st.lists(st.tuples(NAME, st.lists(PRODUCED, max_size=4)), max_size=4),
    throttle_ms=I32,
    endpoints=st.lists(st.builds(NodeEndpoint, I32, st.text(max_size=20), I32, TEXT), max_size=2),
)
def test_produce_answers(version: int, topics: Any, throttle_ms: int, endpoints: list[NodeEndpoint]) -> None:
    data = encode_produce_response(version, 7, topics, throttle_ms, endpoints)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    told = decode_response(0, version, data)
    assert told.throttle_time_ms == throttle_ms
    assert [topic.name for topic in told.responses] == [name for name, _ in topics]
    for topic, (_, sent) in zip(told.responses, topics, strict=True):
        for got, one in zip(topic.partition_responses, sent, strict=True):
            assert (got.index, got.error_code, got.base_offset, got.log_append_time_ms) == one[:4]
            if version >= 5:
                assert got.log_start_offset == one.log_start_offset
            if version >= 8:
                assert got.error_message == one.error_message
                assert [(e.batch_index, e.batch_index_error_message) for e in got.record_errors] == one.record_errors
            if version >= 10 and one.current_leader is not None:
                assert (got.current_leader.leader_id, got.current_leader.leader_epoch) == one.current_leader
    if version >= 10 and endpoints:
        assert [(e.node_id, e.host, e.port, e.rack) for e in told.node_endpoints] == endpoints


@st.composite
def fetched(draw: st.DrawFn) -> FetchedPartition[bytes]:
    records = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=3))
    return FetchedPartition(
        draw(I32),
        draw(I16),
        draw(I64),
        draw(I64),
        draw(I64),
        records,
        sum(map(len, records)),
        draw(st.none() | st.lists(st.builds(AbortedTransaction, I64, I64), max_size=3)),
        draw(I32),
        draw(st.none() | st.tuples(st.integers(0, 2**31 - 1), I32)),
        draw(st.none() | st.builds(EpochEnd, st.integers(0, 2**31 - 1), I64)),
    )


@settings(max_examples=150, deadline=None)
@given(
    version=st.integers(4, 12),
    topics=st.lists(st.tuples(NAME, st.lists(fetched(), max_size=4)), max_size=3),
    error_code=I16,
    session_id=I32,
)
def test_fetch_answers(version: int, topics: Any, error_code: int, session_id: int) -> None:
    buffers = encode_fetch_response(version, 7, error_code, session_id, topics)
    data = b"".join(buffers)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    told = decode_response(1, version, data)
    if version >= 7:
        assert (told.error_code, told.session_id) == (error_code, session_id)
    assert [topic.topic for topic in told.responses] == [name for name, _ in topics]
    for topic, (_, sent) in zip(told.responses, topics, strict=True):
        for got, one in zip(topic.partitions, sent, strict=True):
            assert (got.partition_index, got.error_code, got.high_watermark, got.last_stable_offset) == one[:4]
            assert bytes(got.records or b"") == b"".join(one.records)
            aborted = got.aborted_transactions
            assert (None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]) == (
                one.aborted_transactions
            )
            if version >= 12:
                assert (got.current_leader and (got.current_leader.leader_id, got.current_leader.leader_epoch)) == (
                    one.current_leader
                )
                assert (got.diverging_epoch and (got.diverging_epoch.epoch, got.diverging_epoch.end_offset)) == (
                    one.diverging_epoch
                )


@settings(max_examples=100, deadline=None)
@given(
    version=st.integers(3, 11),
    transactional_id=TEXT,
    acks=I16,
    topics=st.lists(
        st.tuples(NAME, st.lists(st.tuples(I32, st.none() | st.binary(max_size=400)), max_size=4)), max_size=4
    ),
)
def test_produce_requests(version: int, transactional_id: str | None, acks: int, topics: Any) -> None:
    sent = message(
        request_class(0),
        version,
        {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout_ms": 5,
            "topic_data": [
                {"name": name, "partition_data": [{"index": index, "records": data} for index, data in parts]}
                for name, parts in topics
            ],
        },
    )
    frame = memoryview(frame_of(sent))[4:]
    got = decode_produce(frame, decode_request_header(frame).body_position, version)
    assert (got.transactional_id, got.acks, got.timeout_ms, got.topics) == (transactional_id, acks, 5, topics)


@settings(max_examples=100, deadline=None)
@given(
    version=st.integers(4, 12),
    topics=st.lists(st.tuples(NAME, st.lists(st.tuples(I32, I32, I64, I32, I64, I32), max_size=4)), max_size=4),
    forgotten=st.lists(st.tuples(NAME, st.lists(I32, max_size=4)), max_size=3),
    rack=st.text(max_size=20),
)
def test_fetch_requests(version: int, topics: Any, forgotten: Any, rack: str) -> None:
    keys = (
        "partition",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "partition_max_bytes",
    )
    since = (0, 9, 0, 12, 5, 0)
    sent = message(
        request_class(1),
        version,
        {
            "replica_id": -1,
            "max_wait_ms": 1,
            "min_bytes": 2,
            "max_bytes": 3,
            "isolation_level": 1,
            "topics": [
                {"topic": name, "partitions": [dict(zip(keys, one, strict=True)) for one in parts]}
                for name, parts in topics
            ],
            "forgotten_topics_data": [{"topic": name, "partitions": parts} for name, parts in forgotten],
            "rack_id": rack,
        },
    )
    frame = memoryview(frame_of(sent))[4:]
    got = decode_fetch(frame, decode_request_header(frame).body_position, version)
    known = [
        (name, [tuple(v if version >= s else -1 for v, s in zip(one, since, strict=True)) for one in parts])
        for name, parts in topics
    ]
    assert got.topics == known
    assert got.forgotten == (forgotten if version >= 7 else [])
    assert got.rack_id == (rack if version >= 11 else "")
