"""Questions about consumer groups and logs to a Kafka cluster, for the commands that show and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stratalog.connect.missing_right import Right
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.model.rights import Operation, ResourceType
from stratalog_cli.connect import offered
from stratalog_cli.connect.group_reset import Bounds
from stratalog_cli.connect.kafka_clients import WAIT_S, KafkaPlace, clients, imported, result_of

GroupArgument = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The group's id, as `groups list` shows it.", autocompletion=offered.groups),
]
Shard = tuple[str, int]


def wanted_shards(text: str) -> tuple[str, tuple[int, ...] | None]:
    """`TOPIC`, or `TOPIC:0,3`. Raises: InvalidRequest."""
    topic, colon, shards = text.partition(":")
    numbers = [one.strip() for one in shards.split(",")]
    if not topic or (colon and not all(one.isascii() and one.isdigit() and len(one) < 10 for one in numbers)):
        raise InvalidRequest(f"--topic {text!r:.200}: expected TOPIC, or TOPIC:SHARD,SHARD")
    return topic, tuple(map(int, numbers)) if colon else None


def described(place: KafkaPlace, names: list[str]) -> dict[str, Any]:
    if not names:
        return {}
    asked = place.admin.describe_consumer_groups(names, request_timeout=WAIT_S)
    return {name: result_of(answer, place.refusal(seeing_group(name))) for name, answer in asked.items()}


def committed_of(place: KafkaPlace, group: str) -> dict[Shard, int]:
    asked = clients().ConsumerGroupTopicPartitions(group)
    (answer,) = place.admin.list_consumer_group_offsets([asked], request_timeout=WAIT_S).values()
    found = result_of(answer, place.refusal(seeing_group(group))).topic_partitions
    return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}


def seeing_topic(topic: str) -> Right:
    return Right(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def seeing_group(group: str) -> Right:
    return Right(Operation.DESCRIBE, ResourceType.GROUP, group)


def bounds_of(place: KafkaPlace, shards: list[Shard]) -> dict[Shard, Bounds]:
    """Where each log starts and ends."""
    spec = _specs()
    starts = offsets_at(place, shards, spec.earliest())
    ends = offsets_at(place, shards, spec.latest())
    return {shard: Bounds(starts[shard], ends[shard]) for shard in shards}


def offsets_at(place: KafkaPlace, shards: list[Shard], spec: Any) -> dict[Shard, int]:
    """-1 where there is no such offset."""
    if not shards:
        return {}
    wanted = {clients().TopicPartition(topic, shard): spec for topic, shard in shards}
    asked = place.admin.list_offsets(wanted, request_timeout=WAIT_S)
    return {
        (one.topic, one.partition): result_of(answer, place.refusal(seeing_topic(one.topic))).offset
        for one, answer in asked.items()
    }


def offsets_since(place: KafkaPlace, shards: list[Shard], time_ms: int) -> dict[Shard, int]:
    """The first offsets of that time or later; -1 where no record is as late."""
    return offsets_at(place, shards, _specs().for_timestamp(max(0, time_ms)))


def _specs() -> Any:
    return imported("confluent_kafka.admin").OffsetSpec


def state_of(group: Any) -> str:
    return str(group.state.name).lower().replace("_", " ")


def require_there(group: str, found: Any, committed: Mapping[Shard, int]) -> None:
    if state_of(found) == "dead" and not committed:
        raise NotFound(f"there is no group {group!r}; `stratalog groups list` shows all")
