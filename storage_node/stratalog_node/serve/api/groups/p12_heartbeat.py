"""Heartbeat (12): a member is alive; 27 tells it to join again.

Errors: 22, 25, 27, 82 and 14, 15, 16. Versions: throttle time from 1, instance id from 3, flexible from 4.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    if context.rights.may_group(Operation.READ, request.group_id):
        error = await context.services.groups.heartbeat(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            context.rights.may_describe_topic,
        )
    else:
        error = GroupError.GROUP_AUTHORIZATION_FAILED
    schema = messages.response_type(12, context.header.api_version)
    return messages.build(schema, throttle_time=0, error_code=error)


_NEEDS = (Need(Operation.READ, ResourceType.GROUP, "30"),)

API = Api(12, "Heartbeat", 0, 4, handle, needs=_NEEDS)
