"""Computes statuses from what was observed: conditions and numbers of the cluster, its pools and its nodes.

It returns only statuses whose meaning changed, so that a pass over a cluster without changes writes nothing.

Pure. Source: docs/operator.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from stratalog.model.counting import counted
from stratalog_operator.plan.certificates import CertificatePlan
from stratalog_operator.plan.declared.archive_job_status import archive_job_status
from stratalog_operator.plan.declared.archive_jobs import ArchiveJobPlan
from stratalog_operator.plan.declared.mount_status import mount_status
from stratalog_operator.plan.declared.topic_status import topic_status
from stratalog_operator.plan.declared.topics import TopicPlan
from stratalog_operator.plan.declared.user_status import user_status
from stratalog_operator.plan.declared.users import UserPlan
from stratalog_operator.plan.deletion import is_going, why_refused
from stratalog_operator.plan.etcd import EtcdPlan
from stratalog_operator.plan.etcd_versions import why_affected, why_no_first_node
from stratalog_operator.plan.faults import Faults
from stratalog_operator.plan.nodes import exchanged_disk, is_another, is_past_serving, lost_claim
from stratalog_operator.plan.observed import Observed, Seen, SeenClaim, SeenMeta, SeenNode, SeenPod, SeenPool
from stratalog_operator.plan.pools import foreign, has_name_of_others, may_have_earlier_nodes, unclear
from stratalog_operator.plan.requests import RebalancePlan
from stratalog_operator.plan.retire import Retiring
from stratalog_operator.plan.roles import RolesPlan
from stratalog_operator.plan.roll import Roll
from stratalog_operator.plan.scope import (
    Word,
    cluster_of,
    complete,
    has_etcd_tls,
    has_internal_tls,
    is_paused,
    is_released,
    of_pool,
    staying,
    why_blind,
    why_invalid,
)
from stratalog_operator.plan.volumes import unserved
from stratalog_operator.resources.cluster import (
    ColdTierStatus,
    ListenerStatus,
    NodeCounts,
    RetiredNode,
    StorageClusterStatus,
)
from stratalog_operator.resources.conditions import ConditionStatus, ConditionType, merge, shortened
from stratalog_operator.resources.names import LABEL_CLUSTER, LABEL_PART, LABEL_POOL
from stratalog_operator.resources.node import Data, Identity, RetirementStatus, StorageNodeStatus
from stratalog_operator.resources.pool import StorageNodePoolStatus
from stratalog_operator.resources.schema import Part
from stratalog_operator.resources.steady import is_steady, steady
from stratalog_operator.specs.node import claim_name, node_name

MAX_TOMBSTONES: Final = 32
_BEFORE_LEAVING: Final = ("Wished", "Preflight")
_YES, _NO, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_UNREACHED: Final[Word] = (_UNKNOWN, "MetaUnreachable", "the meta service does not answer")


@dataclass(frozen=True, slots=True)
class PartPlans:
    """What the parts of the plan found."""

    retiring: Mapping[str, Retiring]
    """By the name of the StorageNode."""
    roll: Roll
    next_id: int
    topics: Mapping[str, TopicPlan] = field(default_factory=dict)
    """By the name of the TopicStorage."""
    etcd: EtcdPlan = field(default_factory=EtcdPlan)
    users: Mapping[str, UserPlan] = field(default_factory=dict)
    """By the name of the StorageUser; those that are settled are not among them."""
    certificates: CertificatePlan = field(default_factory=CertificatePlan)
    rebalance: RebalancePlan | None = None
    roles: RolesPlan = field(default_factory=RolesPlan)
    archive_jobs: Mapping[str, ArchiveJobPlan] = field(default_factory=dict)
    """By the name of the ArchiveJob."""


def statuses(seen: Observed, plans: PartPlans, faults: Faults | None = None) -> dict[tuple[str, str], Part]:
    """While some object cannot be read, those that rest on it stay as they are: what they would say may be wrong.

    `faults`: of the plan; those of the statuses are added."""
    found: dict[tuple[str, str], Part] = {}
    faults = faults or Faults()

    def add(kind: str, one: Seen[Any, Any], status: Callable[[], Part]) -> None:
        made = faults.guarded(kind, one.name, status, one.status)
        if made != one.status:
            found[kind, one.name] = made

    is_blind = bool(why_blind(seen))
    for node in () if is_blind else seen.nodes:
        add("StorageNode", node, partial(node_status, seen, node, plans.retiring.get(node.name)))
    for pool in () if is_blind else seen.pools:
        add("StorageNodePool", pool, partial(pool_status, seen, pool, plans))
    for topic in seen.topics:
        if (of_topic := plans.topics.get(topic.name)) is not None:
            add("TopicStorage", topic, partial(topic_status, seen, topic, of_topic))
    for user in seen.users:
        if (of_user := plans.users.get(user.name)) is not None:
            add("StorageUser", user, partial(user_status, seen, user, of_user))
    for job in seen.archive_jobs:
        if (of_job := plans.archive_jobs.get(job.name)) is not None:
            add("ArchiveJob", job, partial(archive_job_status, seen, job, of_job))
    for mount in () if is_going(seen) or is_blind else seen.mounts:
        add("ReadOnlyMount", mount, partial(mount_status, seen, mount))
    add("StorageCluster", seen.cluster, partial(cluster_status, seen, plans))
    return faults.told(seen, found) if faults.found else found


def _reconciled(seen: Observed, invalid_certificates: str = "") -> Word:
    if seen.cluster.is_deleting:
        return _NO, "Deleting", why_refused(seen.cluster) or "the cluster is being deleted"
    if is_going(seen):
        return _NO, "Deleting", f"namespace {seen.namespace} is being deleted"
    if is_paused(seen):
        return _NO, "Paused", "nothing is applied until it is resumed"
    invalid = why_invalid(seen) or invalid_certificates
    return (_NO, "InvalidSpec", invalid) if invalid else (_YES, "Applied", "")


# Nodes ----------------------------------------------------------------------------------------------------------------
def _pod(seen: Observed, node: SeenNode) -> SeenPod | None:
    return seen.pod_named(f"{node_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id)}-0")


def _serves(seen: Observed, node: SeenNode) -> bool:
    """Its pod is ready, and the meta service counts it as alive. While that does not answer, its pod counts."""
    pod = _pod(seen, node)
    member = None if seen.meta is None else seen.meta.node(node.spec.node_id)
    return pod is not None and pod.is_ready and (seen.meta is None or (member is not None and member.is_alive))


def node_status(seen: Observed, node: SeenNode, retiring: Retiring | None) -> StorageNodeStatus:
    claim = seen.claim_named(claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id))
    pod = _pod(seen, node)
    identity = Identity(
        storage_id=_storage_id(seen, node, claim),
        pod_name="" if pod is None else pod.name,
        pod_uid="" if pod is None else pod.uid,
        machine="" if pod is None else pod.machine,
        claim_uid=_claim_uid(node, claim),
    )
    words = _node_words(seen, node, retiring, pod)
    return StorageNodeStatus(
        observed_generation=node.generation,
        conditions=merge(node.status.conditions, complete("StorageNode", words), node.generation, seen.now),
        identity=identity,
        data=_data(seen, node),
        retirement=None if retiring is None else _retirement(seen, node, retiring),
    )


def _storage_id(seen: Observed, node: SeenNode, claim: SeenClaim | None) -> str:
    """By the note on its own claim, which a person may have had changed. Where there is no claim (any more), the meta
    service knows with which disk it registered."""
    known = node.status.identity.storage_id
    if claim is not None and not is_another(node, claim):
        return claim.storage_id or known
    member = None if seen.meta is None else seen.meta.node(node.spec.node_id)
    return known or (member.storage_id if claim is None and member is not None else "")


def _claim_uid(node: SeenNode, claim: SeenClaim | None) -> str:
    """Kept when another claim takes the name, or none: by it a lost disk is known for good."""
    known = node.status.identity
    if known.storage_id and known.claim_uid and (claim is None or is_another(node, claim)):
        return known.claim_uid
    return "" if claim is None else claim.uid


def _data(seen: Observed, node: SeenNode) -> Data:
    sums = None if seen.meta is None else seen.meta.node_sums.get(node.spec.node_id)
    if sums is None:
        return node.status.data
    used = node.status.data.disk_used_percent if sums.disk_used_percent is None else sums.disk_used_percent
    return Data(segments=sums.segments, leaders=sums.leaders, disk_used_percent=used)


def _node_words(
    seen: Observed, node: SeenNode, retiring: Retiring | None, pod: SeenPod | None
) -> dict[ConditionType, Word]:
    node_id = node.spec.node_id
    member = None if seen.meta is None else seen.meta.node(node_id)
    has_left = is_released(seen, node_id)
    # The operator itself deletes the volume of a node that has left or goes with its cluster, so no person needs to
    # act.
    is_ours = is_past_serving(seen, node) or seen.cluster.is_deleting or seen.is_namespace_leaving
    lost = None if is_ours else lost_claim(seen, node)
    why_lost = "DiskExchanged" if exchanged_disk(seen, node) else "VolumeLost"
    serves = pod is not None and pod.is_ready and not pod.is_leaving
    ready: Word = (_YES, "Serves", "") if serves else (_NO, "PodNotReady", "its pod does not serve")
    if has_left:
        ready = (_NO, "Retired", "it has left")
    elif seen.meta is None:
        ready = _UNREACHED
    elif member is None or not member.is_alive:
        ready = (_NO, "NotRegistered", "the meta service does not count it as alive")
    words: dict[ConditionType, Word] = {
        ConditionType.READY: ready,
        ConditionType.RECONCILED: _reconciled(seen),
        ConditionType.POD_SCHEDULED: (_YES, "HasMachine", "") if pod and pod.machine else (_NO, "NoMachine", ""),
        ConditionType.STORAGE_BOUND: (_NO, why_lost, lost) if lost else _bound(seen, node),
    }
    if seen.meta is not None:
        is_member = member is not None and member.is_alive and not has_left
        words[ConditionType.REGISTERED] = (_YES, "IsMember", "") if is_member else (_NO, "IsNoMember", "")
        is_behind = node_id in seen.meta.behind
        words[ConditionType.IN_SYNC] = (_NO, "IsBehind", "") if is_behind else (_YES, "IsInSync", "")
    else:
        words[ConditionType.REGISTERED] = words[ConditionType.IN_SYNC] = _UNREACHED
    blocked = retiring is not None and bool(retiring.reason)
    words[ConditionType.RETIRE_BLOCKED] = (
        (_YES, retiring.reason, retiring.words) if blocked and retiring is not None else (_NO, "GoesOn", "")
    )
    retirement = node.status.retirement
    if has_left and not node.spec.retire and retirement is not None and retirement.requested:
        words[ConditionType.RETIRED] = (_YES, "CancelRefused", "it had left when the wish was taken back")
    else:
        words[ConditionType.RETIRED] = (_YES, "Released", "") if has_left else (_NO, "Stays", "")
    is_busy = retiring is not None and not blocked
    words[ConditionType.PROGRESSING] = (_YES, "Retiring", "") if is_busy else (_NO, "NothingUnderWay", "")
    stalled = lost or _stalled(seen, node, retiring)
    words[ConditionType.STALLED] = (_YES, "NeedsAPerson", stalled) if stalled else (_NO, "GoesOn", "")
    return words


def _bound(seen: Observed, node: SeenNode) -> Word:
    claim = seen.claim_named(claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id))
    return (_YES, "HasVolume", "") if claim is not None and claim.is_bound else (_NO, "NoVolumeYet", "")


def _retirement(seen: Observed, node: SeenNode, retiring: Retiring) -> RetirementStatus:
    before = node.status.retirement
    record = None if seen.meta is None else seen.meta.retirement(node.spec.node_id)
    is_same = before is not None and before.step == retiring.step
    segments = 0 if record is None else record.remaining_segments
    size = 0 if record is None else record.remaining_bytes
    # Before it is cordoned it gets new data, and loses old ones, as ever: its numbers say nothing of its leaving.
    has_less = before is not None and (segments, size) < (before.remaining_segments, before.remaining_bytes)
    got_on = before is None or not is_same or (has_less and retiring.step not in _BEFORE_LEAVING)
    volume = (
        seen.cluster.spec.scale_in.mode == "RemountVolume" if record is None else record.retirement.mode == "volume"
    )
    return RetirementStatus(
        step=retiring.step,
        requested=node.spec.retire or (before is not None and before.requested),
        mode="RemountVolume" if volume else "Offload",
        storage_id=node.status.identity.storage_id if record is None else record.retirement.storage_id,
        started_at=seen.now if before is None else before.started_at,
        step_entered_at=before.step_entered_at if before is not None and is_same else seen.now,
        remaining_segments=segments,
        remaining_bytes=size,
        bytes_per_second=_rate(before, 0 if record is None else record.bytes_per_second),
        last_progress_time=seen.now if got_on or before is None else before.last_progress_time,
        blocked_reason=retiring.reason,
        message=shortened(retiring.words if before is None else steady(before.message, retiring.words)),
    )


def _rate(before: RetirementStatus | None, now: int) -> int:
    return before.bytes_per_second if before is not None and is_steady(before.bytes_per_second, now) else now


def _stalled(seen: Observed, node: SeenNode, retiring: Retiring | None) -> str:
    before = node.status.retirement
    if retiring is None or before is None or before.step != retiring.step or before.last_progress_time is None:
        return ""
    since = datetime.fromisoformat(before.last_progress_time)
    seconds = int((datetime.fromisoformat(seen.now) - since).total_seconds())
    if seconds < seen.cluster.spec.scale_in.stall_after_seconds:
        return ""
    stands = f"its retirement has been at {retiring.step} without progress since {before.last_progress_time}"
    return f"{stands}: {retiring.words}"


# Pools ----------------------------------------------------------------------------------------------------------------
def pool_status(seen: Observed, pool: SeenPool, plans: PartPlans) -> StorageNodePoolStatus:
    nodes, stay = of_pool(seen, pool), staying(seen, pool)
    serving = [node for node in stay if _serves(seen, node)]
    leaving = [node for node in nodes if node.name in plans.retiring]
    wanted = 0 if pool.is_deleting else pool.spec.replicas
    is_whole = len(serving) == wanted == len(nodes)
    numbers = f"{len(serving)} of {counted(wanted, 'node')} ready{_whose(seen, pool)}"
    ready: Word = (_YES, "AllServe", numbers) if is_whole else (_NO, "NotAllServe", numbers)
    steps = "; ".join(f"node {one.spec.node_id}: {plans.retiring[one.name].step}" for one in leaving)
    stuck = [node for node in nodes if _stalled(seen, node, plans.retiring.get(node.name))]
    words: dict[ConditionType, Word] = {
        ConditionType.READY: _UNREACHED if seen.meta is None and nodes else ready,
        ConditionType.RECONCILED: _pool_reconciled(seen, pool),
        ConditionType.PROGRESSING: (_NO, "NothingUnderWay", "") if is_whole else (_YES, "Scaling", numbers),
        ConditionType.STALLED: (_YES, "NodeStalled", stuck[0].name) if stuck else (_NO, "GoesOn", ""),
        ConditionType.SCALING_IN: (_YES, "NodesLeave", steps) if leaving else (_NO, "NobodyLeaves", ""),
    }
    return StorageNodePoolStatus(
        observed_generation=pool.generation,
        conditions=merge(pool.status.conditions, complete("StorageNodePool", words), pool.generation, seen.now),
        replicas=len(nodes),
        ready_replicas=len(serving),
        # Pods that read the volumes of retired nodes have the label of the pool as well, and serve no client.
        selector=f"{LABEL_CLUSTER}={seen.cluster.name},{LABEL_PART}=node,{LABEL_POOL}={pool.name}",
        node_ids=tuple(node.spec.node_id for node in nodes),
    )


def _pool_reconciled(seen: Observed, pool: SeenPool) -> Word:
    if has_name_of_others(pool):
        return (
            _NO,
            "InvalidSpec",
            f"claims of pool {pool.name} would be those of etcd or the meta service: make another one",
        )
    return _reconciled(seen)


def _whose(seen: Observed, pool: SeenPool) -> str:
    """Claims under the pool's names that are not counted, in words."""
    if waits := unclear(seen, pool):
        return f"; the meta service must say first whether claim {waits[0].name} is this cluster's"
    if may_have_earlier_nodes(seen):
        return "; the meta service must say first which ids its nodes had: no node is made until then"
    if others := foreign(seen, pool):
        names = ", ".join(claim.name for claim in others[:3])
        return f"; left alone, because they have data of another cluster: claims {names}"
    return ""


