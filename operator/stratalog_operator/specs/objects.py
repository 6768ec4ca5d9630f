"""What all wanted objects have in common: names, labels, owners, and the hash by which a change is seen.

Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pydantic import JsonValue

from stratalog_operator.resources.cluster import Listener, StorageClusterSpec
from stratalog_operator.resources.names import (
    ANNOTATION_POD_HASH,
    ANNOTATION_WANTED_HASH,
    API_VERSION,
    LABEL_CLUSTER,
    LABEL_PART,
)

Manifest: TypeAlias = dict[str, JsonValue]

META_PORT: Final = 9100
ADMIN_PORT: Final = 9644
ETCD_CLIENT_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380
ETCD_METRICS_PORT: Final = 2381
"""With TLS for clients: its health and metrics in plain text, for probes show no certificate."""
ETCD_PEER_TLS_PORT: Final = 2382
"""Another one than that for plain text, so that a member can listen on both while a running cluster changes over."""


class EtcdPeers(Enum):
    """What the members of the operator's etcd speak with each other; the value is that in the status."""

    PLAINTEXT = "PLAINTEXT"
    MIGRATING = "MIGRATING"
    """They listen for both, and are listed under the one or the other."""
    SSL = "SSL"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A StorageCluster as far as what is wanted depends on it."""

    name: str
    namespace: str
    uid: str
    spec: StorageClusterSpec
    restart: str = ""
    """The word of the restart annotation: another one restarts all pods in turn."""
    has_internal_tls: bool = False
    """Its parts speak TLS with each other."""
    has_etcd_tls: bool = False
    """The etcd that the operator runs speaks TLS with its clients, and asks them for certificates."""
    etcd_peers: EtcdPeers = EtcdPeers.PLAINTEXT
    etcd_trust: str = ""
    """The newest authority of etcd that its members are given. They read it at their start alone, so that another one
    restarts them."""
    is_etcd_held: bool = False
    """The certificates of etcd are not in their Secret: its pods are neither made nor restarted."""
    operator_namespace: str = ""
    """Where the operator's pods are; empty: not known."""

    @property
    def etcd_name(self) -> str:
        return f"{self.name}-etcd"

    @property
    def meta_name(self) -> str:
        return f"{self.name}-meta"

    @property
    def nodes_name(self) -> str:
        """The headless Service under which each storage node has an address."""
        return f"{self.name}-nodes"

    @property
    def bootstrap_name(self) -> str:
        return f"{self.name}-bootstrap"

    @property
    def outside_name(self) -> str:
        return f"{self.name}-outside"

    @property
    def config_name(self) -> str:
        return f"{self.name}-config"

    @property
    def token_secret(self) -> str:
        return self.spec.meta.token_secret_ref or f"{self.name}-token"

    @property
    def internal_port(self) -> int:
        """Of the listener that the nodes use among themselves."""
        (port,) = (listener.port for listener in self.spec.listeners if listener.is_of_nodes)
        return port

    @property
    def further_listeners(self) -> tuple[Listener, ...]:
        """All others: for clients alone."""
        return tuple(listener for listener in self.spec.listeners if not listener.is_of_nodes)

    def host(self, service: str, pod: str = "") -> str:
        """DNS name of a Service, or of one pod behind a headless one."""
        return f"{pod + '.' if pod else ''}{service}.{self.namespace}.svc.{self.spec.cluster_domain}"

    @property
    def meta_urls(self) -> str:
        """The URL of each instance. An instance that does not lead redirects a client to the one that does."""
        pods = (f"{self.meta_name}-{number}" for number in range(self.spec.meta.replicas))
        return ",".join(f"{self.http_scheme}://{self.host(self.meta_name, pod)}:{META_PORT}" for pod in pods)

    @property
    def http_scheme(self) -> str:
        """Of the meta service and of admin ports."""
        return "https" if self.has_internal_tls else "http"

    def owner(self) -> Manifest:
        """It goes when the StorageCluster goes."""
        return owner_reference("StorageCluster", self.name, self.uid)


def owner_reference(kind: str, name: str, uid: str) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def selector(cluster: Cluster, part: str, **more: str) -> dict[str, str]:
    """What a pod is found by. Immutable in a StatefulSet, so it never says more than who it is."""
    return {LABEL_CLUSTER: cluster.name, LABEL_PART: part, **more}


def wanted(
    api_version: str,
    kind: str,
    name: str,
    cluster: Cluster,
    labels: Mapping[str, str],
    body: Mapping[str, JsonValue],
    *,
    owner: Manifest | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """An object with a hash of its wanted fields. Without `owner` it is not deleted together with another object."""
    metadata: Manifest = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": {
            "app.kubernetes.io/name": "stratalog",
            "app.kubernetes.io/instance": cluster.name,
            "app.kubernetes.io/managed-by": "stratalog-operator",
            **labels,
        },
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    made: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    given = {**(annotations or {})}
    metadata["annotations"] = {**given}
    metadata["annotations"] = {**given, ANNOTATION_WANTED_HASH: digest(made)}
    return made


def digest(value: JsonValue) -> str:
    """Of what it says, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pod_template(labels: Mapping[str, str], annotations: Mapping[str, str], spec: Mapping[str, JsonValue]) -> Manifest:
    """A template whose pods tell of what they were made: the hash is what a roll goes by."""
    metadata: Manifest = {"labels": {"app.kubernetes.io/name": "stratalog", **labels}, "annotations": {**annotations}}
    template: Manifest = {"metadata": metadata, "spec": {**spec}}
    metadata["annotations"] = {**annotations, ANNOTATION_POD_HASH: digest(template)}
    return template


def template_hash(manifest: Manifest) -> str:
    """Of the pods that a StatefulSet's manifest wants."""
    place: JsonValue = manifest
    for word in ("spec", "template", "metadata", "annotations", ANNOTATION_POD_HASH):
        assert isinstance(place, dict), "made by `pod_template`"
        place = place[word]
    assert isinstance(place, str), "made by `pod_template`"
    return place
