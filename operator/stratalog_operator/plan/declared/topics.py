"""Creates, changes, adopts, leaves or deletes the topic of a TopicStorage. Changes flow one way: Kubernetes to the
cluster.

The object's status says that a topic is to be created before the operator requests it. So, whenever the operator is
killed, a topic that exists afterwards belongs to this object, and one that existed before does not.

Pure. Source: docs/operator.md sections 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.machines.copies.recovery_rule import ACKS_POLICY, QUORUM, is_quorum, least_in_sync
from stratalog.model.counting import counted
from stratalog.model.storage_policy import StoragePolicy, next_policy
from stratalog.model.topic import Topic
from stratalog_operator.plan.actions import (
    AddFinalizer,
    ChangeTopic,
    DropFinalizer,
    MakeTopic,
    Offer,
    RemoveTopic,
)
from stratalog_operator.plan.observed import Observed, SeenTopic, Unread
from stratalog_operator.plan.requests import SealPlan, plan_seal
from stratalog_operator.plan.scope import DELETION_SECONDS, seconds_since
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER
from stratalog_operator.specs.topic import topic_settings

CREATING: Final = "Creating"
"""The reason of `Progressing` that says whose the topic is once it is there."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What is so about one object."""

    offer: Offer
    topic: Topic | None = None
    """This object's."""
    conflict: str = ""
    """The older object that has the topic; empty: this one has it."""
    invalid: str = ""
    """Why what is asked for cannot be, in words."""
    waits: str = ""
    """What is waited for before it can be made."""
    is_creating: bool = False
    is_unanswered: bool = False
    """It is deleted with its topic, and the meta service does not answer."""
    seal: SealPlan | None = None
    """None: nothing is known of its requests in this pass."""
    is_given_up: bool = False
    """That lasted for too long: the object goes, and the topic may stay."""


def owners(seen: Observed) -> dict[str, SeenTopic | Unread]:
    """By the name of the topic: of the objects that name it the oldest, which has it until it is gone, also while it
    cannot be read."""
    found: dict[str, SeenTopic | Unread] = {}
    named: list[tuple[str, SeenTopic | Unread]] = [(one.spec.topic_name, one) for one in seen.topics]
    named += [(one.topic_name, one) for one in seen.unread if one.kind == "TopicStorage"]
    for name, one in named:
        first = found.setdefault(name, one)
        if (one.created, one.uid) < (first.created, first.uid):
            found[name] = one
    return found


def plan_topic(seen: Observed, one: SeenTopic, owner: SeenTopic | Unread) -> TopicPlan:
    """`owner` has the topic."""
    older = "" if owner.uid == one.uid else owner.name
    if one.is_deleting:
        return _deleting(seen, one, owns=not older)
    offer = Offer()
    needs_guard = one.spec.deletion_policy == "Delete"
    if needs_guard != (FINALIZER in one.finalizers):
        offer.actions.append(
            AddFinalizer("TopicStorage", one.name)
            if needs_guard
            else DropFinalizer("TopicStorage", one.name, "its topic stays when it goes")
        )
    if older:
        return TopicPlan(offer, conflict=older)
    if seen.meta is None:
        return TopicPlan(offer)
    topic = seen.meta.topic(one.spec.topic_name)
    if topic is None:
        return _making(seen, one, offer)
    why = _why_not_ours(one, topic)
    if why:
        return TopicPlan(offer, invalid=why)
    return _changing(seen, one, topic, offer)


def _making(seen: Observed, one: SeenTopic, offer: Offer) -> TopicPlan:
    assert seen.meta is not None
    spec = one.spec
    replicas = spec.replication_factor or seen.cluster.spec.defaults.replication_factor
    settings = topic_settings(spec, {}, keeps_unnamed=False)
    if words := _never_writable(seen, settings, replicas):
        return TopicPlan(offer, invalid=words)
    needed = 1 if next_policy(settings) is StoragePolicy.DIRECT else replicas
    there = [node for node in seen.meta.nodes if node.is_alive and not node.is_leaving]
    if len(there) < needed:
        words = f"replication factor {replicas} needs as many nodes: {counted(len(there), 'node')} there"
        return TopicPlan(offer, waits=words)
    if is_creating(one):
        offer.actions.append(MakeTopic(one.name, spec.topic_name, spec.shards, replicas, settings))
    return TopicPlan(offer, is_creating=True)


def _never_writable(seen: Observed, settings: Mapping[str, str], replicas: int) -> str:
    """Why no write with acks=all would ever be accepted; empty if some would be. The definition checks the same where
    the object names both numbers."""
    if next_policy(settings) is StoragePolicy.DIRECT:
        if seen.cluster.spec.cold_tier is not None:
            return ""
        return (
            "policy Direct acknowledges what is in the object store, and the cluster has none: give it spec.coldTier, "
            "or set policy to Replicated"
        )
    if is_quorum(settings):
        return ""
    least = least_in_sync(settings, seen.cluster.spec.defaults.min_insync_replicas)
    if least <= replicas:
        return ""
    return (
        f"{counted(replicas, 'replica')} and minInsyncReplicas {least}: no write with acks=all would be accepted; set "
        "both, minInsyncReplicas not above replicationFactor"
    )


