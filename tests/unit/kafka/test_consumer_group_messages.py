"""Messages of the consumer protocol, which kafka-python does not know: read as kio's own reader reads them."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader

from stratalog.kafka import messages
from stratalog.kafka.errors import MalformedFrame

TOPIC = UUID(int=7)


def heartbeat(version: int, *, is_full: bool) -> Any:
    topic = {"topic_id": TOPIC, "partitions": (0, 5)}
    said = {
        "instance_id": "i",
        "rack_id": "r",
        "rebalance_timeout": datetime.timedelta(seconds=9),
        "subscribed_topic_names": ("orders", "flights"),
        "subscribed_topic_regex": "o.*",
        "server_assignor": "range",
        "topic_partitions": (topic,),
    }
    quiet = {"topic_partitions": None}
    return messages.build(
        messages.request_type(68, version), group_id="g", member_id="m", member_epoch=3, **(said if is_full else quiet)
    )


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("version", [0, 1])
def test_a_heartbeat_is_read_as_it_was_written(version: int, is_full: bool) -> None:
    entity = heartbeat(version, is_full=is_full)
    data = messages.encode_entity(entity)
    assert messages.decode_body(68, version, data) == entity == entity_reader(type(entity))(data, 0)[0]
    for end in range(len(data)):
        with pytest.raises(MalformedFrame):
            messages.decode_body(68, version, data[:end])


@pytest.mark.parametrize("version", [0, 1])
def test_a_description_is_asked_for_as_it_was_written(version: int) -> None:
    entity = messages.build(
        messages.request_type(69, version), group_ids=("a", "b"), include_authorized_operations=True
    )
    data = messages.encode_entity(entity)
    assert messages.decode_body(69, version, data) == entity == entity_reader(type(entity))(data, 0)[0]
