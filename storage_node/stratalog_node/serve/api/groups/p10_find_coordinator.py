"""FindCoordinator (10): the coordinator of a group is the leader of the group's shard of the group log, according to
this node's metadata.

A repeated key is answered once; the very first request creates the group log. While there is no coordinator: 15, and
every client asks again. If this node has not heard yet that the shard moved, the client needs one more round trip: the
named node answers 16.

Transaction coordinators: 53 with a message, because there are no transactions yet. It is the only code on which every
client gives up at once and shows the message; 15, 35 and 42 make librdkafka ask again until its user's time limit.
Versions: key type, throttle time and message from 1, flexible from 3, several keys at once from 4; 5 and 6 only add
errors and a key type that are not used here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import StratalogError
from stratalog.model.rights import Operation, ResourceType
from stratalog.telemetry.logs import logger
from stratalog_node.groups.placement import OFFSETS_TOPIC, coordinator_of
from stratalog_node.serve.api.brokers import broker_of
from stratalog_node.serve.api.topic_answers import NO_RIGHT
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.off_loop import encoded
from stratalog_node.serve.connections.registry import Api, Need
from stratalog_node.slices import in_slices

_log = logger(__name__)

_GROUP, _TRANSACTION = 0, 1
_SEVERAL_KEYS_SINCE = 4


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    schema = messages.response_type(10, version)
    key_type = getattr(request, "key_type", _GROUP)
    keys = dict.fromkeys(request.coordinator_keys) if version >= _SEVERAL_KEYS_SINCE else {request.key: None}
    denied: Collection[str] = ()
    if key_type == _GROUP:
        denied = await context.rights.denied(Operation.DESCRIBE, ResourceType.GROUP, keys)
    if key_type == _GROUP and any(key and key not in denied for key in keys):
        await _see_to_group_log(context)
    found: dict[str, dict[str, Any]] = {}
    async for some in in_slices(list(keys)):
        found.update((key, _answer(context, key, key_type, denied)) for key in some)
    if version >= _SEVERAL_KEYS_SINCE:
        coordinators = [{"key": key, **answer} for key, answer in found.items()]
        return await encoded(schema, len(keys), lambda: {"coordinators": coordinators})
    return messages.build(schema, throttle_time=0, **found[request.key])


async def _see_to_group_log(context: RequestContext) -> None:
    if context.services.catalog.topic(OFFSETS_TOPIC) is None:
        try:
            await context.services.groups.ensure_ready()
        except StratalogError as failure:
            _log.warning("the topic of group offsets is not there yet", reason=str(failure))


def _answer(context: RequestContext, key: str, key_type: int, denied: Collection[str]) -> dict[str, Any]:
    if key_type == _TRANSACTION:
        return _refusal(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactions are not offered: use an idempotent producer without transactional.id",
        )
    if key_type != _GROUP:
        return _refusal(ErrorCode.INVALID_REQUEST, f"coordinator type {key_type} is unknown: 0 is group")
    if key in denied:
        return _refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED, NO_RIGHT[ErrorCode.GROUP_AUTHORIZATION_FAILED])
    if not key:
        return _refusal(ErrorCode.INVALID_GROUP_ID, "the group id is empty: set group.id")
    coordinator = coordinator_of(context.services.catalog, key)
    if coordinator is None:
        return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group has no coordinator at present: try again")
    node = broker_of(context, coordinator)
    if node is None:  # Kafka's answer to it, too
        return _refusal(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"node {coordinator.node_id} coordinates the group, and has no listener {context.connection.listener}: "
            "come in by a listener that all nodes have",
        )
    return {"error_code": 0, "error_message": None, "node_id": node.node_id, "host": node.host, "port": node.port}


def _refusal(code: ErrorCode, why: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": why, "node_id": -1, "host": "", "port": -1}


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.GROUP, "30 for that group"),)

API = Api(10, "FindCoordinator", 0, 6, handle, needs=_NEEDS)
