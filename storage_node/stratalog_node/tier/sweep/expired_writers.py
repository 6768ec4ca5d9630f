"""Decides who sweeps the objects of nodes without a lease, and which of them can still become part of the log.

A node that sends no heartbeats may still run, and may have an upload in flight. So the sweeper takes the node's write
lock once its lease has ended: everything written under earlier epochs is fenced from then on. No node writes under the
sweeper's epoch, and all sweepers share one holder name, so a sweep costs one epoch however often it runs. A node that
returns takes the next epoch at once.
The objects of a retired node are swept by the holder of its mount, under the mount's token.
Cost: one command for each such node whose objects are in doubt.
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.machines.tiering.chunk_merging import COMPACTION_WRITER
from stratalog.machines.tiering.upload_duty import SWEEP_LEASE_MS, SWEEPER, sweeper_of
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.mount_commands import NOT_ASKED, DoubtMount, TakeMount
from stratalog.model.commands.table_commands import AcquireLock
from stratalog.model.errors import Conflict, Fenced
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.store.lock import tier_lock_name

_EVERY_LIFE: Final = tuple("0123456789abcdef")
"""How names of lives end (`claims.name_ending`): their claims may be in the bucket, so all are remembered until the
node takes its lock again and lists the claims that are."""


class ExpiredWriters:
    def __init__(self, node_id: int, meta: MetaClient, catalog: Catalog, call_timeout_ms: int) -> None:
        self._node_id = node_id
        self._meta = meta
        self._catalog = catalog
        self._call_timeout_s = call_timeout_ms / 1_000

    def owners(self) -> list[int]:
        """Nodes whose leavings this one sweeps, as far as it has heard; never itself."""
        living = {node.node_id for node in self._catalog.nodes() if node.is_alive}
        lost = [node.node_id for node in self._catalog.nodes() if not node.is_alive]
        return [
            node
            for node in lost
            if node != self._node_id and sweeper_of(node, living, self._catalog.holder_of(node)) == self._node_id
        ]

    def writers(self) -> list[int]:
        """Those, and the job that merges chunks: its leavings are the first living node's."""
        living = [node.node_id for node in self._catalog.nodes() if node.is_alive]
        return [*self.owners(), *([COMPACTION_WRITER] if min(living, default=None) == self._node_id else [])]

    async def last_epoch(self, node_id: int) -> int | None:
        """Under which that writer may have written last; whatever it asks for under that one, or an earlier one, is
        refused. None while the lease of its lock lasts, or its mount is another's, or is not served yet. Raises what
        the meta service raises while it is away."""
        mount = self._catalog.mount_of(node_id)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                if mount is not None:
                    return await self._token(mount) - 1
                lock = await self._meta.perform(
                    AcquireLock(tier_lock_name(node_id), SWEEPER, SWEEP_LEASE_MS, _EVERY_LIFE)
                )
        except (Conflict, Fenced):
            return None
        return lock.epoch - 1

    async def _token(self, mount: Mount) -> int:
        """Seen to be ours a moment ago, and left as it is. What is in the bucket does not wait for a directory that is
        not read now. Raises: Fenced."""
        if mount.state is MountState.SERVING:
            return (await self._meta.perform(TakeMount(mount.name, mount.token))).token
        if mount.mode is not MountMode.VOLUME:
            raise Fenced(f"mount {mount.name} is not served yet: wait")
        return (await self._meta.perform(DoubtMount(mount.name, mount.token, NOT_ASKED))).token
