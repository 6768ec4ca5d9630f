"""Where clients come in: addresses of each pod, one to begin with, and ports of the machines for clients outside.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratalog_operator.resources.cluster import Listener
from stratalog_operator.specs.node import NodeIdentity, node_labels, node_name
from stratalog_operator.specs.objects import ADMIN_PORT, Cluster, Manifest, selector, wanted


def inside_services(cluster: Cluster) -> list[Manifest]:
    """The headless one, by which each pod has a name whether it is ready or not, and the one to begin with."""
    labels = selector(cluster, "node")
    ports: list[Manifest] = [
        {"name": "internal", "port": cluster.internal_port, "targetPort": "internal"},
        {"name": "admin", "port": ADMIN_PORT, "targetPort": "admin"},
    ]
    headless: Manifest = {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {**labels},
            "ports": [*ports],
        }
    }
    bootstrap: Manifest = {"spec": {"type": "ClusterIP", "selector": {**labels}, "ports": [ports[0]]}}
    return [
        wanted("v1", "Service", cluster.nodes_name, cluster, {}, headless, owner=cluster.owner()),
        wanted("v1", "Service", cluster.bootstrap_name, cluster, {}, bootstrap, owner=cluster.owner()),
    ]


def outside_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    return tuple(one for one in cluster.spec.listeners if one.type == "nodeport")


def outside_bootstrap(cluster: Cluster, listener: Listener) -> Manifest:
    """The port of every machine that leads to any node."""
    assert listener.first_node_port is not None, "the definition asks for it"
    name = f"{cluster.outside_name}-{listener.name}"
    return _node_port(cluster, listener, name, selector(cluster, "node"), listener.first_node_port, cluster.owner())


def outside_of_node(cluster: Cluster, listener: Listener, node: NodeIdentity) -> Manifest:
    """The port of every machine that leads to this node: first port + 1 + id, so that firewalls can be told before."""
    assert listener.first_node_port is not None, "the definition asks for it"
    of_node = node_name(cluster.name, node.pool, node.node_id)
    port = listener.first_node_port + 1 + node.node_id
    return _node_port(
        cluster, listener, f"{of_node}-{listener.name}", node_labels(cluster, node), port, cluster.owner()
    )


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
