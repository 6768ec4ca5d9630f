"""Chooses what becomes an Event: a changed condition, a step of a retirement, the end of a request. A pass as such is
no Event.

Conditions that only explain another one (such as `PodScheduled` for `Ready`) are in the object and make no Event.

Pure. Source: docs/operator.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stratalog.model.counting import counted
from stratalog.model.rights import ANYTHING, PatternType, Rule
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed
from stratalog_operator.resources.cluster import StorageClusterStatus
from stratalog_operator.resources.conditions import Condition, Conditions, ConditionType
from stratalog_operator.resources.node import StorageNodeStatus
from stratalog_operator.resources.requests import RebalanceStatus, SealStatus
from stratalog_operator.resources.schema import Part
from stratalog_operator.resources.topic import TopicStorageStatus

_TRUE_IS_BAD: Final = frozenset(
    {ConditionType.STALLED, ConditionType.RETIRE_BLOCKED, ConditionType.CONFLICT, ConditionType.SOURCE_EXPIRED}
)
_FALSE_IS_BAD: Final = frozenset({ConditionType.HEALTHY, ConditionType.COLD_TIER_AVAILABLE})
_BAD_REASONS: Final = frozenset({"InvalidSpec", "Error", "LastRunFailed"})
_RULES_NAMED: Final = 5
"""In one Event."""
_EXPECTED: Final = frozenset({"NotConfigured", "UnderReplicated"})
"""Of every restart of a pod the second is a part."""


_TOLD: Final = (
    _TRUE_IS_BAD
    | _FALSE_IS_BAD
    | {
        ConditionType.READY,
        ConditionType.RECONCILED,
        ConditionType.SCALING_IN,
        ConditionType.ROLLING,
        ConditionType.RETIRED,
    }
)


@dataclass(frozen=True, slots=True)
class News:
    """Of one object."""

    kind: str
    name: str
    uid: str
    is_warning: bool
    reason: str
    words: str


def news(seen: Observed, statuses: dict[tuple[str, str], Part]) -> list[News]:
    """The Events of statuses that were just written, compared with those that the observed objects had."""
    found: list[News] = []
    for kind, objects in (
        ("StorageCluster", (seen.cluster,)),
        ("StorageNodePool", seen.pools),
        ("StorageNode", seen.nodes),
        ("TopicStorage", seen.topics),
        ("StorageUser", seen.users),
        ("ReadOnlyMount", seen.mounts),
        ("ArchiveJob", seen.archive_jobs),
    ):
        for one in objects:
            after = statuses.get((kind, one.name))
            if after is not None:
                found += (News(kind, one.name, one.uid, *line) for line in _lines(one.status, after))
    return found


def of_actions(actions: Iterable[act.Action]) -> Iterator[News]:
    """What was done that no condition tells of: decisions that people made by an annotation, passwords and
    certificates that were renewed, and rules and quotas that others had made."""
    for one in actions:
        match one:
            case act.DropDecision(kind, name, uid, _, is_used, why):
                yield News(kind, name, uid, not is_used, "DecisionUsed" if is_used else "DecisionIgnored", why)
            case act.PutPassword(owner, act.PasswordSource.GENERATED, secret_uid=secret_uid) if secret_uid:
                words = f"Secret {owner.name} has another password, which user {owner.user} logs in with from now on"
                yield News("StorageUser", owner.name, owner.uid, False, "PasswordRotated", words)
            case act.PutCertificate(owner, secret_uid=secret_uid) if secret_uid:
                words = f"Secret {owner.name} has another certificate; the earlier one is valid until it ends"
                yield News("StorageUser", owner.name, owner.uid, False, "CertificateRotated", words)
            case act.RemoveRules(name, uid, rules, is_reported=True):
                listed = "; ".join(map(words_of_rule, rules[:_RULES_NAMED]))
                more = f"; and {len(rules) - _RULES_NAMED} more" if len(rules) > _RULES_NAMED else ""
                words = f"removed what this object does not have, and others made: {listed}{more}"
                yield News("StorageUser", name, uid, True, "RulesRemoved", words)
            case act.PutQuotas(name, uid, user, is_reported=True) if words := _words_of_replaced(one):
                yield News("StorageUser", name, uid, True, "QuotasReplaced", f"user {user} had from others {words}")
            case _:
                pass


def of_certificates(seen: Observed, actions: Iterable[act.Action]) -> Iterator[News]:
    """That the trust in former authorities of the cluster has ended."""
    for one in actions:
        if isinstance(one, act.RenewCertificates) and one.step is act.AuthorityStep.DROP:
            words = "every pod shows a certificate of the present authority: former ones are trusted no more"
            yield News("StorageCluster", seen.cluster.name, seen.cluster.uid, False, "FormerAuthorityDropped", words)


def words_of_rule(rule: Rule) -> str:
    resource = rule.resource
    pattern = "" if resource.pattern is PatternType.LITERAL else " (prefix)"
    what = f"{resource.type.name.lower()} {resource.name:.80}{pattern}"
    host = "" if rule.host == ANYTHING else f" from {rule.host:.80}"
    return f"{rule.permission.name.lower()} {rule.operation.name} on {what}{host}"


def _words_of_replaced(action: act.PutQuotas) -> str:
    """The limits that others had set, in words; empty: there were none."""
    pairs = ((change, action.seen.of(change.key)) for change in action.changes)
    return ", ".join(
        f"{change.key.value} {had:,.15g}, {'which is removed' if change.limit is None else f'now {change.limit:,.15g}'}"
        for change, had in pairs
        if had is not None
    )


Line = tuple[bool, str, str]


def _lines(before: Part, after: Part) -> Iterator[Line]:
    yield from _changes(_conditions(before), _conditions(after))
    if isinstance(before, StorageNodeStatus) and isinstance(after, StorageNodeStatus):
        yield from _steps(before, after)
    if isinstance(before, TopicStorageStatus) and isinstance(after, TopicStorageStatus):
        yield from _seal(before.seal, after.seal)
    if isinstance(before, StorageClusterStatus) and isinstance(after, StorageClusterStatus):
        yield from _rebalance(before.rebalance, after.rebalance)


def _seal(before: SealStatus | None, after: SealStatus | None) -> Iterator[Line]:
    if after is None or after == before:
        return
    if after.ignored:
        yield True, "RequestIgnored", f"sealRequestedAt {after.requested_at} is older than this object"
    elif after.done_at is not None:
        yield False, "Sealed", f"the request of {after.requested_at}"


def _rebalance(before: RebalanceStatus | None, after: RebalanceStatus | None) -> Iterator[Line]:
    if after is None or after == before:
        return
    if after.ignored:
        yield True, "RequestIgnored", f"rebalance.requestedAt {after.requested_at} is older than this object"
    elif after.done_at is not None:
        moved = f"{counted(after.moved_shards, 'shard')} continue elsewhere, in {counted(after.rounds, 'round')}"
        why = f"; {after.message}" if after.message else ""
        yield not after.even, "Rebalanced", f"the request of {after.requested_at}: {moved}{why}"


def _conditions(status: Part) -> Conditions:
    found: Conditions = getattr(status, "conditions", ())
    return found


def _changes(before: Conditions, after: Conditions) -> Iterator[Line]:
    known = {one.type: one for one in before}
    for one in after:
        if ConditionType(one.type) not in _TOLD:
            continue
        last = known.get(one.type)
        # Of an object that is looked at for the first time only what is bad is news.
        if last is None and not _is_bad(one):
            continue
        if last is not None and (last.status, last.reason) == (one.status, one.reason):
            continue
        words = f": {one.message}" if one.message else ""
        yield _is_bad(one), one.reason, f"{one.type} is {one.status}{words}"


def _is_bad(one: Condition) -> bool:
    if one.reason in _BAD_REASONS:
        return True
    if one.reason in _EXPECTED:
        return False
    of_status = {"True": _TRUE_IS_BAD, "False": _FALSE_IS_BAD}.get(one.status, frozenset())
    return ConditionType(one.type) in of_status


def _steps(before: StorageNodeStatus, after: StorageNodeStatus) -> Iterator[Line]:
    if after.retirement is None:
        return
    last = "" if before.retirement is None else before.retirement.step
    if after.retirement.step != last:
        yield False, f"Retire{after.retirement.step}", after.retirement.message or f"step {after.retirement.step}"
