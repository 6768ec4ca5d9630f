"""ListGroups (16): the groups that this node coordinates; 14 while some are still being loaded.

Versions: throttle time from 1, flexible from 3, states (as filter and in the answer) from 4, types likewise from 5.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    listed = await context.services.groups.list_groups(
        getattr(request, "states_filter", ()), getattr(request, "types_filter", ())
    )
    schema = messages.response_type(16, context.header.api_version)

    def answer() -> dict[str, Any]:
        groups = [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in listed.groups
        ]
        return {"error_code": listed.error, "groups": groups}

    return await encoded(schema, len(listed.groups), answer)


API = Api(16, "ListGroups", 0, 5, handle)
