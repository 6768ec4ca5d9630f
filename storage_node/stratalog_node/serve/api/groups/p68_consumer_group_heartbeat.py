"""ConsumerGroupHeartbeat (68): join, stay in, and leave a group of the consumer protocol (KIP-848).

The answer has the member's epoch, and its assignment if that changed; it is sent when all of that is durable. Errors:
23, 25, 42, 81, 82, 110, 111, 112, 128 and 14, 15, 16, each with a message. Versions: regular expressions and ids chosen
by the client from 1; in 0 the server gives a client without an id one.
"""

from __future__ import annotations

import uuid
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.groups.consumer_group_events import ConsumerAnswer, shards_of
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey
from stratalog.model.rights import Operation, ResourceType
from stratalog_node.groups.requests import ConsumerRequest
from stratalog_node.serve.api.groups.shards_by_topic import by_topic
from stratalog_node.serve.api.topic_answers import NO_RIGHT
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded, off_loop
from stratalog_node.serve.connections.registry import Api, Need

_OWN_IDS_SINCE = 1
_MOST_OWNED = 1_000_000
"""Partitions, each time that one is named: a request has room for four times as many."""


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(68, context.header.api_version)
    owned = None if request.topic_partitions is None else [one for one in request.topic_partitions if one.topic_id]
    count = sum(1 + len(one.partitions) for one in owned or ())
    if (refused := await _refused(context, request)) is not None:
        answer = ConsumerAnswer(refused, NO_RIGHT[ErrorCode(refused)])
    elif count > _MOST_OWNED:
        answer = ConsumerAnswer(GroupError.INVALID_REQUEST, f"more than {_MOST_OWNED} partitions are named")
    else:
        shards = await off_loop(count, lambda: shards_of((one.topic_id, one.partitions) for one in owned or ()))
        answer = await _heartbeat(context, request, None if owned is None else shards)
        if not context.rights.may_group(Operation.READ, request.group_id):  # it waited for the log of the group
            revoked = GroupError.GROUP_AUTHORIZATION_FAILED
            answer = ConsumerAnswer(revoked, NO_RIGHT[ErrorCode(revoked)])

    def response_fields() -> dict[str, Any]:
        return {
            "error_code": answer.error,
            "error_message": answer.message,
            "member_id": answer.member_id,
            "member_epoch": answer.member_epoch,
            "heartbeat_interval": answer.heartbeat_interval_ms,
            "assignment": None if answer.assignment is None else _assignment(answer.assignment),
        }

    return await encoded(schema, 1 + len(answer.assignment or ()), response_fields)


async def _refused(context: RequestContext, request: Any) -> GroupError | None:
    """Why a client without rights is refused. Topics of a regular expression are left out instead."""
    rights = context.rights
    if not rights.may_group(Operation.READ, request.group_id):
        return GroupError.GROUP_AUTHORIZATION_FAILED
    if await rights.denied(Operation.DESCRIBE, ResourceType.TOPIC, request.subscribed_topic_names or ()):
        return GroupError.TOPIC_AUTHORIZATION_FAILED
    return None


async def _heartbeat(context: RequestContext, request: Any, owned: frozenset[ShardKey] | None) -> ConsumerAnswer:
    member_id = request.member_id
    if not member_id and request.member_epoch == 0 and context.header.api_version < _OWN_IDS_SINCE:
        member_id = str(uuid.uuid4())
    timeout_ms = messages.milliseconds(request.rebalance_timeout)
    return await context.services.groups.consumers.heartbeat(
        ConsumerRequest(
            group_id=request.group_id,
            member_id=member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=context.header.client_id or "",
            client_host="/" + context.connection.peer.rpartition(":")[0],
            rebalance_timeout_ms=None if timeout_ms < 0 else timeout_ms,
            topic_names=request.subscribed_topic_names,
            topic_regex=getattr(request, "subscribed_topic_regex", None),
            assignor=request.server_assignor,
            owned=owned,
            may_describe=context.rights.may_describe_topic,
        )
    )


def _assignment(shards: frozenset[ShardKey]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "partitions": tuple(indexes)} for topic_id, indexes in by_topic(shards).items()
        ]
    }


_NEEDS = (
    Need(Operation.READ, ResourceType.GROUP, "30"),
    Need(Operation.DESCRIBE, ResourceType.TOPIC, "29; a regular expression does not find that topic"),
)

API = Api(68, "ConsumerGroupHeartbeat", 0, 1, handle, needs=_NEEDS)
