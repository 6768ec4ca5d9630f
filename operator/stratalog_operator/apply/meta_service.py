"""Wishes to the meta service, over HTTP.

What it refuses because it knows better (the node has left, the mount is the only way to something) is no fault: the
next look shows it, and the plan waits or goes on.
"""

from __future__ import annotations

from contextlib import suppress

from stratalog.meta_api.client import CommandTaker
from stratalog.model.errors import Conflict, NotFound
from stratalog.model.mount_commands import EndMount
from stratalog.model.retirement import RetireMode
from stratalog.model.retirement_commands import CancelRetirement, RetireNode


class HttpMetaDesk:
    def __init__(self, client: CommandTaker) -> None:
        self._client = client

    async def retire(self, node_id: int, mode: RetireMode, force_storage_id: str | None) -> None:
        """Raises: InvalidRequest for a force that names another disk or a node that is alive; Unavailable."""
        await self._client.perform(RetireNode(node_id, mode, force_storage_id))

    async def cancel(self, node_id: int) -> None:
        with suppress(Conflict, NotFound):
            await self._client.perform(CancelRetirement(node_id))

    async def end_mount(self, mount: str) -> None:
        with suppress(Conflict, NotFound):
            await self._client.perform(EndMount(mount))
