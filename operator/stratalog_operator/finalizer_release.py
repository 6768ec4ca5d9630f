"""Releases what is being deleted while no operator does its ordinary work: its kinds are being removed, or it is gone.

Deleting a definition deletes all objects of its kind, and each with the operator's finalizer waits for an operator. One
that starts while its kinds are being removed finds some of them missing, and would wait for them: it lets go of the
rest instead. Without any operator, `stratalog operator release` does the same for a person.
Nothing else is touched: only objects and claims with a deletion timestamp, and volumes are kept as for any deletion.

Lives in the event loop of the operator, or of a command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from stratalog.model.errors import NotFound, StratalogError
from stratalog_operator.handlers import key_of
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.passes import Passes
from stratalog_operator.queue import Key
from stratalog_operator.resources.kinds import KINDS
from stratalog_operator.resources.names import API_VERSION, FINALIZER, FINALIZER_LAST_COPY, LABEL_CLUSTER

ALL_KINDS: Final = frozenset(kind.name for kind in KINDS)
_MOST_PASSES: Final = 10
"""Over one cluster: the guards go in one, the claims and the object in the next."""
_CLAIM: Final = "PersistentVolumeClaim"


async def served_kinds(kubernetes: Kubernetes) -> frozenset[str]:
    """Raises: StratalogError when the API server does not answer."""
    try:
        answer = await kubernetes.ask("GET", f"/apis/{API_VERSION}")
    except NotFound:
        return frozenset()
    return frozenset(one["kind"] for one in answer["resources"]) & ALL_KINDS


async def let_go_all(
    kubernetes: Kubernetes, passes: Passes, namespaces: Collection[str], served: Collection[str]
) -> None:
    """Of all clusters in these namespaces; none: in all of them. Raises: StratalogError for what failed, once all
    others have been let go."""
    waiting = await _waiting(kubernetes, namespaces, served)
    failed: list[StratalogError] = []
    for key in sorted({key for key, _ in waiting}):
        try:
            for _ in range(_MOST_PASSES):
                if not await passes.let_go(key):
                    break
        except StratalogError as error:
            failed.append(error)
    if failed:
        raise failed[0]


async def held(kubernetes: Kubernetes, namespaces: Collection[str], served: Collection[str]) -> list[str]:
    """What is being deleted and still waits for an operator, as KIND NAMESPACE/NAME."""
    return sorted(name for _, name in await _waiting(kubernetes, namespaces, served))


async def _waiting(
    kubernetes: Kubernetes, namespaces: Collection[str], served: Collection[str]
) -> list[tuple[Key, str]]:
    found: list[tuple[Key, str]] = []
    for namespace in namespaces or ("",):
        for kind in (*sorted(served), _CLAIM):
            query = {"labelSelector": LABEL_CLUSTER} if kind == _CLAIM else {}
            try:
                answer = await kubernetes.ask("GET", path_of(kind, namespace), query=query)
            except NotFound:  # its definition went meanwhile
                continue
            for one in answer["items"]:
                # The server leaves the kind out of the items of its own lists.
                key = key_of({"kind": kind, "apiVersion": API_VERSION, **one} if kind != _CLAIM else one)
                if key is not None and _is_held(one):
                    found.append((key, f"{kind} {key[0]}/{one['metadata']['name']}"))
    return found


def _is_held(one: Mapping[str, Any]) -> bool:
    metadata = one["metadata"]
    ours = {FINALIZER, FINALIZER_LAST_COPY}
    return "deletionTimestamp" in metadata and not ours.isdisjoint(metadata.get("finalizers") or ())
