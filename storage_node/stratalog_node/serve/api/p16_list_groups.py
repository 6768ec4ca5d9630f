"""ListGroups (16): the groups that this node coordinates; 14 while some are still being loaded.

Versions: throttle time from 1, flexible from 3, states (as filter and in the answer) from 4.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog_node.serve.context import RequestContext
from stratalog_node.serve.off_loop import off_loop
from stratalog_node.serve.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    listed = await context.services.groups.list_groups(getattr(request, "states_filter", ()))
    schema = messages.response_type(16, context.header.api_version)

    def answer() -> messages.EncodedBody:
        groups = [
            {"group_id": group.group_id, "protocol_type": group.protocol_type, "group_state": group.state}
            for group in listed.groups
        ]
        entity = messages.build(schema, throttle_time=0, error_code=listed.error, groups=groups)
        return messages.EncodedBody(messages.encode_entity(entity))

    return await off_loop(len(listed.groups), answer)


API = Api(16, "ListGroups", 0, 4, handle)
