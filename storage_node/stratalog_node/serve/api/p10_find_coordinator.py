"""FindCoordinator (10): which node coordinates a group. Every group is coordinated by the node asked.
A key asked for several times is answered once.

Transaction coordinators: 53 with a message, for there are no transactions yet. It is the one code on which every client
gives up at once and shows the message; 15, 35 and 42 make librdkafka ask again until its user's patience ends.
Versions: key type, throttle time and message from 1, flexible from 3, several keys at once from 4.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog_node.serve.api.brokers import this_node
from stratalog_node.serve.context import RequestContext
from stratalog_node.serve.off_loop import encoded
from stratalog_node.serve.registry import Api

_GROUP, _TRANSACTION = 0, 1
_SEVERAL_KEYS_SINCE = 4


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    schema = messages.response_type(10, version)
    key_type = getattr(request, "key_type", _GROUP)
    if version >= _SEVERAL_KEYS_SINCE:
        keys = dict.fromkeys(request.coordinator_keys)

        def answer() -> dict[str, Any]:
            return {"coordinators": [{"key": key, **_answer(context, key, key_type)} for key in keys]}

        return await encoded(schema, len(keys), answer)
    return messages.build(schema, throttle_time=0, **_answer(context, request.key, key_type))


def _answer(context: RequestContext, key: str, key_type: int) -> dict[str, Any]:
    if key_type == _TRANSACTION:
        return _refusal(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactions are not offered: use an idempotent producer without transactional.id",
        )
    if key_type != _GROUP:
        return _refusal(ErrorCode.INVALID_REQUEST, f"coordinator type {key_type} is unknown: 0 is group")
    if not key:
        return _refusal(ErrorCode.INVALID_GROUP_ID, "the group id is empty: set group.id")
    node = this_node(context)
    return {"error_code": 0, "error_message": None, "node_id": node.node_id, "host": node.host, "port": node.port}


def _refusal(code: ErrorCode, why: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": why, "node_id": -1, "host": "", "port": -1}


API = Api(10, "FindCoordinator", 0, 4, handle)
