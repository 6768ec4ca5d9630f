"""Fetch as replicas speak it, against kafka-python: the same fields, both ways, and no frame is believed."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.replica_fetch import (
    VERSION,
    ReplicaFetch,
    SegmentAnswer,
    SegmentAsk,
    decode_replica_answer,
    decode_replica_fetch,
    encode_replica_answer,
    encode_replica_fetch,
)
from support.kafka_oracle import FILLS, decode_response, filled, frame_of, request_class, response_class, unknown_tags

ONE, OTHER = uuid.UUID(int=1 << 100), uuid.UUID(int=7)
ASKED = ReplicaFetch(
    3,
    2**62 + 5,
    500,
    1 << 20,
    77,
    4,
    [SegmentAsk(ONE, 0, 5, 100, 1_000), SegmentAsk(ONE, 0, 6, 200, 2_000), SegmentAsk(OTHER, 9, 0, 0, 3_000)],
    [(ONE, 4), (ONE, 5), (OTHER, 1)],
)


def decoded(frame: bytes) -> ReplicaFetch:
    body = memoryview(frame)[4:]
    return decode_replica_fetch(body, decode_request_header(body).body_position)


def test_a_request_is_what_kafka_python_reads() -> None:
    found = request_class(1).decode(encode_replica_fetch(8, "node-3", ASKED), version=VERSION, header=True, framed=True)
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes) == (500, 1, 1 << 20)
    assert (found.replica_state.replica_id, found.replica_state.replica_epoch) == (3, 2**62 + 5)
    assert (found.session_id, found.session_epoch) == (77, 4)
    asks = [
        SegmentAsk(topic.topic_id, one.partition, one.current_leader_epoch, one.fetch_offset, one.partition_max_bytes)
        for topic in found.topics
        for one in topic.partitions
    ]
    assert asks == ASKED.asks
    gone = [(topic.topic_id, shard) for topic in found.forgotten_topics_data for shard in topic.partitions]
    assert gone == ASKED.forgotten


def test_a_request_comes_back_as_it_was() -> None:
    assert decoded(encode_replica_fetch(8, "node-3", ASKED)) == ASKED
    empty = ReplicaFetch(1, 0, 0, 0, 0, 0)
    assert decoded(encode_replica_fetch(8, "", empty)) == empty


def test_a_question_for_a_time_comes_back_as_it_was_and_others_pass_over_it() -> None:
    asked = replace(ASKED, asks=[ASKED.asks[0]._replace(timestamp_ms=2**40), *ASKED.asks[1:]])
    frame = encode_replica_fetch(8, "node-3", asked)
    assert decoded(frame) == asked
    found = request_class(1).decode(frame, version=VERSION, header=True, framed=True)
    assert [one.partition_max_bytes for topic in found.topics for one in topic.partitions] == [1_000, 2_000, 3_000]


def test_what_kafka_python_sends_is_read_with_tags_that_are_unknown_too() -> None:
    for fill in FILLS:
        sent = filled(request_class(1), VERSION, fill)
        plain = frame_of(sent)
        with unknown_tags():
            tagged = frame_of(sent)
        found = decoded(plain)
        assert decoded(tagged) == found
        state = sent.replica_state
        assert found.replica_id == (state.replica_id if fill == "full" else -1)
        assert found.token == (state.replica_epoch if fill == "full" else -1)
        assert [ask.fetch_offset for ask in found.asks] == [p.fetch_offset for t in sent.topics for p in t.partitions]


ANSWERS = [
    SegmentAnswer(ONE, 0, 5, 0, 130, 20, [memoryview(b"some"), memoryview(b" batches")], 12, 2),
    SegmentAnswer(ONE, 0, 6, 0, 130, 20, (), 0, 2),
    SegmentAnswer(OTHER, 9, 0, 6, -1, -1, (), 0, 4),
    SegmentAnswer(OTHER, 10, 1, 0, 5, 0, [memoryview(b"more")], 4, 2),
]


def test_an_answer_is_what_kafka_python_reads_and_comes_back_as_it_was() -> None:
    data = b"".join(encode_replica_answer(8, 0, 77, ANSWERS))
    found = decode_response(1, VERSION, data)
    assert (found.error_code, found.session_id) == (0, 77)
    told = [
        (t.topic_id, p.partition_index, p.current_leader.leader_epoch, p.error_code, bytes(p.records or b""))
        for t in found.responses
        for p in t.partitions
    ]
    assert told == [(a.topic_id, a.shard, a.epoch, a.error_code, b"".join(a.records)) for a in ANSWERS]
    correlation_id, answer = decode_replica_answer(memoryview(data)[4:])
    assert (correlation_id, answer.error_code, answer.session_id) == (8, 0, 77)
    joined = [segment._replace(records=b"".join(segment.records)) for segment in answer.segments]
    assert joined == [segment._replace(records=b"".join(segment.records)) for segment in ANSWERS]


def test_an_answer_of_kafka_python_is_read_with_tags_that_are_unknown() -> None:
    sent = filled(response_class(1), VERSION, "null")
    with unknown_tags():
        data = frame_of(sent)
    _, answer = decode_replica_answer(memoryview(data)[4:])
    assert [one.high_watermark for one in answer.segments] == [
        one.high_watermark for topic in sent.responses for one in topic.partitions
    ]


def test_more_segments_than_there_may_be_are_refused() -> None:
    frame = memoryview(encode_replica_fetch(8, "node-3", ASKED))[4:]
    with pytest.raises(MalformedFrame, match="more segments"):
        decode_replica_fetch(frame, decode_request_header(frame).body_position, 4)


@given(st.data())
def test_a_damaged_frame_is_malformed_or_another_request(data: st.DataObject) -> None:
    frames = (encode_replica_fetch(8, "n", ASKED), b"".join(encode_replica_answer(8, 0, 77, ANSWERS)))
    frame = bytearray(data.draw(st.sampled_from(frames)))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    body = memoryview(frame)[4 : data.draw(st.integers(5, len(frame)))]
    for decode in (lambda: decode_replica_fetch(body, 16), lambda: decode_replica_answer(body)):
        with contextlib.suppress(MalformedFrame):
            decode()


def test_a_table_of_producers_is_asked_for_from_a_byte_on() -> None:
    ask = SegmentAsk(ONE, 0, 5, 100, 1_000, table_position=1 << 20)
    assert decoded(encode_replica_fetch(1, "node-3", replace(ASKED, asks=[ask]))).asks == [ask]
