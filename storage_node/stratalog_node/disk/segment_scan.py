"""Read a segment's batches forwards and derive everything that can be derived: end, digest, index, producers, times.

Recovery, sealing and verification share it. Blocking; for disk threads. Every CRC is checked. Where the index is to
have true times, as for a seal, each batch is opened for them; else they are those that the headers claim.
Cost: about 2 us a batch and the bytes once, in windows. The interpreter is given up every 60 us or so, not with each
batch (formats/batches/batch_scan.py, disk/yielding_gil.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stratalog.formats.batches.batch_scan import scan_whole_batches
from stratalog.formats.batches.record_batch import first_timestamp_ms, parse_header, scan_valid_prefix
from stratalog.formats.batches.record_times import BatchTimes
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest, extend_digest_over
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.model.batch import BATCH_HEADER_BYTES, BatchHeader
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.opened_batches import opened_times
from stratalog_node.disk.yielding_gil import yielding_gil

WINDOW_BYTES = 1 << 20
"""Read at once: each read costs a change of threads where the event loop is busy."""
_BATCH_NS = 1_000
_OPENED_NS = 8_000

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
    def begin(
        cls, key: SegmentKey, producers: ProducerTable, now_ms: int = 0, *, has_true_times: bool = False
    ) -> SegmentScan:
        index = IndexBuilder(key.base_offset, has_true_times=has_true_times)
        return cls(key, index, producers, 0, key.base_offset, now_ms=now_ms)

    def advance(self, read: ReadAt, size_bytes: int, until: Callable[[], bool] = lambda: False) -> SegmentScan:
        """Take in the batches up to `size_bytes`. `until` lets a shutdown interrupt it between windows."""
        window = WINDOW_BYTES
        while self.position < size_bytes and not until():
            data = read(self.position, min(window, size_bytes - self.position))
            found = scan_whole_batches(data, base_offset=self.next_offset, epoch=self.key.epoch)
            view = memoryview(data)
            self.take_in(self.position, (parse_header(view, at) for at in found.positions[:-1]), view)
            window = WINDOW_BYTES
            rest = view[found.positions[-1] :]
            if not rest:
                continue
            judged = scan_valid_prefix(rest, self.next_offset, self.key.epoch, position=self.position)
            assert judged.reason is not None, f"segment {self.key}: nothing is wrong where the scan stopped"
            if not 0 < judged.wanted_bytes <= size_bytes - self.position:
                self.stopped = judged.reason
                break
            window = max(window, judged.wanted_bytes)
        return self

    def take_in(
        self,
        position: int,
        headers: Iterable[BatchHeader],
        data: bytes | memoryview,
        times: Sequence[BatchTimes] | None = None,
    ) -> None:
        """Take in batches that were read at `position` and checked, as far as they continue from where this scan is.
        `times`: of each batch, if they were opened already. For threads: the loop runs meanwhile."""
        view, begin = memoryview(data), position
        at, next_offset, digest = self.position, self.next_offset, self.digest
        index, opens = self.index, self.index.has_true_times
        for number, header in enumerate(yielding_gil(headers, item_ns=_OPENED_NS if opens else _BATCH_NS)):
            size_bytes = header.size_bytes
            if position == at and header.base_offset == next_offset:
                stored = at - begin
                digest = extend_digest(digest, (view[stored : stored + BATCH_HEADER_BYTES],))
                if opens:
                    known = opened_times(view[stored : stored + size_bytes], header) if times is None else times[number]
                    index.append_opened(next_offset, size_bytes, known)
                else:
                    index.append(next_offset, size_bytes, first_timestamp_ms(header), header.max_timestamp_ms)
                if header.producer_id >= 0:
                    self.producers.replay(header, self.now_ms)
                at += size_bytes
                next_offset = header.end_offset
            position += size_bytes
        self.position, self.next_offset, self.digest = at, next_offset, digest

    def take_in_next(self, headers: Sequence[BatchHeader], data: memoryview) -> None:
        """On the event loop: take in batches that were checked to continue from where this scan is; they are all of
        `data`."""
        add_to_index, replay, now_ms = self.index.append, self.producers.replay, self.now_ms
        for header in headers:
            add_to_index(header.base_offset, header.size_bytes, first_timestamp_ms(header), header.max_timestamp_ms)
            if header.producer_id >= 0:
                replay(header, now_ms)
        self.digest = extend_digest_over(self.digest, data)
        self.position += len(data)
        self.next_offset = headers[-1].end_offset
