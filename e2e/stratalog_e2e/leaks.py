"""What is in a cluster before the tests and after them: whatever was made for them must have gone."""

from __future__ import annotations

from stratalog_e2e.kubernetes_api import Kubernetes

_WHOLE = ("namespaces", "persistentvolumes", "clusterroles", "clusterrolebindings", "customresourcedefinitions")
_IN_PLACES = (
    "pods", "services", "persistentvolumeclaims", "statefulsets", "deployments", "configmaps", "leases",
    "secrets", "serviceaccounts", "roles", "rolebindings", "poddisruptionbudgets", "jobs",
)  # fmt: skip
_COME_AND_GO = ("kube-node-lease/", "kube-system/")
"""Kubernetes' own."""


def census(kube: Kubernetes) -> set[str]:
    """KIND NAMESPACE/NAME of all that a leak could be."""
    found = {f"{kind} {one['metadata']['name']}" for kind in _WHOLE for one in kube.list(kind)}
    for kind in _IN_PLACES:
        for one in kube.list(kind):
            name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
            if not name.startswith(_COME_AND_GO):
                found.add(f"{kind} {name}")
    return found
