"""Tells whether an object that is there under a wanted name belongs to the cluster that wants it.

Server-side apply takes over whatever has the name: a person's ConfigMap would be overwritten and deleted with the
cluster, a person's volume claim used as a disk. Names of two clusters can meet, too: pool `a-b` of cluster `x`, and
pool `b` of cluster `x-a`.

Pure. Source: docs/operator.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stratalog_operator.resources.names import ANNOTATION_WANTED_HASH, GROUP, LABEL_CLUSTER

_INSTANCE: Final = "app.kubernetes.io/instance"
_CLAIM: Final = "PersistentVolumeClaim"


def why_of_others(manifest: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Why `there`, which has the name of `manifest`, is not to be changed; empty if it belongs to the same cluster.

    The operator's own kinds name their cluster; a claim is given to it by its label, also by a person who restores one;
    everything else was made by the operator or has an owner that the operator would give it."""
    kind, metadata = manifest["kind"], there["metadata"]
    cluster = manifest["metadata"]["labels"][_INSTANCE]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if manifest["apiVersion"].startswith(f"{GROUP}/"):
        is_ours = (there.get("spec") or {}).get("clusterRef") == cluster
    else:
        is_made = ANNOTATION_WANTED_HASH in notes and labels.get(_INSTANCE) == cluster
        is_ours = (
            is_made or _owners(manifest) & _owners(there) or (kind == _CLAIM and labels.get(LABEL_CLUSTER) == cluster)
        )
    if is_ours:
        return ""
    way = f", or give it to the cluster by the label {LABEL_CLUSTER}={cluster}" if kind == _CLAIM else ""
    return (
        f"{kind} {metadata['name']} is there and does not belong to StorageCluster {cluster}, so it is not changed: "
        f"delete or rename it, or choose another name{way}"
    )


def _owners(one: Mapping[str, Any]) -> set[str]:
    return {str(owner["uid"]) for owner in one["metadata"].get("ownerReferences") or ()}
