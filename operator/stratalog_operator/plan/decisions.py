"""Decisions that a person makes once, by an annotation: each names the event that it is about, and is used up by it.

An annotation that stays on its object would decide again at the next event of the kind, without the person. So a
decision that matches nothing is not followed: it is removed and reported (as is one that was used), with the value that
would match. What such a value names:

    force-retire-ack    a StorageNode    STORAGE-ID@ABSENCE: the disk, and the present absence of its node
    disk-lost-ack       a StorageNode    the storage id of the disk that its claim had before another one
    release-finalizer   a claim          the storage id of its disk, or the claim's UID; only once it is being deleted
    allow-deletion      a StorageCluster its UID: a cluster that is made again is another one

`release-finalizer: "true"` on one of the operator's own objects gives up no data, and disappears with the object.

Pure. Source: docs/operator.md section 7.
"""

from __future__ import annotations

from stratalog.model.metadata import Node
from stratalog.model.retirement import WaitReason
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog_operator.plan.actions import AskRetire, DropDecision, NoteDisk, Offer
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenCluster, SeenNode
from stratalog_operator.resources.names import (
    ANNOTATION_ALLOW_DELETION,
    ANNOTATION_DISK_LOST,
    ANNOTATION_FORCE_RETIRE,
    ANNOTATION_RELEASE_FINALIZER,
)
from stratalog_operator.specs.node import claim_name

_ENDED_BY_FORCE = (WaitReason.LAST_COPY_LOST, WaitReason.SHARD_UNAVAILABLE)


# Giving up what only a lost node had ----------------------------------------------------------------------------------
def force_value(member: Node) -> str:
    """What the annotation says to give up the disk of a node that is lost now."""
    return f"{member.storage_id}@{member.absences}"


def force_words(node: SeenNode, member: Node | None, record: RetirementStatus) -> str:
    """How a person ends the wait of a lost node; empty where nothing has to be given up."""
    about = record.retirement
    if member is None or member.is_alive or about.is_forced or about.wait is None:
        return ""
    if about.wait.reason not in _ENDED_BY_FORCE:
        return ""
    return (
        f"; in Kubernetes: kubectl annotate snode {node.name} --overwrite "
        f"{ANNOTATION_FORCE_RETIRE}={force_value(member)}"
    )


def forced(seen: Observed, node: SeenNode) -> Offer:
    """Follow the decision of a person to give up the disk of this node, once, or remove it."""
    value = node.annotations.get(ANNOTATION_FORCE_RETIRE)
    if value is None or seen.meta is None:
        return Offer()
    member, record = seen.meta.node(node.spec.node_id), seen.meta.retirement(node.spec.node_id)
    if member is None or member.is_alive or value != force_value(member):
        return Offer([_drop_force(node, is_used=False, why=_why_force_is_stale(node, member, value))])
    if record is None:
        if node.spec.retire:
            return Offer()  # its retirement is requested first
        words = f"node {node.spec.node_id} is not to leave: set spec.retire first, so nothing was given up"
        return Offer([_drop_force(node, is_used=False, why=words)])
    about = record.retirement
    if about.is_forced or about.step.is_released:
        why = f"what only disk {about.storage_id} of node {record.node_id} has was given up"
        return Offer([_drop_force(node, is_used=True, why=why)])
    return Offer([AskRetire(record.node_id, about.mode, about.storage_id, member.absences)])


def _why_force_is_stale(node: SeenNode, member: Node | None, value: str) -> str:
    ignored = f"{ANNOTATION_FORCE_RETIRE}={value:.200} was ignored, and nothing was given up: "
    if member is None:
        return f"{ignored}the meta service does not know node {node.spec.node_id}"
    if member.is_alive:
        return f"{ignored}node {member.node_id} is alive"
    return f"{ignored}node {member.node_id} is lost as {force_value(member)} now; decide again with that value"


def _drop_force(node: SeenNode, *, is_used: bool, why: str) -> DropDecision:
    return DropDecision("StorageNode", node.name, node.uid, ANNOTATION_FORCE_RETIRE, is_used, why)


# Going on with another disk under the same claim ----------------------------------------------------------------------
def disk_lost(seen: Observed, node: SeenNode) -> Offer:
    """Follow the decision of a person that the first disk of a claim is lost, once, or remove it."""
    value = node.annotations.get(ANNOTATION_DISK_LOST)
    if value is None or seen.meta is None:
        return Offer()
    member = seen.meta.node(node.spec.node_id)
    claim = seen.claim_named(claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id))
    is_exchanged = claim is not None and member is not None and claim.storage_id not in ("", member.storage_id)
    if claim is None or member is None or not is_exchanged or value != claim.storage_id:
        why = f"{ANNOTATION_DISK_LOST}={value:.200} was ignored: the volume of this node did not change from that disk"
        return Offer([DropDecision("StorageNode", node.name, node.uid, ANNOTATION_DISK_LOST, is_used=False, why=why)])
    if not member.is_alive:
        return Offer()  # the first disk may be what comes back
    note = NoteDisk(claim.name, claim.uid, member.storage_id, seen.meta.cluster_id)
    why = f"disk {value} of claim {claim.name} is lost; the node continues with disk {member.storage_id}"
    drop = DropDecision("StorageNode", node.name, node.uid, ANNOTATION_DISK_LOST, is_used=True, why=why)
    return Offer([note, drop])


# Releasing a claim that may have the last copy ------------------------------------------------------------------------
def release_value(claim: SeenClaim) -> str:
    """What the annotation says to give up the disk of a claim that is being deleted."""
    return claim.storage_id or claim.uid


def is_given_up(claim: SeenClaim) -> bool:
    return claim.is_leaving and claim.release_word == release_value(claim)


def stale_releases(seen: Observed) -> Offer:
    """Decisions on claims that are about nothing."""
    offer = Offer()
    for claim in (*seen.claims, *seen.etcd_claims):
        if not claim.release_word or is_given_up(claim):
            continue
        why = f"{ANNOTATION_RELEASE_FINALIZER}={claim.release_word:.200} on claim {claim.name} was ignored: "
        if claim.is_leaving:
            why += f"to give up what only its disk has, the value is {release_value(claim)}"
        else:
            why += "the claim is not being deleted; delete it first, then annotate it"
        kind, annotation = "PersistentVolumeClaim", ANNOTATION_RELEASE_FINALIZER
        offer.actions.append(DropDecision(kind, claim.name, claim.uid, annotation, is_used=False, why=why))
    return offer


# Deleting a cluster with its volumes ----------------------------------------------------------------------------------
def may_volumes_go(cluster: SeenCluster) -> bool:
    return cluster.annotations.get(ANNOTATION_ALLOW_DELETION) == cluster.uid


def allow_deletion_words(cluster: SeenCluster) -> str:
    annotation = cluster.annotations.get(ANNOTATION_ALLOW_DELETION)
    other = "" if annotation is None else f" ({annotation:.80} does not name this cluster)"
    return f"annotate it with {ANNOTATION_ALLOW_DELETION}={cluster.uid}{other}"
