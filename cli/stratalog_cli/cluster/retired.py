"""Asks the meta service which nodes have left a cluster for good, and which nodes hold the mounts of what they left.

Blocking; meant for threads. Raises nothing.
"""

from __future__ import annotations

from typing import Any

from stratalog.model.mounts import MountMode, data_set_name
from stratalog.model.retirement import RetireStep
from stratalog_cli.cluster.access import PartsAccess
from stratalog_cli.cluster.health import items_of
from stratalog_cli.cluster.plan import Part, Role


def retired_nodes(metas: list[Part], access: PartsAccess) -> dict[str, str] | None:
    """A text about each, by the name of its part; None when no instance answers."""
    nodes, mounts = items_of(metas, "/v1/nodes", access), items_of(metas, "/v1/mounts", access)
    if nodes is None or mounts is None:
        return None
    by_name = {mount.get("name"): mount for mount in mounts}
    found = {}
    for node in nodes:
        number, retirement = node.get("node_id"), node.get("retirement") or {}
        if isinstance(number, int) and _is_released(retirement.get("step")):
            found[f"{Role.NODE}-{number}"] = _words(retirement, by_name.get(data_set_name(number)))
    return found


def _is_released(step: object) -> bool:
    return step in set(RetireStep) and RetireStep(str(step)).is_released


def _words(retirement: dict[str, Any], mount: dict[str, Any] | None) -> str:
    left = f"is retired ({retirement.get('mode')} mode)"
    if mount is None:
        is_over = retirement.get("step") == RetireStep.DONE
        return f"{left}, its data is no longer mounted" if is_over else f"{left}, another node takes over its data"
    if mount.get("holder") is None:
        return f"{left}, its data waits for a node that can mount it"
    holder = f"{left}, its data is mounted by node {mount['holder']}"
    if mount.get("mode") != MountMode.VOLUME:
        return holder
    return f"{holder}, which `stratalog node start --read-only` lets read its directory"
