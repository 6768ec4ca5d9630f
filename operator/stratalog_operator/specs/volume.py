"""The light pod that reads a retired node's volume for the others: read-only, no member, no clients.

Pure. Source: docs/operator.md section 6; docs/scaling-spec.md section 5.
"""

from __future__ import annotations

from stratalog_operator.resources.names import LABEL_NODE_ID, LABEL_POOL
from stratalog_operator.resources.pool import StorageNodePoolSpec
from stratalog_operator.resources.schema import Resources
from stratalog_operator.specs.client_security import add_certificates, internal_settings
from stratalog_operator.specs.node import NodeIdentity, claim_name, node_name, placed
from stratalog_operator.specs.objects import (
    ADMIN_PORT,
    Cluster,
    Manifest,
    owner_reference,
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
    token_settings,
)
from stratalog_operator.specs.settings_file import restart_annotations


def volume_name(cluster: str, pool: str, node_id: int) -> str:
    """Short: a StatefulSet's name has 52 characters at most, or its pods' labels would be too long."""
    return f"{node_name(cluster, pool, node_id)}-vol"


def volume_objects(
    cluster: Cluster, pool: StorageNodePoolSpec, node: NodeIdentity, mount_name: str, mount_uid: str
) -> list[Manifest]:
    """Owned by the ReadOnlyMount: they go when that goes. The claim, of the node that was, stays."""
    name = volume_name(cluster.name, node.pool, node.node_id)
    labels = selector(cluster, "volume", **{LABEL_POOL: node.pool, LABEL_NODE_ID: str(node.node_id)})
    address: Manifest = {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {**labels},
            "ports": [{"name": "internal", "port": cluster.internal_port, "targetPort": "internal"}],
        }
    }
    body: Manifest = {
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {**labels}},
            "template": pod_template(labels, restart_annotations(cluster), _pod(cluster, pool, node)),
        }
    }
    owner = owner_reference("ReadOnlyMount", mount_name, mount_uid)
    return [
        wanted("v1", "Service", name, cluster, labels, address, owner=owner),
        wanted("apps/v1", "StatefulSet", name, cluster, labels, body, owner=owner),
    ]


def _pod(cluster: Cluster, pool: StorageNodePoolSpec, node: NodeIdentity) -> Manifest:
    port = cluster.internal_port
    own = cluster.host(volume_name(cluster.name, node.pool, node.node_id), "$(POD_NAME)")
    command = [
        *("stratalog", "node", "start", "--read-only", "--id", str(node.node_id), "--meta", cluster.meta_urls),
        *("--data", "/data", "--listen", f"0.0.0.0:{port}"),
        *ADMIN_SETTINGS,
        *("--set", f"advertised.listeners={own}:{port}"),
    ]
    for key, value in internal_settings(cluster).items():
        command += ["--set", f"{key}={value}"]
    command += token_settings(cluster)
    volumes, mounts = shared_volumes(cluster)
    claim: Manifest = {"claimName": claim_name(cluster.name, node.pool, node.node_id), "readOnly": True}
    volumes.append({"name": "data", "persistentVolumeClaim": claim})
    mounts.append({"name": "data", "mountPath": "/data", "readOnly": True})
    if cluster.has_internal_tls:
        add_certificates(cluster, str(node.node_id), volumes, mounts)
    made = container(
        cluster,
        "volume",
        command,
        resources=Resources(requests={"cpu": "50m", "memory": "128Mi"}),
        ports={"internal": port, "admin": ADMIN_PORT},
        mounts=mounts,
        env=[POD_NAME, *commands_environment(cluster)],
        probes=probes(cluster),
    )
    return pod_spec(cluster, made, volumes, [], grace_seconds=30, more=placed(pool, node.zone))
