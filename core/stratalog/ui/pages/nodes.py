"""Nodes of the cluster, and one node as it tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from stratalog.admin_api.models import ColdReadStatus, NodeStatus
from stratalog.admin_api.node_views import HistoryAnswer, HistorySample
from stratalog.admin_api.wording import following_lines, following_words, given_up_lines, stopped_lines
from stratalog.machines.plans.cluster_lists import page_of
from stratalog.model.activity import UploadActivity
from stratalog.model.errors import NotFound, StratalogError
from stratalog.model.views.status_page import NodeRow
from stratalog.telemetry.plots import Point, Series
from stratalog.ui.gather import Gatherer, is_asked
from stratalog.ui.host import Process
from stratalog.ui.lists import ListState
from stratalog.ui.node_addresses import is_plain_url
from stratalog.ui.page import Page, Query
from stratalog.ui.words import count, rate, size

_NODE_COLUMNS: Final = {
    "node": lambda one: one.node_id,
    "state": lambda one: one.state,
    "rack": lambda one: one.rack or "",
    "leads": lambda one: one.leads,
    "replicas": lambda one: one.replicas,
    "free": lambda one: one.disk_free_bytes,
    "unsent": lambda one: -1 if one.uploads is None else one.uploads.unsent_bytes,
}


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    of: Callable[[HistorySample], int]
    is_rate: bool
    """Of a counter; else the level itself."""
    words: Callable[[float], str]


NODE_FIGURES: Final = {
    "written": Figure("Written", lambda one: one.appended_bytes, True, rate),
    "read": Figure("Read", lambda one: one.fetched_bytes, True, rate),
    "unsent": Figure("Not in the object store yet", lambda one: one.upload_lag_bytes, False, size),
    "lag": Figure("Consumer lag", lambda one: one.consumer_lag, False, lambda value: count(round(value), "record")),
}


async def nodes_page(gatherer: Gatherer, query: Query) -> Page:
    state = ListState.read("/nodes", query)
    overview = await gatherer.overview()
    rows = shown_nodes(overview.nodes, await gatherer.own_status(), gatherer.host.processes())
    items, total = page_of(rows, state.ask, lambda one: f"{one.node_id} {one.address} {one.rack or ''}", _NODE_COLUMNS)
    data = {"nodes": items, "total": total, "more": overview.more_nodes, "left": len(overview.nodes) - len(rows)}
    return Page("nodes.html", "Nodes", "/nodes", data, {"list": state, "total": total, "thing": "node"})


def shown_nodes(
    nodes: Iterable[NodeRow], own: NodeStatus | None = None, processes: Sequence[Process] = ()
) -> list[NodeRow]:
    """Without those that have left, unless what they held is still read from their data set. What nothing reports to
    the metadata is added: the disk of the service's own node, and that a node's process has ended."""
    rows = [node for node in nodes if node.state != "retired" or node.mounts]
    if own is not None:
        rows = [_with_own(node, own) if node.node_id == own.node_id else node for node in rows]
    gone = unnoticed(rows, processes)
    return [replace(node, state="ended") if node.node_id in gone else node for node in rows]


def _with_own(node: NodeRow, own: NodeStatus) -> NodeRow:
    return replace(
        node,
        disk_free_bytes=own.disk_free_bytes,
        disk_total_bytes=own.disk_total_bytes,
        uploads=None if own.bucket is None else UploadActivity(unsent_bytes=own.upload_lag_bytes),
    )


def unnoticed(nodes: Iterable[NodeRow], processes: Sequence[Process]) -> list[int]:
    """Nodes whose process has ended, while the metadata still count them as alive, for as long as a lease lasts."""
    ended = {one.addresses.get("kafka") for one in processes if one.state == "ended"}
    return [node.node_id for node in nodes if is_asked(node) and node.address in ended]


async def node_page(gatherer: Gatherer, node_id: int) -> Page:
    overview = await gatherer.overview()
    row = next((one for one in overview.nodes if one.node_id == node_id), None)
    status, why_not = None, None
    try:
        status = await gatherer.status(node_id)
    except NotFound as error:
        if row is None:
            raise
        why_not = str(error)
    except StratalogError as error:
        why_not = str(error)
    plots = []
    if status is not None:
        for name, figure in NODE_FIGURES.items():
            series = await node_figure(gatherer, node_id, name)
            latest = [("", figure.words(value)) for _, value in latest_of(series)]
            plots.append((figure.title, f"/plots/node-{name}.svg?node={node_id}", latest))
    data = {
        "node_id": node_id,
        "node": row,
        "status": status,
        "why_not": why_not,
        "lines": [] if status is None else status_lines(status),
    }
    extra = {
        "plots": plots,
        "follows": following_words(status.replication) if status is not None else "",
        "cold_reads": cold_read_words(status.cold_reads) if status is not None and status.cold_reads else "",
        "page_url": row.page_url if row is not None and is_plain_url(row.page_url) else "",
    }
    return Page("node.html", f"Node {node_id}", "/nodes", data, extra, (("/nodes", "Nodes"),))


def status_lines(status: NodeStatus) -> list[str]:
    """What is wrong with a node, by its own word."""
    lines = [f"{what}: {why}" for what, why in status.waiting_for.items()]
    lines += [f"object store: {status.bucket_trouble}"] if status.bucket_trouble else []
    lines += [*stopped_lines(status), *status.damaged]
    return [*lines, *given_up_lines(status), *following_lines(status.replication)]


def cold_read_words(reads: ColdReadStatus) -> str:
    """Of readers, their memory, and whether it is enough for them."""
    words = [f"for {count(reads.readers, 'reader')}; {size(reads.fetched_bytes)} fetched"]
    if reads.refetched_bytes:
        words.append(f"{size(reads.refetched_bytes)} of it once more, for want of memory")
    if reads.throttled:
        words.append(f"{count(reads.throttled, 'read')} held up by a limit")
    return f"{', '.join(words)}; {size(reads.held_bytes)} in memory"


async def node_figure(gatherer: Gatherer, node_id: int, name: str) -> list[Series]:
    return [(f"node {node_id}", rate_series(await gatherer.history(node_id), NODE_FIGURES[name]))]


def rate_series(history: HistoryAnswer, figure: Figure) -> list[Point]:
    """A counter that fell began again with another life, and shows as a gap."""
    samples = history.samples
    if not figure.is_rate:
        return [(one.at_ms, float(figure.of(one))) for one in samples]
    return [
        (later.at_ms, None if (grown := figure.of(later) - figure.of(before)) < 0 else grown * 1_000 / passed)
        for before, later in pairwise(samples)
        if (passed := later.at_ms - before.at_ms) > 0
    ]


def latest_of(series: Sequence[Series]) -> list[tuple[str, float]]:
    """Of each line, -1 where it has none: the place of a line in the list is its colour."""
    return [(name, points[-1][1] if points and points[-1][1] is not None else -1.0) for name, points in series]
