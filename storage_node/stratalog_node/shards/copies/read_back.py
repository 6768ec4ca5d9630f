"""How far a segment that is not sealed yet was read back out of its file and checked, from its start on without a gap.

Uploads read every batch once, in order, soon after it was written, and check it. What the seal needs to know of a batch
(digest, index points, times of its records, producers) is noted then, so that the seal reads only what no upload has
read. Nothing is noted from what was meant to be written: each byte that counts here came out of the file and its
checksum was right. Lookups by time have it read ahead of the seal.
Lives on the disk threads. Memory: nothing but itself until the first upload, then the segment's index points.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from stratalog.formats.batches.record_times import BatchTimes
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.segment_scan import ReadAt, SegmentScan


class ReadBack:
    __slots__ = ("_key", "_most_producers", "_one_at_a_time", "_scan")

    def __init__(self, key: SegmentKey, most_producers: int) -> None:
        self._key = key
        self._most_producers = most_producers
        self._scan: SegmentScan | None = None
        self._one_at_a_time = threading.Lock()

    def take_in(
        self,
        position: int,
        headers: Sequence[BatchHeader],
        data: memoryview | bytes,
        times: Sequence[BatchTimes] | None = None,
    ) -> None:
        """These batches were read at `position`, checked, and perhaps opened. Counts those that continue what was
        counted before. Ignores the others, and all of them while another thread works here."""
        if not self._one_at_a_time.acquire(blocking=False):
            return
        scan, self._scan = self._scan, None  # what is taken in by half is worth nothing: then the seal reads it all
        try:
            scan = scan or self._begin()
            scan.take_in(position, headers, data, times)
            self._scan = scan
        finally:
            self._one_at_a_time.release()

    def _begin(self) -> SegmentScan:
        return SegmentScan.begin(self._key, ProducerTable((), self._most_producers), has_true_times=True)

    def times_below(self, read: ReadAt, size_bytes: int) -> IndexBuilder:
        """The index of all batches below a position, with the times of their records: what no upload has read yet is
        read now. Blocking. It grows while others search in it. Raises: Corrupt."""
        with self._one_at_a_time:
            scan = self._scan if self._scan is not None and self._scan.stopped is None else self._begin()
            self._scan = None
            scan.advance(read, size_bytes)
            if scan.stopped is not None:
                raise Corrupt(scan.stopped, source=f"segment {self._key}", position=scan.position)
            self._scan = scan
            return scan.index

    def finish(self, read: ReadAt, size_bytes: int, until: Callable[[], bool], *, again: bool) -> SegmentScan:
        """Read the rest, or all of it if `again`. A second call continues where the first one was stopped. Blocking."""
        with self._one_at_a_time:
            if self._scan is None or again:
                self._scan = self._begin()
            return self._scan.advance(read, size_bytes, until)
