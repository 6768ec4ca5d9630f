"""LeaveGroup (13): members go, and the others join again.

Versions: one member, whose error is the answer's, up to 2; from 3 on a batch with an error each, where a static member
may be named by its instance id alone; flexible from 4, reason from 5.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.machines.groups.group_events import LeavingMember
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api, Need

_BATCH_SINCE = 3


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    schema = messages.response_type(13, version)
    groups = context.services.groups
    if not context.rights.may_group(Operation.READ, request.group_id):
        return messages.build(schema, throttle_time=0, error_code=GroupError.GROUP_AUTHORIZATION_FAILED, members=())
    if version < _BATCH_SINCE:
        error, errors = await groups.leave(request.group_id, [LeavingMember(request.member_id, None)])
        return messages.build(schema, throttle_time=0, error_code=errors[0] if error is GroupError.NONE else error)
    leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    error, errors = await groups.leave(request.group_id, leaving)
    members = [
        {"member_id": member_id, "group_instance_id": instance_id, "error_code": member_error}
        for (member_id, instance_id), member_error in zip(leaving, errors, strict=True)
    ]
    return messages.build(schema, throttle_time=0, error_code=error, members=members)


_NEEDS = (Need(Operation.READ, ResourceType.GROUP, "30"),)

API = Api(13, "LeaveGroup", 0, 5, handle, needs=_NEEDS)
