"""The Secrets that hold certificates of the operator's own authority: their names, and the names of what is in them.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stratalog_operator.resources.names import LABEL_CLUSTER
from stratalog_operator.specs.objects import Cluster

AUTHORITY_KEY: Final = "ca.key"
AUTHORITY: Final = "ca.crt"
"""In the authority's Secret the one that issues; elsewhere all that are trusted."""
NEXT_KEY: Final = "next.key"
NEXT: Final = "next.crt"
FORMER: Final = "former.crt"
"""All former ones, each trusted until it expires; their keys are gone."""
MOST_FORMER: Final = 16
"""Of them the last ones are kept, so that the Secrets do not grow beyond what Kubernetes stores."""
CLIENT_AUTHORITIES: Final = "clients-ca.crt"
"""Beside the certificates of nodes: the authorities of clients that are to be trusted."""
ETCD_AUTHORITIES: Final = "etcd-ca.crt"
"""There, too: the authorities of etcd."""
META: Final = "meta"
OPERATOR: Final = "operator"
ETCD: Final = "etcd"
ETCD_CLIENT: Final = "etcd-client"
"""What meta service and operator show to etcd."""
ETCD_PEER: Final = "etcd-peer"
"""What a member of etcd shows to another one when it connects. With the four above, holders of certificates beside
storage nodes, which are named by their ids."""
OF_ETCD: Final = (ETCD, ETCD_CLIENT, ETCD_PEER)
"""Issued by the authority of etcd."""
_NAMED: Final = (META, OPERATOR, *OF_ETCD)


def uses_own_authority(cluster: Cluster) -> bool:
    tls = cluster.spec.tls
    return has_certificates(cluster) and (tls is None or tls.certificate_secret_ref is None)


def has_certificates(cluster: Cluster) -> bool:
    return cluster.has_internal_tls or any(one.tls for one in cluster.spec.listeners)


def has_clients_authority(cluster: Cluster) -> bool:
    """Whether the operator issues certificates to clients."""
    asks = any(one.authentication is not None and one.authentication.type == "tls" for one in cluster.spec.listeners)
    return asks and uses_own_authority(cluster)


def clients_authority_secret(cluster: Cluster) -> str:
    """Of the authority that issues certificates to clients; only the operator reads it."""
    return f"{cluster.name}-clients-authority"


def etcd_authority_secret(cluster: Cluster) -> str:
    """Of the authority of etcd and its clients; only the operator reads it. It is another one, because etcd takes every
    client whose certificate its authority issued: a storage node must not be one."""
    return f"{cluster.name}-etcd-authority"


def authority_secret(cluster: Cluster) -> str:
    """Only the operator reads it."""
    return f"{cluster.name}-authority"


def leaves_secret(cluster: Cluster) -> str:
    """Certificates and keys of storage nodes, meta service and operator: each pod mounts its own alone."""
    return f"{cluster.name}-certificates"


def trust_secret(cluster: Cluster) -> str:
    """What clients trust: no key is in it."""
    return f"{cluster.name}-ca"


def certificate_of(holder: str) -> str:
    return f"{_stem(holder)}.crt"


def key_of(holder: str) -> str:
    return f"{_stem(holder)}.key"


def _stem(holder: str) -> str:
    return holder if holder in _NAMED else f"node-{holder}"


def holder_of(key: str) -> str | None:
    """Whose certificate it is; None for anything else."""
    holder = key.removeprefix("node-").removesuffix(".crt")
    is_known = holder.isdecimal() or holder in _NAMED
    return holder if is_known and certificate_of(holder) == key else None


def belongs_to(cluster: Cluster, secret: Mapping[str, Any]) -> bool:
    """Whether a Secret is one that the operator made for the cluster: its name alone proves nothing."""
    return any(owner.get("uid") == cluster.uid for owner in secret["metadata"].get("ownerReferences") or ())


def certificates_manifest(
    cluster: Cluster, name: str, data: Mapping[str, str], notes: Mapping[str, str]
) -> dict[str, Any]:
    """A Secret that goes with the StorageCluster; `data` as base64."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "stratalog",
                "app.kubernetes.io/instance": cluster.name,
                "app.kubernetes.io/managed-by": "stratalog-operator",
                LABEL_CLUSTER: cluster.name,
            },
            "annotations": dict(notes),
            "ownerReferences": [cluster.owner()],
        },
        "data": dict(data),
    }