# The cluster ----------------------------------------------------------------------------------------------------------
def cluster_status(seen: Observed, plans: PartPlans) -> StorageClusterStatus:
    one, meta = seen.cluster, seen.meta
    stay = [node for pool in seen.pools for node in staying(seen, pool)]
    serving = [node for node in stay if _serves(seen, node)]
    desired = sum(pool.spec.replicas for pool in seen.pools if not pool.is_deleting)
    away = _away_seconds(seen)
    has_cold = one.spec.cold_tier is not None
    words = _cluster_words(seen, plans, len(serving), desired)
    return StorageClusterStatus(
        observed_generation=one.generation,
        conditions=merge(one.status.conditions, complete("StorageCluster", words), one.generation, seen.now),
        cluster_id=one.status.cluster_id or ("" if meta is None else meta.cluster_id),
        image="" if plans.roll.outdated else one.spec.image.reference,
        nodes=one.status.nodes
        if why_blind(seen)
        else NodeCounts(desired=desired, ready=len(serving), retiring=len(plans.retiring)),
        next_node_id=max(one.status.next_node_id, plans.next_id),
        listeners=_listeners(seen),
        cold_tier=None if away is None or not has_cold else ColdTierStatus(reachable=not away, away_seconds=away),
        retired_nodes=_tombstones(seen, plans),
        etcd_members=plans.etcd.members,
        internal_protocol="SSL" if has_internal_tls(one) else "PLAINTEXT",
        etcd_protocol="SSL" if has_etcd_tls(one) else "PLAINTEXT",
        rebalance=one.status.rebalance if plans.rebalance is None else plans.rebalance.status,
        etcd_peer_protocol=plans.etcd.peers or one.status.etcd_peer_protocol,
        certificates_expire=plans.certificates.expires or None,
        operator_version=seen.operator_version,
    )


