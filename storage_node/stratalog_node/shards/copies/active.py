"""The segment being written: its leader machine, its file, its sparse index, and the file position of the high
watermark."""

from __future__ import annotations

from typing import Protocol

from stratalog.formats.batches.offered_batch import assign
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import INDEX_INTERVAL_BYTES, IndexBuilder
from stratalog.machines.leading.leader_events import OfferedBatch, PersistBatches
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.segment import SegmentIdentity
from stratalog_node.disk.ends_in_memory import EndMark
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.copies.read_back import ReadBack


class GrowthListener(Protocol):
    """Is notified of each write to a segment, acknowledged or not."""

    def grew(self, active: ActiveSegment) -> None:
        """Called in the middle of a turn: read the segment later in the same turn. Must not raise, nor change any
        segment's `followers`."""
        ...


class ActiveSegment(LocalCopy):
    """A local copy that grows. Stays in use, ended, until its seal record is written.

    Invariant: `hw_position` is where the batch at `hw_offset` begins or would begin, and `hw_offset` is the leader's
    high watermark: what readers are promised is there as whole batches.
    """

    __slots__ = (
        "_mark",
        "_marks",
        "flushed_bytes",
        "followers",
        "hw_offset",
        "hw_position",
        "identity",
        "index",
        "leader",
        "read_back",
    )

    def __init__(
        self,
        identity: SegmentIdentity,
        file: SegmentFile,
        leader: SegmentLeader,
        index: IndexBuilder,
        mark: EndMark,
        *,
        checked_from: int = 0,
    ) -> None:
        super().__init__(identity.key, file, index, checked_from=checked_from)
        self.identity = identity
        self.leader = leader
        self.index = index
        self._mark = mark
        """Of what a start must find here: all that is confirmed to others."""
        self.read_back = ReadBack(identity.key, leader.producers.limit)
        self.flushed_bytes = 0
        self.followers: dict[GrowthListener, None] = {}
        self.hw_offset = leader.high_watermark
        self.hw_position = self.size_bytes if leader.high_watermark == leader.end_offset else 0
        self._marks: list[tuple[int, int]] = []
        if leader.high_watermark != leader.end_offset:
            # Found at start, its roll not confirmed yet: all of it is committed at once when it is.
            self._marks.append((leader.end_offset, self.size_bytes))

    def write(self, effect: PersistBatches) -> None:
        """Append the batches, with the offsets the leader gave them. Raises: DiskFull, Unavailable (nothing written);
        OutcomeUnknown (some of it may be found by the next start)."""
        batches = effect.batches
        epoch = self.key.epoch
        for batch in batches:
            assign(batch.payload, batch.base_offset, epoch)
        self.file.append([batch.payload for batch in batches], effect.size_bytes)
        if effect.size_bytes <= INDEX_INTERVAL_BYTES or len(batches) == 1:
            self.index.append(
                batches[0].base_offset, effect.size_bytes, batches[0].max_timestamp_ms, effect.max_timestamp_ms
            )
        else:
            self._index_in_pieces(batches)
        end_position = self.file.size_bytes - SEGMENT_HEADER_BYTES
        if self.leader.stops_at_batches and len(batches) > 1:
            self._mark_each(batches, end_position)
        else:
            self._marks.append((effect.end_offset, end_position))
        self.tell_followers()

    def tell_followers(self) -> None:
        """Notifies followers of what was written, if the segment's roll is confirmed: until then only its leader may
        see it."""
        if self.leader.is_confirmed:
            self._mark.move(self._marks[-1][0] if self._marks else self.hw_offset)
        for follower in self.followers:
            follower.grew(self)

    def forget_end(self) -> None:
        """Its seal record says where it ends, or it is gone."""
        self._mark.forget()

    def _index_in_pieces(self, batches: list[OfferedBatch]) -> None:
        """A group larger than the index interval: a reader would scan all its small batches from the one point."""
        first, size, newest = batches[0], 0, -1
        for batch in batches:
            if size >= INDEX_INTERVAL_BYTES:
                self.index.append(first.base_offset, size, first.max_timestamp_ms, newest)
                first, size = batch, 0
            size += batch.size_bytes
            newest = max(newest, batch.max_timestamp_ms)
        self.index.append(first.base_offset, size, first.max_timestamp_ms, newest)

    def _mark_each(self, batches: list[OfferedBatch], end_position: int) -> None:
        """Followers hold whole batches, as parts do: the high watermark may stop behind any of them."""
        position = end_position - sum(batch.size_bytes for batch in batches)
        for batch in batches:
            position += batch.size_bytes
            self._marks.append((batch.end_offset, position))

    def move_high_watermark(self, high_watermark: int) -> None:
        marks = self._marks
        reached = 0
        for offset, position in marks:
            if offset > high_watermark:
                break
            self.hw_offset, self.hw_position = offset, position
            reached += 1
        del marks[:reached]
