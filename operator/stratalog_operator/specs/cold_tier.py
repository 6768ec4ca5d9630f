"""The object store of a cluster: its URL, and how the pods that use it prove who they are.

By a Secret, whose values become variables or a file and are on no command line, or by a ServiceAccount that the cloud
knows (workload identity): GKE answers its pods by the metadata server, and AKS gives pods with a label a token file.
Pure. Source: docs/stores.md.
"""

from __future__ import annotations

from typing import Final, assert_never
from urllib.parse import quote

from stratalog_operator.resources.cluster import ColdTier
from stratalog_operator.specs.objects import Cluster, Manifest

_FOLDER: Final = "/etc/stratalog/store"
_KEY_FILE: Final = "credentials.json"


def bucket_url(cluster: Cluster) -> str | None:
    """Of the cold tier, as `--bucket` takes it."""
    cold = cluster.spec.cold_tier
    if cold is None:
        return None
    query = [f"endpoint={quote(cold.endpoint, safe=':/')}"] if cold.endpoint else []
    match cold.type:
        case "s3":
            scheme = "s3"
            query.append(f"region={quote(cold.region, safe='')}")
            if cold.virtual_hosted_style:
                query.append("virtual_hosted_style_request=true")
            if cold.credentials_secret_ref is None:
                query.append("skip_signature=true")
        case "gcs":
            scheme = "gs"
        case "azure":
            scheme = "az"
            query.append(f"account_name={cold.account}")
        case _:
            assert_never(cold.type)
    return f"{scheme}://{cold.bucket}/{cold.prefix}{'?' if query else ''}{'&'.join(query)}"


def store_environment(cluster: Cluster) -> list[Manifest]:
    """Credentials of the object store, never on a command line."""
    cold = cluster.spec.cold_tier
    if cold is None or cold.credentials_secret_ref is None:
        return []
    if cold.type == "gcs":
        return [{"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": f"{_FOLDER}/{_KEY_FILE}"}]
    made: list[Manifest] = []
    for variable, key, is_optional in _variables(cold):
        chosen: Manifest = {"name": cold.credentials_secret_ref, "key": key}
        if is_optional:
            chosen["optional"] = True
        made.append({"name": variable, "valueFrom": {"secretKeyRef": chosen}})
    return made


def _variables(cold: ColdTier) -> tuple[tuple[str, str, bool], ...]:
    """Name, key of the Secret, whether the key may be missing."""
    if cold.type == "azure":
        return (("AZURE_STORAGE_ACCOUNT_KEY", "accountKey", False),)
    return (
        ("AWS_ACCESS_KEY_ID", "accessKeyId", False),
        ("AWS_SECRET_ACCESS_KEY", "secretAccessKey", False),
        ("AWS_SESSION_TOKEN", "sessionToken", True),
    )


def add_key_file(cluster: Cluster, volumes: list[Manifest], mounts: list[Manifest]) -> None:
    """Of a service account of Google."""
    cold = cluster.spec.cold_tier
    if cold is None or cold.type != "gcs" or cold.credentials_secret_ref is None:
        return
    keys: list[Manifest] = [{"key": _KEY_FILE, "path": _KEY_FILE}]
    secret: Manifest = {"secretName": cold.credentials_secret_ref, "items": [*keys], "defaultMode": 0o440}
    volumes.append({"name": "store", "secret": secret})
    mounts.append({"name": "store", "mountPath": _FOLDER, "readOnly": True})


def store_identity(cluster: Cluster) -> Manifest:
    """What a pod that uses the store has in its spec."""
    cold = cluster.spec.cold_tier
    if cold is None or cold.service_account_name is None:
        return {}
    return {"serviceAccountName": cold.service_account_name}


def store_labels(cluster: Cluster) -> dict[str, str]:
    """What a pod that uses the store has beside its own labels."""
    cold = cluster.spec.cold_tier
    if cold is None or cold.type != "azure" or cold.service_account_name is None:
        return {}
    return {"azure.workload.identity/use": "true"}
