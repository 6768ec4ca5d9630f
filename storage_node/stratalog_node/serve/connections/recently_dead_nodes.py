"""Nodes whose lease ended a moment ago, which Metadata answers still list for a short time.

librdkafka removes a broker that Metadata no longer lists. A shard whose new leader is in the same answer then has no
leader, and the client asks again only a second later. So the answer that names the new leader still lists the old node.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.model.metadata import Change, NodeChanged
from stratalog_node.shards.catalog.catalog import Catalog

LINGER_S: Final = 3.0
"""A few of the looks that a client takes a second apart."""


class RecentlyDeadNodes:
    def __init__(self, catalog: Catalog) -> None:
        self.linger_s = LINGER_S
        self._since: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, NodeChanged):
            if change.node.is_alive:
                self._since.pop(change.node.node_id, None)
            else:
                self._since.setdefault(change.node.node_id, self._loop.time())

    def just_left(self, node_id: int) -> bool:
        since = self._since.get(node_id)
        return since is not None and self._loop.time() - since < self.linger_s
