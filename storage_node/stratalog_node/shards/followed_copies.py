"""Copies of segments that this node follows and does not lead, as its shards see them: what they lead themselves may
follow from such a copy, and other replicas may lack what it has.

Filled by who follows (`replication/following.py`). Lives on the event loop. Memory: an entry per followed segment.
"""

from __future__ import annotations

from typing import Protocol

from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot
from stratalog_node.shards.local_copy import LocalCopy


class FollowedCopy(Protocol):
    @property
    def end_offset(self) -> int:
        """Where its whole batches end."""
        ...

    def own_producers(self) -> tuple[ProducerSnapshot, ...]:
        """Of its own batches alone (`producer_table.continued`)."""
        ...

    def local_copy(self) -> LocalCopy | None:
        """All of it, to be read. None: it has no file, or nobody knows any more what the disk holds of it."""
        ...


class FollowedCopies:
    def __init__(self) -> None:
        self._copies: dict[SegmentKey, FollowedCopy] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def get(self, key: SegmentKey) -> FollowedCopy | None:
        return self._copies.get(key)

    def put(self, key: SegmentKey, copy: FollowedCopy) -> None:
        self._copies[key] = copy

    def drop(self, key: SegmentKey) -> None:
        self._copies.pop(key, None)
