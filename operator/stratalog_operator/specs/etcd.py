"""The static etcd: a fixed number of members, each with a volume of its own. Never resized by the operator.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from typing import Final

from stratalog_operator.resources.cluster import Etcd
from stratalog_operator.resources.names import ANNOTATION_RESTART
from stratalog_operator.specs.objects import (
    ETCD_CLIENT_PORT,
    ETCD_PEER_PORT,
    Cluster,
    Manifest,
    pod_template,
    selector,
    wanted,
)
from stratalog_operator.specs.pods import POD_NAME, container, pod_spec, spread

_COMPARES_FIRST: Final[Manifest] = {"name": "ETCD_EXPERIMENTAL_INITIAL_CORRUPT_CHECK", "value": "true"}
"""A member that starts compares what it has with the others, and ends when it differs: up to 3.5.2 one that was killed
under load might. In the environment, for an etcd of other versions knows no such option and heeds no such variable."""


def members(cluster: Cluster, etcd: Etcd) -> list[str]:
    """HOST of each."""
    return [cluster.host(cluster.etcd_name, f"{cluster.etcd_name}-{number}") for number in range(etcd.replicas)]


def etcd_objects(cluster: Cluster, etcd: Etcd) -> list[Manifest]:
    labels = selector(cluster, "etcd")
    service: Manifest = {
        "spec": {
            "clusterIP": "None",
            # They must find each other before they can be ready.
            "publishNotReadyAddresses": True,
            "selector": {**labels},
            "ports": [
                {"name": "client", "port": ETCD_CLIENT_PORT, "targetPort": "client"},
                {"name": "peer", "port": ETCD_PEER_PORT, "targetPort": "peer"},
            ],
        }
    }
    return [
        wanted("v1", "Service", cluster.etcd_name, cluster, labels, service, owner=cluster.owner()),
        wanted(
            "apps/v1", "StatefulSet", cluster.etcd_name, cluster, labels, _set(cluster, etcd), owner=cluster.owner()
        ),
    ]


def _set(cluster: Cluster, etcd: Etcd) -> Manifest:
    labels = selector(cluster, "etcd")
    # It reads none of our settings: a person's word alone makes it another one.
    asked = {ANNOTATION_RESTART: cluster.restart} if cluster.restart else {}
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
    own = cluster.host(cluster.etcd_name, "$(POD_NAME)")
    hosts = members(cluster, etcd)
    peers = ",".join(f"{host.split('.', 1)[0]}=http://{host}:{ETCD_PEER_PORT}" for host in hosts)
    command = [
        "etcd",
        "--name=$(POD_NAME)",
        "--data-dir=/data/etcd",
        f"--listen-client-urls=http://0.0.0.0:{ETCD_CLIENT_PORT}",
        f"--advertise-client-urls=http://{own}:{ETCD_CLIENT_PORT}",
        f"--listen-peer-urls=http://0.0.0.0:{ETCD_PEER_PORT}",
        f"--initial-advertise-peer-urls=http://{own}:{ETCD_PEER_PORT}",
        f"--initial-cluster={peers}",
        "--initial-cluster-state=new",
        f"--initial-cluster-token={cluster.namespace}-{cluster.name}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
    ]
    open_port: Manifest = {"tcpSocket": {"port": "client"}}
    probes: Manifest = {
        "startupProbe": {**open_port, "periodSeconds": 2, "failureThreshold": 300},
        "livenessProbe": {**open_port, "periodSeconds": 10, "failureThreshold": 6},
        # Serializable: whether this member answers, not whether most of them do.
        "readinessProbe": {
            "httpGet": {"path": "/health?serializable=true", "port": "client"},
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
        ports={"client": ETCD_CLIENT_PORT, "peer": ETCD_PEER_PORT},
        mounts=[{"name": "data", "mountPath": "/data"}],
        env=[POD_NAME, _COMPARES_FIRST],
        probes=probes,
    )
    labels = selector(cluster, "etcd")
    apart = spread(labels, "topology.kubernetes.io/zone", "kubernetes.io/hostname")
    return pod_spec(cluster, made, [], apart, grace_seconds=30)
