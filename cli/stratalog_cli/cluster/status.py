"""What `stratalog cluster status` tells: each part, what it says of itself, how it ended, and what the shards lack."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.wording import human_duration, stopped_lines
from stratalog.model.counting import counted, joined
from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import without_secrets
from stratalog_cli.cluster.access import PartsAccess, parts_access
from stratalog_cli.cluster.control import NotRunning, ask
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.health import Health, all_health, troubles
from stratalog_cli.cluster.plan import Part, Plan, Role
from stratalog_cli.cluster.retired import retired_nodes
from stratalog_cli.connect.output import print_fields, print_table
from stratalog_cli.terminal.say import say

_TIMEOUT_S = 5.0
_SHOWN_SHARDS = 8


class PartStatus(BaseModel):
    name: str
    role: Role
    state: str
    """`ready`, `starting`, `not ready`; down: `ended` (by itself), `stopped` (told to), `retired` (for good)."""
    words: str
    """What it says of itself, or how it ended."""
    leads: bool | None
    pid: int | None
    since_ms: int | None
    """When it was started, or ended."""
    addresses: dict[str, str]
    log: str
    log_tail: list[str]
    """The last lines of one that ended by itself."""


class ClusterStatus(BaseModel):
    data: str
    is_running: bool
    bootstrap: str
    page: str | None = None
    """Where the cluster UI is served."""
    store: str
    bucket: str | None
    parts: list[PartStatus]
    stopped_shards: list[str]
    """Shards that take no writes and damage, as their nodes say it."""
    troubles: list[dict[str, Any]] | None
    """Shards that need attention, from `GET /v1/troubles` of the meta service; null when no instance answers."""


def read_status(directory: ClusterDirectory) -> ClusterStatus:
    """Raises NotFound, InvalidRequest. A part that does not answer is an answer."""
    plan, _ = directory.read()
    state: dict[str, Any] = {"alive": {}, "ends": {}}
    is_running = True
    try:
        state = ask(directory.path, {"do": "state"}, say, timeout_s=_TIMEOUT_S)
    except NotRunning:
        is_running = False
    alive = [part for part in plan.parts if part.name in state["alive"]]
    access = parts_access(plan, directory.path)
    health = all_health(alive, access)
    metas = [part for part in alive if part.role is Role.META]
    retired = retired_nodes(metas, access) or {}
    return ClusterStatus(
        data=str(directory.path),
        is_running=is_running,
        bootstrap=plan.bootstrap,
        page=state.get("page"),
        store=plan.choices.store,
        bucket=None if plan.choices.bucket is None else without_secrets(plan.choices.bucket),
        parts=[_part(part, directory, state, health.get(part.name), retired.get(part.name)) for part in plan.parts],
        stopped_shards=_stopped_shards(plan, health, access),
        troubles=troubles(metas, access),
    )


def is_in_order(status: ClusterStatus) -> bool:
    """Whether the cluster needs no attention. If no meta service answers, that is unknown and counts as False."""
    is_up = status.is_running and all(part.state in ("ready", "retired") for part in status.parts)
    return is_up and status.troubles == [] and not status.stopped_shards


def _part(
    part: Part, directory: ClusterDirectory, state: dict[str, Any], health: Health | None, retired: str | None
) -> PartStatus:
    life, end = state["alive"].get(part.name), state["ends"].get(part.name)
    part_status: dict[str, Any] = {
        "state": "stopped",
        "words": "does not run",
        "pid": None,
        "since_ms": None,
        "log_tail": [],
    }
    if life is not None and health is not None:
        word = "ready" if health.is_well else "not ready" if life["is_ready"] else "starting"
        part_status |= {"state": word, "words": health.words, "pid": life["pid"], "since_ms": life["started_ms"]}
    elif retired is not None:
        part_status |= {"state": "retired", "words": retired, "since_ms": None if end is None else end["at_ms"]}
    elif end is not None:
        part_status |= {"words": end["how"], "since_ms": end["at_ms"]}
        if not end["was_asked"]:
            part_status |= {"state": "ended", "log_tail": end["log_tail"]}
    leads = None if health is None else health.leads
    places = {"addresses": dict(part.addresses), "log": str(directory.log_of(part))}
    return PartStatus.model_validate({"name": part.name, "role": part.role, "leads": leads} | part_status | places)


def _stopped_shards(plan: Plan, health: dict[str, Health], access: PartsAccess) -> list[str]:
    lines = []
    for part in plan.of(Role.NODE):
        if part.name in health and health[part.name].words != "does not answer":
            try:
                status = AdminClient(
                    access.admin_url(part), timeout_s=_TIMEOUT_S, token=access.token, tls=access.tls
                ).status()
            except StratalogError:
                continue
            lines += [f"{part.name}: {line}" for line in [*stopped_lines(status), *status.damaged]]
    return lines


# As a table -----------------------------------------------------------------------------------------------------------
def print_status(status: ClusterStatus) -> None:
    now_ms = time.time_ns() // 1_000_000
    fields = [
        ("cluster", f"{status.data}{'' if status.is_running else ' (does not run)'}"),
        ("bootstrap", status.bootstrap),
        ("UI", status.page or "not served"),
        ("metadata", status.store),
        ("object store", status.bucket or "none"),
    ]
    print_fields(fields)
    rows = [
        (
            part.name,
            part.state,
            "leads" if part.leads else "",
            "" if part.pid is None else str(part.pid),
            "" if part.since_ms is None else human_duration((now_ms - part.since_ms) // 1000),
            ", ".join(f"{what} {address}" for what, address in part.addresses.items()),
            "" if part.words == part.state else part.words,
        )
        for part in status.parts
    ]
    columns = ("part", "state", "", "#pid", "#for", "addresses", "says")
    print_table(columns, rows, give_up=("addresses", "#pid"))
    for part in status.parts:
        if part.state == "ended":
            say(f"{part.name} ended ({part.words}); the end of {part.log}:")
            for line in part.log_tail:
                say(f"  {line}")
            say(f"  next: stratalog cluster start --data {status.data} --part {part.name}\n")
    for line in status.stopped_shards:
        say(line)
    for line in trouble_lines(status.troubles or ()):
        say(line)
    if next_line := _how_to_start(status):
        say(next_line)
    if status.troubles == [] and not status.stopped_shards:
        say("All shards have a leader and all their replicas.")
    elif status.troubles is None and status.is_running:
        say(f"No meta service answers{_why_none(status.parts)}. Whether shards are in trouble is unknown.")


def _why_none(parts: list[PartStatus]) -> str:
    """Explains a missing leader: without a majority of etcd's members no instance of the meta service leads."""
    members = [part for part in parts if part.role is Role.ETCD]
    well = sum(part.state == "ready" for part in members)
    if not members or 2 * well > len(members):
        return ""
    down = joined([part.name for part in members if part.state != "ready"], "or")
    return f", because etcd has no majority: {well} of {counted(len(members), 'member')} ready, start {down}"


