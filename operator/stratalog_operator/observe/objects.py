"""Reads all objects of one cluster, past any cache, and asks the meta service within a deadline.

A list that cannot be read ends the pass. Only the meta service may fail to answer, and then the plan sees that. Lives
in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from stratalog.model.errors import NotFound, StratalogError
from stratalog_operator.kube.client import Forbidden, Kubernetes, path_of
from stratalog_operator.kube.together import together
from stratalog_operator.observe import parse
from stratalog_operator.observe.archive_runs import read_runs
from stratalog_operator.observe.certificates import read_certificates
from stratalog_operator.observe.known_users import KnownUsers
from stratalog_operator.observe.role_hashes import read_roles
from stratalog_operator.observe.shown_certificates import pods_that_show
from stratalog_operator.plan.deletion import is_going
from stratalog_operator.plan.etcd import needs_etcd_state
from stratalog_operator.plan.former_authorities import pods_to_prove
from stratalog_operator.plan.observed import (
    Observed,
    Seen,
    SeenClaim,
    SeenCluster,
    SeenEtcd,
    SeenMeta,
    SeenPod,
    SeenRebalance,
    Unread,
)
from stratalog_operator.plan.orphans import Orphan
from stratalog_operator.plan.requests import needs_rebalance_state
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.resources.archive_job import ArchiveJobSpec, ArchiveJobStatus
from stratalog_operator.resources.cluster import StorageClusterSpec, StorageClusterStatus
from stratalog_operator.resources.kinds import KINDS
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.names import LABEL_CLUSTER, LABEL_PART
from stratalog_operator.resources.node import StorageNodeSpec, StorageNodeStatus
from stratalog_operator.resources.pool import StorageNodePoolSpec, StorageNodePoolStatus
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from stratalog_operator.specs.certificate_secrets import uses_own_authority
from stratalog_operator.specs.certificates import member_cluster

SeenT = TypeVar("SeenT")

META_SECONDS: Final = 10.0
_INSTANCE: Final = "app.kubernetes.io/instance"
DEPENDENTS: Final = ("StorageNodePool", "StorageNode", "TopicStorage", "ReadOnlyMount", "StorageUser", "ArchiveJob")
"""Kinds that name their cluster."""
_MODELS: Final = {kind.name: (kind.spec, kind.status) for kind in KINDS}
_HASHED: Final = {
    "ConfigMap": _INSTANCE,
    "Service": _INSTANCE,
    "StatefulSet": _INSTANCE,
    # Kubernetes makes those of etcd from a template, and labels them by the selector alone.
    "PersistentVolumeClaim": LABEL_CLUSTER,
    "PodDisruptionBudget": _INSTANCE,
    "NetworkPolicy": _INSTANCE,
}
"""By which label the objects of a cluster are found, which carry the hash of what is wanted of them."""


class EtcdObserver(Protocol):
    """What the etcd that the operator runs for a cluster says of its members."""

    async def observe(self) -> SeenEtcd:
        """Raises: StratalogError where most members do not answer."""
        ...


class MetaObserver(Protocol):
    """What the meta service knows of a cluster."""

    async def observe(self) -> SeenMeta:
        """Raises: StratalogError where it does not answer."""
        ...

    async def observe_rebalance(self) -> SeenRebalance:
        """Reads all shards. Raises: StratalogError where it does not answer."""
        ...


async def observe(
    kubernetes: Kubernetes,
    namespace: str,
    name: str,
    meta: MetaObserver | None,
    now: str,
    version: str = "",
    etcd: EtcdObserver | None = None,
    token_trouble: str = "",
    known_users: KnownUsers | None = None,
    *,
    proves: bool = False,
) -> Observed:
    """`version` is the operator's. Without `meta` the meta service is not asked. `known_users` is kept from pass to
    pass; without it no Secret is read. `proves`: ask pods which certificates they show, if a former authority waits for
    it.

    Raises: NotFound when the StorageCluster is gone; Unreadable when this version cannot read the StorageCluster;
    Unavailable when a list could not be read. Cost: one round trip to
    Kubernetes (two where there are ArchiveJobs), its requests side by side, then those to the meta service."""
    async with together() as asked:
        ask = asked.create_task
        whole = ask(kubernetes.ask("GET", path_of("StorageCluster", namespace, name)))
        place = ask(kubernetes.ask("GET", path_of("Namespace", "", namespace)))
        has_token = ask(_is_there(kubernetes, path_of("Secret", namespace, f"{name}-token")))
        of_cluster = {kind: ask(_all(kubernetes, kind, namespace)) for kind in DEPENDENTS}
        labelled = {kind: ask(_all(kubernetes, kind, namespace, f"{label}={name}")) for kind, label in _HASHED.items()}
        # Pods of jobs come and go, in any number, and no plan rests on them.
        running = ask(_all(kubernetes, "Pod", namespace, f"{LABEL_CLUSTER}={name},{LABEL_PART}!=job"))
    pools, nodes, topics, mounts, users, jobs = [
        [one for one in of_cluster[kind].result() if _is_of(one, name)] for kind in DEPENDENTS
    ]
    found = {kind: task.result() for kind, task in labelled.items()}
    pods = tuple(parse.pod(one, now) for one in running.result())
    hashes, fields = parse.hashes("StorageNode", nodes), parse.fields("StorageNode", nodes)
    for kind, objects in {**found, "ReadOnlyMount": mounts}.items():
        hashes |= parse.hashes(kind, objects)
        fields |= parse.fields(kind, objects)
    unread: list[Unread] = []
    archive_jobs = _read("ArchiveJob", jobs, ArchiveJobSpec, ArchiveJobStatus, unread)
    of_jobs = await read_runs(kubernetes, namespace, name, archive_jobs)
    uids = {(kind, one["metadata"]["name"]): one["metadata"]["uid"] for kind in found for one in found[kind]}
    read_users, unread_users = (known_users or KnownUsers()).parse(users)
    unread += unread_users
    observed = Observed(
        namespace,
        now,
        parse.seen("StorageCluster", whole.result(), StorageClusterSpec, StorageClusterStatus),
        _read("StorageNodePool", pools, StorageNodePoolSpec, StorageNodePoolStatus, unread),
        _read("StorageNode", nodes, StorageNodeSpec, StorageNodeStatus, unread),
        _read("ReadOnlyMount", mounts, ReadOnlyMountSpec, ReadOnlyMountStatus, unread),
        {**hashes, **of_jobs.hashes},
        tuple(parse.stateful_set(one) for one in found["StatefulSet"]),
        pods,
        _claims(found["PersistentVolumeClaim"]),
        await _answered(meta.observe()) if meta is not None and _may_answer(pods, name) else None,
        has_token.result(),
        "deletionTimestamp" in place.result()["metadata"],
        version,
        topics=_read("TopicStorage", topics, TopicStorageSpec, TopicStorageStatus, unread),
        users=read_users,
        uids={**uids, **of_jobs.uids},
        fields={**fields, **of_jobs.fields},
        archive_jobs=archive_jobs,
        runs=of_jobs.runs,
        reports=of_jobs.reports,
        scheduled=of_jobs.scheduled,
        zones=of_jobs.zones,
        token_trouble=token_trouble,
        etcd_claims=_of_etcd(found["PersistentVolumeClaim"]),
    )
    observed = replace(observed, unread=tuple(unread), clock_ahead_seconds=kubernetes.clock_ahead_seconds)
    of_cluster_now = cluster_of(observed)
    if uses_own_authority(of_cluster_now) and not is_going(observed):
        observed = replace(observed, certificates=await read_certificates(kubernetes, of_cluster_now, now))
        issuer = None if observed.certificates is None else observed.certificates.authority.issuer
        if proves and issuer is not None and (pods_to_ask := pods_to_prove(observed)):
            proven = await pods_that_show(pods_to_ask, issuer, member_cluster(of_cluster_now))
            observed = replace(observed, proven_pods=proven)
    if of_cluster_now.has_internal_tls and not is_going(observed):
        observed = replace(observed, roles=await read_roles(kubernetes, of_cluster_now))
    if known_users is not None:
        observed = replace(observed, user_secrets=await known_users.read_secrets(kubernetes, observed))
        observed = replace(observed, settled_users=known_users.settled(observed))
    if meta is not None and needs_rebalance_state(observed):
        observed = replace(observed, rebalance=await _answered(meta.observe_rebalance()))
    if etcd is None or not needs_etcd_state(observed):
        return observed
    return replace(observed, etcd=await _answered(etcd.observe()))


async def observe_cluster(kubernetes: Kubernetes, namespace: str, name: str) -> SeenCluster:
    """Raises: NotFound when it is gone; Unreadable."""
    found = await kubernetes.ask("GET", path_of("StorageCluster", namespace, name))
    return parse.seen("StorageCluster", found, StorageClusterSpec, StorageClusterStatus)


async def observe_orphans(
    kubernetes: Kubernetes, namespace: str, name: str
) -> tuple[list[Orphan], tuple[SeenClaim, ...]]:
    """What names a StorageCluster that is not there."""
    async with together() as asked:
        of_cluster = {kind: asked.create_task(_all(kubernetes, kind, namespace)) for kind in DEPENDENTS}
        claims = asked.create_task(_all(kubernetes, "PersistentVolumeClaim", namespace, f"{LABEL_CLUSTER}={name}"))
    found: list[Orphan] = []
    for kind, task in of_cluster.items():
        spec, status = _MODELS[kind]
        unread: list[Unread] = []
        of_kind = [one for one in task.result() if _is_of(one, name)]
        found += ((kind, one) for one in _read(kind, of_kind, spec, status, unread))
        found += ((kind, one) for one in unread)
    return found, (*_claims(claims.result()), *_of_etcd(claims.result()))


def _read(
    kind: str,
    found: Iterable[dict[str, Any]],
    spec: type[parse.SpecT],
    status: type[parse.StatusT],
    unread: list[Unread],
) -> tuple[Seen[parse.SpecT, parse.StatusT], ...]:
    """Adds to `unread` what this version cannot read."""
    read = []
    for one in found:
        try:
            read.append(parse.seen(kind, one, spec, status))
        except parse.Unreadable as error:
            unread.append(error.about)
    return tuple(read)


def _claims(found: Iterable[dict[str, Any]]) -> tuple[SeenClaim, ...]:
    parsed = (parse.claim(one) for one in found)
    return tuple(one for one in parsed if one is not None)


def _of_etcd(found: Iterable[dict[str, Any]]) -> tuple[SeenClaim, ...]:
    parsed = (parse.etcd_claim(one) for one in found)
    return tuple(one for one in parsed if one is not None)


def _may_answer(pods: Iterable[SeenPod], cluster: str) -> bool:
    """Whether to wait for an answer: some pod of the meta service exists. A pod that is not ready may answer as
    well."""
    return any(pod.name.startswith(f"{cluster}-meta-") for pod in pods)


async def _answered(looking: Coroutine[Any, Any, SeenT]) -> SeenT | None:
    try:
        async with asyncio.timeout(META_SECONDS):
            return await looking
    except (StratalogError, TimeoutError):
        return None


async def _is_there(kubernetes: Kubernetes, path: str) -> bool:
    """An object that may not be read counts as existing, so that it is not created."""
    try:
        await kubernetes.ask("GET", path)
    except NotFound:
        return False
    except Forbidden:
        pass
    return True


async def _all(kubernetes: Kubernetes, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
    """All objects of a kind; none if the kind's definition was deleted, so that other kinds do not wait for it."""
    query = {"labelSelector": labels} if labels else {}
    try:
        answer = await kubernetes.ask("GET", path_of(kind, namespace), query=query)
    except NotFound:
        if kind in _MODELS:
            return []
        raise
    return list(answer["items"])


def _is_of(found: dict[str, Any], cluster: str) -> bool:
    """An object of another version's definition may have no such field."""
    return bool((found.get("spec") or {}).get("clusterRef") == cluster)
