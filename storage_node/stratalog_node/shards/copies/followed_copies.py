"""Copies of segments that this node follows and does not lead, for its own shards: a shard may continue from such a
copy, and other replicas may lack what it has.

Filled by `replication/following.py`. Lives on the event loop. Memory: an entry per followed segment.
"""

from __future__ import annotations

from typing import Protocol

from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment
from stratalog_node.shards.copies.local_copy import LocalCopy


class FollowedCopy(Protocol):
    @property
    def end_offset(self) -> int:
        """Where its whole batches end."""
        ...

    def own_producers(self) -> tuple[ProducerSnapshot, ...]:
        """The producers of its own batches alone (`producer_table.continued`)."""
        ...

    def local_copy(self) -> LocalCopy | None:
        """All of it, for reading. None if it has no file, or if it is unknown what the disk holds of it."""
        ...


class FollowedCopies:
    def __init__(self) -> None:
        self._copies: dict[SegmentKey, FollowedCopy] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def get(self, key: SegmentKey) -> FollowedCopy | None:
        return self._copies.get(key)

    def committed(self, segment: Segment) -> tuple[LocalCopy, int] | None:
        """The copy of a segment whose end is known, and where the copy ends. All of it is committed, so a node may
        serve it before the segment is sealed, whichever node leads the shard now. None if there is no copy, or if it
        was not yet cut at the segment's end."""
        followed = self._copies.get(segment.key)
        if followed is None or segment.end_offset is None or followed.end_offset > segment.end_offset:
            return None
        copy = followed.local_copy()
        return (copy, followed.end_offset) if copy is not None else None

    def put(self, key: SegmentKey, copy: FollowedCopy) -> None:
        self._copies[key] = copy

    def drop(self, key: SegmentKey) -> None:
        self._copies.pop(key, None)
