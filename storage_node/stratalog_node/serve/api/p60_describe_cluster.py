"""DescribeCluster (60): the nodes, for admin clients. Any node answers as controller: all of them may write.

Every client may ask. Versions: 1 asks for brokers (1) or controllers (2); controllers are not exposed (error 114).
Flexible from 0.
"""

from __future__ import annotations

from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.rights import CLUSTER_NAME, Operation, ResourceType
from stratalog_node.serve.api.brokers import living_nodes
from stratalog_node.serve.connections.client_rights import NOT_ASKED, ClientRights
from stratalog_node.serve.connections.context import RequestContext
from stratalog_node.serve.connections.registry import Api, Need

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
        cluster_authorized_operations=cluster_operations(context.rights)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def cluster_operations(rights: ClientRights) -> int:
    """What a client is answered that asks which operations it may perform on the cluster: 0 if it may not describe
    it."""
    if not rights.can(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


_NEEDS = (Need(Operation.DESCRIBE, ResourceType.CLUSTER, "authorized operations are 0"),)

API = Api(60, "DescribeCluster", 0, 1, handle, needs=_NEEDS)
