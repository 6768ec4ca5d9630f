"""One look-up by time: opens batches, a bounded number of records, and lets the event loop run meanwhile.

Batches are the clients', unopened so far. One whose inside is no records, though its CRC is right, was sent so: it is
passed over, as one that claims a time which none of its records has. A batch too large to be opened, and whatever comes
when a look-up has opened its fill, is answered by its header: its first offset is never behind the record asked for.
For threads, one look-up each. Cost: about a second of a thread at most.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.formats.compression import TooLarge
from stratalog.formats.record_batch import check_batch
from stratalog.formats.records import OffsetAndTime, first_offset_at_or_after, offset_of_max_timestamp
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt
from stratalog_node.disk.yielding_gil import yielding_gil

_MOST_STEPS = 1 << 20
"""Records that one look-up opens, 0.6 us each."""
_HEADER_STEPS = 4
_OPENING_STEPS = 1 << 15
"""What a compressed batch costs besides its records."""
_MOST_DECODED_BYTES = 16 << 20
"""More is not opened: copying it would hold the interpreter, and with it the event loop, for too long."""


class TimeLook:
    """Where a look-up for a time stands: `timestamp_ms` or later, at `from_offset` or behind."""

    __slots__ = ("_from_offset", "_steps_left", "_timestamp_ms")

    def __init__(self, timestamp_ms: int, from_offset: int) -> None:
        self._timestamp_ms = timestamp_ms
        self._from_offset = from_offset
        self._steps_left = _MOST_STEPS

    def passes(self, header: BatchHeader) -> bool:
        """Whether a batch cannot hold the record, by its header. False once the look-up has walked its fill."""
        self._steps_left -= _HEADER_STEPS
        if header.end_offset <= self._from_offset:
            return True
        return header.max_timestamp_ms < self._timestamp_ms and self._steps_left > 0

    def first_in(self, batch: bytes | memoryview, header: BatchHeader, source: str) -> OffsetAndTime | None:
        """The record, or the batch in its place; None: look on behind it. Raises: Corrupt when its CRC is wrong."""
        return self._opened(
            batch,
            header,
            source,
            lambda: first_offset_at_or_after(
                batch,
                self._timestamp_ms,
                from_offset=self._from_offset,
                pace=yielding_gil,
                max_bytes=_MOST_DECODED_BYTES,
                source=source,
            ),
        )

    def newest_in(self, batch: bytes, header: BatchHeader, source: str) -> OffsetAndTime | None:
        """The first record with the greatest time of those at `from_offset` or behind; otherwise as `first_in`."""
        return self._opened(
            batch,
            header,
            source,
            lambda: offset_of_max_timestamp(
                batch,
                from_offset=self._from_offset,
                pace=yielding_gil,
                max_bytes=_MOST_DECODED_BYTES,
                source=source,
            ),
        )

    def _opened(
        self,
        batch: bytes | memoryview,
        header: BatchHeader,
        source: str,
        look_inside: Callable[[], OffsetAndTime | None],
    ) -> OffsetAndTime | None:
        cost = header.record_count + (_OPENING_STEPS if header.compression else 0)
        if cost > self._steps_left:
            return self._by_header(header)
        self._steps_left -= cost
        check_batch(batch, source=source)
        try:
            return look_inside()
        except TooLarge:
            return self._by_header(header)
        except Corrupt:
            return None

    def _by_header(self, header: BatchHeader) -> OffsetAndTime:
        timestamp_ms = max(header.max_timestamp_ms, self._timestamp_ms)
        return OffsetAndTime(max(header.base_offset, self._from_offset), timestamp_ms)
