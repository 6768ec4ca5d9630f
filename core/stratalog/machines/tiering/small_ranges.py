"""Ranges of segments that are too small for objects of their own: they wait for one another. The first one that is due
takes all others along, so the number of objects follows time and bytes, not the number of shards.

Pure. Cost: O(log n) for a range that comes, O(1) for one that leaves; a sweep costs what it takes.
"""

from __future__ import annotations

import heapq

from stratalog.machines.tiering.upload_state import SegmentUpload
from stratalog.model.ids import SegmentKey


class SmallRanges:
    """Invariant: `size_bytes` is the sum of the waiting bytes of those in `queue`."""

    def __init__(self, interval_ms: int, most_bytes: int | None = None) -> None:
        """`most_bytes`: so much of all together is due at once; None: only time makes them due."""
        self.queue: dict[SegmentKey, None] = {}
        self.size_bytes = 0
        self._interval_ms = interval_ms
        self._most_bytes = most_bytes
        self._deadlines: list[tuple[int, SegmentKey]] = []

    def came(self, upload: SegmentUpload) -> None:
        """It was put into the queue."""
        assert upload.waiting_since_ms is not None
        self.size_bytes += upload.waiting_bytes
        heapq.heappush(self._deadlines, (upload.waiting_since_ms + self._interval_ms, upload.key))

    def grew(self, bytes_more: int) -> None:
        """One of those in the queue did, or shrank."""
        self.size_bytes += bytes_more

    def left(self, upload: SegmentUpload) -> None:
        """It was taken out of the queue."""
        self.size_bytes -= upload.waiting_bytes

    def is_due(self, uploads: dict[SegmentKey, SegmentUpload], now_ms: int) -> bool:
        if self._most_bytes is not None and self.size_bytes >= self._most_bytes:
            return True
        is_due = False
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            is_due = self._is_meant(uploads, *heapq.heappop(self._deadlines)) or is_due
        return is_due

    def take_all(self) -> dict[SegmentKey, None]:
        """Empties it."""
        taken, self.size_bytes = dict(self.queue), 0
        self.queue.clear()  # the object stays: each upload knows its queue by it
        self._deadlines.clear()
        return taken

    def next_due_ms(self, uploads: dict[SegmentKey, SegmentUpload]) -> int | None:
        while self._deadlines and not self._is_meant(uploads, *self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _is_meant(self, uploads: dict[SegmentKey, SegmentUpload], deadline_ms: int, key: SegmentKey) -> bool:
        """Whether an entry of the heap still means something."""
        upload = uploads.get(key)
        return (
            upload is not None
            and upload.queue is self.queue
            and upload.waiting_since_ms is not None
            and upload.waiting_since_ms + self._interval_ms == deadline_ms
        )
