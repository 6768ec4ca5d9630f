"""Answers reads of the sealed segments in a retired node's directory, each range checked before anybody sees it.

Only what the metadata say this node proved is served, and only from a file whose own header says the same, and whose
batches have the digest of the seal record: a directory may have been away for long, and another copy of a file has good
CRCs, too. Files are opened for reading alone, on disk threads. Lives on the event loop.
Cost: the headers of a file's batches are read once, which is all of it where batches are small, before its first range;
a read costs its range, and the index block once in a while.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from stratalog.formats.digest import EMPTY_DIGEST, extend_digest_past
from stratalog.formats.index_points import IndexPoints
from stratalog.formats.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import SegmentAnswer, SegmentAsk
from stratalog.model.errors import Corrupt, NotFound, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import SealRecord, Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import read_front
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.catalog import Catalog
from stratalog_node.shards.producer_tables import ProducerTables
from stratalog_node.shards.replica_reads import first_batch_since, segment_of_epoch
from stratalog_node.shards.sealed import SealedCopy
from stratalog_node.shards.sealed_points import SealedPoints
from stratalog_node.single_flight import SingleFlight

log = logger(__name__)

_MOST_BYTES = 1 << 20
_MOST_COPIES = 100_000
_LOOK_BYTES = 64 << 10
"""Of a file, read at once for the headers in it."""


@dataclass(slots=True)
class VolumeStats:
    """Register as `stratalog_volume`."""

    reads: int = counter("Ranges of sealed segments that were read for other nodes.")
    read_bytes: int = counter("Bytes of them.")
    refusals: int = counter("Reads that were refused: of what is not here, or is damaged.")
    connections: int = gauge("Connections of other nodes.")


class SealedFiles:
    def __init__(
        self,
        layout: NodeLayout,
        node_id: int,
        cluster_id: str,
        catalog: Catalog,
        threads: DiskThreads,
        index_cache_bytes: int,
    ) -> None:
        self._layout = layout
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._catalog = catalog
        self._threads = threads
        self._descriptors = Descriptors(1)  # none is kept open
        self._points = SealedPoints(threads, index_cache_bytes)
        self._tables = ProducerTables(node_id, layout, threads, self._descriptors, catalog, None, None)
        self._copies: OrderedDict[SegmentKey, SealedCopy] = OrderedDict()
        self._checks: SingleFlight[SegmentKey, SealedCopy] = SingleFlight()
        """Who asks for a large file gives up before it is checked, and finds it checked when it asks again."""
        self._told: set[SegmentKey] = set()
        """Of whose fault the log tells already."""
        self.stats = VolumeStats()

    async def close(self) -> None:
        await self._checks.close()
        await self._tables.close()

    async def answer(self, ask: SegmentAsk) -> SegmentAnswer[bytes]:
        """Never raises for what is wrong with a file: whoever asks has others to ask."""
        shard = ShardKey(ask.topic_id, ask.shard)
        segment = segment_of_epoch(self._catalog.segments(shard), ask.epoch)
        start = self._catalog.log_start_offset(shard)
        if segment is None:
            return self._refused(ask, ErrorCode.UNKNOWN_LEADER_EPOCH, start)
        if segment.state is not SegmentState.SEALED or segment.seal is None or self._node_id not in segment.local_nodes:
            return self._refused(ask, ErrorCode.REPLICA_NOT_AVAILABLE, start)
        if ask.table_position >= 0:
            return await self._table_piece(segment, ask, start)
        if not segment.seal.base_offset <= ask.fetch_offset < segment.seal.end_offset:
            return self._refused(ask, ErrorCode.OFFSET_OUT_OF_RANGE, start)
        try:
            copy = await self._copy(segment, segment.seal)
            data = await self._points.read(copy, lambda points: _read(copy, points, ask))
        except StratalogError as error:
            if segment.key not in self._told:
                self._told.add(segment.key)
                log.warning(
                    "a sealed range cannot be given to another node", segment=str(segment.key), error=str(error)
                )
            is_damaged = isinstance(error, Corrupt)
            return self._refused(ask, ErrorCode.CORRUPT_MESSAGE if is_damaged else ErrorCode.KAFKA_STORAGE_ERROR, start)
        self.stats.reads += 1
        self.stats.read_bytes += len(data)
        return SegmentAnswer(*ask[:3], 0, -1, start, [data] if data else (), len(data))

    async def _table_piece(self, segment: Segment, ask: SegmentAsk, start: int) -> SegmentAnswer[bytes]:
        """Of the table of producers at the segment's end, as its index block has it; made again from the batches where
        that block is damaged, gone, or lacks it."""
        try:
            table = await self._tables.here(segment)
        except StratalogError as error:
            log.warning("a table of producers cannot be given to another node", error=str(error))
            return self._refused(ask, ErrorCode.REPLICA_NOT_AVAILABLE, start)
        piece = table[ask.table_position :][: max(1, min(ask.max_bytes, _MOST_BYTES))]
        self.stats.reads += 1
        self.stats.read_bytes += len(piece)
        return SegmentAnswer(*ask[:3], 0, len(table), start, [piece] if piece else (), len(piece))

    def _refused(self, ask: SegmentAsk, code: int, start: int) -> SegmentAnswer[bytes]:
        self.stats.refusals += 1
        return SegmentAnswer(*ask[:3], code, -1, start)

    async def _copy(self, segment: Segment, seal: SealRecord) -> SealedCopy:
        """Raises: NotFound, Corrupt, Unavailable."""
        key = segment.key
        copy = self._copies.get(key)
        return copy if copy is not None else await self._checks.join(key, lambda: self._checked(key, seal))

    async def _checked(self, key: SegmentKey, seal: SealRecord) -> SealedCopy:
        file = SegmentFile(self._layout.segment(key), self._descriptors, SEGMENT_HEADER_BYTES + seal.size_bytes)
        copy = SealedCopy(key, file, self._layout.index(key), seal)

        def check() -> None:
            self._check(key, seal)
            _check_digest(copy)

        try:
            await self._threads.read_file(file, check)
        except BaseException:
            file.close_when_unused()
            raise
        self._copies[key] = copy
        if len(self._copies) > _MOST_COPIES:
            _, dropped = self._copies.popitem(last=False)
            self._points.forget(dropped)
        return copy

    def _check(self, key: SegmentKey, seal: SealRecord) -> None:
        """Blocking: that the file is this segment's, and as long as its seal record says."""
        path = self._layout.segment(key)
        front = read_front(path, SEGMENT_HEADER_BYTES)
        if front is None:
            raise NotFound(f"{path} is not there")
        identity = decode_segment_header(front, source=str(path))
        if (identity.cluster_id, identity.key) != (self._cluster_id, key):
            raise Corrupt(
                f"it is of {identity.key} of another cluster, or another segment", source=str(path), position=0
            )
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}") from error
        if size_bytes < SEGMENT_HEADER_BYTES + seal.size_bytes:
            raise Corrupt(f"it is {size_bytes} bytes long, and lacks some", source=str(path), position=size_bytes)


