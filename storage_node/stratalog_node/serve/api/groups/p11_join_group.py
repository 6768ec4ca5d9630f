"""JoinGroup (11): become, or stay, a member; answered when the rebalance has its members.

A new dynamic member is first given an id (79) from version 4 on, and joins with it. Errors: 23, 24, 25, 26, 81, 82 and
14, 15, 16. Versions: rebalance timeout from 1, instance id from 5, flexible from 6, protocol type in the answer from 7
(and a null protocol), reason from 8, a returning static leader may skip the assignment from 9.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.machines.groups.group_events import JoinAnswer
from stratalog.model.groups.group import GroupError, MemberProtocol
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import JoinRequest
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need

_KNOWN_ID_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_SKIP_ASSIGNMENT_SINCE = 9


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    if not context.rights.may_group(Operation.READ, request.group_id):
        return await _answer(version, JoinAnswer(GroupError.GROUP_AUTHORIZATION_FAILED, ""))
    session_timeout = request.session_timeout
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=context.header.client_id or "",
        # Kafka's own way to write it, which its tools print.
        client_host="/" + context.connection.peer.rpartition(":")[0],
        session_timeout_ms=messages.milliseconds(session_timeout),
        rebalance_timeout_ms=messages.milliseconds(getattr(request, "rebalance_timeout", session_timeout)),
        protocol_type=request.protocol_type,
        protocols=tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in request.protocols),
        requires_known_id=version >= _KNOWN_ID_SINCE,
        can_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
        may_describe=context.rights.may_describe_topic,
    )
    answer = await context.services.groups.join(join)
    if not context.rights.may_group(Operation.READ, request.group_id):  # it waited for other members
        answer = JoinAnswer(GroupError.GROUP_AUTHORIZATION_FAILED, "")
    return await _answer(version, answer)


async def _answer(version: int, answer: JoinAnswer) -> Any:
    protocol_name = answer.protocol_name
    if protocol_name is None and version < _NULL_PROTOCOL_SINCE:
        protocol_name = ""

    def response_fields() -> dict[str, Any]:
        members = [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in answer.members
        ]
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": answer.protocol_type,
            "protocol_name": protocol_name,
            "leader": answer.leader,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member_id,
            "members": members,
        }

    return await encoded(messages.response_type(11, version), len(answer.members), response_fields)


_NEEDS = (
    Need(Operation.READ, ResourceType.GROUP, "30"),
    Need(
        Operation.DESCRIBE, ResourceType.TOPIC, "where the group speaks the consumer protocol: joins without that topic"
    ),
)

API = Api(11, "JoinGroup", 0, 9, handle, needs=_NEEDS)
