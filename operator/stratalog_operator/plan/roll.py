"""Restarts pods whose template changed: one at a time in the whole cluster, and only while all others serve.

A pod that is down or crashing restarts first, without waiting for others: it serves nothing, and this repairs a roll to
a bad template. Next come pods that run and have not served for long, one after the other, then those that serve. A pod
of the new template that does not become ready stops the roll. Pods that read retired volumes come last, and delay only
each other.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.model.counting import counted
from stratalog.model.retirement import RetireStep, WaitReason
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog_operator.plan.actions import Offer, StopPod
from stratalog_operator.plan.nodes import is_past_serving, lost_claim, may_have_new_claim
from stratalog_operator.plan.observed import Observed, SeenNode, SeenPod
from stratalog_operator.plan.scope import cluster_of, identity_of
from stratalog_operator.plan.volumes import reader_objects
from stratalog_operator.specs.etcd import etcd_objects
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.node import node_name, node_set
from stratalog_operator.specs.objects import Manifest, template_hash

_PASSES_BY_ITSELF: Final = frozenset(
    {
        WaitReason.UNDER_REPLICATED,
        WaitReason.CHECK_IN_PROGRESS,
        WaitReason.RELEASE_IN_PROGRESS,
        WaitReason.MOUNT_PENDING,
    }
)
"""Waits of a retirement, unless it is stalled."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod that there is to be, and the hash of what it is to be made of."""

    name: str
    wanted_hash: str
    is_held: bool = False
    """Its volume claim is lost or being deleted: a pod that is stopped does not come back."""
    is_reader: bool = False
    """It reads a retired volume: nothing that is written depends on it."""


@dataclass(frozen=True, slots=True)
class Roll:
    offer: Offer
    outdated: tuple[str, ...] = ()
    """Pods that are of another make than wanted."""
    waits: str = ""
    """Why the next one is not stopped; empty while it is, or when there is none."""
    stalled: str = ""
    """The pod that has not come back for too long, in words."""


def roll(seen: Observed) -> Roll:
    members = wanted_members(seen)
    pods = {pod.name: pod for pod in seen.pods}
    outdated = [one for one in members if one.name in pods and pods[one.name].pod_hash != one.wanted_hash]
    serving = [one for one in members if not one.is_reader]
    stalled = _stalled(seen, serving, pods)
    if not outdated:
        return Roll(Offer(), stalled=stalled)
    names = tuple(one.name for one in outdated)
    outdated = [one for one in outdated if not one.is_held]
    if not outdated:
        return Roll(
            Offer(), names, f"pod {names[0]} would not come back: its volume claim is gone, or deleted", stalled
        )
    failing = [pods[one.name] for one in outdated if pods[one.name].is_failing and not pods[one.name].is_leaving]
    if failing:
        return Roll(_stops(failing, "it is of an older make, and does not serve anyway"), names, stalled=stalled)
    mute = [pods[one.name] for one in outdated if _is_mute(seen, pods[one.name])]
    if mute and not _is_one_on_its_way(serving, pods):
        return Roll(_stops(mute, "it is of an older make, and has not served for long"), names, stalled=stalled)
    waits = _why_waits(seen, serving, pods)
    if not waits and outdated[0].is_reader:
        waits = _why_reader_waits(seen, outdated[0], members, pods)
    if not waits and not (outdated := [one for one in outdated if not _is_needed_in_etcd(seen, one)]):
        waits = "a member of etcd that joins again has no vote yet: that goes first"
    if waits:
        return Roll(Offer(), names, waits, stalled)
    why = f"it is of an older make; {counted(len(outdated), 'pod')} left to restart, and all others serve"
    following = [one for one in outdated if not one.is_reader] or outdated[:1]
    return Roll(_stops([pods[one.name] for one in following], why), names)


def _stops(pods: Iterable[SeenPod], why: str) -> Offer:
    """One of them at a time: the later ones are for when Kubernetes refuses what the earlier ones need."""
    return Offer(disruptive=[StopPod(pod.name, pod.uid, why) for pod in pods])


def _is_mute(seen: Observed, pod: SeenPod) -> bool:
    limit = seen.cluster.spec.rolling_update.readiness_timeout_seconds
    return not pod.is_ready and not pod.is_leaving and pod.not_ready_seconds >= limit


def _is_one_on_its_way(members: list[Member], pods: dict[str, SeenPod]) -> bool:
    """Whether a pod is gone, or has the new template and does not serve yet. It must serve before the next one is
    stopped."""
    for one in members:
        pod = pods.get(one.name)
        if pod is None or pod.is_leaving or (pod.pod_hash == one.wanted_hash and not pod.is_ready):
            return True
    return False


