"""OffsetDelete (47): delete a group's offsets in some partitions.

Errors of the group: 68 if it has members that are not consumers, 69, and 14, 15, 16; per partition: 3, and 86 if a
member is subscribed to the topic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import Any

from stratalog.kafka import messages
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import DeletedOffsets, TopicShard
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    entries = sum(1 + len(topic.partitions) for topic in request.topics)
    denied: Collection[str] = ()
    if context.rights.may_group(Operation.DELETE, request.group_id):
        names = dict.fromkeys(topic.name for topic in request.topics)
        denied = await context.rights.denied(Operation.READ, ResourceType.TOPIC, names)
        places = await off_loop(entries, lambda: _places(request, denied))
        deleted = await context.services.groups.delete_offsets(request.group_id, places)
    else:
        deleted = DeletedOffsets(GroupError.GROUP_AUTHORIZATION_FAILED)
    schema = messages.response_type(47, context.header.api_version)

    def answer() -> dict[str, Any]:
        topics = _topics(request, deleted.errors, denied) if deleted.error is GroupError.NONE else []
        return {"error_code": deleted.error, "topics": topics}

    return await encoded(schema, entries, answer)


def _places(request: Any, denied: Collection[str]) -> list[TopicShard]:
    return [
        TopicShard(topic.name, partition.partition_index)
        for topic in request.topics
        if topic.name not in denied
        for partition in topic.partitions
    ]


def _topics(request: Any, errors: Sequence[GroupError], denied: Collection[str]) -> list[dict[str, Any]]:
    outcomes = iter(errors)
    topics = []
    for topic in request.topics:
        of_topic = repeat(GroupError.TOPIC_AUTHORIZATION_FAILED) if topic.name in denied else outcomes
        partitions = [
            {"partition_index": partition.partition_index, "error_code": next(of_topic)}
            for partition in topic.partitions
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return topics


_NEEDS = (
    Need(Operation.DELETE, ResourceType.GROUP, "30"),
    Need(Operation.READ, ResourceType.TOPIC, "29 for its partitions"),
)

API = Api(47, "OffsetDelete", 0, 0, handle, needs=_NEEDS)
