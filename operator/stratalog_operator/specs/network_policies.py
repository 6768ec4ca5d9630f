"""NetworkPolicies of a cluster: ports without authentication answer its own pods and the operator alone.

Ports with a token (admin) and listeners that clients have for themselves stay open to all: what keeps others out there
is not the network. Only pods that come in are restricted; what the pods reach is not.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from stratalog_operator.resources.names import LABEL_CLUSTER, LABEL_PART
from stratalog_operator.specs.etcd import peer_ports
from stratalog_operator.specs.objects import (
    ADMIN_PORT,
    ETCD_CLIENT_PORT,
    META_PORT,
    Cluster,
    Manifest,
    selector,
    wanted,
)


def network_policies(cluster: Cluster) -> list[Manifest]:
    parts, operator = _pods(cluster, "etcd", "meta", "node", "volume"), _operator(cluster.operator_namespace)
    meta, etcd, jobs = _pods(cluster, "meta"), _pods(cluster, "etcd"), _pods(cluster, "job")
    for_clients = [listener.port for listener in cluster.further_listeners]
    inner, admin = cluster.internal_port, _from([], ADMIN_PORT)
    made = [
        _policy(cluster, "meta", [_from([parts, operator, jobs], META_PORT), admin]),
        _policy(cluster, "node", [_from([parts], inner), admin, *([_from([], *for_clients)] if for_clients else [])]),
        _policy(cluster, "volume", [_from([parts], inner), admin]),
    ]
    if cluster.spec.meta.etcd is not None:
        rules = [_from([etcd, meta, operator], ETCD_CLIENT_PORT), _from([etcd], *peer_ports(cluster).values())]
        made.insert(0, _policy(cluster, "etcd", rules))
    return made


def _policy(cluster: Cluster, part: str, rules: list[Manifest]) -> Manifest:
    labels = selector(cluster, part)
    body: Manifest = {
        "spec": {"podSelector": {"matchLabels": {**labels}}, "policyTypes": ["Ingress"], "ingress": [*rules]}
    }
    name = f"{cluster.name}-{part}"
    return wanted("networking.k8s.io/v1", "NetworkPolicy", name, cluster, labels, body, owner=cluster.owner())


def _from(peers: list[Manifest], *ports: int) -> Manifest:
    """No peers: from everywhere."""
    rule: Manifest = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {"from": [*peers], **rule} if peers else rule


def _pods(cluster: Cluster, *parts: str) -> Manifest:
    listed: Manifest = {"key": LABEL_PART, "operator": "In", "values": [*parts]}
    return {"podSelector": {"matchLabels": {LABEL_CLUSTER: cluster.name}, "matchExpressions": [listed]}}


def _operator(namespace: str) -> Manifest:
    """Kubernetes itself gives each namespace the label with its name. Where the operator's is not known, its pods are
    taken in any."""
    labels: Manifest = {"app.kubernetes.io/name": "stratalog-operator"}
    within: Manifest = {"matchLabels": {"kubernetes.io/metadata.name": namespace}} if namespace else {}
    return {"namespaceSelector": within, "podSelector": {"matchLabels": labels}}