def wanted_members(seen: Observed) -> list[Member]:
    """All pods that there are to be, in the order in which they restart."""
    cluster = cluster_of(seen)
    etcd = cluster.spec.meta.etcd
    sets: list[tuple[Manifest, int]] = [(meta_objects(cluster)[-1], cluster.spec.meta.replicas)]
    if etcd is not None and not cluster.is_etcd_held:
        sets.append((etcd_objects(cluster, etcd)[-1], etcd.replicas))
    members = []
    for manifest, replicas in sets:
        metadata = manifest["metadata"]
        assert isinstance(metadata, dict), "made by `wanted`"
        wanted_hash = template_hash(manifest)
        members += [Member(f"{metadata['name']}-{number}", wanted_hash) for number in range(replicas)]
    for node in sorted(seen.nodes, key=lambda one: one.spec.node_id):
        pool = seen.pool_named(node.spec.pool_ref)
        name = node_name(cluster.name, node.spec.pool_ref, node.spec.node_id)
        if pool is None or is_past_serving(seen, node) or _is_to_be_made(seen, node, name):
            continue
        manifest = node_set(cluster, pool.spec, identity_of(node))
        is_held = lost_claim(seen, node) is not None
        members.append(Member(f"{name}-0", template_hash(manifest), is_held=is_held))
    return [*members, *_readers(seen)]


def _is_to_be_made(seen: Observed, node: SeenNode, name: str) -> bool:
    """It never joined, and has neither claim nor pod: nothing depends on it, and its claim may be refused for long."""
    is_there = seen.claim_named(f"data-{name}") is not None or seen.pod_named(f"{name}-0") is not None
    return not is_there and may_have_new_claim(seen, node)


def _readers(seen: Observed) -> list[Member]:
    found = []
    for mount in sorted(seen.mounts, key=lambda one: one.name):
        if objects := reader_objects(seen, mount):
            metadata = objects[-1]["metadata"]
            assert isinstance(metadata, dict), "made by `wanted`"
            found.append(Member(f"{metadata['name']}-0", template_hash(objects[-1]), is_reader=True))
    return found


def _why_waits(seen: Observed, members: list[Member], pods: dict[str, SeenPod]) -> str:
    if seen.meta is None:
        return "the meta service does not answer: it is unknown which pod may be stopped"
    if seen.token_trouble:
        return f"a pod of the meta service would not start again: {seen.token_trouble}"
    leaving = [one.node_id for one in seen.meta.retirements if _holds_up(seen, one)]
    if leaving:
        return f"nodes {leaving} are leaving: that goes first"
    if lost := [one for one in seen.sets_without_node() if seen.pool_named(one.pool) is not None]:
        return f"StorageNode {lost[0].name} is gone, and is made again first"
    absent = [one.name for one in members if one.name not in pods or not pods[one.name].is_ready]
    absent += [one.name for one in members if one.name in pods and pods[one.name].is_leaving]
    if absent:
        return f"pod {absent[0]} does not serve"
    if seen.meta.unwell:
        return seen.meta.unwell[0]
    if seen.meta.behind:
        return f"node {min(seen.meta.behind)} is not in sync everywhere"
    return ""


def _holds_up(seen: Observed, one: RetirementStatus) -> bool:
    """Whether a retirement goes before a roll: one that gets on, or waits for what passes by itself. Any other wait may
    be for what the roll brings (the right endpoint of the object store, other keys, another image)."""
    about = one.retirement
    if not about.is_cordoned or about.step is RetireStep.DONE:
        return False
    if about.wait is not None and about.wait.reason not in _PASSES_BY_ITSELF:
        return False
    nodes = [node for node in seen.nodes if node.spec.node_id == one.node_id]
    return not any(
        condition.type == "Stalled" and condition.status == "True"
        for node in nodes
        for condition in node.status.conditions
    )


def _is_needed_in_etcd(seen: Observed, one: Member) -> bool:
    """While a member has no vote yet, the others are a majority only together. Its pod serves reads, and is ready."""
    has_all_votes = all(known.votes for known in seen.cluster.status.etcd_members)
    return not has_all_votes and one.name.rpartition("-")[0] == cluster_of(seen).etcd_name


def _why_reader_waits(seen: Observed, one: Member, members: list[Member], pods: dict[str, SeenPod]) -> str:
    """Another volume that is not read for a moment is waited for; one that is not read for long is not."""
    for other in members:
        pod = pods.get(other.name)
        if not other.is_reader or other is one or (pod is not None and pod.is_ready):
            continue
        if pod is None or not _is_mute(seen, pod):
            return f"pod {other.name} does not read its volume yet"
    return ""


def _stalled(seen: Observed, members: list[Member], pods: dict[str, SeenPod]) -> str:
    """Of the wanted make, and not back for too long."""
    limit = seen.cluster.spec.rolling_update.readiness_timeout_seconds
    for one in members:
        pod = pods.get(one.name)
        if pod is None or pod.is_ready or pod.pod_hash != one.wanted_hash:
            continue
        if pod.is_failing or pod.not_ready_seconds >= limit:
            return (
                f"pod {pod.name} is of the wanted make and has not served for {_how_long(pod, limit)}: no other one "
                "is stopped; see its events and its log, or take back what was changed"
            )
    return ""


def _how_long(pod: SeenPod, limit: int) -> str:
    return f"more than {limit} s" if pod.not_ready_seconds >= limit else "some time, and crashes"
