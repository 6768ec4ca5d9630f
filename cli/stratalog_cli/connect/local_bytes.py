"""The bytes of topics on the nodes' disks: each node reports its own, and copies add up.

No node is asked if neither an option nor a context names one, because a bucket can be examined without its cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.admin_api.client import AdminClient
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.several_nodes import Nodes, warn_of_unasked
from stratalog_cli.connect.target_address import admin_target
from stratalog_cli.terminal.say import say


@dataclass(frozen=True, slots=True)
class LocalBytes:
    """Bytes of batches by topic, on all nodes that answered together."""

    cluster_id: str
    node_ids: tuple[int, ...]
    by_topic: Mapping[str, int]
    is_named: bool
    """By an option or the environment; else the context did, and that may be of another cluster."""

    def is_of(self, cluster_id: str) -> bool:
        """Raises: Conflict where nodes of another cluster were named."""
        if self.cluster_id == cluster_id:
            return True
        mismatch = f"the nodes are of cluster {self.cluster_id}, the bucket's is {cluster_id}"
        if self.is_named:
            raise Conflict(f"{mismatch}: name nodes of one with --admin, or leave them out")
        say(f"not asked: nodes; {mismatch}", to_stderr=True)
        return False


def ask_local_bytes(admin: str | None) -> tuple[LocalBytes | None, Nodes | None]:
    """None where nothing names a node. The caller ends the command with `Nodes.end`. Raises: Conflict for nodes of
    several clusters; what all of them raise."""
    if admin is None and not _has_context():
        return None, None
    nodes = Nodes(admin)
    asked: dict[int, str] = {}
    all_ids: set[int] = set()
    by_topic: Counter[str] = Counter()

    def ask(node: AdminClient) -> None:
        status = node.status()
        if status.node_id in asked:
            return  # by another of its addresses
        topics = node.topics()
        asked[status.node_id] = status.cluster_id
        all_ids.update(one.node_id for one in status.nodes)
        for topic in topics:
            by_topic[topic.name] += topic.bytes.local

    nodes.each(ask)
    clusters = sorted(set(asked.values()))
    if len(clusters) > 1:
        raise Conflict(f"the nodes are of clusters {printable(', '.join(clusters))}: name nodes of one")
    warn_of_unasked(asked, all_ids, "whose disks are not counted")
    return LocalBytes(clusters[0], tuple(sorted(asked)), dict(by_topic), is_named=admin is not None), nodes


def _has_context() -> bool:
    try:
        return not admin_target(None).is_guessed
    except InvalidRequest:  # a context without an admin address
        return False
