"""Our Produce codec against kafka-python: the same fields, the same bytes, no copy."""

from __future__ import annotations

import pytest

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import decode_request_header
from stratalog.kafka.produce import (
    LeaderHint,
    NodeEndpoint,
    ProducedPartition,
    RecordError,
    decode_produce,
    encode_produce_response,
)
from support.kafka_oracle import FILLS, decode_response, filled, frame_of, request_class, response_class

VERSIONS = range(3, 12)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_decodes_to_the_fields_kafka_python_sent(version: int) -> None:
    for fill in FILLS:
        sent = filled(request_class(0), version, fill)
        frame = memoryview(frame_of(sent))[4:]
        header = decode_request_header(frame)
        request = decode_produce(frame, header.body_position, version)
        assert (request.transactional_id, request.acks, request.timeout_ms) == (
            sent.transactional_id,
            sent.acks,
            sent.timeout_ms,
        )
        assert request.topics == [
            (topic.name, [(one.index, one.records) for one in topic.partition_data]) for topic in sent.topic_data
        ]


@pytest.mark.parametrize("version", (3, 8, 9, 11))
def test_names_and_counts_of_more_than_127_are_understood(version: int) -> None:
    cls = request_class(0)
    topic, partition = cls.TopicProduceData, cls.TopicProduceData.PartitionProduceData
    sent = cls(
        version=version,
        transactional_id="t" * 200,
        acks=-1,
        timeout_ms=5,
        topic_data=[
            topic(
                version=version,
                name=f"{number}".zfill(249),
                partition_data=[partition(version=version, index=i, records=bytes(400)) for i in range(130)],
            )
            for number in range(129)
        ],
    )
    frame = memoryview(frame_of(sent))[4:]
    request = decode_produce(frame, decode_request_header(frame).body_position, version)
    assert request.transactional_id == "t" * 200
    assert [name for name, _ in request.topics] == [f"{number}".zfill(249) for number in range(129)]
    assert all([index for index, _ in parts] == list(range(130)) for _, parts in request.topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_views_of_the_frame_not_copies(version: int) -> None:
    buffer = bytearray(frame_of(filled(request_class(0), version, "full")))
    frame = memoryview(buffer)[4:]
    request = decode_produce(frame, decode_request_header(frame).body_position, version)
    for _, partitions in request.topics:
        for _, records in partitions:
            assert records is not None
            assert records.obj is buffer


@pytest.mark.parametrize("version", VERSIONS)
def test_a_full_reply_has_kafka_pythons_bytes(version: int) -> None:
    oracle = filled(response_class(0), version, "full")
    topics = [
        (
            topic.name,
            [
                ProducedPartition(
                    one.index,
                    one.error_code,
                    one.base_offset,
                    one.log_append_time_ms,
                    one.log_start_offset,
                    one.error_message,
                    LeaderHint(one.current_leader.leader_id, one.current_leader.leader_epoch)
                    if version >= 10
                    else LeaderHint(1, 2),
                    [RecordError(e.batch_index, e.batch_index_error_message) for e in one.record_errors],
                )
                for one in topic.partition_responses
            ],
        )
        for topic in oracle.responses
    ]
    endpoints = [NodeEndpoint(e.node_id, e.host, e.port, e.rack) for e in oracle.node_endpoints or ()]
    assert encode_produce_response(version, 77, topics, oracle.throttle_time_ms, endpoints) == frame_of(oracle)


@pytest.mark.parametrize("name", ("orders", "o" * 99, "o" * 100, "o" * 249, "é"))
@pytest.mark.parametrize("version", VERSIONS)
def test_the_fast_path_of_one_partition_says_what_the_general_one_says(version: int, name: str) -> None:
    one = ProducedPartition(3, 0, 1 << 40, 1_700_000_000_000, 17)
    reply = decode_response(0, version, encode_produce_response(version, 5, [(name, [one])], 250))
    (topic,) = reply.responses
    (answer,) = topic.partition_responses
    assert reply.header.correlation_id == 5
    assert topic.name == name
    assert (answer.index, answer.error_code, answer.base_offset) == (3, 0, 1 << 40)
    assert answer.log_append_time_ms == 1_700_000_000_000
    assert answer.log_start_offset == (17 if version >= 5 else -1)
    assert reply.throttle_time_ms == 250


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reply_without_topics_is_legal(version: int) -> None:
    assert decode_response(0, version, encode_produce_response(version, 5, [])).responses == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_is_malformed_and_nothing_else(version: int) -> None:
    data = frame_of(filled(request_class(0), version, "full"))[4:]
    body = decode_request_header(memoryview(data)).body_position
    for length in range(body, len(data)):
        with pytest.raises(MalformedFrame):
            decode_produce(memoryview(data)[:length], body, version)


@pytest.mark.parametrize("version", (3, 9))
def test_a_count_that_lies_allocates_nothing(version: int) -> None:
    if version == 3:
        body = b"\xff\xff\xff\xff\x00\x00\x00\x05\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff"
    else:
        body = b"\x00\xff\xff\x00\x00\x00\x05\x02\x02t\xff\xff\xff\xff\x07"
    with pytest.raises(MalformedFrame, match="partitions in one Produce"):
        decode_produce(memoryview(body), 0, version)


@pytest.mark.parametrize(
    "body",
    (
        pytest.param(b"\x00\xff\xff\x00\x00\x00\x05\x00", id="null topics"),
        pytest.param(b"\x00\xff\xff\x00\x00\x00\x05\x02\x00", id="null name"),
        pytest.param(b"\x00\xff\xff\x00\x00\x00\x05\x02\x02t\x00", id="null partitions"),
        pytest.param(b"\x00\xff\xff\x00\x00\x00\x05\x02\x02\xff\x01\x00\x00", id="name is not UTF-8"),
        pytest.param(b"\x00\xff\xff\x00\x00\x00\x05\xff\xff\xff\xff\xff\x01", id="endless varint"),
        pytest.param(b"\x00\xff\xff\x00\x00\x00\x05\xff\xff\xff\xff\x7f", id="varint above 32 bits"),
    ),
)
def test_what_the_schema_forbids_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_produce(memoryview(body), 0, 9)


@pytest.mark.parametrize(
    "answer",
    (
        ProducedPartition(0, 0, 5, error_message="stored, but"),
        ProducedPartition(0, 0, 5, current_leader=LeaderHint(2, 9)),
        ProducedPartition(0, 0, 5, record_errors=[RecordError(1, None)]),
    ),
)
def test_one_partition_that_says_more_than_success_keeps_what_it_says(answer: ProducedPartition) -> None:
    told = decode_response(0, 11, encode_produce_response(11, 5, [("t", [answer])])).responses[0].partition_responses[0]
    assert told.error_message == answer.error_message
    assert bool(told.current_leader) == bool(answer.current_leader)
    assert len(told.record_errors) == len(answer.record_errors)