def _listeners(seen: Observed) -> tuple[ListenerStatus, ...]:
    """One for clients outside is left out as long as no address of a machine is known."""
    cluster, lines = cluster_of(seen), []
    pods = (pod for node in seen.nodes if (pod := _pod(seen, node)) is not None)
    machine = next((pod.machine_address for pod in pods if pod.is_ready and pod.machine_address), "")
    for listener in seen.cluster.spec.listeners:
        host, port = cluster.host(cluster.bootstrap_name), listener.port
        if listener.type == "nodeport":
            assert listener.first_node_port is not None, "the definition asks for it"
            host, port = listener.advertised_host or machine, listener.first_node_port
        if host:
            bootstrap = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            lines.append(ListenerStatus(name=listener.name, bootstrap=bootstrap))
    return tuple(lines)


def _away_seconds(seen: Observed) -> int | None:
    """The last reported value counts while there are nodes and none has reported to this instance of the service, which
    may have just begun to lead."""
    if seen.meta is None:
        return None
    now, before = seen.meta.store_away_seconds, seen.cluster.status.cold_tier
    if now is not None and before is not None and is_steady(before.away_seconds, now):
        return before.away_seconds
    if now is None and before is not None and any(node.is_alive for node in seen.meta.nodes):
        return before.away_seconds
    return now


