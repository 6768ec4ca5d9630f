"""OffsetForLeaderEpoch (23): up to where the log is unbroken from an epoch on. The shard's segment list is its history.

Consumers ask after every new epoch, so after each roll, whether the log was truncated below their position; here only
what a recovery gave up is. Handled in order with the connection's other requests (`serve/connections/control.py`).
Unknown epochs get (-1, -1). A repeated partition: 42.
Versions: 2 is required, because librdkafka speaks no other (trap 2); replica id from 3, flexible from 4.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import StratalogError
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog_node.serve.api.distinct import partitions_asked
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.placement import led_shard, offset_error
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.shards.read.epochs import UNDEFINED, end_of_led_epoch
from stratalog_node.slices import Slices


async def handle(context: RequestContext, request: Any) -> Any:
    topics = []
    entries = 0
    slices = Slices()
    asked = await partitions_asked(request.topics, lambda topic: topic.topic, lambda one: one.partition)
    denied: Collection[str] = ()
    if not context.rights.can(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        denied = await context.rights.denied(Operation.DESCRIBE, ResourceType.TOPIC, asked)
    await learn_topics(context.services, [name for name in asked if name not in denied])
    for name, by_partition in asked.items():
        partitions = []
        for index, questions in by_partition.items():
            if name in denied:
                partitions.append(_refused(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif len(questions) > 1:
                partitions.append(_refused(index, ErrorCode.INVALID_REQUEST))
            else:
                partitions.append(_answer(context, name, questions[0]))
            await slices.did()
        entries += 1 + len(partitions)
        topics.append({"topic": name, "partitions": partitions})
    schema = messages.response_type(23, context.header.api_version)
    return await encoded(schema, entries, lambda: {"topics": topics})


def _refused(partition: int, code: ErrorCode) -> dict[str, Any]:
    epoch, end_offset = UNDEFINED
    return {"error_code": code, "partition": partition, "leader_epoch": epoch, "end_offset": end_offset}


def _answer(context: RequestContext, topic: str, asked: Any) -> dict[str, Any]:
    error = ErrorCode.NONE
    epoch, end_offset = UNDEFINED
    try:
        shard = led_shard(context.services, topic, asked.partition, asked.current_leader_epoch)
        epoch, end_offset = end_of_led_epoch(shard, shard.end_offset, asked.leader_epoch)
    except StratalogError as problem:
        error = offset_error(problem)
    return {"error_code": error, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}


_NEEDS = (
    Need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "DESCRIBE on the topic is enough"),
    Need(Operation.DESCRIBE, ResourceType.TOPIC, "29 for its partitions"),
)

API = Api(23, "OffsetForLeaderEpoch", 2, 4, handle, needs=_NEEDS)
