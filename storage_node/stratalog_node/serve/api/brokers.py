"""The storage nodes that a client sees: each under its address of the listener that the client is connected to.

As in Kafka, a node without such a listener is left out: the address of another listener may be on another network.

As in Kafka, nodes without a lease are left out: clients that ask every node would wait for them. Metadata list them for
a moment longer (`serve/connections/control_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.kafka.metadata import BrokerAddress
from stratalog.model.metadata import Node
from stratalog_node.serve.connections.context import RequestContext


def this_node(context: RequestContext) -> BrokerAddress:
    """This node, as reachable through the listener that the request came in by."""
    services, connection = context.services, context.connection
    known = services.catalog.node(services.node_id)
    rack = known.rack if known is not None else None
    return BrokerAddress(services.node_id, connection.listener_host, connection.listener_port, rack)


def broker_of(context: RequestContext, node: Node) -> BrokerAddress | None:
    """None if clients of this listener cannot reach the node."""
    if node.node_id == context.services.node_id:
        return this_node(context)
    place = node.address(context.connection.listener)
    return BrokerAddress(node.node_id, *place, node.rack) if place is not None else None


def living_nodes(context: RequestContext) -> list[BrokerAddress]:
    """Every node that is alive, by id. This one is among them even before its registration has come back."""
    return _nodes(context, lambda node: node.is_alive)


def living_and_just_departed(context: RequestContext) -> list[BrokerAddress]:
    recently_dead = context.services.control.recently_dead(context.services.catalog)
    return _nodes(context, lambda node: node.is_alive or recently_dead.just_left(node.node_id))


def _nodes(context: RequestContext, is_listed: Callable[[Node], bool]) -> list[BrokerAddress]:
    services = context.services
    others = (
        broker_of(context, node)
        for node in services.catalog.nodes()
        if is_listed(node) and node.node_id != services.node_id
    )
    return sorted([*(one for one in others if one is not None), this_node(context)])