def _cluster_words(seen: Observed, plans: PartPlans, serving: int, desired: int) -> dict[ConditionType, Word]:
    meta, roll = seen.meta, plans.roll
    reconciled = _reconciled(seen, "; ".join(filter(None, (plans.certificates.invalid, plans.roles.invalid))))
    if plans.certificates.waits and reconciled[0] is _YES:
        reconciled = (_NO, "Waiting", plans.certificates.waits)
    if seen.unread and reconciled[0] is _YES:
        reconciled = (_NO, "InvalidSpec", _named([found.words for found in seen.unread], len(seen.unread)))
    numbers = f"{serving} of {desired} storage nodes serve"
    if seen.token_trouble and not has_internal_tls(seen.cluster):
        ready = (_UNKNOWN, "TokenUnusable", f"the meta service is not asked: {seen.token_trouble}")
    elif blind := why_blind(seen):
        ready = (_UNKNOWN, "ObjectUnreadable", f"nodes and volumes stay as they are: {blind}")
    elif meta is None:
        ready = _UNREACHED
    elif meta.unwell:
        ready = (_NO, "NotHealthy", meta.unwell[0])
    else:
        ready = (_YES, "AllServe", numbers) if serving >= desired else (_NO, "NotAllServe", numbers)
    healthy: Word = _UNREACHED
    if meta is not None:
        healthy = _healthy(meta, unserved(seen))
    away = _away_seconds(seen)
    cold: Word = (_UNKNOWN, "NobodyHasSaid", "")
    if seen.cluster.spec.cold_tier is None:
        cold = (_NO, "NotConfigured", "there is no cold tier")
    elif away is not None:
        cold = (_NO, "DoesNotAnswer", f"no answer for {away} s") if away else (_YES, "Answers", "")
    rolling: Word = (_NO, "AllCurrent", "")
    if roll.outdated:
        rolling = (
            _YES,
            "Waits" if roll.waits else "Restarts",
            roll.waits or f"{counted(len(roll.outdated), 'pod')} to restart",
        )
    steps = _named([f"{name}: {found.step}" for name, found in plans.retiring.items()], len(plans.retiring))
    is_busy = bool(roll.outdated or plans.retiring or serving != desired)
    return {
        ConditionType.READY: ready,
        ConditionType.RECONCILED: reconciled,
        ConditionType.PROGRESSING: _cluster_progress(seen, numbers, is_busy=is_busy),
        ConditionType.STALLED: _cluster_stalled(seen, plans),
        ConditionType.HEALTHY: healthy,
        ConditionType.SCALING_IN: (_YES, "NodesLeave", steps) if plans.retiring else (_NO, "NobodyLeaves", ""),
        ConditionType.ROLLING: rolling,
        ConditionType.COLD_TIER_AVAILABLE: cold,
    }