def is_creating(one: SeenTopic) -> bool:
    return any(found.type == "Progressing" and found.reason == CREATING for found in one.status.conditions)


def _why_not_ours(one: SeenTopic, topic: Topic) -> str:
    name = one.spec.topic_name
    if topic.is_internal:
        return f"topic {name} is internal: only the cluster may change it"
    known = one.status.topic_id
    if known == str(topic.topic_id) or one.spec.adoption == "Adopt" or (not known and is_creating(one)):
        return ""
    if known:
        return (
            f"topic {name} was deleted and created again ({topic.topic_id} instead of {known}): set adoption "
            "to Adopt to take it over"
        )
    return f"topic {name} is there already: set adoption to Adopt to take it over, or choose another name"


def is_adopted(one: SeenTopic, topic: Topic) -> bool:
    """Whether the topic, which is this object's, was there before the object took it."""
    if one.status.topic_id == str(topic.topic_id):
        return one.status.adopted
    return not (not one.status.topic_id and is_creating(one))


def _changing(seen: Observed, one: SeenTopic, topic: Topic, offer: Offer) -> TopicPlan:
    spec = one.spec
    # An adopted topic may keep data for ever because of a setting that its object does not name.
    keeps_unnamed = spec.adoption == "Adopt" or is_adopted(one, topic)
    wanted, present = topic_settings(spec, topic.settings, keeps_unnamed=keeps_unnamed), dict(topic.settings)
    more = spec.shards if spec.shards is not None and spec.shards > topic.shard_count else None
    if wanted != present or more is not None:
        offer.actions.append(ChangeTopic(one.name, topic.topic_id, wanted, present, more))
    seal = plan_seal(seen, one, topic)
    offer.actions += seal.actions
    return TopicPlan(offer, topic, invalid=_why_not_as_asked(seen, one, topic, wanted), seal=seal)


def _why_not_as_asked(seen: Observed, one: SeenTopic, topic: Topic, settings: Mapping[str, str]) -> str:
    """What the object names and the topic cannot become, in words; empty if there is nothing of the kind."""
    spec = one.spec
    if spec.shards is not None and spec.shards < topic.shard_count:
        return f"topic {topic.name} has {counted(topic.shard_count, 'shard')}, and cannot get fewer: set shards to that"
    if spec.replication_factor is not None and spec.replication_factor != topic.replication_factor:
        return (
            f"topic {topic.name} was created with {counted(topic.replication_factor, 'replica')}, which cannot "
            "change: set replicationFactor to that, or leave it out"
        )
    if spec.policy is not None and is_quorum(topic.settings):
        return f"topic {topic.name} was created with {ACKS_POLICY}={QUORUM}, which cannot change: leave policy out"
    is_direct = next_policy(settings) is StoragePolicy.DIRECT
    if is_direct or spec.min_insync_replicas is not None or spec.replication_factor is not None:
        return _never_writable(seen, settings, topic.replication_factor)
    return ""


# Deletion -------------------------------------------------------------------------------------------------------------
def _deleting(seen: Observed, one: SeenTopic, *, owns: bool) -> TopicPlan:
    offer = Offer()
    if FINALIZER not in one.finalizers:
        return TopicPlan(offer)
    why = _why_let_go(seen, one, owns=owns)
    if why:
        offer.actions.append(DropFinalizer("TopicStorage", one.name, why))
        return TopicPlan(offer)
    if seen.meta is None:
        since = one.status.deletion_waits_since
        if since is not None and seconds_since(since, seen.now) >= DELETION_SECONDS:
            words = f"the meta service has not answered for {DELETION_SECONDS} s: the topic may still be there"
            offer.actions.append(DropFinalizer("TopicStorage", one.name, words))
            return TopicPlan(offer, is_given_up=True)
        return TopicPlan(offer, is_unanswered=True)
    topic = seen.meta.topic(one.spec.topic_name)
    if topic is None or not _is_ours(one, topic):
        offer.actions.append(DropFinalizer("TopicStorage", one.name, "its topic is not there"))
    else:
        offer.actions.append(RemoveTopic(one.name, topic.topic_id))
    return TopicPlan(offer, topic)


def _is_ours(one: SeenTopic, topic: Topic) -> bool:
    """Or may be: it was made, and the operator was killed before it could say so."""
    known = one.status.topic_id
    return known == str(topic.topic_id) or (not known and is_creating(one))


def _why_let_go(seen: Observed, one: SeenTopic, *, owns: bool) -> str:
    if one.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true":
        return "a person said so by the annotation"
    if one.spec.deletion_policy == "Retain":
        return "its topic stays"
    return "" if owns else "another object has the topic"
