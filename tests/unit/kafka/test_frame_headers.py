"""Request and response headers."""

from __future__ import annotations

import pytest
from kio.index import UnknownEntity, load_request_schema
from kio.schema.index import api_key_map, schema_name_map

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import (
    FLEXIBLE_FROM,
    NEVER,
    decode_request_header,
    encode_response_head,
    is_flexible,
)
from support.kafka_oracle import SERVED, filled, frame_of, request_class


def test_the_table_of_flexible_versions_agrees_with_the_schemas() -> None:
    for key, first in FLEXIBLE_FROM.items():
        for version in schema_name_map[api_key_map[key]]:
            try:
                schema = load_request_schema(key, version)
            except UnknownEntity:
                continue
            assert schema.__flexible__ == (version >= first), (key, version)


def test_every_key_served_is_in_the_table() -> None:
    assert set(SERVED) <= set(FLEXIBLE_FROM)


def test_a_null_client_id_and_an_empty_one_are_distinguished() -> None:
    null = decode_request_header(memoryview(b"\x00\x03\x00\x01\x00\x00\x00\x09\xff\xff"))
    empty = decode_request_header(memoryview(b"\x00\x03\x00\x01\x00\x00\x00\x09\x00\x00"))
    assert (null.client_id, null.body_position) == (None, 10)
    assert (empty.client_id, empty.body_position) == ("", 10)


def test_a_key_we_do_not_know_still_gives_its_correlation_id() -> None:
    header = decode_request_header(memoryview(b"\x03\xe7\x00\x01\x00\x00\x00\x09\x00\x01x"))
    assert (header.api_key, header.correlation_id, header.client_id) == (999, 9, "x")


@pytest.mark.parametrize("key", sorted(SERVED))
def test_every_truncated_header_is_malformed(key: int) -> None:
    version = SERVED[key][1]
    data = memoryview(frame_of(filled(request_class(key), version, "full")))[4:]
    body = decode_request_header(data).body_position
    for length in range(body):
        with pytest.raises(MalformedFrame):
            decode_request_header(data[:length])


@pytest.mark.parametrize("length", (b"\xff\xfe", b"\x7f\xff", b"\x80\x00"))
def test_a_client_id_length_that_lies_is_malformed(length: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_request_header(memoryview(b"\x00\x03\x00\x01\x00\x00\x00\x09" + length + b"x"))


def test_api_versions_answers_with_header_v0_whatever_its_version() -> None:
    assert len(encode_response_head(18, 3, 1, 10)) == 8
    assert len(encode_response_head(3, 9, 1, 10)) == 9
    assert len(encode_response_head(3, 8, 1, 10)) == 8


def test_sasl_handshake_and_offset_delete_are_never_flexible() -> None:
    assert FLEXIBLE_FROM[17] == FLEXIBLE_FROM[47] == NEVER
    assert not is_flexible(17, 1)
    assert not is_flexible(12345, 0)
