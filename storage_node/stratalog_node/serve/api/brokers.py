"""The storage nodes as a client is told of them: this one under the address its own listener advertises."""

from __future__ import annotations

from stratalog.kafka.metadata import BrokerAddress
from stratalog_node.serve.context import RequestContext


def this_node(context: RequestContext) -> BrokerAddress:
    """This node, as reachable through the listener that the request came in by."""
    services, connection = context.services, context.connection
    rack = next((node.rack for node in services.catalog.nodes() if node.node_id == services.node_id), None)
    return BrokerAddress(services.node_id, connection.listener_host, connection.listener_port, rack)


def all_nodes(context: RequestContext) -> list[BrokerAddress]:
    """Every registered node, by id. This one is among them even before its registration has come back."""
    services = context.services
    others = [
        BrokerAddress(node.node_id, node.host, node.port, node.rack)
        for node in services.catalog.nodes()
        if node.node_id != services.node_id
    ]
    return sorted([*others, this_node(context)])
