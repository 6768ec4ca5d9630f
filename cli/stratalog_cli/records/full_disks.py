"""Whether the disk of a node that leads a shard has no room for new data: why its records are not acknowledged.

librdkafka tries a record again until its time is over, and then says that it timed out, whatever the broker answered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from stratalog.admin_api.wording import human_bytes
from stratalog.model.errors import StratalogError
from stratalog_cli.connect.kafka_clients import WAIT_S, KafkaPlace, imported, result_of
from stratalog_cli.connect.kafka_question import ask

_DESCRIBE_LOG_DIRS: Final = 35
_VERSION: Final = 4
"""The first with the sizes of disks."""
_RESERVE: Final = "disk.reserve.bytes"
_NEARLY: Final = 1.1
"""A node takes new data again once so much more than the reserve is free."""


def full_disk(place: KafkaPlace, topic: str, shards: Collection[int]) -> str | None:
    """In words, of the first such node; None where all have room, or none can be asked."""
    told = place.topics.get(topic)
    if told is None:
        return None
    leaders = {part.leader for number, part in told.partitions.items() if number in shards or -1 in shards}
    brokers = place.brokers
    for leader in sorted(leaders & brokers.keys()):
        try:
            words = _why(place, leader, brokers[leader].host, brokers[leader].port)
        except StratalogError:
            continue
        if words is not None:
            return words
    return None


def _why(place: KafkaPlace, node_id: int, host: str, port: int) -> str | None:
    answer = ask(host, port, _DESCRIBE_LOG_DIRS, _VERSION, topics=())
    reserve = _reserve_of(place, node_id)
    for disk in answer.results:
        if 0 <= disk.usable_bytes <= reserve * _NEARLY:
            return (
                f"the disk of node {node_id} is full, {human_bytes(disk.usable_bytes)} of "
                f"{human_bytes(disk.total_bytes)} are free at {disk.log_dir} and {human_bytes(reserve)} are kept in "
                "reserve; make room there"
            )
    return None


def _reserve_of(place: KafkaPlace, node_id: int) -> int:
    """0 for a broker that has no such setting."""
    admin: Any = imported("confluent_kafka.admin")
    resource = admin.ConfigResource(admin.ResourceType.BROKER, str(node_id))
    (answer,) = place.admin.describe_configs([resource], request_timeout=WAIT_S).values()
    found = result_of(answer).get(_RESERVE)
    return int(found.value) if found is not None and str(found.value).isdigit() else 0
