"""The one interface to metadata: what every part may ask of the meta service. It has two implementations: the service
itself, if it runs in this process, and an HTTP client. One suite of tests passes on both. Raises `Rejected` and its
kinds (nothing was done), `Unavailable` (nothing was done, try later), `OutcomeUnknown` (the answer was lost: read
before acting again).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar
from uuid import UUID

from stratalog.model.commands.table_commands import Command
from stratalog.model.metadata import ChangeSet, Heard, Heartbeat, Snapshot
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic

R = TypeVar("R")


class CommandTaker(Protocol):
    """What those need who only change metadata."""

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        """Make a change (`stratalog.model.commands.table_commands` has them all); answered when it is durable. With
        `validate_only` nothing is changed: the answer, or the refusal, is what it would come to now."""
        ...


class LifeListener(Protocol):
    """What a node tells of itself, often."""

    async def heartbeat(self, heartbeat: Heartbeat) -> Heard:
        """Raises Fenced when the node has begun another life since: its process must stop, or register again."""
        ...


class MetaClient(CommandTaker, Protocol):
    async def read_cluster_id(self) -> str:
        """Which cluster's metadata these are; durable, and the same forever."""
        ...

    async def snapshot(self) -> Snapshot: ...

    async def read_version(self) -> int:
        """The version of the newest change: a view of that version, or a newer one, misses nothing from before this
        call."""
        ...

    def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        """Every change set after a version, in order, none missed. Raises NotFound when that history is gone
        (take a new snapshot)."""
        ...

    async def topic(self, topic_id: UUID) -> Topic:
        """One topic as it is durable. Raises NotFound."""
        ...

    async def deleted_segments(self) -> list[Segment]:
        """Segments whose files and objects may go once the grace period has passed since `deleted_ms`."""
        ...

    async def purged_topics(self) -> frozenset[UUID]:
        """Deleted topics that were purged, in part or wholly: the last 10,000. What names them may go."""
        ...


class MetaForNodes(MetaClient, LifeListener, Protocol):
    """What a storage node needs of the meta service."""
