"""The plan of a pass: each part by itself, then of all that is disruptive one thing at most; of a deleted cluster, all.

A part that waits offers nothing and says why in its conditions; the others do not hear of it.

Pure. Source: docs/operator.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog_operator.plan.actions import AddFinalizer, DeleteObject, DropFinalizer, MakeToken, Offer, Plan
from stratalog_operator.plan.certificates import CertificatePlan, plan_certificates
from stratalog_operator.plan.conditions import PartPlans, statuses
from stratalog_operator.plan.decisions import disk_lost, forced, stale_releases
from stratalog_operator.plan.declared.topics import TopicPlan, owners, plan_topic
from stratalog_operator.plan.declared.users import UserPlan, owners_of_users, plan_user
from stratalog_operator.plan.deletion import deletion, is_going
from stratalog_operator.plan.etcd import EtcdPlan, plan_etcd
from stratalog_operator.plan.etcd_versions import why_no_first_node
from stratalog_operator.plan.leftovers import leftovers
from stratalog_operator.plan.nodes import node_offer
from stratalog_operator.plan.observed import Observed, SeenPool, SeenTopic, SeenUser, Unread
from stratalog_operator.plan.pools import free_id, pool_offer
from stratalog_operator.plan.release import released_by_persons
from stratalog_operator.plan.requests import plan_rebalance_request
from stratalog_operator.plan.retire import Retiring, retire
from stratalog_operator.plan.roll import Roll, roll
from stratalog_operator.plan.scope import apply_missing, cluster_of, is_paused, why_blind
from stratalog_operator.plan.volumes import missing_readers, mount_offer, mounts_let_go
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER
from stratalog_operator.specs.cluster import cluster_objects
from stratalog_operator.specs.user import user_name

SOON_SECONDS: Final = 5
"""While something is under way that no event of Kubernetes tells of."""
CALM_SECONDS: Final = 60


def plan(seen: Observed) -> Plan:
    if is_going(seen):
        offer, kept = deletion(seen), seen.cluster.status.etcd_members
        return _pass(
            seen, offer, PartPlans(retiring={}, roll=Roll(Offer()), next_id=free_id(seen), etcd=EtcdPlan(members=kept))
        )
    retiring = {node.name: found for node in seen.nodes if (found := retire(seen, node)) is not None}
    rolling = roll(seen)
    etcd, certificates = plan_etcd(seen), plan_certificates(seen)
    offer, next_id = _additive(seen, etcd, certificates)
    for found in retiring.values():
        offer.add(found.offer)
    for name, found in retiring.items():
        offer.add(_burial(seen, name, found))
    offer.add(rolling.offer)
    rebalance = plan_rebalance_request(seen)
    offer.add(rebalance.offer)
    for node in seen.nodes:
        offer.add(forced(seen, node))
        offer.add(disk_lost(seen, node))
    offer.add(released_by_persons(seen))
    offer.add(stale_releases(seen))
    offer.add(missing_readers(seen))
    for mount in seen.mounts:
        offer.add(mount_offer(seen, mount))
    first = owners(seen)
    topics = {one.name: _plan_topic(seen, one, first[one.spec.topic_name]) for one in seen.topics}
    users = _plan_users(seen)
    if why_blind(seen):
        offer = _while_blind(seen)
    elif is_paused(seen):
        offer = _deletions(seen)
    offer.add(_of_topics_and_users(seen, topics, users))
    offer.add(_let_go_unread(seen))
    return _pass(seen, offer, PartPlans(retiring, rolling, next_id, topics, etcd, users, certificates, rebalance))


def _plan_users(seen: Observed) -> dict[str, UserPlan]:
    """Of thousands of users only those about which something may have changed."""
    if len(seen.settled_users) == len(seen.users):
        return {}
    first = owners_of_users(seen)
    return {
        one.name: _plan_user(seen, one, first[user_name(one.spec, one.name)])
        for one in seen.users
        if one.name not in seen.settled_users
    }


def _plan_user(seen: Observed, one: SeenUser, owner: SeenUser | Unread) -> UserPlan:
    """A fault that one of thousands of objects uncovers must not leave all others with rights that were taken from
    them."""
    try:
        return plan_user(seen, one, owner)
    except Exception as error:
        return UserPlan(Offer(), invalid=_fault(error))


def _plan_topic(seen: Observed, one: SeenTopic, owner: SeenTopic | Unread) -> TopicPlan:
    """As for users: each object is written by another person."""
    try:
        return plan_topic(seen, one, owner)
    except Exception as error:
        return TopicPlan(Offer(), invalid=_fault(error))


def _fault(error: Exception) -> str:
    return f"nothing was changed, because of a fault in the operator ({type(error).__name__}: {error}): report it"


def _deletions(seen: Observed) -> Offer:
    """What a person deleted goes while the cluster is paused as well, but for a pool, whose nodes would have to leave
    first: its annotation lets it go."""
    offer = _released_by_annotation(seen)
    for mount in seen.mounts:
        if mount.is_deleting:
            offer.add(mount_offer(seen, mount))
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
        if topic.is_deleting or not is_paused(seen):
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


def _pass(seen: Observed, offer: Offer, plans: PartPlans) -> Plan:
    found = statuses(seen, plans)
    # Retirement before roll before volumes: they were offered in that order. A cluster that goes has nothing to spare.
    at_once = len(offer.disruptive) if is_going(seen) else 1
    actions = (*offer.actions, *offer.disruptive[:at_once])
    waits = any(look.is_creating or look.is_unanswered for look in plans.topics.values())
    waits = waits or any(look.seal is not None and look.seal.is_busy for look in plans.topics.values())
    waits = waits or (plans.rebalance is not None and plans.rebalance.is_busy)
    waits = waits or any(look.waits for look in plans.users.values())
    is_busy = bool(actions or waits or seen.token_trouble)
    if not is_paused(seen):
        is_busy = is_busy or bool(plans.retiring or plans.roll.outdated or plans.etcd.is_busy)
    again_seconds = SOON_SECONDS if is_busy else CALM_SECONDS
    return Plan(actions, found, again_seconds, tuple(offer.disruptive[at_once:]))


def _additive(seen: Observed, etcd: EtcdPlan, certificates: CertificatePlan) -> tuple[Offer, int]:
    offer = Offer()
    if FINALIZER not in seen.cluster.finalizers:
        offer.actions.append(AddFinalizer("StorageCluster", seen.cluster.name))
    cluster = cluster_of(seen)
    if seen.cluster.spec.meta.token_secret_ref is None and not seen.has_token:
        offer.actions.append(MakeToken(cluster.token_secret))
    offer.add(etcd.offer)
    offer.add(certificates.offer)
    offer.add(apply_missing(seen, cluster_objects(cluster), "the cluster wants it"))
    offer.add(leftovers(seen))
    next_id = free_id(seen)
    for pool in seen.pools:
        if _is_let_go(pool):
            offer.add(_let_go_pool(pool))
            continue
        if FINALIZER not in pool.finalizers and not pool.is_deleting:
            offer.actions.append(AddFinalizer("StorageNodePool", pool.name))
        if why_no_first_node(seen) and not pool.is_deleting:
            continue
        found, next_id = pool_offer(seen, pool, next_id)
        offer.add(found)
    for node in seen.nodes:
        of_pool = seen.pool_named(node.spec.pool_ref)
        if of_pool is not None:
            offer.add(node_offer(seen, of_pool, node))
    return offer, next_id


def _is_let_go(pool: SeenPool) -> bool:
    return pool.is_deleting and pool.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true"


def _let_go_pool(pool: SeenPool) -> Offer:
    if not _is_let_go(pool) or FINALIZER not in pool.finalizers:
        return Offer()
    return Offer([DropFinalizer("StorageNodePool", pool.name, "a person said so")])


def _burial(seen: Observed, name: str, found: Retiring) -> Offer:
    """The object goes once its tombstone is there to be read: no id is lost in between."""
    node = next(one for one in seen.nodes if one.name == name)
    buried = {one.node_id for one in seen.cluster.status.retired_nodes}
    if not found.is_buried or node.is_deleting or node.spec.node_id not in buried:
        return Offer()
    return Offer([DeleteObject("StorageNode", node.name, node.uid, "it has left")])
