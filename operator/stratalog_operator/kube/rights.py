"""All that the operator may ask of Kubernetes: verb by resource. The client asks for nothing else, and the roles of the
chart are made of this table: it is the one place where a right is given.

Plain data. Source: docs/operator.md section 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stratalog_operator.resources.names import GROUP

_APPLIED: Final = ("create", "patch")
"""Server-side apply is a patch, and makes what is not there: Kubernetes asks for both."""


class Scope(Enum):
    WATCHED = "watched"
    """In each namespace that is watched."""
    OWN = "own"
    """In the operator's own namespace."""
    WHOLE = "whole"
    """Of kinds that are in no namespace."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    verb: str
    group: str
    """Empty for the core group."""
    resource: str
    """In the plural, with a subresource as `pods/status`."""


def _rights(group: str, resource: str, *verbs: str) -> Iterator[Right]:
    return (Right(verb, group, resource) for verb in verbs)


def _watched() -> Iterator[Right]:
    see = ("list", "watch")
    yield from _rights(GROUP, "storageclusters", "get", *see, "patch")
    yield from _rights(GROUP, "storagenodepools", "get", *see, "patch")
    yield from _rights(GROUP, "storagenodes", "get", *see, *_APPLIED, "delete")
    yield from _rights(GROUP, "topicstorages", "get", *see, "patch")
    yield from _rights(GROUP, "storageusers", "get", *see, "patch")
    yield from _rights(GROUP, "readonlymounts", "get", *see, *_APPLIED)
    yield from _rights(GROUP, "archivejobs", "get", *see)
    for plural in (
        "storageclusters",
        "storagenodepools",
        "storagenodes",
        "topicstorages",
        "storageusers",
        "readonlymounts",
        "archivejobs",
    ):
        yield from _rights(GROUP, f"{plural}/status", "patch")
    yield from _rights("", "namespaces", "get")
    yield from _rights("", "pods", *see, "delete")
    yield from _rights("apps", "statefulsets", "get", *see, *_APPLIED, "delete")
    yield from _rights("", "persistentvolumeclaims", "get", *see, *_APPLIED, "delete")
    yield from _rights("", "services", "list", *_APPLIED, "delete")
    yield from _rights("", "configmaps", "list", *_APPLIED)
    yield from _rights("policy", "poddisruptionbudgets", "list", *_APPLIED, "delete")
    yield from _rights("networking.k8s.io", "networkpolicies", "list", *_APPLIED, "delete")
    yield from _rights("batch", "cronjobs", "list", *_APPLIED, "delete")
    yield from _rights("batch", "jobs", *see, *_APPLIED)
    # Neither list nor watch: an account that may list Secrets reads all of them at once.
    yield from _rights("", "secrets", "get", "create", "patch")
    yield from _rights("", "events", "get", "create", "patch")


RIGHTS: Final[dict[Scope, frozenset[Right]]] = {
    Scope.WATCHED: frozenset(_watched()),
    Scope.OWN: frozenset(_rights("coordination.k8s.io", "leases", "get", "create", "update")),
    # Without these the volumes' own policies stand: a volume that is to be kept needs a class whose policy is Retain.
    Scope.WHOLE: frozenset(_rights("", "persistentvolumes", "get", "patch")),
}

FOR_OWNERS: Final = frozenset(
    right
    for plural in ("storageclusters", "storageusers", "readonlymounts", "archivejobs")
    for right in _rights(GROUP, f"{plural}/finalizers", "update")
)
"""Never called. Some API servers require it from an account that names an owner whose deletion the object blocks."""

OF_EVERYBODY: Final = frozenset(_rights("authorization.k8s.io", "selfsubjectaccessreviews", "create"))
"""Every account may ask for its own rights, so none of the operator's roles lists this one."""

_ALL: Final = frozenset().union(*RIGHTS.values(), OF_EVERYBODY)


def is_granted(right: Right) -> bool:
    return right in _ALL


def rules(rights: Iterable[Right]) -> list[dict[str, list[str]]]:
    """As the rules of a Role: one for each resource, in a fixed order."""
    found: dict[tuple[str, str], list[str]] = {}
    for right in sorted(rights):
        found.setdefault((right.group, right.resource), []).append(right.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs}
        for (group, resource), verbs in sorted(found.items())
    ]


_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def right_of(method: str, path: str) -> Right | None:
    """What a request asks for; None for one that is about no object (what the server serves, its health)."""
    parts = path.strip("/").split("/")
    if len(parts) < 3 or parts[0] not in ("api", "apis"):
        return None
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2 if parts[0] == "api" else 3 :]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return None
    resource, is_one = rest[0], len(rest) > 1
    if len(rest) > 2:
        resource = f"{resource}/{rest[2]}"
    read = "get" if is_one else "list"
    return Right(_VERBS.get(method, read), group, resource)
