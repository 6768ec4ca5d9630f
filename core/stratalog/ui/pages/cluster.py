"""The first page: health, troubles by kind, capacity, throughput, nodes, retirements and mounts. And the list of
troubles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.admin_api.models import NodeStatus
from stratalog.machines.plans.heartbeat_history import Course
from stratalog.model.errors import StratalogError
from stratalog.model.views.status_page import NodeRow, Overview
from stratalog.telemetry.plots import Series
from stratalog.ui.gather import Gatherer
from stratalog.ui.host import Process
from stratalog.ui.lists import ListState, address
from stratalog.ui.page import Page, Query
from stratalog.ui.pages.nodes import NODE_FIGURES, latest_of, rate_series, shown_nodes, status_lines, unnoticed
from stratalog.ui.words import TROUBLES, count, rate, size

STEPS: Final = ("preflight", "cordon", "seal", "offload", "verify", "snapshot", "release", "mount", "done")
_MOST_LINES: Final = 8
FIGURES: Final[dict[str, tuple[str, str, Callable[[float], str]]]] = {
    "produced": ("Produced", "produce_rate", rate),
    "fetched": ("Fetched", "fetch_rate", rate),
    "unsent": ("Not in the object store yet", "unsent_bytes", size),
    "free": ("Free on the disks", "disk_free_bytes", size),
}


@dataclass(frozen=True, slots=True)
class TroubleSum:
    kind: str
    count: int
    title: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    address: str
    latest: list[tuple[str, str]]
    """Each line with its newest value, in words."""


async def cluster_page(gatherer: Gatherer, _query: Query) -> Page:
    processes = gatherer.host.processes()
    try:
        overview = await gatherer.overview()
    except StratalogError as error:
        if not processes:
            raise
        return Page("down.html", "Cluster", "/", {"processes": processes, "why_not": str(error)})
    status = await gatherer.own_status()
    nodes = shown_nodes(overview.nodes, status, processes)
    faults = [*overview.faults, *(status_lines(status) if status is not None else ())]
    data = {
        "cluster_id": overview.cluster_id,
        "version": overview.version,
        "now_ms": overview.now_ms,
        "is_well": is_well(overview, processes) and not faults,
        "faults": faults,
        "more_faults": overview.more_faults,
        "shards": overview.shards,
        "tiers": overview.tiers,
        "troubles": trouble_sums(overview),
        "stopped": overview.stopped,
        "more_stopped": overview.more_stopped,
        "nodes": nodes,
        "unnoticed": unnoticed(overview.nodes, processes),
        "more_nodes": overview.more_nodes,
        "retirements": [one for one in overview.retirements if one.step != "done"],
        "retired": sum(one.step == "done" for one in overview.retirements),
        "mounts": overview.mounts,
        "more_mounts": overview.more_mounts,
        "processes": processes,
    }
    extra = {
        "capacity": capacity(nodes) if status is None else _own_capacity(status),
        "plots": await _plots(gatherer),
        "steps": STEPS,
    }
    return Page("cluster.html", "Cluster", "/", data, extra)


def is_well(overview: Overview, processes: Sequence[Process]) -> bool:
    runs = all(one.state != "ended" for one in processes)
    return (
        runs
        and overview.why_no_changes is None
        and not (overview.faults or overview.shards.troubled or overview.stopped)
    )


def trouble_sums(overview: Overview) -> list[TroubleSum]:
    """Worst first."""
    return [TroubleSum(one.kind, one.count, *TROUBLES.get(one.kind, (one.kind, ""))) for one in overview.trouble_kinds]


@dataclass(frozen=True, slots=True)
class Capacity:
    total: int
    """0: no node has reported its disk."""
    free: int
    unsent: int | None
    """None: no node has told of an object store."""
    oldest_unsent_ms: int

    @property
    def used_percent(self) -> int:
        return round(100 * (self.total - self.free) / self.total) if self.total else 0


def _own_capacity(status: NodeStatus) -> Capacity:
    unsent = None if status.bucket is None else status.upload_lag_bytes
    return Capacity(status.disk_total_bytes, status.disk_free_bytes, unsent, 0)


def capacity(nodes: Sequence[NodeRow]) -> Capacity:
    reported = [
        one for one in nodes if one.disk_total_bytes >= 0 and one.state not in ("not alive", "ended", "retired")
    ]
    uploads = [one.uploads for one in nodes if one.uploads is not None]
    return Capacity(
        sum(one.disk_total_bytes for one in reported),
        sum(one.disk_free_bytes for one in reported),
        sum(one.unsent_bytes for one in uploads) if uploads else None,
        max((one.oldest_unsent_ms for one in uploads), default=0),
    )


# Throughput -----------------------------------------------------------------------------------------------------------
async def _plots(gatherer: Gatherer) -> list[Plot]:
    plots = []
    for name in FIGURES:
        title, series, words = await cluster_figure(gatherer, name)
        if series:
            latest = [(line, words(value)) for line, value in latest_of(series)]
            plots.append(Plot(title, f"/plots/{name}.svg", latest))
    return plots


async def cluster_figure(gatherer: Gatherer, name: str) -> tuple[str, list[Series], Callable[[float], str]]:
    """Title, a line for each node, and how a value is written. Where nodes live in the service's process, which hears
    no heartbeats, their own history is drawn."""
    title, field, words = FIGURES[name]
    courses = await gatherer.courses()
    if courses:
        return title, _of_courses(courses, field), words
    own = {"produced": "written", "fetched": "read", "unsent": "unsent"}.get(name)
    series: list[Series] = []
    for node_id in list(gatherer.host.own_nodes())[:_MOST_LINES] if own is not None else ():
        try:
            history = await gatherer.history(node_id)
        except StratalogError:
            continue
        series.append((f"node {node_id}", rate_series(history, NODE_FIGURES[own or ""])))
    return title, series, words


def _of_courses(courses: Sequence[Course], field: str) -> list[Series]:
    lines: list[Series] = []
    for course in sorted(courses, key=lambda one: one.node_id)[:_MOST_LINES]:
        values = [(one.at_ms, getattr(one, field)) for one in course.samples]
        lines.append((f"node {course.node_id}", [(at, None if value < 0 else float(value)) for at, value in values]))
    return lines


# Troubles -------------------------------------------------------------------------------------------------------------
async def troubles_page(gatherer: Gatherer, query: Query) -> Page:
    kind = query.get("kind", "")
    state = ListState.read("/troubles", query, kind=kind)
    page = await gatherer.meta(lambda views: views.trouble_page(state.ask, kind))
    overview = await gatherer.overview()
    data = {"kind": kind, "troubles": page.items, "total": page.total, "is_cut": page.is_cut}
    extra = {
        "list": state,
        "total": page.total,
        "thing": "trouble",
        "kinds": trouble_sums(overview),
        "all_href": address("/troubles"),
        "words": TROUBLES,
        "counted": count(overview.shards.troubled, "shard"),
    }
    return Page("troubles.html", "Troubles", "/troubles", data, extra)
