"""Volumes of retired nodes that are read where they are: the pod that reads one, and what becomes of it afterwards.

A ReadOnlyMount reads a volume only once the meta service has released that node and that disk in volume mode: until
then the node itself uses the volume. Of several ReadOnlyMounts that name one disk, one reads it.

Pure. Source: docs/operator.md section 6.
"""

from __future__ import annotations

from stratalog.model.mounts import MountMode, MountState
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog_operator.plan import release
from stratalog_operator.plan.actions import AddFinalizer, Apply, DropFinalizer, EndMount, Offer
from stratalog_operator.plan.declared.mounts import is_let_go, user_mount
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenMount, SeenPod
from stratalog_operator.plan.scope import apply_missing, cluster_of
from stratalog_operator.resources.mount import RetiredNodeSource
from stratalog_operator.resources.names import API_VERSION, FINALIZER
from stratalog_operator.resources.pool import Storage, StorageNodePoolSpec
from stratalog_operator.specs.node import NodeIdentity, node_name
from stratalog_operator.specs.objects import Manifest, wanted
from stratalog_operator.specs.volume import volume_name, volume_objects


def mount_offer(seen: Observed, mount: SeenMount) -> Offer:
    """Of a ReadOnlyMount. While it is there its pod is; once it has ended its claim is released."""
    by_hand = mount.spec.source.by_hand
    if by_hand is not None:
        return user_mount(seen, mount, by_hand).offer
    source = release.source_of(mount)
    if source is None:
        return Offer()
    if mount.is_deleting:
        return _ended(seen, mount, source)
    offer = Offer()
    if FINALIZER not in mount.finalizers:
        offer.actions.append(AddFinalizer("ReadOnlyMount", mount.name))
    offer.add(apply_missing(seen, reader_objects(seen, mount), f"the volume of node {source.node_id} stays readable"))
    return offer


def reader_objects(seen: Observed, mount: SeenMount) -> list[Manifest]:
    """The Service and, as the last one, the StatefulSet that read a retired volume for this object; none while nothing
    is to read it."""
    source = release.source_of(mount)
    claim = None if source is None else release.claim_of_disk(seen, source.node_id, source.storage_id)
    if source is None or claim is None or mount.is_deleting or why_not_read(seen, mount, source):
        return []
    pool = seen.pool_named(claim.pool)
    # The pool may be gone by now: where the volume is decides where its reader goes.
    spec = StorageNodePoolSpec(cluster_ref=seen.cluster.name, storage=Storage(size="1")) if pool is None else pool.spec
    identity = NodeIdentity(source.node_id, claim.pool, claim.zone)
    return volume_objects(cluster_of(seen), spec, identity, mount.name, mount.uid)


def reader_pod(seen: Observed, source: RetiredNodeSource) -> SeenPod | None:
    """The pod that reads the volume; None while there is none."""
    claim = release.claim_of_disk(seen, source.node_id, source.storage_id)
    return None if claim is None else seen.pod_named(f"{_reader(seen, claim)}-0")


def missing_readers(seen: Observed) -> Offer:
    """A mounted volume has a ReadOnlyMount: one that was deleted while the meta service did not answer left a mount
    that nothing serves. It is made again, as long as the service lists the mount."""
    offer = Offer()
    if seen.meta is None:
        return offer
    known = {node.spec.node_id for node in seen.nodes}
    named = {(one.node_id, one.storage_id) for one in map(release.source_of, seen.mounts) if one is not None}
    for mount in seen.meta.mounts:
        claim = release.claim_of_disk(seen, mount.node_id, mount.storage_id)
        if mount.mode is not MountMode.VOLUME or claim is None or mount.node_id in known:
            continue
        if (mount.node_id, mount.storage_id) not in named:
            name = node_name(seen.cluster.name, claim.pool, claim.node_id)
            again = mount_object(seen, name, mount.node_id, mount.storage_id)
            offer.actions.append(Apply(again, f"mount {mount.name} has no ReadOnlyMount"))
    return offer


def unserved(seen: Observed) -> tuple[str, ...]:
    """Mounted volumes whose data cannot be read now, in words. A volume that is being mounted first is its
    retirement's to report."""
    if seen.meta is None:
        return ()
    found = []
    for mount in seen.meta.mounts:
        record = seen.meta.retirement(mount.node_id)
        is_done = record is not None and record.retirement.step is RetireStep.DONE
        if mount.mode is MountMode.VOLUME and is_done and mount.state is not MountState.SERVING:
            why = "no pod reads it" if mount.volume is None else f"it is {mount.state.value}"
            found.append(f"mount {mount.name}, the volume of retired node {mount.node_id}, is not served: {why}")
    return tuple(found)


def mount_object(seen: Observed, name: str, node_id: int, storage_id: str) -> Manifest:
    """The ReadOnlyMount that the operator makes for the volume of a retired node. `name` is that of its StorageNode."""
    cluster = cluster_of(seen)
    source: Manifest = {"nodeId": node_id, "storageId": storage_id, "mode": "RemountVolume"}
    body: Manifest = {"spec": {"clusterRef": cluster.name, "source": {"retiredNode": source}}}
    return wanted(API_VERSION, "ReadOnlyMount", name, cluster, {}, body, owner=cluster.owner())


