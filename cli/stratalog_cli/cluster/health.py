"""Asks each part of a cluster for its health, at its own HTTP address, within a second.

Blocking; meant for threads. Standard library only. A part that does not answer is reported as such and raises nothing.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from stratalog_cli.cluster.access import IN_THE_OPEN, PartsAccess
from stratalog_cli.cluster.plan import ADDRESSES, Part, Role
from stratalog_cli.connect.json_answers import object_of

_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """What a part says of itself."""

    is_well: bool
    words: str
    """`ready`, or what is wrong."""
    leads: bool | None = None
    """Of etcd members and meta instances; None when it is not known."""


def is_well(part: Part, access: PartsAccess = IN_THE_OPEN) -> bool:
    return health_of(part, access).is_well


def all_health(parts: list[Part], access: PartsAccess = IN_THE_OPEN) -> dict[str, Health]:
    if not parts:
        return {}
    with ThreadPoolExecutor(len(parts)) as asking:
        answers = asking.map(lambda part: health_of(part, access), parts)
        return dict(zip((part.name for part in parts), answers, strict=True))


def health_of(part: Part, access: PartsAccess = IN_THE_OPEN) -> Health:
    match part.role:
        case Role.ETCD:
            what = ADDRESSES[Role.ETCD][0]
            status, body = _get(access, part, access.request(part, what, "/health"))
            is_well = status == 200 and body.get("health") == "true"
            why = body.get("reason") or "no majority of the members answers it"
        case Role.META | Role.NODE:
            what = "admin"
            status, body = _get(access, part, access.request(part, what, "/readyz"))
            is_well = status == 200
            waiting = body.get("waiting_for")
            why = "; ".join(f"{what}: {why}" for what, why in waiting.items()) if isinstance(waiting, dict) else ""
    if status == 0:
        return Health(False, "does not answer")
    leads = None if part.role is Role.NODE else _leads(part, what, access)
    return Health(is_well, "ready" if is_well else why or "not ready", leads)


def _leads(part: Part, what: str, access: PartsAccess) -> bool | None:
    name = "etcd_server_is_leader" if part.role is Role.ETCD else "stratalog_meta_leader_is_leading"
    request = access.request(part, what, "/metrics")
    if part.role is not Role.ETCD:
        access.with_token(request)
    try:
        with access.opener(part).open(request, timeout=_TIMEOUT_S) as answer:
            lines = answer.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    if found:
        return float(found[0]) == 1
    # The only instance over RocksDB always leads.
    return True if part.role is Role.META else None


def troubles(metas: list[Part], access: PartsAccess) -> list[dict[str, Any]] | None:
    """Shards that need attention, from the leading instance; None when no instance answers."""
    return items_of(metas, "/v1/troubles", access)


def items_of(metas: list[Part], path: str, access: PartsAccess) -> list[dict[str, Any]] | None:
    """The items of a list of the meta service, from the first instance that answers; None when none does."""
    for meta in metas:
        status, body = _get(access, meta, access.with_token(access.request(meta, "http", path)))
        if status == 200 and isinstance(body.get("items"), list):
            return [item for item in body["items"] if isinstance(item, dict)]
    return None


def _get(access: PartsAccess, part: Part, request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
    """Status, 0 without an answer, and the object that it answered with."""
    try:
        with access.opener(part).open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, object_of(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, object_of(refused.read())
    except OSError:
        return 0, {}
