"""Objects that name a StorageCluster that does not exist: nothing delays their deletion, and their status says what
they wait for.

Nothing else is done, because without the cluster no spec says what may be removed. Claims stay, except those that are
being deleted: nothing could use them any more.

Pure. Source: docs/operator.md section 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stratalog_operator.plan.actions import DeleteObject, DropFinalizer, UnguardClaim
from stratalog_operator.plan.observed import Seen, SeenClaim, Unread
from stratalog_operator.plan.release import of_missing_cluster, released
from stratalog_operator.resources.conditions import OF_KIND, Conditions, ConditionStatus, ConditionType, merge
from stratalog_operator.resources.names import FINALIZER
from stratalog_operator.resources.schema import Part

Orphan: TypeAlias = tuple[str, Seen[Any, Any] | Unread]
"""Its kind, and the object."""


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    actions: tuple[DropFinalizer | UnguardClaim | DeleteObject, ...]
    statuses: dict[tuple[str, str], Part]
    """Those that changed, by kind and name."""
    uids: dict[tuple[str, str], str] = field(default_factory=dict)
    """Of the objects of these statuses."""


def orphans(
    cluster: str,
    found: Iterable[Orphan],
    claims: Iterable[SeenClaim],
    now: str,
    cron_jobs: Iterable[tuple[str, str]] = (),
) -> OrphanPlan:
    """`cron_jobs`: name and UID of those that run for ArchiveJobs."""
    why = f"StorageCluster {cluster} does not exist"
    actions: list[DropFinalizer | UnguardClaim | DeleteObject] = [
        DeleteObject("CronJob", name, uid, why) for name, uid in cron_jobs
    ]
    grant = of_missing_cluster(cluster)
    statuses: dict[tuple[str, str], Part] = {}
    uids: dict[tuple[str, str], str] = {}
    for kind, one in found:
        if one.is_deleting:
            if FINALIZER in one.finalizers:
                actions.append(DropFinalizer(kind, one.name, why))
            continue
        if isinstance(one, Unread):
            continue
        before: Conditions = one.status.conditions
        conditions = merge(before, _words(kind, f"{why}: make it, or delete this object"), one.generation, now)
        if conditions != before:
            status: Part = one.status
            uids[kind, one.name] = one.uid
            statuses[kind, one.name] = status.model_copy(
                update={"conditions": conditions, "observed_generation": one.generation}
            )
    for claim in claims:
        if claim.is_leaving and claim.is_held:
            actions += (one for one in released(claim, grant).actions if isinstance(one, UnguardClaim))
    return OrphanPlan(tuple(actions), statuses, uids)


def _words(kind: str, words: str) -> dict[ConditionType, tuple[ConditionStatus, str, str]]:
    given = dict.fromkeys(OF_KIND[kind], (ConditionStatus.UNKNOWN, "NoCluster", words))
    given[ConditionType.READY] = (ConditionStatus.FALSE, "NoCluster", words)
    given[ConditionType.RECONCILED] = (ConditionStatus.FALSE, "Waiting", words)
    return given
