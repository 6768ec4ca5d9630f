"""Checks how the operator is installed: its kinds are served, its account has every right, one instance holds the
Lease.

It only reads. Runs in the event loop of a command.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stratalog.model.errors import NotFound
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.kube.rights import FOR_OWNERS, RIGHTS, Right, Scope
from stratalog_operator.resources.kinds import KINDS
from stratalog_operator.resources.names import API_VERSION

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def problems(
    kubernetes: Kubernetes, namespaces: Collection[str], lease_namespace: str, lease_name: str
) -> list[str]:
    """In words; empty when all is well. No namespaces: all of them. Raises: StratalogError."""
    found = await _kinds(kubernetes)
    watched = RIGHTS[Scope.WATCHED] | FOR_OWNERS
    for namespace in namespaces or ("",):
        found += await _rights(kubernetes, namespace, watched)
    found += await _rights(kubernetes, lease_namespace, RIGHTS[Scope.OWN])
    found += await _rights(kubernetes, "", RIGHTS[Scope.WHOLE])
    return found + await _leader(kubernetes, lease_namespace, lease_name)


async def _kinds(kubernetes: Kubernetes) -> list[str]:
    try:
        answer = await kubernetes.ask("GET", f"/apis/{API_VERSION}")
    except NotFound:
        return [f"{API_VERSION} is not served: install the definitions (chart stratalog-crds, or crds/)"]
    served = {one["kind"] for one in answer["resources"]}
    return [
        f"{kind.name} is not served: the definitions are older than the operator"
        for kind in KINDS
        if kind.name not in served
    ]


async def _rights(kubernetes: Kubernetes, namespace: str, rights: Iterable[Right]) -> list[str]:
    """Those that the account does not have there; `namespace` empty: in all of Kubernetes."""
    missing = []
    for right in sorted(rights):
        resource, _, subresource = right.resource.partition("/")
        wanted = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**wanted, "namespace": namespace}},
        }
        answer = await kubernetes.ask("POST", REVIEWS, body, is_fenced=False)
        if not answer["status"].get("allowed"):
            place = f"namespace {namespace}" if namespace else "all of Kubernetes"
            missing.append(f"no right to {right.verb} {right.resource} ({right.group or 'core'}) in {place}")
    return missing


async def _leader(kubernetes: Kubernetes, namespace: str, name: str) -> list[str]:
    try:
        lease = await kubernetes.ask("GET", f"{path_of('Lease', namespace)}/{name}")
    except NotFound:
        return [f"no lease {name} in {namespace}: no operator has begun to work yet"]
    if not lease["spec"].get("holderIdentity"):
        return [f"no instance holds lease {name} in {namespace}"]
    return []
