"""The Services through which clients connect: an address of each pod, one bootstrap address, and node ports for clients
outside of Kubernetes.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from stratalog_operator.resources.cluster import Listener
from stratalog_operator.specs.node import NodeIdentity, node_labels, node_name, outside_listeners, port_of_node
from stratalog_operator.specs.objects import ADMIN_PORT, Cluster, Manifest, owner_reference, selector, wanted

LAST_NODE_PORT: Final = 32767
"""The last port of Kubernetes' default range."""


def inside_services(cluster: Cluster) -> list[Manifest]:
    """The headless Service, which names each pod whether it is ready or not, and the bootstrap Service."""
    labels = selector(cluster, "node")
    ports: list[Manifest] = [
        {"name": "internal", "port": cluster.internal_port, "targetPort": "internal"},
        {"name": "admin", "port": ADMIN_PORT, "targetPort": "admin"},
    ]
    further: list[Manifest] = [
        {"name": f"kafka-{one.port}", "port": one.port, "targetPort": one.port}
        for one in cluster.further_listeners
        if one.type == "internal"
    ]
    headless: Manifest = {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {**labels},
            "ports": [*ports, *further],
        }
    }
    bootstrap: Manifest = {"spec": {"type": "ClusterIP", "selector": {**labels}, "ports": [ports[0], *further]}}
    return [
        wanted("v1", "Service", cluster.nodes_name, cluster, {}, headless, owner=cluster.owner()),
        wanted("v1", "Service", cluster.bootstrap_name, cluster, {}, bootstrap, owner=cluster.owner()),
    ]


def outside_bootstrap(cluster: Cluster, listener: Listener) -> Manifest:
    """The port of every machine that leads to any node."""
    assert listener.first_node_port is not None, "the definition asks for it"
    name = f"{cluster.outside_name}-{listener.name}"
    return _node_port(cluster, listener, name, selector(cluster, "node"), listener.first_node_port, cluster.owner())


def outside_of_node(cluster: Cluster, listener: Listener, node: NodeIdentity, uid: str) -> Manifest:
    """The port of every machine that leads to this node: first port + 1 + id, so that firewalls can be told before.

    `uid` of the StorageNode, which takes it along: ids are never given twice, and the ports would run out.
    """
    of_node = node_name(cluster.name, node.pool, node.node_id)
    port = port_of_node(listener, node.node_id)
    owner = owner_reference("StorageNode", of_node, uid)
    return _node_port(cluster, listener, f"{of_node}-{listener.name}", node_labels(cluster, node), port, owner)


def why_ports_do_not_fit(cluster: Cluster, node_ids: Iterable[int]) -> str:
    """Why listeners for clients outside cannot have the ports that they ask for; empty: they can."""
    return _why_not(tuple(outside_listeners(cluster)), tuple(sorted(node_ids)))


@lru_cache(maxsize=1)  # a pass asks for each node
def _why_not(listeners: tuple[Listener, ...], ids: tuple[int, ...]) -> str:
    taken: dict[int, str] = {}
    for one in listeners:
        assert one.first_node_port is not None, "the definition asks for it"
        named = {one.first_node_port: f"listener {one.name}"}
        named |= {port_of_node(one, node_id): f"node {node_id} by listener {one.name}" for node_id in ids}
        for port, whose in named.items():
            if port > LAST_NODE_PORT:
                return (
                    f"{whose} would have port {port}, and {LAST_NODE_PORT} is the last one: lower firstNodePort of "
                    f"listener {one.name}"
                )
            if port in taken:
                return f"{whose} would have port {port}, as has {taken[port]}: set their firstNodePort farther apart"
            taken[port] = whose
    return ""


def _node_port(
    cluster: Cluster, listener: Listener, name: str, labels: Mapping[str, str], port: int, owner: Manifest
) -> Manifest:
    body: Manifest = {
        "spec": {
            "type": "NodePort",
            "selector": {**labels},
            "ports": [{"name": "kafka", "port": listener.port, "targetPort": listener.port, "nodePort": port}],
        }
    }
    return wanted("v1", "Service", name, cluster, {}, body, owner=owner)
