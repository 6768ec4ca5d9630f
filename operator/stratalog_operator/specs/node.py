"""One storage node: a StatefulSet of one replica, so that any node can go, and Kubernetes keeps it running.

The volume claim is an object of its own and named in the pod: a template of claims is immutable, and a claim that
outlives its StatefulSet can be mounted by another pod.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog_operator.resources.cluster import Listener
from stratalog_operator.resources.names import LABEL_NODE_ID, LABEL_POOL, LABEL_ZONE
from stratalog_operator.resources.pool import StorageNodePoolSpec
from stratalog_operator.specs.client_security import add_certificates, internal_settings, security_settings
from stratalog_operator.specs.cold_tier import (
    add_key_file,
    bucket_url,
    store_environment,
    store_identity,
    store_labels,
)
from stratalog_operator.specs.objects import (
    ADMIN_PORT,
    Cluster,
    Manifest,
    pod_template,
    selector,
    wanted,
)
from stratalog_operator.specs.pods import (
    ADMIN_SETTINGS,
    POD_NAME,
    commands_environment,
    container,
    pod_spec,
    probes,
    shared_volumes,
    spread,
    token_settings,
)
from stratalog_operator.specs.settings_file import restart_annotations

_HOST_IP: Final[Manifest] = {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}

GRACE_SECONDS: Final = 120
"""A stop in order flushes what is written and says that it was the last word."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A StorageNode as far as what is wanted depends on it."""

    node_id: int
    pool: str
    zone: str | None = None
    restart: str = ""
    """`spec.restartRequestedAt`."""


def node_name(cluster: str, pool: str, node_id: int) -> str:
    return f"{cluster}-{pool}-{node_id}"


def claim_name(cluster: str, pool: str, node_id: int) -> str:
    return f"data-{node_name(cluster, pool, node_id)}"


def node_labels(cluster: Cluster, node: NodeIdentity) -> dict[str, str]:
    return selector(cluster, "node", **{LABEL_POOL: node.pool, LABEL_NODE_ID: str(node.node_id)})


def node_set(cluster: Cluster, pool: StorageNodePoolSpec, node: NodeIdentity) -> Manifest:
    """The StatefulSet of a node. The cluster owns it, so that a user who deletes the StorageNode does not stop the
    pod."""
    name = node_name(cluster.name, node.pool, node.node_id)
    labels = node_labels(cluster, node)
    body: Manifest = {
        "spec": {
            "serviceName": cluster.nodes_name,
            "replicas": 1,
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {**labels}},
            "template": pod_template(
                {**labels, **store_labels(cluster)},
                restart_annotations(cluster, node.restart),
                _pod(cluster, pool, node),
            ),
        }
    }
    return wanted("apps/v1", "StatefulSet", name, cluster, labels, body, owner=cluster.owner())


def node_claim(
    cluster: Cluster, pool: StorageNodePoolSpec, node: NodeIdentity, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """The volume claim. It has no owner, because Kubernetes would delete it with its owner. It grows with the pool's
    size."""
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": pool.storage.size}},
    }
    if pool.storage.class_name is not None:
        spec["storageClassName"] = pool.storage.class_name
    name = claim_name(cluster.name, node.pool, node.node_id)
    labels = node_labels(cluster, node)
    if node.zone is not None:
        labels[LABEL_ZONE] = node.zone
    return wanted("v1", "PersistentVolumeClaim", name, cluster, labels, {"spec": spec}, annotations=annotations)


def _pod(cluster: Cluster, pool: StorageNodePoolSpec, node: NodeIdentity) -> Manifest:
    port = cluster.internal_port
    own = cluster.host(cluster.nodes_name, "$(POD_NAME)")
    listeners = cluster.further_listeners
    addresses = [f"{own}:{port}", *(_told(cluster, listener, node.node_id) for listener in listeners)]
    command = [
        *("stratalog", "node", "start", "--id", str(node.node_id), "--meta", cluster.meta_urls),
        *("--data", "/data", "--listen", f"0.0.0.0:{port}"),
        *ADMIN_SETTINGS,
        *("--set", f"advertised.listeners={','.join(addresses)}"),
    ]
    if listeners:
        command += [
            "--set",
            "listeners=" + ",".join(f"{listener.name}://0.0.0.0:{listener.port}" for listener in listeners),
        ]
    for key, value in {**security_settings(cluster), **internal_settings(cluster)}.items():
        command += ["--set", f"{key}={value}"]
    if node.zone is not None:
        command += ["--rack", node.zone]
    bucket = bucket_url(cluster)
    if bucket is not None:
        command += ["--bucket", bucket]
    command += token_settings(cluster)
    volumes, mounts = shared_volumes(cluster)
    add_key_file(cluster, volumes, mounts)
    claim: Manifest = {"claimName": claim_name(cluster.name, node.pool, node.node_id)}
    volumes.append({"name": "data", "persistentVolumeClaim": claim})
    mounts.append({"name": "data", "mountPath": "/data"})
    add_certificates(cluster, str(node.node_id), volumes, mounts)
    made = container(
        cluster,
        "node",
        command,
        resources=pool.resources,
        ports={
            "internal": port,
            "admin": ADMIN_PORT,
            **{f"kafka-{listener.port}": listener.port for listener in listeners},
        },
        mounts=mounts,
        env=[
            POD_NAME,
            *commands_environment(cluster),
            *([] if all(listener.advertised_host for listener in outside_listeners(cluster)) else [_HOST_IP]),
            *store_environment(cluster),
        ],
        probes=probes(cluster),
    )
    keys = ("kubernetes.io/hostname",) if node.zone else ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    return pod_spec(
        cluster,
        made,
        volumes,
        spread(selector(cluster, "node"), *keys),
        grace_seconds=GRACE_SECONDS,
        more={**placed(pool, node.zone), **store_identity(cluster)},
    )


def outside_listeners(cluster: Cluster) -> tuple[Listener, ...]:
    """For clients outside of this Kubernetes."""
    return tuple(one for one in cluster.spec.listeners if one.type == "nodeport")


def port_of_node(listener: Listener, node_id: int) -> int:
    """Of every machine, for this node alone."""
    assert listener.first_node_port is not None, "the definition asks for it"
    return listener.first_node_port + 1 + node_id


def _told(cluster: Cluster, listener: Listener, node_id: int) -> str:
    """What the node tells clients that come in by this listener: the name of its pod, or outside of Kubernetes a host
    for all nodes, or the machine of its pod."""
    if listener.type == "internal":
        return f"{listener.name}://{cluster.host(cluster.nodes_name, '$(POD_NAME)')}:{listener.port}"
    return f"{listener.name}://{listener.advertised_host or '$(HOST_IP)'}:{port_of_node(listener, node_id)}"


def placed(pool: StorageNodePoolSpec, zone: str | None) -> Manifest:
    """Which machines a pod of the pool may go to."""
    wanted_labels = dict(pool.node_selector)
    if zone is not None:
        wanted_labels["topology.kubernetes.io/zone"] = zone
    more: Manifest = {}
    if wanted_labels:
        more["nodeSelector"] = {**wanted_labels}
    if pool.tolerations:
        more["tolerations"] = [one.model_dump(by_alias=True, exclude_none=True) for one in pool.tolerations]
    return more
