"""What all groups of a node may hold in memory together, in bytes.

Counted are the clients' own bytes (names, metadata, assignments) and an estimate of what Python needs around them, so
that a limit in bytes holds whatever clients choose to send many of. Kept by whoever changes what a group holds.
Thread: the event loop.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from stratalog.model.groups.group import CommittedOffset
from stratalog_node.groups.stats import GroupStats

_OFFSET_BYTES = 250
"""An offset, its numbers and its place in the group, without its metadata."""


@dataclass(frozen=True, slots=True)
class RoomLimits:
    max_bytes: int = 512 << 20
    """All groups: members with their metadata and assignments, offsets with theirs. About 1.5 million plain offsets."""
    max_group_offset_bytes: int = 64 << 20
    """Offsets of one group, for they are answered together."""


def offset_bytes(committed: CommittedOffset) -> int:
    return _OFFSET_BYTES + sys.getsizeof(committed.metadata)


class GroupRoom:
    def __init__(self, limits: RoomLimits, stats: GroupStats) -> None:
        self.limits = limits
        self._stats = stats

    def has(self, size_bytes: int) -> bool:
        return self._stats.held_bytes + size_bytes <= self.limits.max_bytes

    @property
    def left_bytes(self) -> int:
        """Below 0 when more is held than may be: what the limit does not refuse may grow, too."""
        return self.limits.max_bytes - self._stats.held_bytes

    def change(self, size_bytes: int) -> None:
        """So many bytes more are held, or less."""
        self._stats.held_bytes += size_bytes
