"""Our Fetch codec against kafka-python: the same fields, the same bytes, records spliced in untouched."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.fetch import (
    EpochEnd,
    FetchedPartition,
    PartitionFetch,
    decode_fetch,
    encode_fetch_response,
)
from stratalog.kafka.frames import decode_request_header
from support.kafka_oracle import FILLS, decode_response, filled, frame_of, request_class, response_class

VERSIONS = range(4, 13)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_decodes_to_the_fields_kafka_python_sent(version: int) -> None:
    for fill in FILLS:
        sent = filled(request_class(1), version, fill)
        frame = memoryview(frame_of(sent))[4:]
        request = decode_fetch(frame, decode_request_header(frame).body_position, version)
        assert (request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes) == (
            sent.replica_id,
            sent.max_wait_ms,
            sent.min_bytes,
            sent.max_bytes,
        )
        assert request.isolation_level == sent.isolation_level
        assert (request.session_id, request.session_epoch) == ((sent.session_id, sent.session_epoch))
        assert request.topics == [
            (
                topic.topic,
                [
                    PartitionFetch(
                        p.partition,
                        p.current_leader_epoch,
                        p.fetch_offset,
                        p.last_fetched_epoch,
                        p.log_start_offset,
                        p.partition_max_bytes,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in sent.topics
        ]
        assert request.forgotten == [(topic.topic, topic.partitions) for topic in sent.forgotten_topics_data]
        assert request.rack_id == sent.rack_id
        assert request.cluster_id == sent.cluster_id


def answers_of(oracle: object, version: int) -> list[tuple[str, list[FetchedPartition[memoryview]]]]:
    topics = []
    for topic in oracle.responses:  # type: ignore[attr-defined]
        partitions = []
        for one in topic.partitions:
            records = bytes(one.records or b"")
            pieces = [memoryview(records)[:3], memoryview(records)[3:]] if records else []
            aborted = one.aborted_transactions
            partitions.append(
                FetchedPartition(
                    one.partition_index,
                    one.error_code,
                    one.high_watermark,
                    one.last_stable_offset,
                    one.log_start_offset,
                    pieces,
                    len(records),
                    aborted if aborted is None else [(a.producer_id, a.first_offset) for a in aborted],
                    one.preferred_read_replica,
                    (one.current_leader.leader_id, one.current_leader.leader_epoch) if one.current_leader else None,
                    EpochEnd(one.diverging_epoch.epoch, one.diverging_epoch.end_offset)
                    if one.diverging_epoch
                    else None,
                )
            )
        topics.append((topic.topic, partitions))
    return topics


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reply_has_kafka_pythons_bytes(version: int) -> None:
    for fill in ("full", "empty", "null"):
        oracle = filled(response_class(1), version, fill)
        for topic in oracle.responses:
            for one in topic.partitions:
                one.snapshot_id = None  # KRaft's own; a storage node never sends it
                one.records = one.records or b""  # where Kafka has no records it sends none, not null
        reply = encode_fetch_response(
            version,
            77,
            oracle.error_code,
            oracle.session_id,
            answers_of(oracle, version),
            oracle.throttle_time_ms,
        )
        assert b"".join(reply) == frame_of(oracle)


@dataclass
class FileRange:
    size_bytes: int


@pytest.mark.parametrize("version", VERSIONS)
def test_records_come_back_as_the_very_objects_given(version: int) -> None:
    first, second, third = FileRange(100), FileRange(50), FileRange(7)
    reply = encode_fetch_response(
        version,
        1,
        0,
        0,
        [
            (
                "t",
                [
                    FetchedPartition(0, 0, 10, 10, 0, [first, second], 150),
                    FetchedPartition(1, 0, 10, 10, 0),
                    FetchedPartition(2, 0, 10, 10, 0, [third], 7),
                ],
            )
        ],
    )
    assert [one for one in reply if isinstance(one, FileRange)] == [first, second, third]
    whole = b"".join(bytes(one.size_bytes) if isinstance(one, FileRange) else one for one in reply)
    decoded = decode_response(1, version, whole)
    assert [len(one.records or b"") for one in decoded.responses[0].partitions] == [150, 0, 7]
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hundred_empty_partitions_are_one_buffer(version: int) -> None:
    empty = [FetchedPartition(index, 0, index, index, 0) for index in range(200)]
    reply = encode_fetch_response(version, 1, 0, 0, [("t", empty)])
    assert len(reply) == 1
    decoded = decode_response(1, version, bytes(reply[0])).responses[0].partitions
    assert [one.high_watermark for one in decoded] == list(range(200))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_is_malformed_and_nothing_else(version: int) -> None:
    data = frame_of(filled(request_class(1), version, "full"))[4:]
    body = decode_request_header(memoryview(data)).body_position
    for length in range(body, len(data)):
        with pytest.raises(MalformedFrame):
            decode_fetch(memoryview(data)[:length], body, version)


@pytest.mark.parametrize("version", (4, 11, 12))
def test_a_count_that_lies_allocates_nothing(version: int) -> None:
    head = bytes(25 if version >= 7 else 17)
    counts = b"\x02\x02t\xff\xff\xff\xff\x07" if version == 12 else b"\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff"
    with pytest.raises(MalformedFrame, match="more partitions"):
        decode_fetch(memoryview(head + counts), 0, version)
