"""Read a segment's batches forwards and derive everything that can be derived: end, digest, index, producers, times.

Recovery, sealing and verification share it. Blocking; for disk threads. Every CRC is checked.
Cost: about 2 us a batch and the bytes once, in windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.formats.digest import EMPTY_DIGEST, extend_digest
from stratalog.formats.index_points import IndexBuilder
from stratalog.formats.record_batch import first_timestamp_ms, scan_valid_prefix
from stratalog.machines.producer_table import ProducerTable
from stratalog.model.batch import BATCH_HEADER_BYTES
from stratalog.model.ids import SegmentKey

_WINDOW_BYTES = 128 << 10
"""Small, because the interpreter is given up between windows only (see disk/yielding_gil.py)."""

ReadAt = Callable[[int, int], "bytes | memoryview"]
"""(position from the first batch, size) -> exactly those bytes, at least until the next call."""


@dataclass(slots=True)
class SegmentScan:
    """The state after the batches below `position`. Continue it with more bytes, or read off the result."""

    key: SegmentKey
    index: IndexBuilder
    producers: ProducerTable
    position: int
    next_offset: int
    digest: bytes = EMPTY_DIGEST
    """Over the batches that this scan has read: the segment's only when it began at the start."""
    now_ms: int = 0
    """When the producers found count as seen; for who looks at them."""
    stopped: str | None = None
    """Why the scan ended before the end of the file: a torn or damaged tail."""

    @classmethod
    def begin(cls, key: SegmentKey, producers: ProducerTable, now_ms: int = 0) -> SegmentScan:
        return cls(key, IndexBuilder(key.base_offset), producers, 0, key.base_offset, now_ms=now_ms)

    def advance(self, read: ReadAt, size_bytes: int, until: Callable[[], bool] = lambda: False) -> SegmentScan:
        """Take in the batches up to `size_bytes`. `until` lets a shutdown interrupt it between windows."""
        window = _WINDOW_BYTES
        while self.position < size_bytes and not until():
            data = read(self.position, min(window, size_bytes - self.position))
            valid = scan_valid_prefix(data, self.next_offset, self.key.epoch, position=self.position)
            view = memoryview(data)
            self.digest = extend_digest(self.digest, (view[at : at + BATCH_HEADER_BYTES] for at, _ in valid.headers))
            for _, header in valid.headers:
                self.index.append(
                    header.base_offset, header.size_bytes, first_timestamp_ms(header), header.max_timestamp_ms
                )
                if header.producer_id >= 0:
                    self.producers.replay(header, self.now_ms)
            self.position += valid.end_position
            self.next_offset = valid.next_offset
            window = _WINDOW_BYTES
            if valid.reason is not None:
                if 0 < valid.wanted_bytes <= size_bytes - self.position:
                    window = max(window, valid.wanted_bytes)
                    if valid.end_position == 0 and len(data) >= valid.wanted_bytes:
                        self.stopped = valid.reason
                        break
                    continue
                self.stopped = valid.reason
                break
        return self
