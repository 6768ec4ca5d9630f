"""Keeps a pool at its number of nodes: which nodes are made, chosen to leave, or taken back.

The choice is written as `spec.retire` of the StorageNodes before it has any effect, so an operator that was killed
continues with the same nodes. No id is given twice.

Pure. Source: docs/operator.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.counting import counted
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog_operator.plan import release
from stratalog_operator.plan.actions import Apply, DropFinalizer, Offer
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenNode, SeenPool
from stratalog_operator.plan.scope import (
    ANNOTATION_CHOSEN,
    apply_missing,
    cluster_id,
    cluster_of,
    is_released,
    of_pool,
    serves,
    staying,
    storage_node,
)
from stratalog_operator.resources.names import FINALIZER


def pool_offer(seen: Observed, pool: SeenPool, first_free_id: int) -> tuple[Offer, int]:
    """What the pool needs. Its first new node gets `first_free_id`. Returns the first free id for the next pool,
    too."""
    cluster = cluster_of(seen)
    offer = Offer()
    if has_name_of_others(pool) and not pool.is_deleting:
        return offer, first_free_id
    if unclear(seen, pool):
        # Until the meta service says which cluster this is, it is unknown how many of these disks belong to it.
        return offer, first_free_id
    if lost := adoptable(seen, pool):
        # Before anything is counted: a node whose object is gone has not left, and its disk must not be stranded. Which
        # of them were retired is known to the meta service alone.
        for one in lost if seen.meta is not None else ():
            again = storage_node(cluster, pool.name, one.node_id, one.zone, retires=is_released(seen, one.node_id))
            offer.actions.append(Apply(again, f"its {one.what} is there"))
        return offer, first_free_id
    if may_have_earlier_nodes(seen):
        return offer, first_free_id
    stay = staying(seen, pool)
    wanted_count = 0 if pool.is_deleting else pool.spec.replicas
    if len(stay) > wanted_count:
        for node in leaving_first(seen, pool, stay)[: len(stay) - wanted_count]:
            spec = node.spec
            chosen = storage_node(cluster, pool.name, spec.node_id, spec.zone, retires=True)
            offer.add(
                apply_missing(
                    seen, [chosen], f"pool {pool.name} has {counted(len(stay), 'node')} and wants {wanted_count}"
                )
            )
    elif len(stay) < wanted_count:
        back = taken_back(seen, pool)[: wanted_count - len(stay)]
        for node in back:
            kept = storage_node(cluster, pool.name, node.spec.node_id, node.spec.zone)
            offer.actions.append(Apply(kept, f"pool {pool.name} wants {counted(wanted_count, 'node')} again"))
        first_free_id = _add_nodes(seen, pool, [*stay, *back], wanted_count, first_free_id, offer)
    if pool.is_deleting and FINALIZER in pool.finalizers and not of_pool(seen, pool):
        offer.actions.append(DropFinalizer("StorageNodePool", pool.name, "all its nodes have left"))
    return offer, first_free_id


def has_name_of_others(pool: SeenPool) -> bool:
    """Claims and pods of its nodes would have the names of those of etcd or the meta service. The definition refuses
    such a pool; this one is older than the rule."""
    return pool.name.rpartition("-")[2] in ("etcd", "meta")


def _add_nodes(
    seen: Observed, pool: SeenPool, there: list[SeenNode], wanted_count: int, first_free_id: int, offer: Offer
) -> int:
    cluster = cluster_of(seen)
    zones = [node.spec.zone for node in there]
    for _ in range(wanted_count - len(there)):
        zone = min(pool.spec.zones, key=zones.count) if pool.spec.zones else None
        zones.append(zone)
        made = storage_node(cluster, pool.name, first_free_id, zone)
        offer.actions.append(Apply(made, f"pool {pool.name} wants {counted(wanted_count, 'node')}"))
        first_free_id += 1
    return first_free_id


@dataclass(frozen=True, slots=True)
class Lost:
    """A node of the pool without a StorageNode."""

    node_id: int
    zone: str | None
    what: str
    """What is left of it."""


def adoptable(seen: Observed, pool: SeenPool) -> list[Lost]:
    """Nodes, by id, whose StorageNode was deleted by a user or with a cluster of that name, whose claim belongs to this
    cluster, and whose retirement is not finished. A claim that is being deleted counts while it is guarded. A
    StatefulSet counts even without a claim, because its pod runs."""
    claims = [claim for claim in _without_node(seen, pool) if not _is_foreign(seen, claim)]
    found = {claim.node_id: Lost(claim.node_id, claim.zone, "volume claim") for claim in claims}
    for one in seen.sets_without_node():
        if one.pool == pool.name and one.node_id is not None and one.node_id not in found:
            claim = seen.claim_named(f"data-{one.name}")
            if claim is None or not _is_foreign(seen, claim):
                found[one.node_id] = Lost(one.node_id, None if claim is None else claim.zone, "StatefulSet")
    return [found[node_id] for node_id in sorted(found)]


def foreign(seen: Observed, pool: SeenPool) -> list[SeenClaim]:
    """Claims with names of this pool whose disks belong to another cluster: they are left alone, and their ids are not
    given."""
    return [claim for claim in _without_node(seen, pool) if _is_foreign(seen, claim)]


def unclear(seen: Observed, pool: SeenPool) -> list[SeenClaim]:
    """Claims that belonged to a cluster, while it is unknown whether this is that cluster."""
    return [] if cluster_id(seen) else [claim for claim in _without_node(seen, pool) if claim.cluster_id]


def may_have_earlier_nodes(seen: Observed) -> bool:
    """Whether the metadata may be older than the StorageCluster, and the meta service has not answered yet. Then it is
    unknown which ids nodes had: an id that is given again would be an empty disk under an old identity."""
    if cluster_id(seen):
        return False
    born = seen.cluster.created
    kept = [one for one in seen.etcd_claims if one.member_id or (one.created and born and one.created < born)]
    return seen.cluster.spec.meta.external is not None or bool(kept)


def _without_node(seen: Observed, pool: SeenPool) -> list[SeenClaim]:
    known = {node.spec.node_id for node in seen.nodes}
    buried = {one.node_id for one in seen.cluster.status.retired_nodes}
    running = {one.node_id for one in seen.sets_without_node()}
    found = [
        claim
        for claim in seen.claims
        if claim.pool == pool.name
        and claim.node_id not in known
        and not claim.is_released
        and (claim.is_held or not claim.is_leaving)
        and (claim.node_id in running or not _is_finished(seen, claim, is_buried=claim.node_id in buried))
    ]
    return sorted(found, key=lambda claim: claim.node_id)


def _is_finished(seen: Observed, claim: SeenClaim, *, is_buried: bool) -> bool:
    """Its node has left, and what is left to do for its volume is a ReadOnlyMount's. The tombstones are not enough:
    only the last of them are kept."""
    if seen.meta is None:
        return is_buried or bool(release.readers_of(seen, claim.node_id, claim.storage_id))
    record = seen.meta.retirement(claim.node_id)
    if record is None or not record.retirement.step.is_released or record.retirement.storage_id != claim.storage_id:
        return is_buried
    if record.retirement.mode is not RetireMode.VOLUME or record.retirement.step is not RetireStep.DONE:
        return False
    is_over = release.is_mount_over(seen, claim.node_id, claim.storage_id)
    return not is_over or bool(release.readers_of(seen, claim.node_id, claim.storage_id))


def _is_foreign(seen: Observed, claim: SeenClaim) -> bool:
    mine = cluster_id(seen)
    return bool(mine and claim.cluster_id and claim.cluster_id != mine)


def free_id(seen: Observed) -> int:
    """The first id that no node ever had, as far as objects and metadata show."""
    used = [node.spec.node_id for node in seen.nodes]
    used += [claim.node_id for claim in seen.claims]
    used += [node.node_id for node in seen.cluster.status.retired_nodes]
    if seen.meta is not None:
        used += [node.node_id for node in seen.meta.nodes]
        used += [one.node_id for one in seen.meta.retirements]
    return max([seen.cluster.status.next_node_id, *(one + 1 for one in used), 1])


def leaving_first(seen: Observed, pool: SeenPool, stay: list[SeenNode]) -> list[SeenNode]:
    """The order in which nodes leave: first those named by the pool, then those already leaving by a command, that
    never joined, that are not alive, then by the highest id. While the meta service does not answer, a node counts as
    alive if its pod serves."""

    def rank(node: SeenNode) -> tuple[bool, bool, bool, bool, int]:
        node_id = node.spec.node_id
        member = None if seen.meta is None else seen.meta.node(node_id)
        is_leaving = seen.meta is not None and seen.meta.retirement(node_id) is not None
        has_joined = bool(node.status.identity.storage_id) or member is not None
        is_dead = not serves(seen, node) if seen.meta is None else member is not None and not member.is_alive
        return node_id not in pool.spec.remove_node_ids, not is_leaving, has_joined, not is_dead, -node_id

    return sorted(stay, key=rank)


def taken_back(seen: Observed, pool: SeenPool) -> list[SeenNode]:
    """Nodes that the pool itself had chosen to leave and that can still stay, the lowest ids first.

    None while the meta service does not answer, because it is unknown which ones can stay."""
    if seen.meta is None:
        return []
    return [
        node
        for node in of_pool(seen, pool)
        if node.spec.retire
        and ANNOTATION_CHOSEN in node.annotations
        and not is_released(seen, node.spec.node_id)
        and seen.meta.node(node.spec.node_id) is not None
    ]
