"""Every control API and version: kafka-python's bytes decode here and encode back to the same bytes."""

from __future__ import annotations

import pytest
from kio.serial import entity_reader

from stratalog.kafka import messages
from stratalog.kafka.frames import decode_request_header
from support.kafka_oracle import FILLS, Fill, decode_response, filled, frame_of, request_class, response_class, versions

CONTROL = list(versions(hand_made=False))


@pytest.mark.parametrize(("key", "version"), CONTROL)
def test_a_request_of_kafka_python_is_understood_and_encodes_back_to_its_bytes(key: int, version: int) -> None:
    for fill in FILLS:
        data = frame_of(filled(request_class(key), version, fill))
        frame = memoryview(bytearray(data[4:]))
        header = decode_request_header(frame)
        assert header[:4] == (key, version, 77, "oracle")
        entity = messages.decode_request(key, version, frame, header.body_position)
        assert messages.encode_entity(entity) == data[4 + header.body_position :], (fill, entity)
        # kio's own reader, which is not safe on hostile input, says the same of a good one.
        assert entity == entity_reader(type(entity))(data, 4 + header.body_position)[0]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(("key", "version"), CONTROL)
def test_a_response_encodes_to_the_bytes_of_kafka_python(key: int, version: int, fill: Fill) -> None:
    data = frame_of(filled(response_class(key), version, fill))
    head = 9 if messages.response_type(key, version).__flexible__ and key != 18 else 8
    entity, used = entity_reader(messages.response_type(key, version))(data, head)
    assert used == len(data) - head
    ours = messages.encode_response(key, version, 77, entity)
    assert ours == data
    if key != 18:  # there kafka-python takes any error as a sign of version 0
        assert decode_response(key, version, ours).header.correlation_id == 77
