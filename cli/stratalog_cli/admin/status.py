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
        for answer in answers:
            _print(answer)
    if len(nodes.clients) > 1:
        alive = {node.node_id for answer in answers for node in answer.nodes if node.is_alive}
        warn_of_unasked([answer.node_id for answer in answers], alive, "alive in this cluster")
    nodes.end()
    if any(not answer.is_ready or answer.stopped_shards or answer.damaged for answer in answers):
        raise typer.Exit(_FINDINGS)


def _print(status: NodeStatus) -> None:
    states = ", ".join(f"{count} {state}" for state, count in sorted(status.segments.items())) or "none"
    waiting = "; ".join(f"{what}: {why}" for what, why in status.waiting_for.items())
    trouble = f": {status.bucket_trouble}" if status.bucket_trouble else ""
    uptime = human_duration((status.now_ms - status.started_ms) // 1000)
    print_fields(
        [
            ("node", f"{status.node_id} of cluster {status.cluster_id}, version {status.version}"),
            ("ready", "yes" if status.is_ready else f"no: {waiting}"),
            ("up", f"{uptime}, since {human_time(status.started_ms)}"),
            ("Kafka", status.kafka_address),
            ("data directory", status.data_dir),
            ("object store", f"{status.bucket or 'none'}{trouble}"),
            ("topics, shards", f"{status.topics}, {status.shards} (internal ones too)"),
            *(("stopped", line) for line in stopped_lines(status)),
            *(("damaged", line) for line in status.damaged),
            *(("groups", line) for line in given_up_lines(status)),
            ("segments", states),
            ("local tier", human_bytes(status.bytes.local)),
            ("cold tier", human_bytes(status.bytes.cold)),
            ("upload lag", f"{human_bytes(status.upload_lag_bytes)} in {counted(status.upload_lag_shards, 'shard')}"),
            *_following(status),
            ("disk free", f"{human_bytes(status.disk_free_bytes)} of {human_bytes(status.disk_total_bytes)}"),
            ("memory", human_bytes(status.resident_bytes)),
            *([("nodes", "; ".join(map(_words, status.nodes)))] if len(status.nodes) > 1 else []),
        ]
    )


def _following(replication: NodeStatus) -> list[tuple[str, str]]:
    if not replication.replication.segments and not replication.replication.copies_due:
        return []
    lag = f"{human_bytes(replication.replication.lag_bytes)}, {counted(replication.replication.lag_offsets, 'offset')}"
    lines = [("replication lag", f"{lag}: {following_words(replication.replication)}")]
    return lines + [("copy", line) for line in following_lines(replication.replication)]


def _words(node: KnownNode) -> str:
    rack = f" in {node.rack}" if node.rack else ""
    state = " (retired)" if node.is_retired else "" if node.is_alive else " (not alive)"
    return f"{node.node_id} at {node.kafka_address}{rack}{state}"
