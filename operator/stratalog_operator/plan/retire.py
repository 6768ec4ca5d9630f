"""How a node leaves in Kubernetes: states the wish, follows the meta service, then stops the pod and frees the volume.

The step is worked out on every pass from what the meta service says and what is there. What is taken away then, and on
which proof, is decided by `release`.

Pure. Source: docs/operator.md section 6; docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stratalog.model.counting import counted
from stratalog.model.retirement import RetireMode, RetireStep, WaitReason
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog_operator.plan import release
from stratalog_operator.plan.actions import AskRetire, CancelRetire, GuardClaim, Offer
from stratalog_operator.plan.decisions import force_words
from stratalog_operator.plan.nodes import exchanged_disk
from stratalog_operator.plan.observed import Observed, SeenClaim, SeenNode
from stratalog_operator.plan.scope import SILENT_SECONDS, apply_missing, seconds_since, staying
from stratalog_operator.plan.volumes import mount_object
from stratalog_operator.specs.node import claim_name

Step = Literal[
    "Wished", "Preflight", "Cordon", "Seal", "Offload", "Verify", "Snapshot", "Release",
    "PodStop", "Remount", "Mount", "Volume", "Done",
]  # fmt: skip
_OF_META: Final[dict[RetireStep, Step]] = {
    RetireStep.PREFLIGHT: "Preflight",
    RetireStep.CORDON: "Cordon",
    RetireStep.SEAL: "Seal",
    RetireStep.OFFLOAD: "Offload",
    RetireStep.VERIFY: "Verify",
    RetireStep.SNAPSHOT: "Snapshot",
    RetireStep.RELEASE: "Release",
    RetireStep.MOUNT: "Mount",
    RetireStep.DONE: "Volume",
}


@dataclass(frozen=True, slots=True)
class Retiring:
    """Where the retirement of a node stands, and what is offered for it."""

    step: Step
    offer: Offer
    reason: str = ""
    """Why it waits; empty while it makes progress."""
    words: str = ""
    is_buried: bool = False
    """All is done: the tombstone is due."""
    kept_claim: str = ""


def retire(seen: Observed, node: SeenNode) -> Retiring | None:
    """What comes next for this node; None for one that stays."""
    record = None if seen.meta is None else seen.meta.retirement(node.spec.node_id)
    if record is not None and not _is_ours(node, record):
        words = (
            f"the meta service speaks of disk {record.retirement.storage_id}, and this node's is "
            f"{node.status.identity.storage_id or 'not known'}: a person must look which one is meant"
        )
        return Retiring("Wished", Offer(), "IdentityChanged", words) if node.spec.retire else None
    if record is not None and record.retirement.step.is_released:
        return _after_release(seen, node, record)
    if not node.spec.retire:
        if record is None:
            return None
        retirement = node.status.retirement
        if retirement is None or not retirement.requested:
            return _following(seen, node, record)  # begun by a person's command, which a command may cancel
        return Retiring("Wished", Offer([CancelRetire(node.spec.node_id)]), "", "the wish was taken back")
    if seen.meta is None:
        return _unanswered(seen, node)
    if record is not None:
        return _following(seen, node, record)
    member = seen.meta.node(node.spec.node_id)
    if member is None:
        return _never_joined(seen, node)
    return _wish(seen, node, member.storage_id)


def _is_ours(node: SeenNode, record: RetirementStatus) -> bool:
    known = node.status.identity.storage_id
    return not known or known == record.retirement.storage_id


def _unanswered(seen: Observed, node: SeenNode) -> Retiring:
    """The last reported state counts for `SILENT_SECONDS`, so that an election of the meta service raises no alarm."""
    retirement = node.status.retirement
    step: Step = "Wished" if retirement is None else retirement.step
    silent = [one for one in node.status.conditions if one.reason == WaitReason.META_UNREACHABLE]
    seconds = max((seconds_since(one.last_transition_time, seen.now) for one in silent), default=0)
    if seconds < SILENT_SECONDS:
        return Retiring(
            step, Offer(), *(("", "") if retirement is None else (retirement.blocked_reason, retirement.message))
        )
    words = "the meta service does not answer: nothing is known of what this node holds"
    return Retiring(step, Offer(), WaitReason.META_UNREACHABLE, words)


def _wish(seen: Observed, node: SeenNode, storage_id: str) -> Retiring:
    """The request to retire a node, once nothing stands against carrying it through."""
    identity = node.status.identity.storage_id
    if identity != storage_id:
        words = exchanged_disk(seen, node) or f"disk {storage_id} answers under its id, and it had {identity}"
        if not identity:
            return Retiring("Wished", Offer(), "", "who it is has not been noted yet")
        return Retiring("Wished", Offer(), "IdentityChanged", words)
    pool = seen.pool_named(node.spec.pool_ref)
    if pool is not None and not pool.is_deleting:
        joined = [one for one in staying(seen, pool) if _is_alive(seen, one)]
        if len(joined) < pool.spec.replicas:
            words = (
                f"{len(joined)} of {counted(pool.spec.replicas, 'node')} that should stay joined so far: they come "
                "first"
            )
            return Retiring("Wished", Offer(), "WaitingForNodes", words)
    claim = _claim(seen, node)
    if claim is not None and not claim.is_safe:
        return Retiring("Wished", Offer([GuardClaim(claim.name, claim.uid)]), "", "its volume is being guarded")
    if claim is not None and claim.storage_id != storage_id:
        return Retiring("Wished", Offer(), "", "whose disk its claim has is being noted")
    if node.status.retirement is None:
        # Noted before the request is sent, so that taking back `spec.retire` never cancels a person's command.
        return Retiring("Wished", Offer(), "", "it is to leave")
    return Retiring("Wished", Offer([AskRetire(node.spec.node_id, _mode(seen))]), "", "the meta service is asked")


def _is_alive(seen: Observed, node: SeenNode) -> bool:
    member = None if seen.meta is None else seen.meta.node(node.spec.node_id)
    return member is not None and member.is_alive


def _mode(seen: Observed) -> RetireMode:
    return RetireMode.VOLUME if seen.cluster.spec.scale_in.mode == "RemountVolume" else RetireMode.OFFLOAD


def _following(seen: Observed, node: SeenNode, record: RetirementStatus) -> Retiring:
    about = record.retirement
    wait = about.wait
    member = None if seen.meta is None else seen.meta.node(record.node_id)
    words = record.words + force_words(node, member, record)
    return Retiring(_OF_META[about.step], Offer(), "" if wait is None else wait.reason.value, words)


def _never_joined(seen: Observed, node: SeenNode) -> Retiring:
    """No member of that id, and none that left: it has nothing."""
    claim = _claim(seen, node)
    grant = release.of_node_that_never_joined(seen, node, claim)
    if isinstance(grant, release.Refusal):
        return Retiring("Wished", Offer(), grant.reason, grant.words)
    return _stopping(seen, node) or _releasing(claim, grant)


def _after_release(seen: Observed, node: SeenNode, record: RetirementStatus) -> Retiring:
    about = record.retirement
    wait = about.wait
    reason = "" if wait is None else wait.reason.value
    if about.mode is RetireMode.VOLUME:
        stopping = _stopping(seen, node)
        if stopping is not None:
            return stopping
        if not release.is_mount_over(seen, node.spec.node_id, about.storage_id):
            return _remounting(seen, node, record, reason)
        if release.readers_of(seen, node.spec.node_id, about.storage_id):
            return Retiring("Done", Offer(), "", record.words, is_buried=True, kept_claim=_claim_name(seen, node))
    if about.step is not RetireStep.DONE:
        return Retiring(_OF_META[about.step], Offer(), reason, record.words)
    stopping = _stopping(seen, node)
    if stopping is not None:
        return stopping
    claim = _claim(seen, node)
    if claim is not None and claim.storage_id != about.storage_id:
        words = (
            f"claim {claim.name} has disk {claim.storage_id or 'unknown'}, and node {record.node_id} left with disk "
            f"{about.storage_id}: it is kept"
        )
        return Retiring("Volume", Offer(), "VolumePending", words)
    grant = release.of_retired_disk(seen, node.spec.node_id, about.storage_id)
    if isinstance(grant, release.Refusal):
        return Retiring("Volume", Offer(), grant.reason, grant.words)
    return _releasing(claim, grant)


def _remounting(seen: Observed, node: SeenNode, record: RetirementStatus, reason: str) -> Retiring:
    """Its volume goes to a pod that reads it."""
    mount = mount_object(seen, node.name, record.node_id, record.retirement.storage_id)
    offer = apply_missing(seen, [mount], f"the volume of node {record.node_id} stays readable")
    if record.retirement.step is not RetireStep.DONE:
        return Retiring("Mount" if not offer.actions else "Remount", offer, reason, record.words)
    return Retiring("Done", offer, "", record.words, is_buried=True, kept_claim=_claim_name(seen, node))


def _stopping(seen: Observed, node: SeenNode) -> Retiring | None:
    found = release.stopped(seen, node)
    if isinstance(found, release.Refusal):
        return Retiring("PodStop", Offer(), found.reason, found.words)
    return None if found is None else Retiring("PodStop", found.offer, "", found.words)


def _releasing(claim: SeenClaim | None, grant: release.Grant) -> Retiring:
    if claim is None:
        return Retiring("Done", Offer(), is_buried=True)
    offer = release.released(claim, grant)
    if not (offer.actions or offer.disruptive) and grant.fate is release.Fate.KEPT:
        return Retiring("Done", offer, is_buried=True, kept_claim=claim.name)
    return Retiring("Volume", offer, "", f"claim {claim.name}: {grant.why}")


def _claim_name(seen: Observed, node: SeenNode) -> str:
    return claim_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id)


def _claim(seen: Observed, node: SeenNode) -> SeenClaim | None:
    return release.claim_of_node(seen, node)
