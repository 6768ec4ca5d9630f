"""Writes the Secret with the hashes of tokens that the pods of a cluster mount, over the version that was seen.

Lives in the operator's event loop.
"""

from __future__ import annotations

import base64

from stratalog.model.errors import Conflict, InvalidRequest, NotFound
from stratalog_operator.kube.client import MERGE, Kubernetes, path_of
from stratalog_operator.plan.actions import PutRoles
from stratalog_operator.resources.names import FIELD_MANAGER
from stratalog_operator.specs.certificate_secrets import belongs_to, certificates_manifest
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.specs.role_hashes import role_hashes_secret


async def put_roles(kubernetes: Kubernetes, cluster: Cluster, action: PutRoles) -> None:
    """Raises: InvalidRequest for a Secret of that name that is not the cluster's; Conflict for one that has changed;
    StratalogError for a request that failed."""
    name = role_hashes_secret(cluster)
    data = {key: base64.b64encode(text.encode()).decode() for key, text in action.texts.items()}
    if not action.version:
        await kubernetes.ask(
            "POST", path_of("Secret", cluster.namespace), certificates_manifest(cluster, name, data, {})
        )
        return
    path = path_of("Secret", cluster.namespace, name)
    try:
        there = await kubernetes.ask("GET", path)
    except NotFound:
        raise Conflict(f"Secret {name} is gone since it was read: it is read again") from None
    if not belongs_to(cluster, there):
        raise InvalidRequest(
            f"Secret {name} is there and does not belong to this StorageCluster, which mounts hashes of tokens under "
            "that name: delete it, or rename it"
        )
    body = {"metadata": {"resourceVersion": action.version}, "data": data}
    await kubernetes.ask("PATCH", path, body, query={"fieldManager": FIELD_MANAGER}, content_type=MERGE)
