"""DeleteGroups (42): groups without members go, with all their offsets.

A group named several times is answered once. Errors: 68 it has members, 69 it does not exist, 24, and 14, 15, 16.
Versions 0-2 differ in form only.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    names = list(dict.fromkeys(request.groups_names))
    denied = await context.rights.denied(Operation.DELETE, ResourceType.GROUP, names)
    outcomes = await context.services.groups.delete_groups([name for name in names if name not in denied])
    errors = {name: GroupError.GROUP_AUTHORIZATION_FAILED if name in denied else outcomes[name] for name in names}
    schema = messages.response_type(42, context.header.api_version)

    def answer() -> dict[str, Any]:
        return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in errors.items()]}

    return await encoded(schema, len(errors), answer)


_NEEDS = (Need(Operation.DELETE, ResourceType.GROUP, "30 for that group"),)

API = Api(42, "DeleteGroups", 0, 2, handle, needs=_NEEDS)
