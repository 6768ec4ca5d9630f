"""DescribeUserScramCredentials (50): which mechanisms users have a password for, and with how many iterations.

No key and no salt is in any answer. No users, or none named: all. Flexible from 0.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.rights import Operation, ResourceType
from stratalog.model.scram import ScramMechanism
from stratalog_node.serve.api.distinct import first_of_each
from stratalog_node.serve.api.rights.acl_fields import no_right_fields
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(50, context.header.api_version)
    if (refused := no_right_fields(context, Operation.DESCRIBE)) is not None:
        return messages.build(schema, throttle_time=0, results=(), **refused)
    rights = context.services.catalog.rights
    if request.users:
        named, twice = await first_of_each(request.users, lambda user: user.name)
        users, doubles = list(named), twice
    else:
        users, doubles = list({name.user for name in rights.credential_names()}), frozenset()
    known: dict[str, list[dict[str, int]]] = defaultdict(list)
    for user in users:
        for mechanism in ScramMechanism:
            credential = rights.credential(user, mechanism)
            if credential is not None:
                known[user].append({"mechanism": int(mechanism), "iterations": credential.iterations})

    def values() -> dict[str, Any]:
        results = [_described(user, known.get(user, []), is_double=user in doubles) for user in users]
        return {"error_code": ErrorCode.NONE, "error_message": "", "results": results}

    return await encoded(schema, len(users), values)


def _described(user: str, infos: list[dict[str, int]], *, is_double: bool) -> dict[str, Any]:
    code, message = ErrorCode.NONE, ""
    if is_double:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user[:300]}"
    elif not infos:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user[:300]}"
    return {
        "user": user,
        "error_code": code,
        "error_message": message,
        "credential_infos": () if is_double else infos,
    }


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.CLUSTER, "31"),)

API = Api(50, "DescribeUserScramCredentials", 0, 0, handle, needs=_NEEDS)
