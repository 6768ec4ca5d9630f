"""Reads all objects of one cluster, past any cache, and asks the meta service within a deadline.

A list that cannot be read ends the pass: only the meta service may be silent, and then the plan is told that it was.
Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from stratalog.model.errors import StratalogError
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.observe import parse
from stratalog_operator.plan.observed import Observed, SeenMeta
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.names import LABEL_CLUSTER
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus

META_SECONDS: Final = 10.0
_INSTANCE: Final = "app.kubernetes.io/instance"
_HASHED: Final = ("ConfigMap", "Service", "StatefulSet", "PersistentVolumeClaim", "PodDisruptionBudget")


class MetaSight(Protocol):
    """What the meta service knows of a cluster."""

    async def look(self) -> SeenMeta:
        """Raises: StratalogError where it does not answer."""
        ...


async def observe(kubernetes: Kubernetes, namespace: str, name: str, meta: MetaSight, now: str) -> Observed:
    """Raises: NotFound when the StorageCluster is gone; Unavailable when a list could not be read."""
    cluster = await kubernetes.ask("GET", path_of("StorageCluster", namespace, name))
    place = await kubernetes.ask("GET", path_of("Namespace", "", namespace))
    pools = [one for one in await _all(kubernetes, "StorageNodePool", namespace) if _is_of(one, name)]
    nodes = [one for one in await _all(kubernetes, "StorageNode", namespace) if _is_of(one, name)]
    mounts = [one for one in await _all(kubernetes, "ReadOnlyMount", namespace) if _is_of(one, name)]
    found = {kind: await _all(kubernetes, kind, namespace, f"{_INSTANCE}={name}") for kind in _HASHED}
    pods = await _all(kubernetes, "Pod", namespace, f"{LABEL_CLUSTER}={name}")
    tokens = await _all(kubernetes, "Secret", namespace, f"{_INSTANCE}={name}")
    hashes = {**parse.hashes("StorageNode", nodes), **parse.hashes("ReadOnlyMount", mounts)}
    for kind, objects in found.items():
        hashes |= parse.hashes(kind, objects)
    claims = (parse.claim(one) for one in found["PersistentVolumeClaim"])
    return Observed(
        namespace,
        now,
        parse.seen(cluster, StorageClusterSpec, StorageClusterStatus),
        tuple(parse.seen(one, StorageNodePoolSpec, StorageNodePoolStatus) for one in pools),
        tuple(parse.seen(one, StorageNodeSpec, StorageNodeStatus) for one in nodes),
        tuple(parse.seen(one, ReadOnlyMountSpec, ReadOnlyMountStatus) for one in mounts),
        hashes,
        tuple(parse.stateful_set(one) for one in found["StatefulSet"]),
        tuple(parse.pod(one, now) for one in pods),
        tuple(one for one in claims if one is not None),
        await _asked(meta),
        any(one["metadata"]["name"] == f"{name}-token" for one in tokens),
        "deletionTimestamp" in place["metadata"],
    )


async def _asked(meta: MetaSight) -> SeenMeta | None:
    try:
        async with asyncio.timeout(META_SECONDS):
            return await meta.look()
    except (StratalogError, TimeoutError):
        return None


async def _all(kubernetes: Kubernetes, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
    query = {"labelSelector": labels} if labels else {}
    answer = await kubernetes.ask("GET", path_of(kind, namespace), query=query)
    return list(answer["items"])


def _is_of(found: dict[str, Any], cluster: str) -> bool:
    return bool(found["spec"]["clusterRef"] == cluster)
