"""Assigns uploads again when a node dies or returns, or when a mount changes its holder or becomes readable.

The uploads of a dead node pass to other nodes, and return with it. Lives on the event loop, as one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.metadata import Change, MountChanged, MountEnded, NodeChanged
from stratalog.model.mounts import MountMode
from stratalog_node.shards.catalog.catalog import Catalog


class DutyChanges:
    def __init__(self, catalog: Catalog, look_anew: Callable[[], Awaitable[None]]) -> None:
        self._look_anew = look_anew
        self._changed = asyncio.Event()
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        match change:
            case NodeChanged() | MountEnded():
                self._changed.set()
            case MountChanged(mount) if mount.mode is MountMode.VOLUME:
                self._changed.set()
            case _:
                pass

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._look_anew()
