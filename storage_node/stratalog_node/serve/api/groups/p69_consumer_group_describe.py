"""ConsumerGroupDescribe (69): groups of the consumer protocol, with each member's current and target assignment.

A group that does not exist, or speaks the classic protocol, gets 69: tools then use DescribeGroups. When the groups
exceed the size of one answer, the rest get error 14. Versions: the kind of each member from 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from stratalog.kafka import messages
from stratalog.model.groups.consumer_group import ConsumerMember
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog_node.groups.requests import DescribedConsumers
from stratalog_node.serve.api.groups.shards_by_topic import by_topic
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api

_NOT_ASKED = -(1 << 31)
_CLASSIC, _CONSUMER = 0, 1
"""The kind of a member: which protocol it speaks."""
_MAX_BYTES = 16 << 20
"""An answer of this size takes no further group."""


async def handle(context: RequestContext, request: Any) -> Any:
    described: list[DescribedConsumers] = []
    entries = size_bytes = 0
    for group_id in dict.fromkeys(request.group_ids):
        if size_bytes < _MAX_BYTES:
            described.append(await context.services.groups.consumers.describe(group_id))
        else:
            described.append(DescribedConsumers(GroupError.COORDINATOR_LOAD_IN_PROGRESS, group_id))
        for member in status.members if (status := described[-1].status) is not None else ():
            entries += 1 + len(member.assigned) + len(member.target)
            size_bytes += member.size_bytes
        await asyncio.sleep(0)
    names = {topic.topic_id: topic.name for topic in context.services.catalog.topics()}

    def named(shards: Iterable[ShardKey]) -> dict[str, Any]:
        return {
            "topic_partitions": [
                {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": tuple(indexes)}
                for topic_id, indexes in by_topic(shards).items()
                if topic_id in names
            ]
        }

    def member_of(member: ConsumerMember) -> dict[str, Any]:
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": member.epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.topic_names,
            "subscribed_topic_regex": member.topic_regex or None,
            "assignment": named(member.assigned),
            "target_assignment": named(member.target),
            "member_type": _CONSUMER if member.classic is None else _CLASSIC,
        }

    def response_fields() -> dict[str, Any]:
        return {
            "groups": [
                _group(one, [member_of(m) for m in one.status.members] if one.status else []) for one in described
            ]
        }

    return await encoded(messages.response_type(69, context.header.api_version), entries, response_fields)


def _group(described: DescribedConsumers, members: list[dict[str, Any]]) -> dict[str, Any]:
    status = described.status
    return {
        "error_code": described.error,
        "error_message": described.message,
        "group_id": described.group_id,
        "group_state": "" if status is None else status.state.value,
        "group_epoch": 0 if status is None else status.epoch,
        "assignment_epoch": 0 if status is None else status.target_epoch,
        "assignor_name": "" if status is None else status.assignor,
        "members": members,
        "authorized_operations": _NOT_ASKED,
    }


API = Api(69, "ConsumerGroupDescribe", 0, 1, handle)
