"""OffsetDelete (47): delete a group's offsets in some partitions.

Errors of the group: 68 if it has members that are not consumers, 69, and 14, 15, 16; per partition: 3, and 86 if a
member is subscribed to the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratalog.kafka import messages
from stratalog.model.groups.group import GroupError
from stratalog_node.groups.requests import TopicShard
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    entries = sum(1 + len(topic.partitions) for topic in request.topics)
    places = await off_loop(entries, lambda: _places(request))
    deleted = await context.services.groups.delete_offsets(request.group_id, places)
    schema = messages.response_type(47, context.header.api_version)

    def answer() -> dict[str, Any]:
        topics = _topics(request, deleted.errors) if deleted.error is GroupError.NONE else []
        return {"error_code": deleted.error, "topics": topics}

    return await encoded(schema, entries, answer)


def _places(request: Any) -> list[TopicShard]:
    return [
        TopicShard(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]


def _topics(request: Any, errors: Sequence[GroupError]) -> list[dict[str, Any]]:
    error = iter(errors)
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": partition.partition_index, "error_code": next(error)}
                for partition in topic.partitions
            ],
        }
        for topic in request.topics
    ]


API = Api(47, "OffsetDelete", 0, 0, handle)