def _how_to_start(status: ClusterStatus) -> str | None:
    """Parts stopped by a command stay down until a command starts them; the text is the same for one, some, or all."""
    if not status.is_running:
        return f"next: stratalog cluster start --data {status.data}"
    stopped = [part.name for part in status.parts if part.state == "stopped"]
    if not stopped:
        return None
    others = f" (and the same for {joined(stopped[1:])})" if stopped[1:] else ""
    return f"next: stratalog cluster start --data {status.data} --part {stopped[0]}{others}"


def trouble_lines(troubles: Iterable[dict[str, Any]]) -> list[str]:
    """One line for all shards with the same trouble, because a node that is gone affects thousands. The text names the
    nodes to check."""
    alike: dict[tuple[str, str], list[str]] = {}
    for trouble in troubles:
        shard = f"{trouble.get('topic')}-{(trouble.get('segment') or {}).get('shard')}"
        alike.setdefault((str(trouble.get("kind")), str(trouble.get("words"))), []).append(shard)
    return [_trouble_line(kind, words, shards) for (kind, words), shards in alike.items()]


def _trouble_line(kind: str, words: str, shards: list[str]) -> str:
    named = list(dict.fromkeys(shards))
    more = f" and {counted(len(named) - _SHOWN_SHARDS, 'more shard')}" if len(named) > _SHOWN_SHARDS else ""
    return f"{kind}: {', '.join(named[:_SHOWN_SHARDS])}{more}: {words}"
