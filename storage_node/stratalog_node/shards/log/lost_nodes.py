"""Which nodes are gone, or have disks that make no progress, for the leader of a segment that has just opened: it heard
of none before.

Lives on the event loop, behind the step that opened it.
"""

from __future__ import annotations

from typing import Protocol

from stratalog.machines.leading.chain_events import ChainEvent
from stratalog.machines.leading.leader_events import NodeHeard
from stratalog_node.shards.copies.context import ShardContext


class OpenedShard(Protocol):
    context: ShardContext

    def tell(self, event: ChainEvent) -> None: ...


def hear_who_is_lost(shard: OpenedShard) -> None:
    """Nobody waits for them then; else each idle shard's first batch would, for as long as a follower may lag."""
    for node in shard.context.catalog.nodes():
        if not node.is_alive or not node.can_write:
            shard.tell(NodeHeard(node.node_id, node.epoch, node.is_alive, node.can_write))
