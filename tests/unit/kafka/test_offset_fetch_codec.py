"""Our OffsetFetch answers are, byte for byte, those of the generic encoder."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.kafka import messages
from stratalog.kafka.offset_fetch import OffsetFetchEncoder
from stratalog.model.groups.group import CommittedOffset

FOUND = {
    "orders": [(0, CommittedOffset(5, 3, "", -1)), (7, CommittedOffset(1 << 40, -1, "ü" * 200, -1))],
    "x" * 200: [(0, CommittedOffset(-1, -1, "", -1))],
    "empty": [],
}


def by_hand(version: int, groups: dict[str, Any], error: int) -> bytes:
    encoder = OffsetFetchEncoder(version)
    out = encoder.head(len(groups))
    for group_id, topics in groups.items():
        out += encoder.group_head(group_id) if encoder.has_groups else b""
        out += encoder.topics_head(len(topics))
        for name, found in topics.items():
            out += encoder.topic_head(name, len(found))
            for shard, committed in found:
                out += encoder.partition(shard, committed, error)
            out += encoder.tail
        out += encoder.error(error)
        out += encoder.tail if encoder.has_groups else b""
    return out + encoder.tail


def generic(version: int, groups: dict[str, Any], error: int) -> bytes:
    def answer(topics: dict[str, Any]) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": shard,
                            "committed_offset": committed.offset,
                            "committed_leader_epoch": committed.epoch,
                            "metadata": committed.metadata,
                            "error_code": error,
                        }
                        for shard, committed in found
                    ],
                }
                for name, found in topics.items()
            ],
            "error_code": error,
        }

    schema = messages.response_type(9, version)
    if version >= 8:
        told = [{"group_id": group_id, **answer(topics)} for group_id, topics in groups.items()]
        return messages.encode_entity(messages.build(schema, throttle_time=0, groups=told))
    (topics,) = groups.values()
    return messages.encode_entity(messages.build(schema, throttle_time=0, **answer(topics)))


@pytest.mark.parametrize("version", range(1, 9))
@pytest.mark.parametrize("error", [0, 14])
def test_every_version_is_what_the_generic_encoder_makes(version: int, error: int) -> None:
    for groups in ({"g": FOUND}, {"g": {}}):
        assert by_hand(version, groups, error) == generic(version, groups, error)


def test_several_groups_are_in_one_answer_from_version_8() -> None:
    groups = {"g": FOUND, "h": {}, "": FOUND}
    assert by_hand(8, groups, 0) == generic(8, groups, 0)
