"""DeleteRecords (21): move the log start up. -1 means up to HW; above HW is 1 (OFFSET_OUT_OF_RANGE).

The log start moves first, in the meta service; segments wholly below it are deleted on every tier after the grace
period.
Versions: no difference but the flexible encoding from 2 on.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode, code_of
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.api.distinct import partitions_asked
from stratalog_node.serve.api.known_topics import learn_topics
from stratalog_node.serve.api.placement import NotHere, led_shard
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import Slices

_UP_TO_HIGH_WATERMARK = -1


async def handle(context: RequestContext, request: Any) -> Any:
    topics = []
    entries = 0
    slices = Slices()
    asked = await partitions_asked(request.topics, lambda topic: topic.name, lambda one: one.partition_index)
    denied = await context.rights.denied(Operation.DELETE, ResourceType.TOPIC, asked)
    await learn_topics(context.services, [name for name in asked if name not in denied])
    for name, by_partition in asked.items():
        partitions = []
        for index, wishes in by_partition.items():
            if name in denied or not context.rights.may_topic(Operation.DELETE, name):  # each deletion takes its time
                partitions.append(_low_watermark(index, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:  # as in Kafka the last one counts where a partition is named repeatedly
                partitions.append(await _trim(context, name, index, wishes[-1].offset))
            await slices.did()
        entries += 1 + len(partitions)
        topics.append({"name": name, "partitions": partitions})
    schema = messages.response_type(21, context.header.api_version)
    return await encoded(schema, entries, lambda: {"topics": topics})


async def _trim(context: RequestContext, topic: str, partition: int, offset: int) -> dict[str, int]:
    error = ErrorCode.NONE
    log_start = -1
    try:
        shard = led_shard(context.services, topic, partition)
        if shard.topic.is_internal:
            raise NotHere(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is trimmed by the node alone")
        wanted = shard.high_watermark if offset == _UP_TO_HIGH_WATERMARK else offset
        if not 0 <= wanted <= shard.high_watermark:
            raise NotHere(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic}-{partition}: {offset} is not within 0..{shard.high_watermark}"
            )
        log_start = await shard.delete_records_before(wanted)
    except NotHere as refusal:
        error = refusal.code
    except StratalogError as problem:
        error = code_of(problem)
    return _low_watermark(partition, log_start, error)


def _low_watermark(partition: int, log_start: int, error: ErrorCode) -> dict[str, int]:
    return {"partition_index": partition, "low_watermark": log_start, "error_code": error}


_NEEDS = (Need(Operation.DELETE, ResourceType.TOPIC, "29 for its partitions"),)

API = Api(21, "DeleteRecords", 0, 2, handle, needs=_NEEDS)
