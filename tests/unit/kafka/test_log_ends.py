"""The ends of shards, as nodes request them from each other: our ListOffsets codec against kio's schemas."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.kafka import messages
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.log_ends import decode_ends_answer, encode_ends_request

ASKED = {"flights": [0, 2], "verspätet": [1]}
TOLD = {("flights", 0): 5, ("flights", 2): 1 << 40, ("verspätet", 1): 0}


def answer() -> bytes:
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": shard, "error_code": 0, "timestamp": -1, "offset": TOLD[name, shard]}
                for shard in shards
            ]
            + [{"partition_index": 9, "error_code": 6, "timestamp": -1, "offset": -1}],
        }
        for name, shards in ASKED.items()
    ]
    schema = messages.response_type(2, 2)
    return messages.encode_response(2, 2, 7, messages.build(schema, throttle_time=0, topics=topics))[4:]


def test_the_request_is_one_that_every_node_serves() -> None:
    data = encode_ends_request(7, "node-1", ASKED)
    frame = memoryview(data)[4:]
    assert int.from_bytes(data[:4], "big") == len(frame)
    header = decode_request_header(frame)
    assert header[:4] == (2, 2, 7, "node-1")
    request = messages.decode_request(2, 2, frame, header.body_position)
    asked = {topic.name: [one.partition_index for one in topic.partitions] for topic in request.topics}
    assert asked == ASKED and request.isolation_level == 0


def test_of_the_answer_those_shards_are_left_out_that_the_node_does_not_lead() -> None:
    assert decode_ends_answer(answer()) == TOLD


@given(st.integers(0, 200))
def test_an_answer_that_is_cut_off_is_refused(length: int) -> None:
    whole = answer()
    if length < len(whole):
        with pytest.raises(MalformedFrame):
            decode_ends_answer(whole[:length])


def test_an_answer_whose_topic_leads_back_is_refused_and_not_read_again_and_again() -> None:
    """Two billion topics, and the second begins where the frame ends: the event loop would be blocked for an hour."""
    twenty_topics = struct.pack(">iii", 7, 0, 20)
    without_shards = struct.pack(">h4si", 4, b"none", 0)
    with pytest.raises(MalformedFrame):
        decode_ends_answer(twenty_topics + without_shards + struct.pack(">h", -6))
