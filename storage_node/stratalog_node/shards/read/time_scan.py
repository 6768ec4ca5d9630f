"""One lookup by time: opens batches for the times of their records, and lets the event loop run meanwhile.

Clients wrote the batches, including the times in their headers, so these are not trusted. A batch with a correct CRC
and malformed records was sent that way, and is skipped. For a batch that is too large to be opened the header answers:
its first offset is never behind the record that is sought.
For threads, one lookup each. Cost: if the index has true times, opens one index interval of batches.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.formats.batches.compression import TooLarge
from stratalog.formats.batches.record_batch import check_batch
from stratalog.formats.batches.record_times import BatchTimes, Opened
from stratalog.formats.batches.records import OffsetAndTime, first_offset_at_or_after, offset_of_max_timestamp
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog_node.disk.opened_batches import opened_times
from stratalog_node.disk.yielding_gil import yielding_gil


def passes_by_header(header: BatchHeader, timestamp_ms: int) -> bool:
    """Whether a batch holds no record of a time or a later one, by what its header can prove: with log append time it
    has the time of each record."""
    return header.record_count == 0 or (header.is_log_append_time and header.max_timestamp_ms < timestamp_ms)


class TimeScan:
    """The state of a lookup for `timestamp_ms` or later, at `from_offset` or behind."""

    __slots__ = ("_from_offset", "_timestamp_ms")

    def __init__(self, timestamp_ms: int, from_offset: int) -> None:
        self._timestamp_ms = timestamp_ms
        self._from_offset = from_offset

    def passes(self, header: BatchHeader) -> bool:
        """Whether a batch cannot hold the record, whatever is inside."""
        return header.end_offset <= self._from_offset or passes_by_header(header, self._timestamp_ms)

    def first_in(self, batch: bytes | memoryview, header: BatchHeader, source: str) -> OffsetAndTime | None:
        """The record, or the batch in its place; None: look on behind it. Raises: Corrupt when its CRC is wrong."""
        check_batch(batch, source=source)
        times = opened_times(batch, header)
        if times.opened is Opened.GARBAGE or times.highest_ms < self._timestamp_ms:
            return None
        if times.opened is Opened.TOO_LARGE:
            return OffsetAndTime(max(header.base_offset, self._from_offset), times.highest_ms)
        return _opened(
            lambda: first_offset_at_or_after(
                batch, self._timestamp_ms, from_offset=self._from_offset, pace=yielding_gil, source=source
            )
        )


class NewestScan:
    """The first record with the greatest time at `from_offset` or behind, of batches that are shown to it in order."""

    __slots__ = ("_from_offset", "best")

    def __init__(self, from_offset: int) -> None:
        self._from_offset = from_offset
        self.best: OffsetAndTime | None = None

    def passes(self, header: BatchHeader) -> bool:
        """Whether a batch cannot hold the record, whatever is inside."""
        newest_ms = 0 if self.best is None else self.best.timestamp_ms + 1
        return header.end_offset <= self._from_offset or passes_by_header(header, newest_ms)

    def take_in(self, batch: bytes | memoryview, header: BatchHeader, source: str) -> None:
        """The next batch. Raises: Corrupt when its CRC is wrong."""
        check_batch(batch, source=source)
        times = opened_times(batch, header)
        if times.highest_ms <= (-1 if self.best is None else self.best.timestamp_ms):
            return
        found = self._newest_in(batch, header, source, times)
        if found is not None and (self.best is None or found.timestamp_ms > self.best.timestamp_ms):
            self.best = found

    def _newest_in(
        self, batch: bytes | memoryview, header: BatchHeader, source: str, times: BatchTimes
    ) -> OffsetAndTime | None:
        if times.opened is Opened.TOO_LARGE:
            return OffsetAndTime(max(header.base_offset, self._from_offset), times.highest_ms)
        return _opened(
            lambda: offset_of_max_timestamp(batch, from_offset=self._from_offset, pace=yielding_gil, source=source)
        )


def _opened(look_inside: Callable[[], OffsetAndTime | None]) -> OffsetAndTime | None:
    try:
        return look_inside()
    except TooLarge:  # not reached: what is opened for its times is opened for a record
        raise
    except Corrupt:
        return None
