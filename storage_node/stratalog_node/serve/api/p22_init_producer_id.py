"""InitProducerId (22): a fresh id for an idempotent producer, epoch 0. Java and kafka-python ask by default.

Ids come from the meta service in blocks and are never given twice. A request that names an id and epoch (v3) and no
transactional id gets a fresh id as well: only transactions bump epochs. With a transactional id: 35
(UNSUPPORTED_VERSION), which every client treats as final, for there are no transactions yet.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.errors import StratalogError
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog_node.serve.connections.client_rights import ClientRights
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api, Need


async def handle(context: RequestContext, request: Any) -> Any:
    producer_id = producer_epoch = -1
    error = ErrorCode.NONE
    if request.transactional_id is not None:
        error = ErrorCode.UNSUPPORTED_VERSION
    elif not _is_allowed(context.rights):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    else:
        try:
            producer_id = await context.services.control.producer_ids.next(context.services.meta)
            producer_epoch = 0
        except StratalogError:
            # Retriable: the meta service is away for now, and a lost id does no harm.
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return messages.build(
        messages.response_type(22, context.header.api_version),
        throttle_time=0,
        error_code=error,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def _is_allowed(rights: ClientRights) -> bool:
    """A client that may write to some topic may do so with a producer id (KIP-679)."""
    return rights.can(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME) or rights.may_some(
        Operation.WRITE, ResourceType.TOPIC
    )


_NEEDS = (
    Need(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "WRITE on some topic is enough"),
    Need(Operation.WRITE, ResourceType.TOPIC, "31"),
)

API = Api(22, "InitProducerId", 0, 4, handle, needs=_NEEDS)
