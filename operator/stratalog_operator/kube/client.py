"""Requests to the Kubernetes API, through the official client's asyncio side. It does not use that client's models,
because they cost memory.

A refusal of the server becomes one of Stratalog's errors, by what the caller can do about it. Every write is counted,
because a pass over a cluster without changes must not write. The client refuses requests that `rights` does not list,
and writes while this instance does not hold the Lease. Lives in the operator's event loop.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from stratalog.model.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from stratalog_operator.kube.rights import Right, is_granted, right_of
from stratalog_operator.resources.names import GROUP

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"
REQUEST_SECONDS: Final = 30

_CORE: Final = "/api/v1"
_PLURALS: Final[Mapping[str, tuple[str, str]]] = {
    "Namespace": (_CORE, "namespaces"),
    "Pod": (_CORE, "pods"),
    "Service": (_CORE, "services"),
    "ConfigMap": (_CORE, "configmaps"),
    "Secret": (_CORE, "secrets"),
    "Event": (_CORE, "events"),
    "PersistentVolumeClaim": (_CORE, "persistentvolumeclaims"),
    "PersistentVolume": (_CORE, "persistentvolumes"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "CronJob": ("/apis/batch/v1", "cronjobs"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "StorageCluster": (f"/apis/{GROUP}/v1alpha1", "storageclusters"),
    "StorageNodePool": (f"/apis/{GROUP}/v1alpha1", "storagenodepools"),
    "StorageNode": (f"/apis/{GROUP}/v1alpha1", "storagenodes"),
    "TopicStorage": (f"/apis/{GROUP}/v1alpha1", "topicstorages"),
    "StorageUser": (f"/apis/{GROUP}/v1alpha1", "storageusers"),
    "ReadOnlyMount": (f"/apis/{GROUP}/v1alpha1", "readonlymounts"),
    "ArchiveJob": (f"/apis/{GROUP}/v1alpha1", "archivejobs"),
}
_WHOLE: Final = frozenset({"Namespace", "PersistentVolume"})
"""Kinds that are in no namespace."""


def api_version(kind: str) -> str:
    """The `apiVersion` of objects of this kind."""
    return _PLURALS[kind][0].removeprefix("/apis/").removeprefix("/api/")


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Without `namespace`: of all of them."""
    root, plural = _PLURALS[kind]
    place = root if kind in _WHOLE or not namespace else f"{root}/namespaces/{namespace}"
    return f"{place}/{plural}/{name}" if name else f"{place}/{plural}"


class Forbidden(InvalidRequest):
    """The API server gives the operator's account no right to it."""


class Kubernetes:
    """Answers are the server's JSON, as it came."""

    def __init__(self, api: ApiClient) -> None:
        """`api` is closed by who made it."""
        self._api = api
        self.may_write: Callable[[], None] = lambda: None
        """Raises when this process must not write (any more)."""
        self.writes: Counter[tuple[str, str]] = Counter()
        """By verb and resource."""
        self.answers: Counter[tuple[str, str]] = Counter()
        """By verb and HTTP status; `none` where there was no answer."""
        self.asked: set[Right] = set()
        self.clock_ahead_seconds = 0
        """How far the clock of this process was ahead of that of the server, by its last answer."""

    def writes_to_objects(self) -> int:
        """All writes but those by which a Lease is kept."""
        return sum(number for (_, resource), number in self.writes.items() if resource != "leases")

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        is_fenced: bool = True,
    ) -> dict[str, Any]:
        """Raises: NotFound; Conflict (another owns the field, or it is another object of that name); InvalidRequest;
        Forbidden; Unavailable (surely not done); OutcomeUnknown (a write without an answer); Fenced, before a write
        that is `is_fenced`: all but that by which this process becomes the one that writes."""
        is_write = method != "GET"
        verb = self._note(method, path, content_type)
        if is_write and is_fenced:
            self.may_write()
        headers = {"Accept": "application/json", "Content-Type": content_type}
        # Its signature is not typed: who we are goes into the headers.
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._api.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = await self._api.call_api(
                method, url, headers, None if body is None else dict(body), _request_timeout=REQUEST_SECONDS
            )
            text = await answer.response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            self.answers[verb, "none"] += 1
            words = f"{method} {path}: no answer of the API server ({error})"
            raise (OutcomeUnknown if is_write else Unavailable)(f"{words}: look again") from error
        self._compare_clocks(str(answer.response.headers.get("Date", "")))
        self.answers[verb, str(answer.status)] += 1
        return _read(method, path, int(answer.status), text)

    def _compare_clocks(self, told: str) -> None:
        """`told`: when the server says that it answered. An answer that was long on its way makes this clock seem
        ahead, until the next one."""
        with suppress(ValueError, TypeError):
            self.clock_ahead_seconds = round((datetime.now(UTC) - parsedate_to_datetime(told)).total_seconds())

    def _note(self, method: str, path: str, content_type: str) -> str:
        """Returns the verb."""
        right = right_of(method, path)
        if right is None:
            return method.lower()
        found = {right, Right("create", right.group, right.resource)} if _makes(right, content_type) else {right}
        unlisted = [one for one in found if not is_granted(one)]
        assert not unlisted, f"{method} {path}: {unlisted} are not in kube/rights.py, so no role has them"
        self.asked |= found
        if method != "GET":
            self.writes[right.verb, right.resource] += 1
        return right.verb


def _makes(right: Right, content_type: str) -> bool:
    """An apply makes what is not there; a status is there."""
    return content_type == APPLY and "/" not in right.resource


def _read(method: str, path: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = {"message": text[:200].decode(errors="replace")}
    if status < 300 and isinstance(found, dict):
        return found
    message = found.get("message", "") if isinstance(found, dict) else ""
    words = f"{method} {path}: {status}: {message}"
    match status:
        case 404:
            raise NotFound(words)
        case 409:
            raise Conflict(words)
        case 403:
            raise Forbidden(words)
        case 400 | 405 | 415 | 422:
            raise InvalidRequest(words)
        case _:  # also 401: an account's token expires and is renewed, and says nothing of its rights
            raise Unavailable(f"{words}: look again")
