"""The plan of a pass: each part by itself, then of all that is disruptive one thing at most; of a deleted cluster, all.

A part that waits offers nothing and says why in its conditions, as does one whose plan ends with an error
(`faults.py`); the others do not hear of it.

Pure. Source: docs/operator.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from stratalog_operator.plan.actions import AddFinalizer, DeleteObject, DropFinalizer, MakeToken, Offer, Plan
from stratalog_operator.plan.certificates import CertificatePlan, plan_certificates
from stratalog_operator.plan.conditions import PartPlans, statuses
from stratalog_operator.plan.decisions import disk_lost, forced, stale_releases
from stratalog_operator.plan.declared.archive_jobs import ARCHIVE_JOB, ArchiveJobPlan, plan_archive_job
from stratalog_operator.plan.declared.topics import TopicPlan, owners, plan_topic
from stratalog_operator.plan.declared.users import USER, UserPlan, owners_of_users, plan_user
from stratalog_operator.plan.deletion import deletion, is_going
from stratalog_operator.plan.etcd import EtcdPlan, plan_etcd
from stratalog_operator.plan.etcd_versions import why_no_first_node
from stratalog_operator.plan.faults import Faults
from stratalog_operator.plan.leftovers import leftovers
from stratalog_operator.plan.nodes import node_offer
from stratalog_operator.plan.observed import Observed, SeenNode, SeenPool
from stratalog_operator.plan.pools import free_id, pool_offer
from stratalog_operator.plan.release import released_by_persons
from stratalog_operator.plan.requests import plan_rebalance_request
from stratalog_operator.plan.retire import Retiring, retire
from stratalog_operator.plan.roles import RolesPlan, plan_roles
from stratalog_operator.plan.roll import Roll, roll
from stratalog_operator.plan.scope import apply_missing, cluster_of, is_paused, why_blind
from stratalog_operator.plan.volumes import missing_readers, mount_offer, mounts_let_go
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER
from stratalog_operator.specs.cluster import cluster_objects
from stratalog_operator.specs.user import user_name

SOON_SECONDS: Final = 5
"""While something is under way that no event of Kubernetes tells of."""
CALM_SECONDS: Final = 60
CLUSTER, POOL, NODE = "StorageCluster", "StorageNodePool", "StorageNode"
MOUNT, TOPIC = "ReadOnlyMount", "TopicStorage"


def plan(seen: Observed) -> Plan:
    if is_going(seen):
        offer, kept = deletion(seen), seen.cluster.status.etcd_members
        gone = PartPlans(retiring={}, roll=Roll(Offer()), next_id=free_id(seen), etcd=EtcdPlan(members=kept))
        return _pass(seen, offer, gone, Faults())
    faults = Faults()
    of_cluster = partial(faults.guarded, CLUSTER, seen.cluster.name)
    retiring = {node.name: found for node in seen.nodes if (found := _retiring(seen, node, faults)) is not None}
    rolling = of_cluster(partial(roll, seen), Roll(Offer()))
    etcd = of_cluster(partial(plan_etcd, seen), EtcdPlan(members=seen.cluster.status.etcd_members))
    certificates = of_cluster(partial(plan_certificates, seen), CertificatePlan())
    roles = of_cluster(partial(plan_roles, seen), RolesPlan())
    offer, next_id = _additive(seen, etcd, certificates, roles, faults)
    for found in retiring.values():
        offer.add(found.offer)
    for name, found in retiring.items():
        offer.add(_burial(seen, name, found))
    offer.add(rolling.offer)
    rebalance = of_cluster(partial(plan_rebalance_request, seen), None)
    if rebalance is not None:
        offer.add(rebalance.offer)
    for node in seen.nodes:
        offer.add(faults.guarded(NODE, node.name, partial(_decided, seen, node), Offer()))
    for part in (released_by_persons, stale_releases, missing_readers):
        offer.add(of_cluster(partial(part, seen), Offer()))
    offer.add(_of_mounts(seen, faults))
    topics, users = _plan_topics(seen, faults), _plan_users(seen, faults)
    jobs = _plan_archive_jobs(seen, faults)
    if why_blind(seen):
        offer = _while_blind(seen)
    elif is_paused(seen):
        offer = _deletions(seen, faults)
    offer.add(_of_topics_and_users(seen, topics, users))
    if not is_paused(seen):
        for job in jobs.values():
            offer.add(job.offer)
    offer.add(_let_go_unread(seen))
    parts = PartPlans(retiring, rolling, next_id, topics, etcd, users, certificates, rebalance, roles, jobs)
    return _pass(seen, offer, parts, faults)


def _retiring(seen: Observed, node: SeenNode, faults: Faults) -> Retiring | None:
    return faults.guarded(NODE, node.name, partial(retire, seen, node), None)


def _decided(seen: Observed, node: SeenNode) -> Offer:
    """What people decided about the node by annotations."""
    offer = forced(seen, node)
    offer.add(disk_lost(seen, node))
    return offer


def _of_mounts(seen: Observed, faults: Faults, *, are_deleted: bool = False) -> Offer:
    """`are_deleted`: of those alone that a person deleted."""
    offer = Offer()
    for mount in seen.mounts:
        if mount.is_deleting or not are_deleted:
            offer.add(faults.guarded(MOUNT, mount.name, partial(mount_offer, seen, mount), Offer()))
    return offer


def _plan_topics(seen: Observed, faults: Faults) -> dict[str, TopicPlan]:
    """Without those whose plan ends with an error; so are users."""
    first, found = owners(seen), {}
    for one in seen.topics:
        owner = first[one.spec.topic_name]
        if (made := faults.guarded(TOPIC, one.name, partial(plan_topic, seen, one, owner), None)) is not None:
            found[one.name] = made
    return found


def _plan_users(seen: Observed, faults: Faults) -> dict[str, UserPlan]:
    """Of thousands of users only those about which something may have changed."""
    if len(seen.settled_users) == len(seen.users):
        return {}
    first, found = owners_of_users(seen), {}
    for one in seen.users:
        if one.name in seen.settled_users:
            continue
        owner = first[user_name(one.spec, one.name)]
        if (made := faults.guarded(USER, one.name, partial(plan_user, seen, one, owner), None)) is not None:
            found[one.name] = made
    return found


def _plan_archive_jobs(seen: Observed, faults: Faults) -> dict[str, ArchiveJobPlan]:
    found = {}
    for one in seen.archive_jobs:
        if (made := faults.guarded(ARCHIVE_JOB, one.name, partial(plan_archive_job, seen, one), None)) is not None:
            found[one.name] = made
    return found


def _deletions(seen: Observed, faults: Faults) -> Offer:
    """What a person deleted goes while the cluster is paused as well, but for a pool, whose nodes would have to leave
    first: its annotation lets it go."""
    offer = _released_by_annotation(seen)
    offer.add(_of_mounts(seen, faults, are_deleted=True))
    return offer


def _while_blind(seen: Observed) -> Offer:
    """Topics and users continue, and what a person releases by an annotation goes. Nothing else changes, also while the
    cluster is paused: a deleted mount would release a claim that an object which cannot be read may need."""
    offer = _released_by_annotation(seen)
    offer.add(mounts_let_go(seen))
    return offer


def _of_topics_and_users(seen: Observed, topics: Mapping[str, TopicPlan], users: Mapping[str, UserPlan]) -> Offer:
    """While the cluster is paused only those that a person deleted."""
    offer = Offer()
    for topic in seen.topics:
        if topic.name in topics and (topic.is_deleting or not is_paused(seen)):
            offer.add(topics[topic.name].offer)
    for user in seen.users:
        if user.name in users and (user.is_deleting or not is_paused(seen)):
            offer.add(users[user.name].offer)
    return offer


def _released_by_annotation(seen: Observed) -> Offer:
    offer = Offer()
    for pool in seen.pools:
        offer.add(_let_go_pool(pool))
    offer.add(released_by_persons(seen))
    offer.add(stale_releases(seen))
    return offer


def _let_go_unread(seen: Observed) -> Offer:
    """An object that cannot be read goes when a person deletes it and releases it by the annotation."""
    offer = Offer()
    for one in seen.unread:
        if one.is_let_go:
            offer.actions.append(DropFinalizer(one.kind, one.name, "a person said so"))
    return offer


def _pass(seen: Observed, offer: Offer, plans: PartPlans, faults: Faults) -> Plan:
    found = statuses(seen, plans, faults)
    # Retirement before roll before volumes: they were offered in that order. A cluster that goes has nothing to spare.
    at_once = len(offer.disruptive) if is_going(seen) else 1
    actions = (*offer.actions, *offer.disruptive[:at_once])
    waits = any(look.is_creating or look.is_unanswered for look in plans.topics.values())
    waits = waits or any(look.seal is not None and look.seal.is_busy for look in plans.topics.values())
    waits = waits or (plans.rebalance is not None and plans.rebalance.is_busy)
    waits = waits or any(look.waits for look in plans.users.values())
    waits = waits or any(look.has_unread or look.waits for look in plans.archive_jobs.values())
    is_busy = bool(actions or waits or seen.token_trouble)
    if not is_paused(seen):
        is_busy = is_busy or bool(plans.retiring or plans.roll.outdated or plans.etcd.is_busy)
    again_seconds = SOON_SECONDS if is_busy else CALM_SECONDS
    return Plan(actions, found, again_seconds, tuple(offer.disruptive[at_once:]), faults.found)


def _additive(
    seen: Observed, etcd: EtcdPlan, certificates: CertificatePlan, roles: RolesPlan, faults: Faults
) -> tuple[Offer, int]:
    offer = Offer()
    if FINALIZER not in seen.cluster.finalizers:
        offer.actions.append(AddFinalizer(CLUSTER, seen.cluster.name))
    cluster = cluster_of(seen)
    if seen.cluster.spec.meta.token_secret_ref is None and not seen.has_token:
        offer.actions.append(MakeToken(cluster.token_secret))
    offer.add(etcd.offer)
    offer.add(certificates.offer)
    offer.add(roles.offer)
    of_cluster = partial(faults.guarded, CLUSTER, seen.cluster.name)
    offer.add(of_cluster(lambda: apply_missing(seen, cluster_objects(cluster), "the cluster wants it"), Offer()))
    offer.add(of_cluster(partial(leftovers, seen), Offer()))
    next_id = free_id(seen)
    for pool in seen.pools:
        if _is_let_go(pool):
            offer.add(_let_go_pool(pool))
            continue
        if FINALIZER not in pool.finalizers and not pool.is_deleting:
            offer.actions.append(AddFinalizer(POOL, pool.name))
        if why_no_first_node(seen) and not pool.is_deleting:
            continue
        otherwise = (Offer(), next_id)
        found, next_id = faults.guarded(POOL, pool.name, partial(pool_offer, seen, pool, next_id), otherwise)
        offer.add(found)
    for node in seen.nodes:
        of_pool = seen.pool_named(node.spec.pool_ref)
        if of_pool is not None:
            offer.add(faults.guarded(NODE, node.name, partial(node_offer, seen, of_pool, node), Offer()))
    return offer, next_id


def _is_let_go(pool: SeenPool) -> bool:
    return pool.is_deleting and pool.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true"


def _let_go_pool(pool: SeenPool) -> Offer:
    if not _is_let_go(pool) or FINALIZER not in pool.finalizers:
        return Offer()
    return Offer([DropFinalizer(POOL, pool.name, "a person said so")])


def _burial(seen: Observed, name: str, found: Retiring) -> Offer:
    """The object goes once its tombstone is there to be read: no id is lost in between."""
    node = next(one for one in seen.nodes if one.name == name)
    buried = {one.node_id for one in seen.cluster.status.retired_nodes}
    if not found.is_buried or node.is_deleting or node.spec.node_id not in buried:
        return Offer()
    return Offer([DeleteObject(NODE, node.name, node.uid, "it has left")])
