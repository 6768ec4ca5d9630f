"""A snapshot of the group log while it is being written: the stand-in for `groups/snapshot.py`, without bytes.

Each piece restates what is durable when it is made, and stands before whatever else its append brings.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.model.ids import ShardKey
from stratalog_sim.environment.group_entries import LogEntry, SnapshotBegunEntry, SnapshotEndedEntry

LiveKey = tuple[str, ShardKey | None]
"""A group's offset in a shard, or with None the group itself."""
_SLICE = 1
_LEAST = 14
"""A snapshot begins after at least this number of new entries, and three times the number that the last one had."""


class GroupSnapshot:
    def __init__(self, number: int, live_keys: list[LiveKey], live_entry: Callable[[LiveKey], LogEntry | None]) -> None:
        self.number = number
        self._keys = live_keys
        self._live_entry = live_entry
        self._appended = 0
        self.base_offset = -1
        """Where it begins: what lies below may go once it is complete."""
        self.is_complete = False
        self.entries = 0

    def next_slice(self) -> list[LogEntry]:
        some, self._keys = self._keys[:_SLICE], self._keys[_SLICE:]
        piece = [entry for entry in map(self._live_entry, some) if entry is not None]
        self.entries += len(piece)
        if not self._keys:
            self.is_complete = True
            piece.append(SnapshotEndedEntry(self.number, self._appended + len(piece)))
        if self.base_offset < 0:
            piece.insert(0, SnapshotBegunEntry(self.number))
        return piece

    def appended(self, base_offset: int, entries: int) -> None:
        """A piece, and what came behind it in the same append, is durable."""
        if self.base_offset < 0:
            self.base_offset = base_offset
            entries -= 1
        self._appended += entries


def is_due(since: int, last: int) -> bool:
    return since >= max(_LEAST, 3 * last)
