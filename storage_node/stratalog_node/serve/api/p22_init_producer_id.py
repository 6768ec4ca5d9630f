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
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api


async def handle(context: RequestContext, request: Any) -> Any:
    producer_id = producer_epoch = -1
    error = ErrorCode.NONE
    if request.transactional_id is not None:
        error = ErrorCode.UNSUPPORTED_VERSION
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


API = Api(22, "InitProducerId", 0, 4, handle)
