"""From the JSON of Kubernetes to what the plan looks at. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from pydantic import ValidationError

from stratalog.model.errors import InvalidRequest
from stratalog_operator.plan.observed import HalfGuard, Seen, SeenClaim, SeenPod, SeenReport, SeenRun, SeenSet, Unread
from stratalog_operator.plan.ownership import Fields, united
from stratalog_operator.resources.conditions import Condition, Conditions
from stratalog_operator.resources.names import (
    ANNOTATION_CLUSTER_ID,
    ANNOTATION_ETCD_MEMBER,
    ANNOTATION_POD_HASH,
    ANNOTATION_RELEASE_FINALIZER,
    ANNOTATION_STORAGE_ID,
    ANNOTATION_VOLUME_POLICY,
    ANNOTATION_WANTED_HASH,
    FIELD_MANAGER,
    FINALIZER_LAST_COPY,
    LABEL_CLUSTER,
    LABEL_NODE_ID,
    LABEL_PART,
    LABEL_POOL,
    LABEL_RELEASED,
    LABEL_ZONE,
)
from stratalog_operator.resources.node import MAX_NODE_ID
from stratalog_operator.resources.schema import Part
from stratalog_operator.specs.node import claim_name, node_name

SpecT = TypeVar("SpecT", bound=Part)
StatusT = TypeVar("StatusT", bound=Part)
Json = Mapping[str, Any]

_HOPELESS: Final = frozenset(
    {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"}
)
"""Why a container waits that will not start by waiting alone."""
UNSCHEDULABLE_SECONDS: Final = 30
"""A pod whose volume is being made is said to be unschedulable as well."""


class Unreadable(InvalidRequest):
    """Only the definition of another version accepts the object."""

    def __init__(self, about: Unread) -> None:
        super().__init__(about.words)
        self.about = about


def seen(kind: str, found: Json, spec: type[SpecT], status: type[StatusT]) -> Seen[SpecT, StatusT]:
    """An object of one of our kinds. Raises: Unreadable."""
    metadata = found["metadata"]
    return Seen(
        metadata["name"],
        metadata["uid"],
        _part(kind, found, "spec", spec),
        _part(kind, found, "status", status),
        int(metadata.get("generation", 1)),
        _annotations(found),
        frozenset(metadata.get("finalizers") or ()),
        "deletionTimestamp" in metadata,
        str(metadata.get("creationTimestamp") or ""),
        str(metadata.get("deletionTimestamp") or ""),
        str(metadata.get("resourceVersion") or ""),
    )


def _part(kind: str, found: Json, name: str, model: type[SpecT]) -> SpecT:
    try:
        return model.model_validate(found.get(name) or {})
    except ValidationError as error:
        first, count = error.errors()[0], error.error_count()
        place = ".".join([name, *map(str, first["loc"])])
        more = f", and {count - 1} more" if count > 1 else ""
        raise Unreadable(_unread(kind, found, f"{place}: {first['msg']}{more}")) from None


def _unread(kind: str, found: Json, why: str) -> Unread:
    metadata = found["metadata"]
    return Unread(
        kind,
        metadata["name"],
        metadata["uid"],
        why,
        _annotations(found),
        frozenset(metadata.get("finalizers") or ()),
        "deletionTimestamp" in metadata,
        str(metadata.get("creationTimestamp") or ""),
        str((found.get("spec") or {}).get("topicName") or ""),
        str((found.get("spec") or {}).get("userName") or ""),
        int(metadata.get("generation", 1)),
        _conditions(found),
    )


def _conditions(found: Json) -> Conditions | None:
    try:
        return tuple(Condition.model_validate(one) for one in (found.get("status") or {}).get("conditions") or ())
    except (ValidationError, TypeError, AttributeError):
        return None


def hashes(kind: str, found: Iterable[Json]) -> dict[tuple[str, str], str]:
    """What was wanted of each when it was applied."""
    return {(kind, one["metadata"]["name"]): _annotations(one).get(ANNOTATION_WANTED_HASH, "") for one in found}


def fields(kind: str, found: Iterable[Json]) -> dict[tuple[str, str], Fields]:
    """What of each is ours, in whichever way we set it."""
    return {(kind, one["metadata"]["name"]): _ours(one["metadata"].get("managedFields") or ()) for one in found}


def _ours(entries: Iterable[Json]) -> Fields:
    whole: Fields | None = None
    for entry in entries:
        if entry.get("manager") == FIELD_MANAGER and not entry.get("subresource"):
            own = entry.get("fieldsV1") or {}
            whole = own if whole is None else united(whole, own)
    # An empty mapping means a leaf that is owned whole, so an object without fields of the operator must not have one.
    return {"none": {}} if whole is None else whole


def stateful_set(found: Json) -> SeenSet:
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    identity = _node_of(labels, metadata["name"], node_name) if labels.get(LABEL_PART) == "node" else None
    pool, node_id = ("", None) if identity is None else identity
    return SeenSet(metadata["name"], metadata["uid"], int(found["spec"].get("replicas", 1)), pool=pool, node_id=node_id)


def _node_of(labels: Mapping[str, str], name: str, name_of: Callable[[str, str, int], str]) -> tuple[str, int] | None:
    """Pool and id of the node that owns this object, by its labels, which must agree with its name. A user's copy of
    the object has the same labels and another name, and does not belong to the node."""
    cluster, pool, number = (labels.get(key, "") for key in (LABEL_CLUSTER, LABEL_POOL, LABEL_NODE_ID))
    is_id = number.isascii() and number.isdecimal() and len(number) <= len(str(MAX_NODE_ID))
    if not is_id or int(number) > MAX_NODE_ID or name_of(cluster, pool, int(number)) != name:
        return None
    return pool, int(number)


def pod(found: Json, now: str) -> SeenPod:
    metadata, status = found["metadata"], found.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    is_leaving = "deletionTimestamp" in metadata
    is_ready = ready.get("status") == "True" and not is_leaving
    since = ready.get("lastTransitionTime") or metadata.get("creationTimestamp") or now
    return SeenPod(
        metadata["name"],
        metadata["uid"],
        _annotations(found).get(ANNOTATION_POD_HASH, ""),
        is_ready,
        is_failing=not is_ready and (status.get("phase") == "Failed" or _is_hopeless(status, conditions, now)),
        is_leaving=is_leaving,
        machine=found.get("spec", {}).get("nodeName", ""),
        machine_address=status.get("hostIP", ""),
        not_ready_seconds=0 if is_ready else max(0, _seconds(since, now)),
        address=status.get("podIP", ""),
        part=str((metadata.get("labels") or {}).get(LABEL_PART, "")),
    )


def _is_hopeless(status: Json, conditions: Json, now: str) -> bool:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return _seconds(scheduled.get("lastTransitionTime") or now, now) >= UNSCHEDULABLE_SECONDS
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    return any((state.get("waiting") or {}).get("reason") in _HOPELESS for state in states)


def _seconds(since: str, now: str) -> int:
    return int((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds())


def run(found: Json) -> SeenRun:
    """A Job of an ArchiveJob."""
    metadata, status = found["metadata"], found.get("status") or {}
    ended = {one["type"]: one for one in status.get("conditions") or () if one.get("status") == "True"}
    result: Literal["", "Succeeded", "Failed"] = "Failed" if "Failed" in ended else ""
    if "Complete" in ended:
        result = "Succeeded"
    last = ended.get("Complete" if result == "Succeeded" else "Failed", {})
    finished = status.get("completionTime") or last.get("lastTransitionTime") or metadata.get("creationTimestamp")
    return SeenRun(
        metadata["name"],
        metadata["uid"],
        str(status.get("startTime") or ""),
        str(finished or "") if result else "",
        result,
        str(last.get("reason") or "") if result == "Failed" else "",
        str(last.get("message") or "") if result == "Failed" else "",
    )


def report(pods: Iterable[Json]) -> SeenReport | None:
    """Of the pod of a Job that ended last; None if none is left."""
    ended = [
        (str(state.get("finishedAt") or ""), state)
        for pod in pods
        for one in (pod.get("status") or {}).get("containerStatuses") or ()
        if (state := (one.get("state") or {}).get("terminated")) is not None
    ]
    if not ended:
        return None
    _, last = max(ended, key=lambda one: one[0])
    reason = str(last.get("reason") or "")
    return SeenReport(str(last.get("message") or ""), "" if reason in ("Completed", "Error") else reason)


def claim(found: Json) -> SeenClaim | None:
    """None if the claim does not belong to a storage node. The operator made it, or a note says which disk it has:
    labels alone would let anyone make a node, with an id after which there is none."""
    metadata = found["metadata"]
    if not _is_noted(found):
        return None
    identity = _node_of(metadata.get("labels") or {}, metadata["name"], claim_name)
    return None if identity is None else _claim(found, *identity)


def _is_noted(found: Json) -> bool:
    notes = _annotations(found)
    is_known = any(one in notes for one in (ANNOTATION_WANTED_HASH, ANNOTATION_STORAGE_ID, ANNOTATION_VOLUME_POLICY))
    return is_known or FINALIZER_LAST_COPY in (found["metadata"].get("finalizers") or ())


def etcd_claim(found: Json) -> SeenClaim | None:
    """None if the claim does not belong to a member of etcd. Its name ends with the member's number."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    before, _, number = metadata["name"].rpartition("-")
    if labels.get(LABEL_PART) != "etcd" or before != f"data-{labels.get(LABEL_CLUSTER)}-etcd":
        return None
    return _claim(found, "", int(number)) if number.isascii() and number.isdecimal() else None


