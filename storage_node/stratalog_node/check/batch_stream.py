"""Follows the record batches of a segment through windows of bytes, checking everything a reader can check.

Feed it windows in order; it keeps the bytes of an unfinished batch. It checks magic, length, CRC, that offsets are
contiguous, the epoch, and it carries the seal digest. Memory: one window and one batch, which is put together once.
"""

from __future__ import annotations

from stratalog.formats.batches.record_batch import first_timestamp_ms, scan_valid_prefix, walk
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest
from stratalog.model.batch import BATCH_HEADER_BYTES, LARGEST_BATCH_BYTES, BatchHeader
from stratalog.model.errors import Corrupt


class BatchStream:
    __slots__ = (
        "_epoch", "_pieces", "_source", "_wanted_bytes", "batches", "digest", "first_timestamp_ms", "max_timestamp_ms",
        "next_offset", "position", "records", "unfinished_bytes",
    )  # fmt: skip

    def __init__(
        self, *, source: str, base_offset: int, epoch: int, position: int = 0, digest: bytes = EMPTY_DIGEST
    ) -> None:
        self._source = source
        self._epoch = epoch
        self._pieces: list[bytes] = []
        self._wanted_bytes = 0
        self.unfinished_bytes = 0
        """Bytes of a batch whose end has not come yet."""
        self.position = position
        """Where the next batch begins in `source`."""
        self.next_offset = base_offset
        self.digest = digest
        self.batches = 0
        self.records = 0
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1

    def feed(self, window: bytes) -> list[tuple[int, BatchHeader, memoryview]]:
        """The batches that this window completes: (position in the source, header, bytes).

        Raises: Corrupt when the first batch is bad. Good ones before a bad one are given out; the next call raises.
        """
        self._keep(window)
        if self.unfinished_bytes < self._wanted_bytes:
            return []
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        view = memoryview(data)
        found = scan_valid_prefix(data, self.next_offset, self._epoch, position=self.position)
        batches = [(self.position + at, header, view[at : at + header.size_bytes]) for at, header in found.headers]
        self._count_batches(batches)
        if found.reason is not None and not found.wanted_bytes and not batches:
            self._raise_fault(view[found.end_position :])
        if found.wanted_bytes > LARGEST_BATCH_BYTES:
            raise Corrupt(
                f"batch claims {found.wanted_bytes} bytes, more than any batch may have ({LARGEST_BATCH_BYTES})",
                source=self._source,
                position=self.position,
            )
        self.rewind()
        self._keep(bytes(view[found.end_position :]))
        self._wanted_bytes = found.wanted_bytes
        return batches

    def _keep(self, window: bytes) -> None:
        if window:
            self._pieces.append(window)
            self.unfinished_bytes += len(window)

    def rewind(self) -> None:
        """The bytes from `position` on are fed again: forget what there was of an unfinished batch."""
        self._pieces.clear()
        self._wanted_bytes = self.unfinished_bytes = 0

    def finish(self) -> None:
        """The bytes end here. Raises: Corrupt when they end inside a batch."""
        if self._pieces:
            self._raise_fault(memoryview(b"".join(self._pieces)))

    def _count_batches(self, batches: list[tuple[int, BatchHeader, memoryview]]) -> None:
        if not batches:
            return
        if self.batches == 0:
            self.first_timestamp_ms = first_timestamp_ms(batches[0][1])
        self.digest = extend_digest(self.digest, (bytes(data[:BATCH_HEADER_BYTES]) for _, _, data in batches))
        self.batches += len(batches)
        self.records += sum(header.record_count for _, header, _ in batches)
        self.max_timestamp_ms = max(self.max_timestamp_ms, *(header.max_timestamp_ms for _, header, _ in batches))
        position, last, _ = batches[-1]
        self.next_offset = last.end_offset
        self.position = position + last.size_bytes

    def _raise_fault(self, rest: memoryview) -> None:
        for _ in walk(
            rest, source=self._source, position=self.position, expected_base_offset=self.next_offset, epoch=self._epoch
        ):
            raise AssertionError("a batch that did not pass a moment ago passes now")
        raise Corrupt("no batch here", source=self._source, position=self.position)
