"""One request for each API that needs rights, about one topic and one group, as clients send it.

kafka-python encodes it and reads the answer; kio does, where kafka-python has no classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TypeAlias
from uuid import UUID

from kio.serial import entity_reader

from stratalog.kafka import messages
from support.control_bench import message
from support.group_node import subscription
from support.kafka_oracle import UNKNOWN_TO_IT, decode_response, frame_of, request_class

Request: TypeAlias = tuple[int, dict[str, Any]]

TOPIC, GROUP = "orders", "team"
ABSENT = "absent"


def requests(topic: str = TOPIC, group: str = GROUP) -> dict[int, Request]:
    """By API key: the version, and the fields of the request."""
    return _about_topics(topic) | _about_groups(topic, group) | _about_the_cluster()


def _about_topics(topic: str) -> dict[int, Request]:
    """Topics, their settings and offsets."""
    config = {"resource_type": 2, "resource_name": topic}
    return {
        2: (
            7,
            {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
                    }
                ],
            },
        ),
        3: (9, {"topics": [{"name": topic}], "allow_auto_topic_creation": True} | _ASKS_FOR_OPERATIONS),
        19: (
            7,
            {
                "topics": [
                    {
                        "name": topic + "-new",
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                "timeout_ms": 5_000,
                "validate_only": False,
            },
        ),
        20: (6, {"topics": [{"name": topic, "topic_id": UUID(int=0)}], "timeout_ms": 5_000}),
        21: (
            2,
            {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout_ms": 5_000},
        ),
        23: (
            4,
            {
                "replica_id": -1,
                "topics": [
                    {"topic": topic, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
                ],
            },
        ),
        32: (
            4,
            {
                "resources": [config | {"configuration_keys": ["retention.ms"]}],
                "include_synonyms": False,
                "include_documentation": False,
            },
        ),
        33: (
            2,
            {
                "resources": [config | {"configs": [{"name": "retention.ms", "value": "86400000"}]}],
                "validate_only": True,
            },
        ),
        35: (3, {"topics": [{"topic": topic, "partitions": [0]}]}),
        37: (
            3,
            {"topics": [{"name": topic, "count": 3, "assignments": None}], "timeout_ms": 5_000, "validate_only": True},
        ),
        44: (
            1,
            {
                "resources": [
                    config | {"configs": [{"name": "retention.ms", "config_operation": 0, "value": "86400000"}]}
                ],
                "validate_only": True,
            },
        ),
    }


def _about_groups(topic: str, group: str) -> dict[int, Request]:
    """Groups and their offsets."""
    member = {"group_id": group, "member_id": "m", "group_instance_id": None, "generation_id": 1}
    return {
        8: (
            8,
            {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": 0,
                                "committed_offset": 0,
                                "committed_leader_epoch": -1,
                                "committed_metadata": "",
                            }
                        ],
                    }
                ],
            },
        ),
        9: (
            8,
            {
                "groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
                "require_stable": False,
            },
        ),
        10: (4, {"key_type": 0, "coordinator_keys": [group]}),
        11: (
            5,
            {
                "group_id": group,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": subscription(topic)}],
            },
        ),
        12: (4, member),
        13: (4, {"group_id": group, "members": [{"member_id": "m", "group_instance_id": None}]}),
        14: (
            5,
            member | {"protocol_type": "consumer", "protocol_name": "range", "assignments": []},
        ),
        15: (5, {"groups": [group], "include_authorized_operations": False}),
        16: (4, {"states_filter": []}),
        42: (2, {"groups_names": [group]}),
        47: (0, {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}),
        68: (
            1,
            {
                "group_id": group + "-consumers",
                "member_id": "m",
                "member_epoch": 0,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout": 10_000,
                "subscribed_topic_names": [topic],
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": [],
            },
        ),
        69: (0, {"group_ids": [group + "-consumers"], "include_authorized_operations": False}),
    }


def _about_the_cluster() -> dict[int, Request]:
    """Rules, users, producer ids, nodes."""
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {
        22: (3, {"transactional_id": None, "transaction_timeout_ms": 1_000, "producer_id": -1, "producer_epoch": -1}),
        29: (3, everything),
        30: (
            3,
            {
                "creations": [
                    {
                        "resource_type": 2,
                        "resource_name": "some",
                        "resource_pattern_type": 3,
                        "principal": "User:bob",
                        "host": "*",
                        "operation": 3,
                        "permission_type": 3,
                    }
                ]
            },
        ),
        31: (3, {"filters": [everything | {"resource_name_filter": "some"}]}),
        48: (1, {"components": [], "strict": False}),
        49: (
            1,
            {
                "entries": [
                    {
                        "entity": [{"entity_type": "user", "entity_name": "bob"}],
                        "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                    }
                ],
                "validate_only": False,
            },
        ),
        50: (0, {"users": [{"name": "bob"}]}),
        51: (0, {"deletions": [{"name": "bob", "mechanism": 1}], "upsertions": []}),
        60: (0, {"include_cluster_authorized_operations": True}),
    }


_ASKS_FOR_OPERATIONS = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": True}


def frame(key: int, version: int, fields: dict[str, Any]) -> bytes:
    """The request on the wire, size first."""
    if key not in UNKNOWN_TO_IT:
        return frame_of(message(request_class(key), version, fields))
    entity = messages.build(messages.request_type(key, version), **fields)
    body = struct.pack(">hhih", key, version, 77, 6) + b"oracle\0" + messages.encode_entity(entity)
    return struct.pack(">i", len(body)) + body


def decoded(key: int, version: int, data: bytes) -> dict[str, Any]:
    """The fields of the answer, whose bytes begin with its size."""
    if key not in UNKNOWN_TO_IT:
        fields: dict[str, Any] = decode_response(key, version, data).to_dict()
        return fields
    entity: Any = entity_reader(messages.response_type(key, version))(data, 9)[0]
    return asdict(entity)


def codes(answer: dict[str, Any]) -> list[int]:
    """All its error codes, but for the one that only says that settings are hidden."""
    return sorted(_codes(answer))


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "error_code":
                yield int(one)
            elif name != "topic_config_error_code":
                yield from _codes(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _codes(one)
