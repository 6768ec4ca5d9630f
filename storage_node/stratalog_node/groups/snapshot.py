"""A snapshot of one shard of the group log while it is being written: which slice comes next, when it is complete.

New entries may be appended between the slices: each slice restates what is durable when it is made, so a newer entry
is never overtaken by an older slice. The end mark counts everything between the marks.
Source: docs/formats-groups.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias

from stratalog.formats.groups.group_log import KeyValue, LogEntry, SnapshotBegun, SnapshotEnded, encode_entry
from stratalog.model.ids import ShardKey
from stratalog_node.groups.batches import size_of

LiveKey: TypeAlias = tuple[str, ShardKey | None]
"""A group's offset in a shard, or with None the group itself."""


class LiveState(Protocol):
    """What a snapshot is made of: the durable state, which changes only when an append was acknowledged."""

    def live_keys(self) -> Iterator[LiveKey]:
        """Everything that is alive when this is called and still is when it is reached."""
        ...

    def live_entry(self, key: LiveKey) -> LogEntry | None:
        """The entry that restates it; None when it is gone by now."""
        ...


class SnapshotInProgress:
    __slots__ = ("_appended_entries", "_keys", "_live", "base_offset", "is_complete", "size_bytes", "snapshot_id")

    def __init__(self, snapshot_id: int, live: LiveState) -> None:
        self.snapshot_id = snapshot_id
        self._live = live
        self._keys = live.live_keys()
        self._appended_entries = 0
        self.base_offset = -1
        """The offset of the begin mark: what is below may go once the snapshot is complete."""
        self.is_complete = False
        self.size_bytes = 0

    @property
    def has_begun(self) -> bool:
        return self.base_offset >= 0

    def next_chunk(self, max_entries: int, max_bytes: int) -> list[KeyValue]:
        """Entries to append now, ahead of anything else in the same append: at most `max_entries`, and no more once
        they reach `max_bytes`."""
        pairs: list[KeyValue] = []
        size_bytes = 0
        for key in self._keys:
            entry = self._live.live_entry(key)
            if entry is not None:
                pairs.append(encode_entry(entry))
                size_bytes += size_of(pairs[-1:])
                if len(pairs) >= max_entries or size_bytes >= max_bytes:
                    break
        else:
            self.is_complete = True
            pairs.append(encode_entry(SnapshotEnded(self.snapshot_id, self._appended_entries + len(pairs))))
        if not self.has_begun:
            pairs.insert(0, encode_entry(SnapshotBegun(self.snapshot_id)))
        self.size_bytes += size_of(pairs)
        return pairs

    def appended(self, base_offset: int, entry_count: int) -> None:
        """An append of `entry_count` entries with a slice of this snapshot at its front is durable."""
        if not self.has_begun:
            self.base_offset = base_offset
            entry_count -= 1
        self._appended_entries += entry_count
