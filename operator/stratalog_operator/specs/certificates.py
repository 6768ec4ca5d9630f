"""The names that the certificates of a cluster's members have.

Pure. Source: docs/kubernetes-security.md; docs/security-spec.md section 2.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from stratalog.model.members import Member, Part
from stratalog_operator.specs.etcd import member_name
from stratalog_operator.specs.node import NodeIdentity, node_name, outside_listeners
from stratalog_operator.specs.objects import Cluster


def leaf_names(cluster: Cluster, node: NodeIdentity, machine_address: str) -> frozenset[str]:
    """`DNS:`, `IP:` and `URI:` names of a storage node's certificate: those by which clients reach it, and which member
    of the cluster it is."""
    pod = f"{node_name(cluster.name, node.pool, node.node_id)}-0.{cluster.nodes_name}"
    hosts = _hosts(cluster, pod, cluster.bootstrap_name)
    for listener in outside_listeners(cluster):
        hosts |= {listener.advertised_host or machine_address} - {""}
    return _names(hosts, _member(cluster, Part.NODE, node.node_id))


def meta_names(cluster: Cluster) -> frozenset[str]:
    """Of all instances of the meta service, which are one member."""
    pods = (f"{cluster.meta_name}-{number}.{cluster.meta_name}" for number in range(cluster.spec.meta.replicas))
    return _names(_hosts(cluster, cluster.meta_name, *pods), _member(cluster, Part.META))


def operator_names(cluster: Cluster) -> frozenset[str]:
    return _names((), _member(cluster, Part.OPERATOR))


def etcd_names(cluster: Cluster) -> frozenset[str]:
    """Of all members, which show it to their clients, and to themselves for requests by JSON."""
    etcd = cluster.spec.meta.etcd
    assert etcd is not None, "the operator runs it"
    pods = (f"{member_name(cluster, number)}.{cluster.etcd_name}" for number in range(etcd.replicas))
    return _of(_hosts(cluster, cluster.etcd_name, *pods))


def _hosts(cluster: Cluster, *services: str) -> set[str]:
    hosts = {"localhost", "127.0.0.1"}
    for service in services:
        inside = f"{service}.{cluster.namespace}"
        hosts |= {service, inside, f"{inside}.svc", f"{inside}.svc.{cluster.spec.cluster_domain}"}
    return hosts


def _names(hosts: Iterable[str], member: Member) -> frozenset[str]:
    return _of(hosts) | {f"URI:{member}"}


def _of(hosts: Iterable[str]) -> frozenset[str]:
    return frozenset(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)


def _member(cluster: Cluster, part: Part, node_id: int | None = None) -> Member:
    """The same for as long as the StorageCluster has its name, so that it is there before the cluster has an id."""
    return Member(member_cluster(cluster), part, node_id)


def member_cluster(cluster: Cluster) -> str:
    """How certificates of members name the cluster."""
    return f"{cluster.namespace}.{cluster.name}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
