"""Releases volumes: the only place that ends the guard of a claim, deletes a claim, or stops the pod that uses it.

Every release rests on a `Grant`, and each function below that returns one names its proof:

    retired disk   the meta service lists this node and this disk as done, and no mount needs the volume
    never joined   no member and no retirement has this id, and no disk was ever noted for the node or its claim
    cluster gone   a person deleted the cluster or the namespace; the policy decides
    person         an annotation on a deleted claim gives up its disk

A timer, a missing record and an empty answer prove nothing. A retirement by force does not prove that the volume is not
needed: its claim is kept, whatever the policy says.
Invariant: no other module of the plan makes an UnguardClaim, a ReleaseClaim, a DeleteClaim or a StopSet.

Pure. Source: docs/operator.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratalog.model.mounts import MountMode
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog_operator.plan.actions import DeleteClaim, DeleteObject, Offer, ReleaseClaim, StopSet, UnguardClaim
from stratalog_operator.plan.decisions import is_given_up
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenMount, SeenNode
from stratalog_operator.plan.scope import cluster_id
from stratalog_operator.resources.mount import RetiredNodeSource
from stratalog_operator.specs.node import claim_name, node_name


class Fate(Enum):
    """What becomes of a claim whose guard ends. Closed."""

    DELETED = "the claim is deleted, and its volume follows its own policy"
    KEPT = "claim and volume stay, labelled as released"
    UNGUARDED = "only the guard goes, and the volume stays"


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to end the guard of a claim."""

    fate: Fate
    why: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """No proof yet."""

    reason: str
    """One word, for a condition."""
    words: str


# Proofs ---------------------------------------------------------------------------------------------------------------
def of_retired_disk(seen: Observed, node_id: int, storage_id: str) -> Grant | Refusal:
    """That nothing needs the volume of this disk. The caller finds its claim by `claim_of_disk`."""
    if seen.meta is None:
        return Refusal(
            WaitReason.META_UNREACHABLE, "the meta service does not answer: it is unknown what needs the volume"
        )
    record = seen.meta.retirement(node_id)
    if record is None or not storage_id or record.retirement.storage_id != storage_id:
        words = f"the meta service does not list disk {storage_id or 'unknown'} of node {node_id} as retired"
        return Refusal("VolumePending", words)
    retirement = record.retirement
    if retirement.step is not RetireStep.DONE:
        return Refusal("VolumePending", f"the retirement of node {node_id} is at step {retirement.step}, not done")
    mount = seen.meta.mount_of(node_id)
    if mount is not None and mount.mode is MountMode.VOLUME:
        return Refusal("VolumePending", f"mount {mount.name} reads the volume of node {node_id}")
    if retirement.mode is RetireMode.VOLUME and (readers := readers_of(seen, node_id, storage_id)):
        return Refusal("VolumePending", f"ReadOnlyMount {readers[0].name} names the volume of node {node_id}")
    if retirement.is_forced or retirement.given_up_count:
        # A force ends when the node comes back, and what was given up by then may be on its disk only.
        why = f"data of node {node_id} were given up by force, and its disk may have the only copy of them"
        return Grant(Fate.KEPT, why)
    if seen.cluster.spec.storage_retention.when_scaled == "Retain":
        return Grant(Fate.KEPT, f"node {node_id} has left, and nothing needs its volume")
    return Grant(Fate.DELETED, f"node {node_id} has left, and nothing needs its volume")


def of_node_that_never_joined(seen: Observed, node: SeenNode, claim: SeenClaim | None) -> Grant | Refusal:
    """That the node never had anything. A node that was known once is another matter."""
    node_id = node.spec.node_id
    if seen.meta is None:
        return Refusal(WaitReason.META_UNREACHABLE, f"the meta service does not answer: node {node_id} may have joined")
    is_known = seen.meta.node(node_id) is not None or seen.meta.retirement(node_id) is not None
    if is_known or node.status.identity.storage_id or (claim is not None and claim.storage_id):
        words = "the meta service does not know this node, which had registered: nothing of it is taken away"
        return Refusal("UnknownNode", words)
    return Grant(Fate.DELETED, "its node never joined")


def of_deleted_cluster(seen: Observed, claim: SeenClaim, *, takes_volumes: bool) -> Grant:
    """By the person who deleted the cluster or the namespace. That a cluster goes with its volumes says nothing of a
    claim whose disk belongs to an earlier cluster of the same name."""
    why = f"cluster {seen.cluster.name} is deleted, and its volumes {'go' if takes_volumes else 'stay'}"
    if claim.cluster_id and claim.cluster_id != cluster_id(seen):
        return Grant(Fate.UNGUARDED, f"{why}; this claim has a disk of cluster {claim.cluster_id}")
    return Grant(Fate.DELETED if takes_volumes else Fate.UNGUARDED, why)


