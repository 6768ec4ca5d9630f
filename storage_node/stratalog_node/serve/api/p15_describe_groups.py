"""DescribeGroups (15): state, protocol and members of groups; one that does not exist is Dead, without an error.

Versions: throttle time from 1, authorized operations from 3 (never computed: Kafka's "not asked"), instance id from 4,
flexible from 5.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog_node.serve.context import RequestContext
from stratalog_node.serve.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    groups = []
    for group_id in request.groups:
        described = await context.services.groups.describe(group_id)
        status = described.status
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in status.members
        ]
        groups.append(
            {
                "error_code": described.error,
                "group_id": group_id,
                "group_state": status.state.value,
                "protocol_type": status.protocol_type,
                "protocol_data": status.protocol_name,
                "members": members,
            }
        )
    return messages.build(messages.response_type(15, context.header.api_version), throttle_time=0, groups=groups)


API = Api(15, "DescribeGroups", 0, 5, handle)
