"""Deletes a cluster. The plan asks no process, so it waits for none.

Claims are deleted or kept by policy; all objects lose the operator's finalizer; Kubernetes deletes the rest with their
owner.

Pure. Source: docs/operator.md section 7.
"""

from __future__ import annotations

from stratalog_operator.plan.actions import DeleteObject, DropFinalizer, Offer
from stratalog_operator.plan.decisions import allow_deletion_words, may_volumes_go
from stratalog_operator.plan.observed import Observed, SeenCluster
from stratalog_operator.plan.release import of_deleted_cluster, released
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER


def is_going(seen: Observed) -> bool:
    return seen.cluster.is_deleting or seen.is_namespace_leaving


def why_refused(cluster: SeenCluster) -> str:
    """A deletion that takes data along wants a second word."""
    if cluster.spec.storage_retention.when_deleted == "Retain":
        return ""
    if may_volumes_go(cluster):
        return ""
    return (
        f"whenDeleted is Delete, so the volumes go with the cluster: {allow_deletion_words(cluster)}, or set "
        "storageRetention.whenDeleted to Retain"
    )


def deletion(seen: Observed) -> Offer:
    cluster = seen.cluster
    offer = Offer()
    refused = "" if seen.is_namespace_leaving else why_refused(cluster)
    if refused and not _is_let_go(cluster):
        return offer
    # Who lets the object go by the annotation has not said that its volumes may go.
    takes_volumes = cluster.spec.storage_retention.when_deleted == "Delete" and not seen.is_namespace_leaving
    takes_volumes = takes_volumes and not refused
    for kind, name, finalizers in _guarded_objects(seen):
        if FINALIZER in finalizers:
            offer.actions.append(DropFinalizer(kind, name, f"cluster {cluster.name} is deleted"))
    for (kind, name), uid in seen.uids.items():
        if kind == "CronJob" and not seen.is_namespace_leaving:
            # It belongs to its ArchiveJob, which stays: without the cluster there is nothing to run for.
            offer.actions.append(DeleteObject(kind, name, uid, f"cluster {cluster.name} is deleted"))
    claims = Offer()
    for claim in (*seen.claims, *seen.etcd_claims):
        claims.add(released(claim, of_deleted_cluster(seen, claim, takes_volumes=takes_volumes)))
    offer.add(claims)
    # The deletion of a namespace does not wait and may end the operator, too, so one pass releases everything. What it
    # fails to release becomes an orphan, because the claims are being deleted as well.
    is_done = seen.is_namespace_leaving or not (claims.actions or claims.disruptive)
    if FINALIZER in cluster.finalizers and (is_done or _is_let_go(cluster)):
        offer.actions.append(DropFinalizer("StorageCluster", cluster.name, f"cluster {cluster.name} is deleted"))
    return offer


def _is_let_go(cluster: SeenCluster) -> bool:
    return cluster.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true"


def _guarded_objects(seen: Observed) -> list[tuple[str, str, frozenset[str]]]:
    pools = [("StorageNodePool", pool.name, pool.finalizers) for pool in seen.pools]
    mounts = [("ReadOnlyMount", mount.name, mount.finalizers) for mount in seen.mounts]
    topics = [("TopicStorage", topic.name, topic.finalizers) for topic in seen.topics]
    users = [("StorageUser", user.name, user.finalizers) for user in seen.users]
    unread = [(one.kind, one.name, one.finalizers) for one in seen.unread]
    return [*pools, *mounts, *topics, *users, *unread]
