"""Reports failed actions: `Reconciled` is False on the object of the action, and on those above it up to the
StorageCluster. `Stalled` is True as well if the failure needs a person.

A failed action holds up only what needs it (`is_needed_by`). The pass performs the others, and tries the failed one
again after growing pauses. A failure that may go away by itself (no answer, another writer was faster) is reported only
if it kept the spec from being applied.

Pure. Source: docs/operator.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Reserved, StratalogError
from stratalog_operator.plan import actions
from stratalog_operator.plan.observed import Observed, Seen
from stratalog_operator.resources.conditions import (
    OF_KIND,
    Condition,
    Conditions,
    ConditionStatus,
    ConditionType,
    merge,
)
from stratalog_operator.resources.names import LABEL_PART
from stratalog_operator.resources.schema import Part
from stratalog_operator.specs.objects import Manifest

Subject: TypeAlias = tuple[str, str]
"""Kind and name."""

_LONGEST: Final = 1024
_TRIED_AGAIN: Final = "; everything else continues, and this is tried again within 5 minutes"
_NODE, _POOL, _CLUSTER = "StorageNode", "StorageNodePool", "StorageCluster"


@dataclass(frozen=True, slots=True)
class Failure:
    action: actions.Action
    error: StratalogError

    @property
    def lasts(self) -> bool:
        # A snapshot, or what it had, is not there: a person said a wrong name, or came too late.
        is_without_source = isinstance(self.action, actions.MakeMount) and isinstance(self.error, NotFound | Conflict)
        return is_without_source or isinstance(self.error, InvalidRequest | LimitExceeded | Reserved)

    @property
    def is_told(self) -> bool:
        """The spec is not applied, whatever may become of it."""
        return self.lasts or isinstance(
            self.action,
            actions.Apply | actions.MakeToken | actions.ChangeTopic | actions.RenewCertificates | actions.PutRoles,
        )


def is_needed_by(action: actions.Action, other: actions.Action) -> bool:
    """Whether `action` must not be done while `other` fails: a pod that is stopped comes back as its StatefulSet and
    the files of its cluster say by then; a decision is used up once it was followed."""
    if isinstance(action, actions.DropDecision):
        return action.is_used and isinstance(other, actions.NoteDisk) and other.name == f"data-{action.name}"
    if not isinstance(action, actions.StopPod):
        return False
    if isinstance(other, actions.MakeToken | actions.RenewCertificates | actions.PutRoles):
        return True
    if not isinstance(other, actions.Apply):
        return False
    kind, name = other.key
    return kind == "ConfigMap" or (kind == "StatefulSet" and name == action.name.rpartition("-")[0])


def told_with(seen: Observed, statuses: dict[Subject, Part], failures: Iterable[Failure]) -> dict[Subject, Part]:
    """The statuses of a pass after its actions: those whose meaning changed."""
    objects = objects_of(seen)
    worst: dict[Subject, Failure] = {}
    for one in failures:
        if not one.is_told:
            continue
        for subject in _subjects(seen, one.action):
            known = worst.get(subject)
            if subject in objects and (known is None or (one.lasts and not known.lasts)):
                worst[subject] = one
    found = dict(statuses)
    for subject, one in worst.items():
        before: Any = objects[subject].status
        status: Any = found.pop(subject, before)
        conditions = _with(subject[0], objects[subject], status.conditions, one, seen.now)
        with_error = status.model_copy(update={"conditions": conditions})
        if with_error != before:
            found[subject] = with_error
    return found


def objects_of(seen: Observed) -> dict[Subject, Seen[Any, Any]]:
    found: dict[Subject, Seen[Any, Any]] = {(_CLUSTER, seen.cluster.name): seen.cluster}
    found |= {(_POOL, one.name): one for one in seen.pools}
    found |= {(_NODE, one.name): one for one in seen.nodes}
    found |= {("TopicStorage", one.name): one for one in seen.topics}
    found |= {("StorageUser", one.name): one for one in seen.users}
    found |= {("ArchiveJob", one.name): one for one in seen.archive_jobs}
    return found | {("ReadOnlyMount", one.name): one for one in seen.mounts}


def _with(
    kind: str, one: Seen[Any, Any], conditions: tuple[Condition, ...], failure: Failure, now: str
) -> tuple[Condition, ...]:
    """What stood there before counts for the time of the change."""
    given = words_of(conditions)
    words = str(failure.error)[:_LONGEST]
    if not failure.lasts:
        given[ConditionType.RECONCILED] = (ConditionStatus.FALSE, "Waiting", f"{words}; it is tried again")
        return merge(one.status.conditions, given, one.generation, now)
    given[ConditionType.RECONCILED] = (ConditionStatus.FALSE, "Error", words)
    stalled = given.get(ConditionType.STALLED)
    if ConditionType.STALLED in OF_KIND[kind] and (stalled is None or stalled[0] is not ConditionStatus.TRUE):
        given[ConditionType.STALLED] = (ConditionStatus.TRUE, "Refused", f"{words}{_TRIED_AGAIN}")
    return merge(one.status.conditions, given, one.generation, now)


def words_of(conditions: Conditions) -> dict[ConditionType, tuple[ConditionStatus, str, str]]:
    """Without those of another version, which nothing here knows."""
    known = {one.value for one in ConditionType}
    return {
        ConditionType(one.type): (ConditionStatus(one.status), one.reason, one.message)
        for one in conditions
        if one.type in known
    }


# What an action is about ----------------------------------------------------------------------------------------------
def _subjects(seen: Observed, action: actions.Action) -> Iterator[Subject]:
    """The object that it is about, then those above it. A topic, a user, a mount and a job stand for themselves."""
    kind, name = subject_of(action)
    if kind in ("TopicStorage", "StorageUser", "ReadOnlyMount", "ArchiveJob"):
        yield kind, name
        return
    if kind == _NODE:
        yield kind, name
        kind, name = _POOL, next((node.spec.pool_ref for node in seen.nodes if node.name == name), "")
    if kind == _POOL:
        yield kind, name
    yield _CLUSTER, seen.cluster.name


def subject_of(action: actions.Action) -> Subject:
    """The object that it is about; what is of the cluster as a whole has no name."""
    match action:
        case actions.MakeTopic() | actions.ChangeTopic() | actions.RemoveTopic() | actions.AskSeal():
            return "TopicStorage", action.owner
        case (
            actions.MakeRules(owner)
            | actions.RemoveRules(owner)
            | actions.RemoveCredentials(owner)
            | actions.PutQuotas(owner)
        ):
            return "StorageUser", owner
        case actions.PutPassword(owner=owner_of_secret) | actions.PutCertificate(owner=owner_of_secret):
            return "StorageUser", owner_of_secret.name
        case actions.MakeMount():
            return "ReadOnlyMount", action.owner
        case actions.EndMount(mount):
            return "ReadOnlyMount", mount
        case actions.AddFinalizer(kind, name) | actions.DropFinalizer(kind, name) | actions.DeleteObject(kind, name):
            return kind, name
        case actions.DropDecision(kind, name):
            return (_NODE, name.removeprefix("data-")) if kind == "PersistentVolumeClaim" else (kind, name)
        case actions.Apply(manifest):
            return _subject_of(manifest)
        case (
            actions.GuardClaim(name)
            | actions.UnguardClaim(name)
            | actions.ReleaseClaim(name)
            | actions.NoteDisk(name)
            | actions.DeleteClaim(name)
        ):
            return _NODE, name.removeprefix("data-")
        case actions.StopSet(name):
            return _NODE, name
        case actions.StopPod(name):
            return _NODE, name.removesuffix("-0")
        case _:
            return _CLUSTER, ""


def _subject_of(manifest: Manifest) -> Subject:
    """By who owns it and by its labels."""
    metadata: Any = manifest["metadata"]
    name = str(metadata["name"])
    owners = [(str(one["kind"]), str(one["name"])) for one in metadata.get("ownerReferences", ())]
    declared = [owner for owner in owners if owner[0] in ("ReadOnlyMount", "ArchiveJob")]
    if declared:
        return declared[0]
    if manifest["kind"] == _NODE:
        spec: Any = manifest["spec"]
        return _POOL, str(spec["poolRef"])
    if manifest["kind"] == "ReadOnlyMount":
        return _NODE, name  # made for the node of that name, which has left with its volume
    nodes = [owner for owner in owners if owner[0] == _NODE]
    if nodes:
        return nodes[0]
    if metadata["labels"].get(LABEL_PART) == "node" and manifest["kind"] in ("StatefulSet", "PersistentVolumeClaim"):
        return _NODE, name.removeprefix("data-")
    return _CLUSTER, ""
