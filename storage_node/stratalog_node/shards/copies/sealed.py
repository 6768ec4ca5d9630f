"""A sealed segment's local copy. Its points are in memory only while `sealed_points.SealedPoints` holds them; they come
from its index block, on a disk thread."""

from __future__ import annotations

from pathlib import Path

from stratalog.formats.segments.index_block import decode_index_block
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_file
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.local_copy import LocalCopy

log = logger(__name__)


class SealedCopy(LocalCopy):
    __slots__ = ("index_path", "seal")

    def __init__(
        self,
        key: SegmentKey,
        file: SegmentFile,
        index_path: Path,
        seal: SealRecord,
        *,
        checked_from: int | None = None,
    ) -> None:
        """By default nothing of it was checked in this life."""
        super().__init__(key, file, None, checked_from=seal.size_bytes if checked_from is None else checked_from)
        self.index_path = index_path
        self.seal = seal

    def read_points(self) -> IndexPoints:
        """Blocking. Points of a damaged or missing index block are made again from the segment (F73)."""
        points = self._points_in_block()
        if points is None:
            points = self._scanned(has_true_times=False)
        return points

    def read_points_in_time(self) -> IndexPoints:
        """Blocking. The same with true times: where an older release wrote the block, the segment is read for them."""
        points = self._points_in_block()
        return points if points is not None and points.has_true_times else self._scanned(has_true_times=True)

    def _scanned(self, *, has_true_times: bool) -> IndexPoints:
        scan = SegmentScan.begin(self.key, ProducerTable(), has_true_times=has_true_times)
        scan.advance(self.read_blocking, self.seal.size_bytes)
        if scan.digest != self.seal.digest:
            raise Corrupt(
                f"digest differs from the seal record: {scan.stopped or 'other batches'}",
                source=str(self.file.path),
                position=scan.position,
            )
        return scan.index.freeze()

    def _points_in_block(self) -> IndexPoints | None:
        data = read_file(self.index_path)
        if data is None:
            log.warning("index block is missing; reading the segment instead", file=str(self.index_path))
            return None
        try:
            block = decode_index_block(data, source=str(self.index_path))
        except Corrupt as error:
            log.warning("index block is damaged; reading the segment instead", error=str(error))
            return None
        if block.seal.digest != self.seal.digest or block.identity.key != self.key:
            log.warning("index block is of other data; reading the segment instead", file=str(self.index_path))
            return None
        return block.points
