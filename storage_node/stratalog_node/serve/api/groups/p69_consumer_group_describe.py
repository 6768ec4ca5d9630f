"""ConsumerGroupDescribe (69): groups of the consumer protocol, with each member's current and target assignment.

A group that does not exist, or speaks the classic protocol, gets 69: tools then use DescribeGroups. When the groups
exceed the size of one answer, the rest get error 14. Versions: the kind of each member from 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.groups.consumer_group import ConsumerMember
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import DescribedConsumers
from stratalog_node.serve.api.groups.shards_by_topic import by_topic
from stratalog_node.serve.api.topic_answers import NO_RIGHT
from stratalog_node.serve.connections.client_rights import NOT_ASKED, ClientRights
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import Slices

_HAS_UNSEEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
_CLASSIC, _CONSUMER = 0, 1
"""The kind of a member: which protocol it speaks."""
_DECISIONS_OF_A_GROUP = 5
"""Operations that exist for a group: whether the client may perform each of them is looked up."""
_MAX_BYTES = 16 << 20
"""An answer of this size takes no further group."""


async def handle(context: RequestContext, request: Any) -> Any:
    rights = context.rights
    described: list[DescribedConsumers] = []
    entries = size_bytes = 0
    for group_id in dict.fromkeys(request.group_ids):
        if not rights.may_group(Operation.DESCRIBE, group_id):
            refused = GroupError.GROUP_AUTHORIZATION_FAILED
            described.append(DescribedConsumers(refused, group_id, NO_RIGHT[ErrorCode(refused)]))
        elif size_bytes < _MAX_BYTES:
            described.append(await context.services.groups.consumers.describe(group_id))
        else:
            described.append(DescribedConsumers(GroupError.COORDINATOR_LOAD_IN_PROGRESS, group_id))
        for member in status.members if (status := described[-1].status) is not None else ():
            entries += 1 + len(member.assigned) + len(member.target)
            size_bytes += member.size_bytes
        await asyncio.sleep(0)
    names = {topic.topic_id: topic.name for topic in context.services.catalog.topics()}
    if rights.is_limited:
        described = [await _as_seen(rights, names, one) for one in described]
    operations: dict[str, int] = {}
    slices = Slices()
    if request.include_authorized_operations:
        for one in described:
            if one.error is GroupError.NONE:
                operations[one.group_id] = rights.operations(ResourceType.GROUP, one.group_id)
                await slices.did(_DECISIONS_OF_A_GROUP)

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
                _group(
                    one,
                    [member_of(m) for m in one.status.members] if one.status else [],
                    operations.get(one.group_id, NOT_ASKED),
                )
                for one in described
            ]
        }

    return await encoded(messages.response_type(69, context.header.api_version), entries, response_fields)


async def _as_seen(rights: ClientRights, names: Mapping[UUID, str], one: DescribedConsumers) -> DescribedConsumers:
    """A group is not described to a client that may not know all the topics of its members."""
    members = one.status.members if one.status is not None else ()
    topics = {name for member in members for name in member.topic_names}
    topics |= {names.get(key.topic_id, "") for member in members for key in (*member.assigned, *member.target)}
    slices = Slices()
    for name in topics:
        if name and not rights.can(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return DescribedConsumers(GroupError.TOPIC_AUTHORIZATION_FAILED, one.group_id, _HAS_UNSEEN_TOPICS)
        await slices.did()
    return one


def _group(described: DescribedConsumers, members: list[dict[str, Any]], operations: int) -> dict[str, Any]:
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
        "authorized_operations": operations,
    }


_NEEDS = (
    Need(Operation.DESCRIBE, ResourceType.GROUP, "30 for that group"),
    Need(Operation.DESCRIBE, ResourceType.TOPIC, "29 for a group whose members have or want that topic"),
)

API = Api(69, "ConsumerGroupDescribe", 0, 1, handle, needs=_NEEDS)
