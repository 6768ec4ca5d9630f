"""The metadata client of one node: it adds the node's life to every command. So no part of a node can forget it, and a
command in flight is fenced once the node begins another life, or another process has taken its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from stratalog.meta_api.client import MetaForNodes
from stratalog.model.commands.table_commands import Command, NodeCommand
from stratalog.model.metadata import ChangeSet, Heard, Heartbeat, Life, Snapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic

R = TypeVar("R")


class NodeMetaClient:
    """Implements `MetaForNodes` over another one, which its owner closes."""

    def __init__(self, meta: MetaForNodes) -> None:
        self._meta = meta
        self.life: Life | None = None
        """Since its registration; before it commands name no caller."""

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        if isinstance(command, NodeCommand) and self.life is not None:
            command = replace(command, caller=self.life)
        return await self._meta.perform(command, validate_only=validate_only)

    async def heartbeat(self, heartbeat: Heartbeat) -> Heard:
        return await self._meta.heartbeat(heartbeat)

    # Reading is the same for everybody --------------------------------------------------------------------------
    async def read_cluster_id(self) -> str:
        return await self._meta.read_cluster_id()

    async def snapshot(self) -> Snapshot:
        return await self._meta.snapshot()

    async def read_version(self) -> int:
        return await self._meta.read_version()

    def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        return self._meta.watch(after_version)

    async def topic(self, topic_id: UUID) -> Topic:
        return await self._meta.topic(topic_id)

    async def deleted_segments(self) -> list[Segment]:
        return await self._meta.deleted_segments()

    async def purged_topics(self) -> frozenset[UUID]:
        return await self._meta.purged_topics()
