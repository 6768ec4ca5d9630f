"""A StorageCluster that only the definition of another version accepts: its status says so, and what people release by
an annotation goes at once. Everything else stays as it is, because no spec says what is wanted.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog_operator.plan.actions import DropFinalizer, UnguardClaim
from stratalog_operator.plan.decisions import release_value
from stratalog_operator.plan.observed import SeenClaim, Unread
from stratalog_operator.plan.orphans import Orphan
from stratalog_operator.plan.release import by_person, released
from stratalog_operator.resources.conditions import Conditions, ConditionStatus, ConditionType, merge
from stratalog_operator.resources.names import ANNOTATION_RELEASE_FINALIZER, FINALIZER

_BY_A_PERSON: Final = "a person said so"
_HELD_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class UnreadablePlan:
    actions: tuple[DropFinalizer | UnguardClaim, ...]
    conditions: Conditions | None
    """Of the StorageCluster, all that it has; None where they are to stay."""


def plan_unreadable(
    cluster: Unread, found: Iterable[Orphan], claims: Collection[SeenClaim], now: str
) -> UnreadablePlan:
    """`found`: what names the cluster; `claims`: those of its nodes and of etcd."""
    actions: list[DropFinalizer | UnguardClaim] = []
    if cluster.is_let_go:
        actions.append(DropFinalizer(cluster.kind, cluster.name, _BY_A_PERSON))
    for kind, one in found:
        is_released = one.annotations.get(ANNOTATION_RELEASE_FINALIZER) == "true" and kind != "StorageNode"
        if (
            one.is_let_go
            if isinstance(one, Unread)
            else one.is_deleting and FINALIZER in one.finalizers and is_released
        ):
            actions.append(DropFinalizer(kind, one.name, _BY_A_PERSON))
    held = []
    for claim in claims:
        if not (claim.is_leaving and claim.is_held):
            continue
        if (grant := by_person(claim)) is None:
            held.append(claim)
        else:
            actions += (one for one in released(claim, grant).actions if isinstance(one, UnguardClaim))
    return UnreadablePlan(tuple(actions), _conditions(cluster, held, now))


def _conditions(cluster: Unread, held: Iterable[SeenClaim], now: str) -> Conditions | None:
    """The other conditions stay as the version wrote them that could read the object."""
    if cluster.conditions is None:
        return None
    words = "; ".join([cluster.words, *map(_why_held, list(held)[:_HELD_NAMED])])
    given: Mapping[ConditionType, tuple[ConditionStatus, str, str]] = {
        ConditionType.READY: (ConditionStatus.UNKNOWN, "ObjectUnreadable", f"nothing is changed: {words}"),
        ConditionType.RECONCILED: (ConditionStatus.FALSE, "InvalidSpec", words),
    }
    changed = {one.type: one for one in merge(cluster.conditions, given, cluster.generation, now)}
    kept = [one for one in cluster.conditions if one.type not in changed]
    conditions = (*changed.values(), *kept)
    return None if set(conditions) == set(cluster.conditions) else conditions


def _why_held(claim: SeenClaim) -> str:
    return (
        f"claim {claim.name} was deleted and is held back; if its disk is lost, annotate it: kubectl annotate pvc "
        f"{claim.name} --overwrite {ANNOTATION_RELEASE_FINALIZER}={release_value(claim)}"
    )
