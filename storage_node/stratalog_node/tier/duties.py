"""Looks again whose duty each segment's upload is, when it is heard that a node is alive or is not.

With a node's death its duties pass on; with its return they go back. Lives on the event loop, as one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.metadata import Change, NodeChanged
from stratalog_node.shards.catalog import Catalog


class Duties:
    def __init__(self, catalog: Catalog, look_anew: Callable[[], Awaitable[None]]) -> None:
        self._look_anew = look_anew
        self._changed = asyncio.Event()
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, NodeChanged):
            self._changed.set()

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._look_anew()
