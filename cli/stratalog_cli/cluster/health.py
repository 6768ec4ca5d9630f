"""Asks each part of a cluster for its health, at its own HTTP address, within a second.

Blocking; meant for threads. Standard library only. A part that does not answer is reported as such and raises nothing.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from stratalog.model.tokens import Token, bearer
from stratalog_cli.cluster.plan import ADDRESSES, Part, Role
from stratalog_cli.connect.json_answers import object_of

_TIMEOUT_S: Final = 1.0
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The environment's proxy is for the world outside."""


@dataclass(frozen=True, slots=True)
class Health:
    """What a part says of itself."""

    is_well: bool
    words: str
    """`ready`, or what is wrong."""
    leads: bool | None = None
    """Of etcd members and meta instances; None when it is not known."""


def is_well(part: Part) -> bool:
    return health_of(part).is_well


def all_health(parts: list[Part], token: Token | None = None) -> dict[str, Health]:
    """`token` is shown to those that ask for one."""
    if not parts:
        return {}
    with ThreadPoolExecutor(len(parts)) as asking:
        answers = asking.map(lambda part: health_of(part, token), parts)
        return dict(zip((part.name for part in parts), answers, strict=True))


def health_of(part: Part, token: Token | None = None) -> Health:
    match part.role:
        case Role.ETCD:
            address = part.addresses[ADDRESSES[Role.ETCD][0]]
            status, body = _get(f"http://{address}/health")
            is_well = status == 200 and body.get("health") == "true"
            why = body.get("reason") or "no majority of the members answers it"
        case Role.META | Role.NODE:
            address = part.addresses["admin"]
            status, body = _get(f"http://{address}/readyz")
            is_well = status == 200
            waiting = body.get("waiting_for")
            why = "; ".join(f"{what}: {why}" for what, why in waiting.items()) if isinstance(waiting, dict) else ""
    if status == 0:
        return Health(False, "does not answer")
    leads = None if part.role is Role.NODE else _leads(part, address, token)
    return Health(is_well, "ready" if is_well else why or "not ready", leads)


def _leads(part: Part, address: str, token: Token | None) -> bool | None:
    name = "etcd_server_is_leader" if part.role is Role.ETCD else "stratalog_meta_leader_is_leading"
    try:
        with _opener.open(_request(f"http://{address}/metrics", token), timeout=_TIMEOUT_S) as answer:
            lines = answer.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    if found:
        return float(found[0]) == 1
    # The only instance over RocksDB always leads.
    return True if part.role is Role.META else None


def troubles(metas: list[Part], token: Token | None) -> list[dict[str, Any]] | None:
    """Shards that need attention, from the leading instance; None when no instance answers."""
    return items_of(metas, "/v1/troubles", token)


def items_of(metas: list[Part], path: str, token: Token | None) -> list[dict[str, Any]] | None:
    """The items of a list of the meta service, from the first instance that answers; None when none does."""
    for meta in metas:
        status, body = _get(f"http://{meta.addresses['http']}{path}", token)
        if status == 200 and isinstance(body.get("items"), list):
            return [item for item in body["items"] if isinstance(item, dict)]
    return None


def _get(url: str, token: Token | None = None) -> tuple[int, dict[str, Any]]:
    """Status, 0 without an answer, and the object that it answered with."""
    try:
        with _opener.open(_request(url, token), timeout=_TIMEOUT_S) as answer:
            return answer.status, object_of(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, object_of(refused.read())
    except OSError:
        return 0, {}


def _request(url: str, token: Token | None) -> urllib.request.Request:
    request = urllib.request.Request(url)
    if token is not None:
        request.add_unredirected_header("Authorization", bearer(token()))
    return request
