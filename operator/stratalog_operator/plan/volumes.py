"""Volumes of retired nodes that are read where they are: the pod that reads one, and what becomes of it afterwards.

Pure. Source: docs/operator.md section 6.
"""

from __future__ import annotations

from stratalog.model.mounts import MountMode
from stratalog_operator.plan.actions import AddFinalizer, DropFinalizer, EndMount, Offer, ReleaseClaim, UnguardClaim
from stratalog_operator.plan.mounts import hand_mount, is_let_go
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenMount
from stratalog_operator.plan.retire import let_go
from stratalog_operator.plan.scope import apply_missing, cluster_of
from stratalog_operator.resources.mount import RetiredNodeSource
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.pool import Storage, StorageNodePoolSpec
from stratalog_operator.specs.node import NodeIdentity
from stratalog_operator.specs.volume import volume_objects


def mount_offer(seen: Observed, mount: SeenMount) -> Offer:
    """Of a ReadOnlyMount. While it is there its pod is; once it has ended its claim goes by policy."""
    by_hand = mount.spec.source.by_hand
    if by_hand is not None:
        return hand_mount(seen, mount, by_hand).offer
    source = mount.spec.source.retired_node
    if source is None or source.mode != "RemountVolume":
        return Offer()
    if mount.is_deleting:
        return _ended(seen, mount, source)
    offer = Offer()
    if FINALIZER not in mount.finalizers:
        offer.actions.append(AddFinalizer("ReadOnlyMount", mount.name))
    claim = claim_of(seen, source)
    if claim is None:
        return offer
    pool = seen.pool_named(claim.pool)
    # The pool may be gone by now: where the volume is decides where its reader goes.
    spec = StorageNodePoolSpec(cluster_ref=seen.cluster.name, storage=Storage(size="1")) if pool is None else pool.spec
    identity = NodeIdentity(source.node_id, claim.pool, claim.zone)
    wanted = volume_objects(cluster_of(seen), spec, identity, mount.name, mount.uid)
    offer.add(apply_missing(seen, wanted, f"the volume of node {source.node_id} stays readable"))
    return offer


def claim_of(seen: Observed, source: RetiredNodeSource) -> SeenClaim | None:
    """Of just that disk."""
    return next(
        (one for one in seen.claims if one.node_id == source.node_id and one.storage_id == source.storage_id), None
    )


def _ended(seen: Observed, mount: SeenMount, source: RetiredNodeSource) -> Offer:
    """The service refuses to end a mount that is the only way to something; until it has ended, the object waits."""
    if FINALIZER in mount.finalizers and (why := is_let_go(seen, mount)):
        # Its claim keeps its guard: nobody has said that nothing needs it.
        return Offer([DropFinalizer("ReadOnlyMount", mount.name, why)])
    claim = claim_of(seen, source)
    if claim is not None:
        if seen.meta is None:
            return Offer()
        served = seen.meta.mount_of(source.node_id)
        if served is not None and served.mode is MountMode.VOLUME:
            return Offer([EndMount(served.name)])
        record = seen.meta.retirement(source.node_id)
        if record is None or record.retirement.storage_id != source.storage_id:
            return Offer()
        offer = _by_policy(seen, claim, source)
        # A claim that is going stays for as long as the pod that reads it, and that goes with this object.
        if offer.actions or offer.disruptive or not (claim.is_released or claim.is_leaving):
            return offer
    if FINALIZER not in mount.finalizers:
        return Offer()
    return Offer([DropFinalizer("ReadOnlyMount", mount.name, "its mount has ended")])


def _by_policy(seen: Observed, claim: SeenClaim, source: RetiredNodeSource) -> Offer:
    if seen.cluster.spec.storage_retention.when_scaled == "Delete":
        return let_go(claim, f"node {source.node_id} is done, and the mount of its volume has ended")
    offer = Offer()
    if not claim.is_released:
        offer.actions.append(ReleaseClaim(claim.name, claim.uid))
    if claim.is_guarded:
        why = "the mount of its volume has ended"
        offer.actions.append(UnguardClaim(claim.name, claim.uid, keeps_volume=True, why=why))
    return offer