def _check_digest(copy: SealedCopy) -> None:
    """Blocking: that its batches are those that were sealed, as their headers tell. Raises: Corrupt, Unavailable."""
    seal, digest, position = copy.seal, EMPTY_DIGEST, 0
    while position < seal.size_bytes:
        data = copy.read_blocking(position, min(_LOOK_BYTES, seal.size_bytes - position))
        try:
            digest, behind = extend_digest_past(digest, data)
        except ValueError as error:
            raise Corrupt(str(error), source=str(copy.file.path), position=position) from error
        if not behind:
            raise Corrupt("it ends within the header of a batch", source=str(copy.file.path), position=position)
        position += behind
    if position != seal.size_bytes or digest != seal.digest:
        reason = f"its batches have digest {digest.hex()}, the seal record says {seal.digest.hex()}"
        raise Corrupt(f"{reason}: put the right file there", source=str(copy.file.path), position=0)


def _read(copy: SealedCopy, points: IndexPoints, ask: SegmentAsk) -> bytes:
    """Blocking."""
    if ask.timestamp_ms >= 0:
        return first_batch_since(copy, points, ask.fetch_offset, ask.timestamp_ms)
    seal, most = copy.seal, max(1, min(ask.max_bytes, _MOST_BYTES))
    extent = copy.find(points, ask.fetch_offset, most, seal.size_bytes, seal.end_offset, copy.read_blocking)
    return copy.read_verified(extent)
