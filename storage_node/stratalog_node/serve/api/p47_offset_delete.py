"""OffsetDelete (47): forget a group's offsets in some partitions.

Errors of the group: 68 it has members that are no consumers, 69, and 14, 15, 16; per partition: 3, 86 a member is
subscribed to the topic.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.model.group import GroupError
from stratalog_node.groups.requests import TopicShard
from stratalog_node.serve.context import RequestContext
from stratalog_node.serve.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    places = [
        TopicShard(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    deleted = await context.services.groups.delete_offsets(request.group_id, places)
    topics: list[dict[str, Any]] = []
    if deleted.error is GroupError.NONE:
        errors = iter(deleted.errors)
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": next(errors)}
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    schema = messages.response_type(47, context.header.api_version)
    return messages.build(schema, throttle_time=0, error_code=deleted.error, topics=topics)


API = Api(47, "OffsetDelete", 0, 0, handle)
