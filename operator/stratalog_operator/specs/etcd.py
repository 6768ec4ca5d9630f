"""The static etcd: a fixed number of members, each with a volume of its own. Never resized by the operator.

Each member reads a file of its own, which says how it may start on an empty volume. Once the cluster has formed, it may
not: a member that comes back under its old id without its log has forgotten what it promised, and with it etcd loses
changes that it confirmed. A member whose volume is lost joins again under a new id, as a learner (plan/etcd.py).

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from stratalog_operator.resources.cluster import Etcd
from stratalog_operator.resources.names import ANNOTATION_RESTART, GROUP
from stratalog_operator.specs.certificate_secrets import (
    ETCD,
    ETCD_AUTHORITIES,
    ETCD_PEER,
    certificate_of,
    key_of,
    leaves_secret,
)
from stratalog_operator.specs.objects import (
    ETCD_CLIENT_PORT,
    ETCD_METRICS_PORT,
    ETCD_PEER_PORT,
    ETCD_PEER_TLS_PORT,
    Cluster,
    EtcdPeers,
    Manifest,
    pod_template,
    selector,
    wanted,
)
from stratalog_operator.specs.pods import POD_NAME, container, pod_spec, spread

_FOLDER: Final = "/etc/stratalog/etcd"
CERTIFICATES_FOLDER: Final = "/etc/stratalog/etcd-tls"
"""Mounted whole: etcd reads certificate and key at each handshake, but what it trusts at its start alone."""
_ANNOTATION_TRUST: Final = f"{GROUP}/etcd-authority"


@dataclass(frozen=True, slots=True)
class Formation:
    """How far the members have come: it decides what a member with an empty volume may do."""

    is_formed: bool = False
    """They have served together once."""
    joining: Mapping[int, Collection[int]] = field(default_factory=dict)
    """By the number of a member that is to join on an empty volume: the numbers of all members, itself included."""
    listed: Mapping[int, str] = field(default_factory=dict)
    """Under which URL the members are listed, where it is not `peer_url`: one that joins has to name just these."""


def member_name(cluster: Cluster, number: int) -> str:
    return f"{cluster.etcd_name}-{number}"


def member_claim(cluster: Cluster, number: int) -> str:
    """Name of its volume claim, which Kubernetes makes from the template."""
    return f"data-{member_name(cluster, number)}"


def members(cluster: Cluster, etcd: Etcd) -> list[str]:
    """HOST of each."""
    return [cluster.host(cluster.etcd_name, member_name(cluster, number)) for number in range(etcd.replicas)]


def client_scheme(cluster: Cluster) -> str:
    return "https" if cluster.has_etcd_tls else "http"


def peer_url(cluster: Cluster, number: int) -> str:
    """Under which a member is to be listed."""
    return peer_urls(cluster, number)[cluster.etcd_peers is not EtcdPeers.PLAINTEXT]


def peer_urls(cluster: Cluster, number: int) -> tuple[str, str]:
    """Under which it may be listed: in plain text, and with TLS."""
    host = cluster.host(cluster.etcd_name, member_name(cluster, number))
    return f"http://{host}:{ETCD_PEER_PORT}", f"https://{host}:{ETCD_PEER_TLS_PORT}"


def joining_url(cluster: Cluster, number: int) -> str:
    """Under which a member is added. While members change over, some cannot reach it by TLS yet."""
    return peer_urls(cluster, number)[cluster.etcd_peers is EtcdPeers.SSL]


def peer_ports(cluster: Cluster) -> dict[str, int]:
    """Where members listen for each other, by name."""
    found = {"peer": ETCD_PEER_PORT} if cluster.etcd_peers is not EtcdPeers.SSL else {}
    return found if cluster.etcd_peers is EtcdPeers.PLAINTEXT else {**found, "peer-tls": ETCD_PEER_TLS_PORT}


def etcd_config_map(cluster: Cluster, etcd: Etcd, formation: Formation) -> Manifest:
    """The file of each member. A pod reads it when it starts, so that a change of it restarts nothing."""
    files = {
        f"{member_name(cluster, number)}.yaml": _member_file(cluster, etcd, number, formation)
        for number in range(etcd.replicas)
    }
    return wanted("v1", "ConfigMap", cluster.etcd_name, cluster, {}, {"data": {**files}}, owner=cluster.owner())


def _member_file(cluster: Cluster, etcd: Etcd, number: int, formation: Formation) -> str:
    """As JSON, which is YAML. What is about a first start is passed over where there are data."""
    everyone = range(etcd.replicas)
    if number in formation.joining:
        state, named = "existing", sorted(formation.joining[number])
    elif formation.is_formed:
        # Itself left out: on an empty volume it ends, and says that it is not among the members.
        state, named = "existing", [other for other in everyone if other != number]
    else:
        state, named = "new", list(everyone)
    own = cluster.host(cluster.etcd_name, member_name(cluster, number))
    listed = formation.listed if state == "existing" else {}
    urls = {other: listed.get(other, peer_url(cluster, other)) for other in everyone}
    peers = ",".join(f"{member_name(cluster, other)}={urls[other]}" for other in named)
    scheme = client_scheme(cluster)
    listens = (f"{'https' if 'tls' in name else 'http'}://0.0.0.0:{port}" for name, port in peer_ports(cluster).items())
    options: Manifest = {
        "name": member_name(cluster, number),
        "data-dir": "/data/etcd",
        "listen-client-urls": f"{scheme}://0.0.0.0:{ETCD_CLIENT_PORT}",
        "advertise-client-urls": f"{scheme}://{own}:{ETCD_CLIENT_PORT}",
        "listen-peer-urls": ",".join(listens),
        "initial-advertise-peer-urls": urls[number],
        # A cluster of one has no others to name, and an empty list would mean itself.
        "initial-cluster": peers or "nobody=http://nobody.invalid:2380",
        "initial-cluster-state": state,
        "initial-cluster-token": f"{cluster.namespace}-{cluster.name}",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        # A member that starts compares what it has with the others, and ends when it differs: before 3.5.3 it might,
        # after a kill under load. An etcd of another version passes over an option that it does not know.
        "experimental-initial-corrupt-check": True,
    }
    if cluster.has_etcd_tls:
        options["client-transport-security"] = {
            "cert-file": f"{CERTIFICATES_FOLDER}/tls.crt",
            "key-file": f"{CERTIFICATES_FOLDER}/tls.key",
            "trusted-ca-file": f"{CERTIFICATES_FOLDER}/ca.crt",
            "client-cert-auth": True,
        }
        # Another certificate towards other members, without a name: etcd would look up those in it, to compare them
        # with the address from which the member comes.
        options["peer-transport-security"] = {
            "cert-file": f"{CERTIFICATES_FOLDER}/tls.crt",
            "key-file": f"{CERTIFICATES_FOLDER}/tls.key",
            "client-cert-file": f"{CERTIFICATES_FOLDER}/peer.crt",
            "client-key-file": f"{CERTIFICATES_FOLDER}/peer.key",
            "trusted-ca-file": f"{CERTIFICATES_FOLDER}/ca.crt",
            # The authority's certificates of clients pass as well: those may change the members anyway. (etcd 3.5 and
            # 3.6 read `allowed-cn` here as values of two types, and end at that of the other.)
            "client-cert-auth": True,
        }
        options["listen-metrics-urls"] = f"http://0.0.0.0:{ETCD_METRICS_PORT}"
    return json.dumps(options, indent=1) + "\n"


def etcd_certificates(cluster: Cluster, holder: str) -> Manifest:
    """As a volume: the files of a member (`ETCD`) or of a client (`ETCD_CLIENT`)."""
    files = {certificate_of(holder): "tls.crt", key_of(holder): "tls.key", ETCD_AUTHORITIES: "ca.crt"}
    if holder == ETCD:
        files |= {certificate_of(ETCD_PEER): "peer.crt", key_of(ETCD_PEER): "peer.key"}
    items: list[Manifest] = [{"key": key, "path": path} for key, path in files.items()]
    return {"secretName": leaves_secret(cluster), "items": [*items], "defaultMode": 0o440}


def etcd_objects(cluster: Cluster, etcd: Etcd) -> list[Manifest]:
    labels = selector(cluster, "etcd")
    ports = {"client": ETCD_CLIENT_PORT, **peer_ports(cluster)}
    service: Manifest = {
        "spec": {
            "clusterIP": "None",
            # They must find each other before they can be ready.
            "publishNotReadyAddresses": True,
            "selector": {**labels},
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()],
        }
    }
    return [
        wanted("v1", "Service", cluster.etcd_name, cluster, labels, service, owner=cluster.owner()),
        wanted(
            "apps/v1", "StatefulSet", cluster.etcd_name, cluster, labels, _set(cluster, etcd), owner=cluster.owner()
        ),
    ]


def _etcdctl_environment(cluster: Cluster) -> list[Manifest]:
    """For a person who runs etcdctl in the pod; a member's certificate is good for a client from its own pod."""
    if not cluster.has_etcd_tls:
        return []
    files = {"CACERT": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}
    found: list[Manifest] = [{"name": "ETCDCTL_ENDPOINTS", "value": f"https://127.0.0.1:{ETCD_CLIENT_PORT}"}]
    found += [{"name": f"ETCDCTL_{key}", "value": f"{CERTIFICATES_FOLDER}/{file}"} for key, file in files.items()]
    return found