def _cluster_progress(seen: Observed, numbers: str, *, is_busy: bool) -> Word:
    if why := why_no_first_node(seen):
        return _YES, "EtcdVersionUnknown", why
    return (_YES, "UnderWay", numbers) if is_busy else (_NO, "NothingUnderWay", "")


def _healthy(meta: SeenMeta, unserved_mounts: Sequence[str]) -> Word:
    if meta.unwell or unserved_mounts:
        count = max(meta.unwell_count, len(meta.unwell)) + len(unserved_mounts)
        return _NO, "Troubles", _named((*meta.unwell, *unserved_mounts), count)
    if meta.thin:
        return _NO, "UnderReplicated", _named(meta.thin, meta.thin_count)
    return _YES, "NoTroubles", ""


def _named(words: Sequence[str], count: int) -> str:
    more = max(count, len(words)) - 3
    return "; ".join(words[:3]) + (f"; and {more:,} more" if more > 0 else "")


def _cluster_stalled(seen: Observed, plans: PartPlans) -> Word:
    if plans.etcd.stalled:
        return _YES, "EtcdMemberLost", plans.etcd.stalled
    if why := why_affected(seen):
        return _YES, "EtcdAffected", why
    return (_YES, "PodNotBack", plans.roll.stalled) if plans.roll.stalled else (_NO, "GoesOn", "")


def _tombstones(seen: Observed, plans: PartPlans) -> tuple[RetiredNode, ...]:
    kept = list(seen.cluster.status.retired_nodes)
    if why_blind(seen):
        return tuple(kept)
    known = {one.node_id for one in kept}
    for node in seen.nodes:
        found = plans.retiring.get(node.name)
        if found is None or not found.is_buried or node.spec.node_id in known:
            continue
        record = None if seen.meta is None else seen.meta.retirement(node.spec.node_id)
        kept.append(
            RetiredNode(
                node_id=node.spec.node_id,
                storage_id=node.status.identity.storage_id,
                retired_at=seen.now,
                claim=found.kept_claim,
                given_up_ranges=0 if record is None else record.retirement.given_up_count,
            )
        )
    return tuple(kept[-MAX_TOMBSTONES:])
