"""What a storage node needs to run: its claim, the guard on it, its StatefulSet, its ports for clients outside.

Pure. Source: docs/operator.md sections 5 and 6.
"""

from __future__ import annotations

from typing import Final

from stratalog_operator.plan.actions import Apply, NoteDisk, Offer
from stratalog_operator.plan.decisions import release_value
from stratalog_operator.plan.guards import guarding
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenNode, SeenPool
from stratalog_operator.plan.scope import apply_missing, cluster_of, identity_of, is_released, why_invalid
from stratalog_operator.resources.names import ANNOTATION_DISK_LOST, ANNOTATION_RELEASE_FINALIZER
from stratalog_operator.specs.client_services import outside_of_node
from stratalog_operator.specs.node import claim_name, node_claim, node_set, outside_listeners
from stratalog_operator.specs.objects import Manifest

_AFTER_SERVING: Final = ("Release", "PodStop", "Remount", "Mount", "Volume", "Done")
"""Steps after which a node serves no longer. While the meta service does not answer, the last reported step counts."""


def node_offer(seen: Observed, pool: SeenPool, node: SeenNode) -> Offer:
    """Actions for a node that stays, or is leaving and still serves. A node whose object a user deletes is made again
    afterwards."""
    offer = Offer()
    if node.is_deleting or is_past_serving(seen, node):
        return offer
    cluster, identity = cluster_of(seen), identity_of(node)
    name = claim_name(cluster.name, identity.pool, identity.node_id)
    claim = seen.claim_named(name)
    if claim is not None and claim.is_leaving:
        # A new claim of that name would be an empty disk under an old identity.
        return guarding(claim)
    if (claim is None and not may_have_new_claim(seen, node)) or (claim is not None and is_another(node, claim)):
        return offer
    manifests: list[Manifest] = [node_claim(cluster, pool.spec, identity)]
    if not why_invalid(seen):
        listeners = outside_listeners(cluster)
        manifests += [outside_of_node(cluster, listener, identity, node.uid) for listener in listeners]
    wanted_set = node_set(cluster, pool.spec, identity)
    if claim is not None:
        # Its pod would mount whatever has the name of the claim, a person's own as well.
        manifests.append(wanted_set)
    offer.add(apply_missing(seen, manifests, f"node {identity.node_id} of pool {pool.name}"))
    stopped = seen.set_named(node.name)
    if stopped is not None and not stopped.replicas and wanted_set not in _applied(offer):
        # It was stopped because it had never joined, and it joined in that moment.
        offer.actions.append(Apply(wanted_set, "its pod is to run again"))
    if claim is None:
        return offer
    offer.add(guarding(claim))
    member = None if seen.meta is None else seen.meta.node(identity.node_id)
    if seen.meta is not None and member is not None and not claim.storage_id and member.is_alive:
        offer.actions.append(NoteDisk(name, claim.uid, member.storage_id, seen.meta.cluster_id))
    return offer


def _applied(offer: Offer) -> list[Manifest]:
    return [action.manifest for action in offer.actions if isinstance(action, Apply)]


def may_have_new_claim(seen: Observed, node: SeenNode) -> bool:
    """Whether a claim that is not there was never there: an empty disk must not pass for that of a node that joined."""
    if node.status.identity.storage_id:
        return False
    if seen.meta is None:
        return seen.set_named(node.name) is None  # the claim is made before the StatefulSet
    return seen.meta.node(node.spec.node_id) is None and seen.meta.retirement(node.spec.node_id) is None


def is_another(node: SeenNode, claim: SeenClaim) -> bool:
    """The name is the one of the claim that the node registered with, and it is not that claim: its disk is lost, and
    an empty one must not pass for it. One that was restored from a backup says so by its note."""
    known = node.status.identity
    is_known = bool(known.storage_id and known.claim_uid)
    return is_known and claim.uid != known.claim_uid and claim.storage_id != known.storage_id


def is_past_serving(seen: Observed, node: SeenNode) -> bool:
    """Its pod is to run no more: what stops and takes away is the retirement's."""
    if is_released(seen, node.spec.node_id):
        return True
    if seen.meta is None:
        retirement = node.status.retirement
        return retirement is not None and retirement.step in _AFTER_SERVING
    has_joined = bool(node.status.identity.storage_id) or seen.meta.node(node.spec.node_id) is not None
    return node.spec.retire and not has_joined


def lost_claim(seen: Observed, node: SeenNode) -> str | None:
    """Why the node has no volume that it may use; None while it has, or never had one."""
    name = claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id)
    claim = seen.claim_named(name)
    if claim is not None and claim.is_leaving and not claim.is_held:
        return f"claim {name} was deleted, and nothing holds it back: it goes as soon as its pod stops; retire the node"
    if claim is not None and claim.is_leaving:
        return (
            f"claim {name} was deleted and is held back, because it may be the only copy of something: retire the "
            "node, then it goes; or annotate the claim to give it up: kubectl annotate pvc "
            f"{name} --overwrite {ANNOTATION_RELEASE_FINALIZER}={release_value(claim)}"
        )
    if claim is not None and is_another(node, claim):
        return (
            f"claim {name} is another one than that of disk {node.status.identity.storage_id}, which is gone: retire "
            "the node, and what no other node has is named"
        )
    if claim is None and not may_have_new_claim(seen, node):
        return (
            f"claim {name} is gone, which had disk {node.status.identity.storage_id or 'unknown'}: no empty one is "
            "made in its place; retire the node, and what no other node has is named"
        )
    return exchanged_disk(seen, node)


def exchanged_disk(seen: Observed, node: SeenNode) -> str | None:
    """Why the disk under the node's claim is not the one that it had; None while it is."""
    claim = seen.claim_named(claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id))
    member = None if seen.meta is None else seen.meta.node(node.spec.node_id)
    if claim is None or member is None or not claim.storage_id or member.storage_id == claim.storage_id:
        return None
    return (
        f"claim {claim.name} has disk {claim.storage_id}, and node {member.node_id} registered with another one, "
        f"{member.storage_id}: the volume is empty, was exchanged, or is not mounted where it was. Bring the first "
        "disk back and restart the pod; or, if that disk is lost for good, continue with the new one: kubectl annotate "
        f"snode {node.name} --overwrite {ANNOTATION_DISK_LOST}={claim.storage_id}"
    )
