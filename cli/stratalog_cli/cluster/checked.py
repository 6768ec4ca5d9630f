"""`stratalog cluster health`: what of a cluster needs attention, as its meta service tells it; on any machines.

`cluster status` is about the processes of a cluster on this machine; this is about any cluster that can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from stratalog.admin_api.wording import human_bytes
from stratalog.machines.plans.shard_troubles import Trouble
from stratalog.model.counting import counted
from stratalog.model.views.status_page import NodeRow, Overview
from stratalog.telemetry.printable import printable
from stratalog_cli.cluster.status import trouble_lines
from stratalog_cli.connect.meta_question import MetaOption, ask_meta
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.terminal.say import say

if TYPE_CHECKING:
    from stratalog.meta_api.http_client import HttpMetaClient

_FINDINGS = 1
_LOST = "not alive"


def health(meta: MetaOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show what of a cluster needs attention: nodes, shards, disks, uploads. For any cluster, on any machines.

    Exit code 1 if something does."""
    overview, troubles = ask_meta(meta, _read)
    findings = findings_of(overview, troubles)
    if output is OutputFormat.JSON:
        print_json(
            {
                "cluster": overview.cluster_id,
                "is_in_order": not findings,
                "findings": findings,
                "nodes": [
                    {"node_id": one.node_id, "state": one.state, "leads": one.leads, "replicas": one.replicas}
                    for one in overview.nodes
                ],
                "shards": overview.shards.shards,
                "led": overview.shards.led,
                "under_replicated": overview.shards.under_replicated,
            }
        )
    else:
        _print(overview, findings)
    if findings:
        raise typer.Exit(_FINDINGS)


async def _read(client: HttpMetaClient) -> tuple[Overview, Sequence[Trouble]]:
    return await client.overview(), await client.troubles()


def findings_of(overview: Overview, troubles: Sequence[Trouble]) -> list[str]:
    """Lines, the worst first; none where all is in order."""
    found = [] if overview.why_no_changes is None else [f"the metadata cannot change: {overview.why_no_changes}"]
    lost = [f"node {one.node_id} is {one.state}" for one in overview.nodes if one.state == _LOST]
    found += [next((fault for fault in overview.faults if fault.startswith(f"{words}:")), words) for words in lost]
    findings: list[dict[str, Any]] = [
        {"topic": one.topic, "segment": {"shard": one.segment.shard}, "kind": one.kind.value, "words": one.words}
        for one in troubles
    ]
    found += trouble_lines(findings)
    found += [f"node {one.node_id}: {words}" for one in overview.nodes for words in one.troubles]
    found += [f"node {one.node_id}: {one.stopped_shards:,} shards take no writes" for one in _stopped(overview)]
    found += [f"node {one.node_id}: no room for new segments" for one in overview.nodes if not one.has_room]
    found += [
        f"mount {one.name}: {one.state}, and nothing of it can be read" for one in overview.mounts if not one.is_read
    ]
    found += [
        f"node {one.node_id} leaves, and waits ({one.waits}): {one.words}"
        for one in overview.retirements
        if one.waits is not None
    ]
    return [*found, *(fault for fault in overview.faults if fault not in found)]


def _stopped(overview: Overview) -> list[NodeRow]:
    return [one for one in overview.nodes if one.stopped_shards]


def _print(overview: Overview, findings: Sequence[str]) -> None:
    rows = [
        (
            str(one.node_id),
            one.state,
            str(one.leads),
            str(one.replicas),
            "-"
            if one.disk_total_bytes < 0
            else f"{human_bytes(one.disk_free_bytes)} of {human_bytes(one.disk_total_bytes)}",
            one.address,
        )
        for one in overview.nodes
    ]
    sums = overview.shards
    say(
        f"cluster {printable(overview.cluster_id)}: {counted(sums.topics, 'topic')}, {counted(sums.shards, 'shard')}, "
        f"{sums.led:,} led, {sums.under_replicated:,} under-replicated"
    )
    print_table(("#node", "state", "#leads", "#replicas", "#free", "address"), rows, give_up=("address", "#replicas"))
    for line in findings:
        say(printable(line))
    if not findings:
        say("All is in order: every node is alive, and every shard has a leader and all its replicas.")