def of_missing_cluster(cluster: str) -> Grant:
    """For a claim that someone deleted: nothing is left that could need it."""
    return Grant(Fate.UNGUARDED, f"StorageCluster {cluster} does not exist")


def by_person(claim: SeenClaim) -> Grant | None:
    """The annotation on a claim that someone deleted."""
    return Grant(Fate.UNGUARDED, "a person gave it up by the annotation") if is_given_up(claim) else None


# What follows ---------------------------------------------------------------------------------------------------------
def released(claim: SeenClaim, grant: Grant) -> Offer:
    """Empty once there is nothing left to do. The guard goes in one pass and the claim in the next: everything is
    checked again between the two."""
    offer = Offer()
    if grant.fate is Fate.KEPT and not claim.is_released:
        offer.actions.append(ReleaseClaim(claim.name, claim.uid))
    if claim.is_held:
        keeps = grant.fate is not Fate.DELETED
        offer.actions.append(UnguardClaim(claim.name, claim.uid, keeps_volume=keeps, why=grant.why))
    elif grant.fate is Fate.DELETED and not claim.is_leaving:
        offer.disruptive.append(DeleteClaim(claim.name, claim.uid, grant.why))
    return offer


def released_by_persons(seen: Observed) -> Offer:
    """Claims that people deleted and gave up: of nodes, with or without a StorageNode, and of etcd."""
    offer = Offer()
    for claim in (*seen.claims, *seen.etcd_claims):
        if claim.is_held and (grant := by_person(claim)) is not None:
            offer.add(released(claim, grant))
    return offer


@dataclass(frozen=True, slots=True)
class Stopping:
    """The pod of a node that has left is on its way out."""

    offer: Offer
    words: str


def stopped(seen: Observed, node: SeenNode) -> Stopping | Refusal | None:
    """None once its pod is gone and does not come back."""
    why = _why_it_may_stop(seen, node)
    if isinstance(why, Refusal):
        return why
    name = node_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id)
    found, pod = seen.set_named(name), seen.pod_named(f"{name}-0")
    if found is not None and found.replicas:
        return Stopping(Offer(disruptive=[StopSet(name, found.uid, why)]), f"pod {name}-0 is to stop")
    if pod is not None:
        return Stopping(Offer(), f"pod {pod.name} is stopping")
    if found is not None:
        return Stopping(Offer([DeleteObject("StatefulSet", name, found.uid, why)]), "its pod has gone")
    return None


def _why_it_may_stop(seen: Observed, node: SeenNode) -> str | Refusal:
    record = None if seen.meta is None else seen.meta.retirement(node.spec.node_id)
    claim = claim_of_node(seen, node)
    if record is not None and record.retirement.step.is_released:
        storage_id = record.retirement.storage_id
        known = {node.status.identity.storage_id, "" if claim is None else claim.storage_id} - {""}
        if known <= {storage_id}:
            return "it has left, and does not serve any more"
        others = ", ".join(sorted(known - {storage_id}))
        return Refusal("IdentityChanged", f"disk {storage_id} was retired, and this node has disk {others}")
    grant = of_node_that_never_joined(seen, node, claim)
    return "it never joined, and is not wanted any more" if isinstance(grant, Grant) else grant


# Which volume ---------------------------------------------------------------------------------------------------------
def claim_of_node(seen: Observed, node: SeenNode) -> SeenClaim | None:
    return seen.claim_named(claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id))


def claim_of_disk(seen: Observed, node_id: int, storage_id: str) -> SeenClaim | None:
    """The claim that has exactly this disk."""
    return next((one for one in seen.claims if one.node_id == node_id and one.storage_id == storage_id), None)


def readers_of(seen: Observed, node_id: int, storage_id: str) -> list[SeenMount]:
    """ReadOnlyMounts that read the volume of this disk in place and are not being deleted."""
    return [one for one in seen.mounts if not one.is_deleting and _reads(one, node_id, storage_id)]


def _reads(one: SeenMount, node_id: int, storage_id: str) -> bool:
    source = one.spec.source.retired_node
    return (
        source is not None
        and source.mode == "RemountVolume"
        and (source.node_id, source.storage_id)
        == (
            node_id,
            storage_id,
        )
    )


def is_mount_over(seen: Observed, node_id: int, storage_id: str) -> bool:
    """The volume of a retired node was mounted, and is not any more. While its retirement is not done, the mount may
    still come."""
    assert seen.meta is not None, "the meta service lists the mounts"
    record = seen.meta.retirement(node_id)
    if record is None or record.retirement.storage_id != storage_id or record.retirement.step is not RetireStep.DONE:
        return False
    mount = seen.meta.mount_of(node_id)
    return mount is None or mount.mode is not MountMode.VOLUME


def source_of(mount: SeenMount) -> RetiredNodeSource | None:
    """The retired disk that a ReadOnlyMount reads in place; None for every other kind of mount."""
    source = mount.spec.source.retired_node
    return source if source is not None and source.mode == "RemountVolume" else None
