"""Newer clients add tagged fields that we do not know. The protocol wants them skipped, at every depth."""

from __future__ import annotations

import pytest

from stratalog.kafka import messages
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.fetch import decode_fetch
from stratalog.kafka.frames import decode_request_header, is_flexible
from stratalog.kafka.produce import decode_produce
from stratalog.kafka.reader import read_entity
from support.kafka_oracle import FILLS, SERVED, UNKNOWN_TAGS, filled, frame_of, request_class, unknown_tags

FLEXIBLE = [
    (key, version)
    for key, (low, high) in SERVED.items()
    for version in range(low, high + 1)
    if is_flexible(key, version)
]


def decode(frame: bytes) -> object:
    view = memoryview(bytearray(frame[4:]))
    header = decode_request_header(view)
    match header.api_key:
        case 0:
            request = decode_produce(view, header.body_position, header.api_version)
            topics = [(name, [(index, r and bytes(r)) for index, r in parts]) for name, parts in request.topics]
            return request.transactional_id, request.acks, request.timeout_ms, topics
        case 1:
            return decode_fetch(view, header.body_position, header.api_version)
        case _:
            return messages.decode_request(header.api_key, header.api_version, view, header.body_position)


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_unknown_tags_in_the_header_the_body_and_nested_structures_are_skipped(key: int, version: int) -> None:
    for fill in FILLS:
        message = filled(request_class(key), version, fill)
        plain = frame_of(message)
        with unknown_tags():
            tagged = frame_of(message)
        assert tagged.count(UNKNOWN_TAGS) >= 2, "the oracle put in no unknown tags"
        assert decode(tagged) == decode(plain)


def test_a_known_tag_between_unknown_ones_is_kept() -> None:
    message = filled(request_class(1), 12, "full")
    with unknown_tags():
        request = decode(frame_of(message))
    assert request.cluster_id == message.cluster_id  # type: ignore[attr-defined]


def test_a_known_tag_whose_length_lies_is_malformed() -> None:
    schema = messages.response_type(18, 3)
    # error 0, no keys, throttle 0, one tag: 1 (finalized features epoch, int64) of 7 bytes.
    body = b"\x00\x00\x01\x00\x00\x00\x00\x01\x01\x07" + bytes(7)
    with pytest.raises(MalformedFrame):
        read_entity(schema, body)


def test_more_tags_than_any_client_sends_are_malformed() -> None:
    head = b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff"
    with pytest.raises(MalformedFrame, match="tagged fields"):
        decode_request_header(memoryview(head + b"\xff\xff\x03" + bytes(200_000)))
