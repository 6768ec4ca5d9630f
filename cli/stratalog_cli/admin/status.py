"""`stratalog status`: what one node says about itself."""

from __future__ import annotations

from typing import Final

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import KnownNode, NodeStatus
from stratalog.admin_api.wording import (
    following_lines,
    following_words,
    given_up_lines,
    human_bytes,
    human_duration,
    human_time,
    stopped_lines,
)
from stratalog.model.counting import counted
from stratalog_cli.connect.output import AdminOption, OutputFormat, OutputOption, print_fields, print_json
from stratalog_cli.connect.several_nodes import Nodes, warn_of_unasked

_FINDINGS: Final = 1


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(admin: AdminOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show readiness, shards, tiers, upload lag and disk of one or several nodes, and the nodes of the cluster.

    The exit code is 1 if a node is not ready, or has a shard that takes no writes or knows of damage.
    """
    nodes = Nodes(admin)
    answers = nodes.each(AdminClient.status)
    if output is OutputFormat.JSON:
        print_json(answers[0] if len(nodes.clients) == 1 else answers)
    else:
        for told in answers:
            _print(told)
    if len(nodes.clients) > 1:
        alive = {node.node_id for told in answers for node in told.nodes if node.is_alive}
        warn_of_unasked([told.node_id for told in answers], alive, "alive in this cluster")
    nodes.end()
    if any(not told.is_ready or told.stopped_shards or told.damaged for told in answers):
        raise typer.Exit(_FINDINGS)


def _print(told: NodeStatus) -> None:
    states = ", ".join(f"{count} {state}" for state, count in sorted(told.segments.items())) or "none"
    waiting = "; ".join(f"{what}: {why}" for what, why in told.waiting_for.items())
    trouble = f": {told.bucket_trouble}" if told.bucket_trouble else ""
    uptime = human_duration((told.now_ms - told.started_ms) // 1000)
    print_fields(
        [
            ("node", f"{told.node_id} of cluster {told.cluster_id}, version {told.version}"),
            ("ready", "yes" if told.is_ready else f"no: {waiting}"),
            ("up", f"{uptime}, since {human_time(told.started_ms)}"),
            ("Kafka", told.kafka_address),
            ("data directory", told.data_dir),
            ("object store", f"{told.bucket or 'none'}{trouble}"),
            ("topics, shards", f"{told.topics}, {told.shards} (internal ones too)"),
            *(("stopped", line) for line in stopped_lines(told)),
            *(("damaged", line) for line in told.damaged),
            *(("groups", line) for line in given_up_lines(told)),
            ("segments", states),
            ("local tier", human_bytes(told.bytes.local)),
            ("cold tier", human_bytes(told.bytes.cold)),
            ("upload lag", f"{human_bytes(told.upload_lag_bytes)} in {counted(told.upload_lag_shards, 'shard')}"),
            *_following(told),
            ("disk free", f"{human_bytes(told.disk_free_bytes)} of {human_bytes(told.disk_total_bytes)}"),
            ("memory", human_bytes(told.resident_bytes)),
            *([("nodes", "; ".join(map(_words, told.nodes)))] if len(told.nodes) > 1 else []),
        ]
    )


def _following(told: NodeStatus) -> list[tuple[str, str]]:
    if not told.replication.segments and not told.replication.copies_due:
        return []
    lag = f"{human_bytes(told.replication.lag_bytes)}, {counted(told.replication.lag_offsets, 'offset')}"
    lines = [("replication lag", f"{lag}: {following_words(told.replication)}")]
    return lines + [("copy", line) for line in following_lines(told.replication)]


def _words(node: KnownNode) -> str:
    rack = f" in {node.rack}" if node.rack else ""
    state = " (retired)" if node.is_retired else "" if node.is_alive else " (not alive)"
    return f"{node.node_id} at {node.kafka_address}{rack}{state}"
