"""A shard with its local copies, as the code sees it that reads it and searches for its missing files.

`shards/log/shard_log.py` implements it. It is separate so that code that works on a shard need not know the leader's
code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratalog.model.ids import SegmentKey
from stratalog_node.shards.catalog.rules import ShardRules
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.copies.shard_view import ShardView


class LocalShard(ShardView, Protocol):
    @property
    def context(self) -> ShardContext: ...

    @property
    def rules(self) -> ShardRules: ...

    @property
    def active(self) -> ActiveSegment | None: ...

    @property
    def ended(self) -> Sequence[ActiveSegment]:
        """Segments that ended and are not sealed yet, oldest first."""
        ...

    @property
    def copies(self) -> dict[int, LocalCopy]:
        """Epoch -> sealed segments with a local copy."""
        ...

    @property
    def missing(self) -> set[SegmentKey]:
        """Sealed segments whose file should be here and is not."""
        ...

    @property
    def cut_offset(self) -> int | None:
        """Readers see nothing from this offset on, although the segment extends beyond it. Only mounts of snapshots
        have one."""
        ...

    def copy_of(self, segment: SegmentKey) -> LocalCopy | None: ...

    def is_unwritten(self, segment: SegmentKey) -> bool:
        """Whether this is the active segment that this node leads, and it has no batch yet."""
        ...

    def take_out(self, segment: SegmentKey) -> LocalCopy | None:
        """Readers that come from now on do not find this copy here. Never the active one."""
        ...
