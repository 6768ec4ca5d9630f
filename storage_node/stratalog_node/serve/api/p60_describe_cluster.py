"""DescribeCluster (60): the nodes, for admin clients. Any node answers as controller: all of them may write.

Versions: 1 asks for brokers (1) or controllers (2); controllers are not exposed (error 114). Authorized operations are
never told. Flexible from 0.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog_node.serve.api.brokers import living_nodes
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api

_BROKERS = 1


async def handle(context: RequestContext, request: Any) -> Any:
    schema = messages.response_type(60, context.header.api_version)
    if getattr(request, "endpoint_type", _BROKERS) != _BROKERS:
        return messages.build(
            schema,
            throttle_time=0,
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a storage node: controllers are not exposed, ask for brokers",
            cluster_id="",
            controller_id=-1,
            brokers=(),
        )
    return messages.build(
        schema,
        throttle_time=0,
        error_code=0,
        error_message=None,
        cluster_id=context.services.cluster_id,
        controller_id=context.services.node_id,
        brokers=[
            {"broker_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in living_nodes(context)
        ],
    )


API = Api(60, "DescribeCluster", 0, 1, handle)
