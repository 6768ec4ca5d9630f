"""Ranges of segments that are too small for objects of their own: they wait for one another. The first one that is due
takes along all whose interval is not much longer, so the number of objects follows time and bytes, not the number of
shards.

A topic may have an interval of its own. Intervals between two powers of two are one class: a due range takes along its
own class and all shorter ones. So there are few sweeps, however many topics have an interval of their own: over all
classes, less than four times as many as the shortest interval alone asks for. And a topic with a long interval is not
cut into the small parts of one with a short interval.

Pure. Cost: O(log n) for a range that comes, O(1) for one that leaves; a sweep costs what it takes. Memory follows the
queue, also where ranges leave long before they are due.
"""

from __future__ import annotations

import heapq

from stratalog.machines.tiering.upload_state import SegmentUpload
from stratalog.model.ids import SegmentKey

_SPARE_DEADLINES = 64
"""Deadlines of ranges that have left stay until there are as many as ranges, and this many."""


class SmallRanges:
    """Invariants: `size_bytes` is the sum of the waiting bytes of those in `queue`; each is in one class, and has one
    deadline."""

    def __init__(self, most_bytes: int | None = None) -> None:
        """`most_bytes`: so much of all together is due at once; None: only time makes them due."""
        self.queue: dict[SegmentKey, None] = {}
        self.size_bytes = 0
        self._most_bytes = most_bytes
        self._classes: dict[int, dict[SegmentKey, None]] = {}
        self._due_ms: dict[SegmentKey, int] = {}
        self._deadlines: list[tuple[int, SegmentKey]] = []

    def came(self, upload: SegmentUpload) -> None:
        """It was put into the queue."""
        assert upload.waiting_since_ms is not None
        self.size_bytes += upload.waiting_bytes
        self._classes.setdefault(_class_of(upload), {})[upload.key] = None
        due_ms = self._due_ms[upload.key] = upload.waiting_since_ms + upload.interval_ms
        heapq.heappush(self._deadlines, (due_ms, upload.key))
        if len(self._deadlines) > 2 * len(self._due_ms) + _SPARE_DEADLINES:
            self._deadlines = [(at_ms, key) for key, at_ms in self._due_ms.items()]
            heapq.heapify(self._deadlines)

    def grew(self, bytes_more: int) -> None:
        """One of those in the queue did, or shrank."""
        self.size_bytes += bytes_more

    def left(self, upload: SegmentUpload) -> None:
        """It was taken out of the queue. Its interval is the one with which it came."""
        self.size_bytes -= upload.waiting_bytes
        self._classes[_class_of(upload)].pop(upload.key)
        del self._due_ms[upload.key]

    def take_due(self, uploads: dict[SegmentKey, SegmentUpload], now_ms: int) -> list[SegmentKey]:
        """Takes out of the queue what goes now: nothing, or all that the due ones take along."""
        is_full = self._most_bytes is not None and self.size_bytes >= self._most_bytes
        longest = max(self._classes, default=0) if is_full else 0
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            due_ms, key = heapq.heappop(self._deadlines)
            if self._due_ms.get(key) == due_ms:
                longest = max(longest, _class_of(uploads[key]))
        taken = [key for one in sorted(self._classes) if one <= longest for key in self._classes.pop(one)]
        for key in taken:
            del self.queue[key], self._due_ms[key]  # the object stays: each upload knows its queue by it
            self.size_bytes -= uploads[key].waiting_bytes
        return taken

    def next_due_ms(self) -> int | None:
        while self._deadlines and self._due_ms.get(self._deadlines[0][1]) != self._deadlines[0][0]:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None


def _class_of(upload: SegmentUpload) -> int:
    return upload.interval_ms.bit_length()
