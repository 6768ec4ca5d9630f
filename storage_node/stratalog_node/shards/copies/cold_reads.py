"""The object store as shards use it: the methods of the tier's readers that they call.

Threads: called on the node's event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from stratalog.machines.reading.cold_rates import ColdLimits
from stratalog.model.segment import Segment


@dataclass(frozen=True, slots=True)
class ReadFor:
    """The client that cold data is read for, and how fast it may read."""

    client: str
    """Its client id: clients that wait for the store at the same time get equal parts of it."""
    limits: ColdLimits


FOR_THE_NODE: Final = ReadFor("", ColdLimits())


class ColdReads(Protocol):
    """Reads published segments and committed parts: batches, and offsets by time."""

    async def read(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        room_bytes: Callable[[int], int],
        read_for: ReadFor = FOR_THE_NODE,
    ) -> Sequence[bytes | memoryview]: ...

    async def find_by_time(
        self, segment: Segment, timestamp_ms: int, from_offset: int = 0
    ) -> tuple[int, int] | None: ...

    async def offset_of_max_timestamp(self, segment: Segment) -> tuple[int, int] | None: ...

    async def producer_table(self, segment: Segment) -> bytes:
        """The table of a published segment, from its index block. Raises: Corrupt, NotFound, Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """Whole batches `[base_offset, end_offset)` as the object store holds them, checked, and the segment's digest after
    them."""

    base_offset: int
    end_offset: int
    data: bytes | memoryview
    digest_after: bytes


class RemoteBatches(Protocol):
    """Reads unsealed segments, for healing."""

    def read(self, segment: Segment, from_offset: int) -> AsyncGenerator[CommittedRange]:
        """Everything committed from the batch boundary `from_offset` on. Raises: Corrupt, NotFound, Unavailable."""
        ...
