"""The tokens of a cluster and of its people, as their Secrets have them now, against the hashes that its pods mount:
read in each pass, for a Secret may change.

No token is logged, in an error, or kept. Lives in the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.kube.secret_texts import text_of
from stratalog_operator.kube.together import together
from stratalog_operator.observe.cluster_token import read_tokens
from stratalog_operator.plan.observed import SeenRoles
from stratalog_operator.specs.certificate_secrets import belongs_to
from stratalog_operator.specs.objects import Cluster
from stratalog_operator.specs.role_hashes import KEY, OF_META, hashed_roles, role_hashes_secret


async def read_roles(kubernetes: Kubernetes, cluster: Cluster) -> SeenRoles:
    """While the tokens of people cannot be used, their hashes stay as they are. Raises: Unavailable; InvalidRequest
    where a Secret may not be read."""
    async with together() as asked:
        known = asked.create_task(_cluster_tokens(kubernetes, cluster))
        given = asked.create_task(_given(kubernetes, cluster))
        mounted = asked.create_task(_secret(kubernetes, cluster.namespace, role_hashes_secret(cluster)))
    tokens, (text, trouble), there = known.result(), given.result(), mounted.result()
    if not trouble:
        try:
            return _seen(cluster, there, hashed_roles(cluster, text, tokens))
        except InvalidRequest as error:
            trouble = str(error)
    kept = "" if there is None or not belongs_to(cluster, there) else text_of(there, OF_META) or ""
    try:
        return _seen(cluster, there, hashed_roles(cluster, kept, tokens), trouble)
    except InvalidRequest:  # what is there cannot be used either
        return _seen(cluster, there, hashed_roles(cluster, "", tokens), trouble)


def _seen(cluster: Cluster, there: Mapping[str, Any] | None, wanted: Mapping[str, str], trouble: str = "") -> SeenRoles:
    """A Secret of that name that is not the cluster's is never taken for what the operator published, whatever it has:
    writing to it is refused, and reported."""
    version = "" if there is None else str(there["metadata"]["resourceVersion"])
    is_published = (
        there is not None
        and belongs_to(cluster, there)
        and all(text_of(there, key) == text for key, text in wanted.items())
    )
    return SeenRoles(wanted, version, is_published, trouble)


async def _cluster_tokens(kubernetes: Kubernetes, cluster: Cluster) -> tuple[str, ...]:
    """None that cannot be used; why is reported as the trouble of the token (`passes.py`)."""
    try:
        return await read_tokens(kubernetes, cluster)
    except InvalidRequest:
        return ()


async def _given(kubernetes: Kubernetes, cluster: Cluster) -> tuple[str, str]:
    """The lines of people, and why there are none."""
    name = cluster.spec.meta.role_tokens_secret_ref
    if name is None:
        return "", ""
    place = f"Secret {cluster.namespace}/{name}, which spec.meta.roleTokensSecretRef names,"
    secret = await _secret(kubernetes, cluster.namespace, name)
    if secret is None:
        return "", f"{place} is not there: create it"
    text = text_of(secret, KEY)
    return ("", f"{place} has no text under the key {KEY}: put the tokens there") if text is None else (text, "")


async def _secret(kubernetes: Kubernetes, namespace: str, name: str) -> Mapping[str, Any] | None:
    try:
        return await kubernetes.ask("GET", path_of("Secret", namespace, name))
    except NotFound:
        return None