def why_not_read(seen: Observed, mount: SeenMount, source: RetiredNodeSource) -> str:
    """Why no pod reads the volume for this object, in words; empty when one does, or should."""
    claim = release.claim_of_disk(seen, source.node_id, source.storage_id)
    if seen.meta is None:
        # What runs already was right when it was started.
        is_running = claim is not None and seen.set_named(_reader(seen, claim)) is not None
        return "" if is_running else "the meta service does not answer: it is unknown whether the node is retired"
    refused = why_refused(seen, mount, source)
    if refused is not None:
        return refused.words
    if release.is_mount_over(seen, source.node_id, source.storage_id):
        return f"the mount of node {source.node_id} has ended: delete this object"
    if claim is None:
        return f"there is no volume claim with disk {source.storage_id} of node {source.node_id}"
    name = node_name(seen.cluster.name, claim.pool, claim.node_id)
    if seen.pod_named(f"{name}-0") is not None:
        return f"pod {name}-0 still uses the volume"
    return ""


def why_refused(seen: Observed, mount: SeenMount, source: RetiredNodeSource) -> release.Refusal | None:
    """Why the object asks for what cannot be (yet), by the word of the meta service; None when it can."""
    assert seen.meta is not None, "it knows which nodes are retired"
    record = seen.meta.retirement(source.node_id)
    node = seen.meta.node(source.node_id)
    if node is None and record is None:
        return release.Refusal("InvalidSpec", f"there was never a node {source.node_id}")
    known = record.retirement.storage_id if record is not None else node.storage_id if node is not None else ""
    if known != source.storage_id:
        return release.Refusal("InvalidSpec", f"node {source.node_id} has disk {known}, not {source.storage_id}")
    if record is None or not record.retirement.step.is_released:
        step = "" if record is None else f" (step {record.retirement.step})"
        words = f"node {source.node_id} is not retired yet{step}, and uses its volume itself: retire it first"
        return release.Refusal("Waiting", words)
    if source.mode != "RemountVolume":
        return None
    if record.retirement.mode is not RetireMode.VOLUME:
        words = f"node {source.node_id} was retired in mode Offload: its data is not read from its volume"
        return release.Refusal("InvalidSpec", words)
    reader = _reading(seen, source)
    if reader is not None and reader.uid != mount.uid:
        return release.Refusal("InvalidSpec", f"ReadOnlyMount {reader.name} mounts this volume already")
    return None


def _reading(seen: Observed, source: RetiredNodeSource) -> SeenMount | None:
    """Of those that name the disk: the operator's own object, which the retirement made, else the oldest."""
    named = [
        one
        for one in seen.mounts
        if (other := release.source_of(one)) is not None
        and (other.node_id, other.storage_id) == (source.node_id, source.storage_id)
    ]
    claim = release.claim_of_disk(seen, source.node_id, source.storage_id)
    own = "" if claim is None else node_name(seen.cluster.name, claim.pool, claim.node_id)
    return min(named, key=lambda one: (one.name != own, one.created, one.uid), default=None)


def mounts_let_go(seen: Observed) -> Offer:
    """The deleted ReadOnlyMounts whose deletion does not wait any more. The guard of their claims stays."""
    offer = Offer()
    for mount in seen.mounts:
        if mount.is_deleting and FINALIZER in mount.finalizers and (why := is_let_go(seen, mount)):
            offer.actions.append(DropFinalizer("ReadOnlyMount", mount.name, why))
    return offer


def _reader(seen: Observed, claim: SeenClaim) -> str:
    """Name of the StatefulSet that reads it."""
    return volume_name(seen.cluster.name, claim.pool, claim.node_id)


def _ended(seen: Observed, mount: SeenMount, source: RetiredNodeSource) -> Offer:
    """The service refuses to end a mount that is the only way to something; until it has ended, the object waits."""
    if FINALIZER not in mount.finalizers:
        return Offer()
    if why := is_let_go(seen, mount):
        # Its claim keeps its guard: nothing proves that the volume is not needed.
        return Offer([DropFinalizer("ReadOnlyMount", mount.name, why)])
    if seen.meta is None:
        return Offer()
    if why_refused(seen, mount, source) is not None:
        return Offer([DropFinalizer("ReadOnlyMount", mount.name, "it never mounted anything")])
    served = seen.meta.mount_of(source.node_id)
    if served is not None and served.mode is MountMode.VOLUME and served.storage_id == source.storage_id:
        return Offer([EndMount(served.name)])
    claim = release.claim_of_disk(seen, source.node_id, source.storage_id)
    if claim is not None:
        grant = release.of_retired_disk(seen, source.node_id, source.storage_id)
        if isinstance(grant, release.Grant):
            offer = release.released(claim, grant)
            # A claim that is going stays for as long as the pod that reads it, and that goes with this object.
            if offer.actions or offer.disruptive:
                return offer
        elif not release.is_mount_over(seen, source.node_id, source.storage_id):
            return Offer()
    return Offer([DropFinalizer("ReadOnlyMount", mount.name, "its mount has ended")])
