"""What is told of actions that failed in a way that does not pass by itself: `Reconciled` is False, with the error.

What may pass by itself (nobody answers, somebody else was faster) is tried again and told only if it stays: by what it
keeps from becoming true.

Pure. Source: docs/operator.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Reserved, StratalogError
from stratalog_operator.plan.actions import (
    Action,
    AddFinalizer,
    ChangeTopic,
    DropFinalizer,
    EndMount,
    MakeMount,
    MakeTopic,
    RemoveTopic,
)
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.resources.conditions import Condition, ConditionStatus, ConditionType, merge
from stratalog_operator.resources.schema import Part

_LONGEST: Final = 1024


@dataclass(frozen=True, slots=True)
class Failure:
    action: Action
    error: StratalogError

    @property
    def lasts(self) -> bool:
        # A snapshot, or what it had, is not there: a person said a wrong name, or came too late.
        is_without_source = isinstance(self.action, MakeMount) and isinstance(self.error, NotFound | Conflict)
        return is_without_source or isinstance(self.error, InvalidRequest | LimitExceeded | Reserved)

    @property
    def subject(self) -> tuple[str, str]:
        """Kind and name of the object that is told of it; without a name the StorageCluster."""
        match self.action:
            case MakeTopic() | ChangeTopic() | RemoveTopic():
                return "TopicStorage", self.action.owner
            case MakeMount():
                return "ReadOnlyMount", self.action.owner
            case EndMount(mount):
                return "ReadOnlyMount", mount
            case AddFinalizer(kind, name) | DropFinalizer(kind, name) if kind in ("TopicStorage", "ReadOnlyMount"):
                return kind, name
            case _:
                return "StorageCluster", ""

    @property
    def is_of_cluster(self) -> bool:
        return self.subject[0] == "StorageCluster"


def told_with(
    seen: Observed, statuses: dict[tuple[str, str], Part], failures: Iterable[Failure]
) -> dict[tuple[str, str], Part]:
    """The statuses of a pass after its actions: those whose meaning changed."""
    found = dict(statuses)
    told: set[tuple[str, str]] = set()
    objects = _objects(seen)
    for one in failures:
        kind, name = one.subject
        key = kind, name or seen.cluster.name
        if not one.lasts or key in told or key not in objects:
            continue
        told.add(key)
        before: Any = objects[key].status
        status: Any = found.pop(key, before)
        with_error = status.model_copy(
            update={"conditions": _with(objects[key], status.conditions, str(one.error)[:_LONGEST], seen.now)}
        )
        if with_error != before:
            found[key] = with_error
    return found


def _objects(seen: Observed) -> dict[tuple[str, str], Seen[Any, Any]]:
    found: dict[tuple[str, str], Seen[Any, Any]] = {("StorageCluster", seen.cluster.name): seen.cluster}
    found |= {("TopicStorage", one.name): one for one in seen.topics}
    return found | {("ReadOnlyMount", one.name): one for one in seen.mounts}


def _with(one: Seen[Any, Any], conditions: tuple[Condition, ...], words: str, now: str) -> tuple[Condition, ...]:
    """What stood there before counts for the time of the change."""
    given = {ConditionType(told.type): (ConditionStatus(told.status), told.reason, told.message) for told in conditions}
    given[ConditionType.RECONCILED] = (ConditionStatus.FALSE, "Error", words)
    return merge(one.status.conditions, given, one.generation, now)
