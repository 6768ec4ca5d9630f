"""What the control requests ask of a shard beyond `shards/copies/shard_view.py`: offsets by time, epochs, sizes,
trimming.

Threads: called on the node's event loop; whatever reads files or objects goes to the disk threads inside.
Raises: Unavailable while the shard cannot know yet (metadata loading, HW unknown after a leader change), never a wrong
offset in its place (trap 10 of docs/kafka.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from stratalog.model.ids import ShardKey
from stratalog_node.shards.copies.shard_view import ShardView


class FoundOffset(NamedTuple):
    """A record, with its own timestamp (exact inside a compressed batch) and the epoch of its segment."""

    offset: int
    timestamp_ms: int
    epoch: int


class ShardLookup(ShardView, Protocol):
    """One shard on this node, as ListOffsets and its kin see it."""

    @property
    def epoch(self) -> int:
        """Epoch of the active segment as the meta service confirmed it; grows only. -1: none is active."""
        ...

    def compare_epoch(self, epoch: int) -> int:
        """-1: a client with this epoch has stale metadata; 1: it knows more than this node; 0: serve it."""
        ...

    @property
    def is_end_known(self) -> bool:
        """Whether HW and LEO are the log's. False for one that could not be opened: they are a lower bound then, and
        no answer may be made of them."""
        ...

    @property
    def end_offset(self) -> int:
        """LEO: one past the last record in the log, acknowledged or not."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the active segment."""
        ...

    async def offset_for_time(self, timestamp_ms: int) -> FoundOffset | None:
        """The first record below HW whose timestamp is at or after `timestamp_ms`, on any tier; None when there is
        none. Exact: opens that one batch. Raises: Unavailable, Corrupt."""
        ...

    async def offset_of_max_timestamp(self) -> FoundOffset | None:
        """The first record below HW with the greatest timestamp; None when the shard is empty."""
        ...

    def earliest_local_offset(self) -> int:
        """The first offset of the unbroken local run up to HW; the log start when nothing was freed."""
        ...

    def last_tiered_offset(self) -> int:
        """Last offset that is durable in the object store (commit offset - 1); -1 when none is."""
        ...

    def local_size_bytes(self) -> int:
        """Bytes of this shard's segment files on this node."""
        ...

    def moved_bytes(self) -> Mapping[str, int]:
        """How many of them are in which further data directory, by its path."""
        ...

    async def delete_records_before(self, offset: int) -> int:
        """Move the log start up to `offset` (at most HW), through the meta service. Returns: the log start now.
        Raises: Unavailable, OutcomeUnknown, Fenced."""
        ...


class ShardLookups(Protocol):
    """All shards of this node, as the control requests see them."""

    def get(self, key: ShardKey) -> ShardLookup | None: ...

    def read(self, key: ShardKey) -> ShardLookup | None:
        """Also a shard of a user-mounted topic."""
        ...

    def all(self) -> Iterable[ShardLookup]: ...


class DiskUsage(NamedTuple):
    """Where this node keeps its segments, and how full that is; -1 where the platform does not say."""

    path: str
    total_bytes: int
    usable_bytes: int


class FurtherUsage(NamedTuple):
    """A further data directory; the numbers of one that cannot be used are -1."""

    disk: DiskUsage
    is_usable: bool


class DiskView(Protocol):
    """The disks under them, as DescribeLogDirs sees them."""

    def further(self) -> list[FurtherUsage]:
        """Blocking. Data directories besides the first."""
        ...

    def usage(self) -> DiskUsage: ...
