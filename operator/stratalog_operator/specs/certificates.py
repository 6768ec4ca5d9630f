"""The names that a storage node's certificate has.

Pure. Source: docs/kubernetes-security.md; docs/security-spec.md section 2.
"""

from __future__ import annotations

import ipaddress

from stratalog_operator.specs.node import NodeIdentity, node_name, outside_listeners
from stratalog_operator.specs.objects import Cluster


def leaf_names(cluster: Cluster, node: NodeIdentity, machine_address: str) -> frozenset[str]:
    """`DNS:`, `IP:` and `URI:` names of a storage node's certificate: those by which clients reach it, and which member
    of the cluster it is."""
    pod = f"{node_name(cluster.name, node.pool, node.node_id)}-0.{cluster.nodes_name}"
    hosts = {"localhost", "127.0.0.1"}
    for service in (pod, cluster.bootstrap_name):
        inside = f"{service}.{cluster.namespace}"
        hosts |= {service, inside, f"{inside}.svc", f"{inside}.svc.{cluster.spec.cluster_domain}"}
    for listener in outside_listeners(cluster):
        hosts |= {listener.advertised_host or machine_address} - {""}
    names = {f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts}
    return frozenset({*names, f"URI:{member_name(cluster, node.node_id)}"})


def member_name(cluster: Cluster, node_id: int) -> str:
    """The same for as long as the StorageCluster has its name, so that it is there before the cluster has an id."""
    return f"stratalog://{cluster.namespace}.{cluster.name}/node/{node_id}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
