"""SyncGroup (14): the leader gives the assignments, every member gets its own once they are durable.

Errors: 22, 23, 25, 27, 82 and 14, 15, 16. Versions: throttle time from 1, instance id from 3, flexible from 4, protocol
type and name (checked) from 5.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.machines.groups.group_events import SyncAnswer
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import SyncRequest
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    if not context.rights.may_group(Operation.READ, request.group_id):
        return _answer(context, SyncAnswer(GroupError.GROUP_AUTHORIZATION_FAILED))
    answer = await context.services.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id,
            protocol_type=getattr(request, "protocol_type", None),
            protocol_name=getattr(request, "protocol_name", None),
            assignments=tuple((given.member_id, given.assignment) for given in request.assignments),
            may_describe=context.rights.may_describe_topic,
        )
    )
    if not context.rights.may_group(Operation.READ, request.group_id):  # it waited for the leader
        answer = SyncAnswer(GroupError.GROUP_AUTHORIZATION_FAILED)
    return _answer(context, answer)


def _answer(context: RequestContext, answer: SyncAnswer) -> Any:
    return messages.build(
        messages.response_type(14, context.header.api_version),
        throttle_time=0,
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


_NEEDS = (Need(Operation.READ, ResourceType.GROUP, "30"),)

API = Api(14, "SyncGroup", 0, 5, handle, needs=_NEEDS)
