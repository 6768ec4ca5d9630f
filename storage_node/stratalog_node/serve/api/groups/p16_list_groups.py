"""ListGroups (16): the groups that this node coordinates; 14 while some are still being loaded.

Versions: throttle time from 1, flexible from 3, states (as filter and in the answer) from 4, types likewise from 5.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog_node.groups.requests import ListedGroup
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import Slices


async def handle(context: RequestContext, request: Any) -> Any:
    listed = await context.services.groups.list_groups(
        getattr(request, "states_filter", ()), getattr(request, "types_filter", ())
    )
    rights, groups = context.rights, listed.groups
    if not rights.can(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        seen: list[ListedGroup] = []
        slices = Slices()
        for one in groups:
            if rights.can(Operation.DESCRIBE, ResourceType.GROUP, one.group_id):
                seen.append(one)
            await slices.did()
        groups = tuple(seen)
    schema = messages.response_type(16, context.header.api_version)

    def answer() -> dict[str, Any]:
        entries = [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in groups
        ]
        return {"error_code": listed.error, "groups": entries}

    return await encoded(schema, len(groups), answer)


_NEEDS = (
    Need(Operation.DESCRIBE, ResourceType.CLUSTER, "DESCRIBE on the group is enough"),
    Need(Operation.DESCRIBE, ResourceType.GROUP, "that group is not listed"),
)

API = Api(16, "ListGroups", 0, 5, handle, needs=_NEEDS)