def _set(cluster: Cluster, etcd: Etcd) -> Manifest:
    labels = selector(cluster, "etcd")
    # It reads none of our settings: a person's word alone makes it another one.
    asked = {ANNOTATION_RESTART: cluster.restart} if cluster.restart else {}
    if cluster.etcd_trust:
        asked[_ANNOTATION_TRUST] = cluster.etcd_trust
    claim: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": etcd.storage}}}
    if etcd.storage_class_name is not None:
        claim["storageClassName"] = etcd.storage_class_name
    return {
        "spec": {
            "serviceName": cluster.etcd_name,
            "replicas": etcd.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": {**labels}},
            "template": pod_template(labels, asked, _pod(cluster, etcd)),
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {**labels}}, "spec": claim}],
        }
    }


def _pod(cluster: Cluster, etcd: Etcd) -> Manifest:
    # A file, because only its name can differ from pod to pod. Mounted whole, never by `subPath`: so it is the newest.
    command = ["etcd", f"--config-file={_FOLDER}/$(POD_NAME).yaml"]
    volumes: list[Manifest] = [{"name": "members", "configMap": {"name": cluster.etcd_name}}]
    mounts: list[Manifest] = [
        {"name": "data", "mountPath": "/data"},
        {"name": "members", "mountPath": _FOLDER, "readOnly": True},
    ]
    ports = {"client": ETCD_CLIENT_PORT, **peer_ports(cluster)}
    if cluster.has_etcd_tls:
        ports["metrics"] = ETCD_METRICS_PORT
        volumes.append({"name": "tls", "secret": etcd_certificates(cluster, ETCD)})
        mounts.append({"name": "tls", "mountPath": CERTIFICATES_FOLDER, "readOnly": True})
    probed = "metrics" if cluster.has_etcd_tls else "client"
    open_port: Manifest = {"tcpSocket": {"port": probed}}
    probes: Manifest = {
        "startupProbe": {**open_port, "periodSeconds": 2, "failureThreshold": 300},
        "livenessProbe": {**open_port, "periodSeconds": 10, "failureThreshold": 6},
        # Serializable: whether this member answers, not whether most of them do.
        "readinessProbe": {
            "httpGet": {"path": "/health?serializable=true", "port": probed},
            "periodSeconds": 2,
            "failureThreshold": 3,
            "timeoutSeconds": 5,
        },
    }
    made = container(
        cluster,
        "etcd",
        command,
        image=etcd.image,
        resources=etcd.resources,
        ports=ports,
        mounts=mounts,
        env=[POD_NAME, *_etcdctl_environment(cluster)],
        probes=probes,
    )
    labels = selector(cluster, "etcd")
    apart = spread(labels, "topology.kubernetes.io/zone", "kubernetes.io/hostname")
    return pod_spec(cluster, made, volumes, apart, grace_seconds=30)
