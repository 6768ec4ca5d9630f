"""DescribeGroups (15): state, protocol and members of groups; one that does not exist is Dead, without an error.

A repeated group is answered once. When the groups exceed the size of one answer, the rest get error 14, and clients ask
again for those alone.

Versions: throttle time from 1, authorized operations from 3, instance id from 4, flexible from 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from stratalog.kafka import messages
from stratalog.machines.groups.group_events import MemberStatus
from stratalog.model.groups.group import GroupError
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import DescribedGroup, put_off
from stratalog_node.serve.connections.client_rights import NOT_ASKED
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import Slices

_MEMBER_BYTES = 50
_DECISIONS_OF_A_GROUP = 5
"""Operations that exist for a group: whether the client may perform each of them is looked up."""
_MAX_BYTES = 16 << 20
"""An answer of this size takes no further group."""


async def handle(context: RequestContext, request: Any) -> Any:
    rights = context.rights
    described: list[DescribedGroup] = []
    members = size_bytes = 0
    for group_id in dict.fromkeys(request.groups):
        if not rights.may_group(Operation.DESCRIBE, group_id):
            described.append(put_off(group_id, GroupError.GROUP_AUTHORIZATION_FAILED))
        elif size_bytes < _MAX_BYTES:
            described.append(await context.services.groups.describe(group_id))
        else:
            described.append(put_off(group_id))
        members += 1 + len(described[-1].status.members)
        size_bytes += sum(map(_size_bytes, described[-1].status.members))
        await asyncio.sleep(0)
    schema = messages.response_type(15, context.header.api_version)
    operations: dict[str, int] = {}
    slices = Slices()
    if getattr(request, "include_authorized_operations", False):
        for one in described:
            if one.error is GroupError.NONE:
                operations[one.status.group_id] = rights.operations(ResourceType.GROUP, one.status.group_id)
                await slices.did(_DECISIONS_OF_A_GROUP)
    return await encoded(schema, members, lambda: {"groups": [_group(one, operations) for one in described]})


def _size_bytes(member: MemberStatus) -> int:
    names = len(member.member_id) + len(member.instance_id or "") + len(member.client_id) + len(member.client_host)
    return _MEMBER_BYTES + names + len(member.metadata) + len(member.assignment)


def _group(described: DescribedGroup, operations: Mapping[str, int]) -> dict[str, Any]:
    status = described.status
    is_denied = described.error is GroupError.GROUP_AUTHORIZATION_FAILED
    return {
        "error_code": described.error,
        "group_id": status.group_id,
        "group_state": "" if is_denied else status.state.value,
        "authorized_operations": operations.get(status.group_id, NOT_ASKED),
        "protocol_type": status.protocol_type,
        "protocol_data": status.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in status.members
        ],
    }


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.GROUP, "30 for that group"),)

API = Api(15, "DescribeGroups", 0, 5, handle, needs=_NEEDS)