def _claim(found: Json, pool: str, number: int) -> SeenClaim:
    metadata, notes = found["metadata"], _annotations(found)
    labels = metadata.get("labels") or {}
    # The note is written once the volume is kept, the finalizer after it.
    has_finalizer, is_kept = (
        FINALIZER_LAST_COPY in (metadata.get("finalizers") or ()),
        ANNOTATION_VOLUME_POLICY in notes,
    )
    half: HalfGuard = "finalizer" if has_finalizer else "volume" if is_kept else ""
    return SeenClaim(
        metadata["name"],
        metadata["uid"],
        pool,
        number,
        is_bound=(found.get("status") or {}).get("phase") == "Bound",
        is_guarded=has_finalizer and is_kept,
        half_guard="" if has_finalizer and is_kept else half,
        is_leaving="deletionTimestamp" in metadata,
        is_released=labels.get(LABEL_RELEASED) == "true",
        storage_id=notes.get(ANNOTATION_STORAGE_ID, ""),
        cluster_id=notes.get(ANNOTATION_CLUSTER_ID, ""),
        zone=labels.get(LABEL_ZONE),
        created=str(metadata.get("creationTimestamp") or ""),
        volume=str((found.get("spec") or {}).get("volumeName") or ""),
        member_id=notes.get(ANNOTATION_ETCD_MEMBER, ""),
        release_word=notes.get(ANNOTATION_RELEASE_FINALIZER, ""),
    )


def _annotations(found: Json) -> dict[str, str]:
    return dict(found["metadata"].get("annotations") or {})
