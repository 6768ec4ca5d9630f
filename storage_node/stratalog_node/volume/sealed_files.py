"""Answers reads of the sealed segments in a retired node's directory, and checks each range before it is sent.

Only segments that this node proved according to the metadata are served, and only from a file whose own header says the
same, and whose batches have the digest of the seal record (`checked_files`): a directory may have been away for long,
and another copy of a file has good CRCs, too. A request for an unchecked file gets an error after a second, and asks
again: the check continues meanwhile. Lives on the event loop.
Cost: the headers of a file's batches are read once before its first range, which is all of the file if batches are
small; a read costs its range, a check of the file's mark, and the index block once in a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stratalog.event_loop.turned_away import OF_VOLUMES, TurnedAway
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import SegmentAnswer, SegmentAsk
from stratalog.model.errors import Corrupt, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import SealRecord, Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, counters, gauge
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.producer_tables import ProducerTables
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.read.replica_reads import first_batch_since, segment_of_epoch
from stratalog_node.volume.checked_files import CheckedFiles

log = logger(__name__)

_MOST_BYTES = 1 << 20
_CHECK_S: Final = 1.0
"""How long an answer waits for a check: the client gives up a second later, and then counts this process as silent."""
_TRIES: Final = 3
"""At a file that is swapped between its check and a read."""


@dataclass(slots=True)
class VolumeStats:
    """Register as `stratalog_volume`."""

    reads: int = counter("Ranges of sealed segments that were read for other nodes.")
    read_bytes: int = counter("Bytes of sealed segments that were read for other nodes.")
    refusals: int = counter("Reads that were refused because the data is not here, or is damaged.")
    waits: int = counter("Reads that were answered before the check of the file was done: they are asked again.")
    connections: int = gauge("Connections of other nodes.")
    turned_away: dict[TurnedAway, int] = field(
        default_factory=lambda: dict.fromkeys(OF_VOLUMES, 0),
        metadata=counters("Connections that were turned away, by reason.", "reason"),
    )
    handshakes: int = gauge("TLS handshakes of other nodes under way.")
    handshakes_failed: int = counter("TLS handshakes of other nodes that failed, took too long or were one too many.")


class SealedFiles:
    def __init__(
        self,
        layout: NodeLayout,
        node_id: int,
        cluster_id: str,
        catalog: Catalog,
        threads: DiskThreads,
        index_cache_bytes: int,
        steady_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._descriptors = Descriptors(1)  # none is kept open
        self._tables = ProducerTables(node_id, layout, threads, self._descriptors, catalog, None, None)
        self._files = CheckedFiles(layout, cluster_id, threads, self._descriptors, index_cache_bytes, steady_ms)
        self._told: set[SegmentKey] = set()
        """Segments whose fault is already in the log."""
        self.stats = VolumeStats()

    async def close(self) -> None:
        await self._files.close()
        await self._tables.close()

    async def answer(self, ask: SegmentAsk) -> SegmentAnswer[bytes]:
        """Never raises for a faulty file: the caller has other nodes to ask."""
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
            data = await self._range(segment, segment.seal, ask)
        except StratalogError as error:
            if segment.key not in self._told:
                self._told.add(segment.key)
                log.warning(
                    "a sealed range that another node asks for cannot be read",
                    segment=str(segment.key),
                    error=str(error),
                )
            is_damaged = isinstance(error, Corrupt)
            return self._refused(ask, ErrorCode.CORRUPT_MESSAGE if is_damaged else ErrorCode.KAFKA_STORAGE_ERROR, start)
        if data is None:
            self.stats.waits += 1
            return SegmentAnswer(*ask[:3], ErrorCode.REQUEST_TIMED_OUT, -1, start)
        self.stats.reads += 1
        self.stats.read_bytes += len(data)
        return SegmentAnswer(*ask[:3], 0, -1, start, [data] if data else (), len(data))

    async def _table_piece(self, segment: Segment, ask: SegmentAsk, start: int) -> SegmentAnswer[bytes]:
        """A piece of the producer table at the segment's end, from its index block; rebuilt from the batches if that
        block is damaged, gone, or lacks it."""
        try:
            table = await self._tables.here(segment)
        except StratalogError as error:
            log.warning("a producer table that another node asks for cannot be read", error=str(error))
            return self._refused(ask, ErrorCode.REPLICA_NOT_AVAILABLE, start)
        piece = table[ask.table_position :][: max(1, min(ask.max_bytes, _MOST_BYTES))]
        self.stats.reads += 1
        self.stats.read_bytes += len(piece)
        return SegmentAnswer(*ask[:3], 0, len(table), start, [piece] if piece else (), len(piece))

    def _refused(self, ask: SegmentAsk, code: int, start: int) -> SegmentAnswer[bytes]:
        self.stats.refusals += 1
        return SegmentAnswer(*ask[:3], code, -1, start)

    async def _range(self, segment: Segment, seal: SealRecord, ask: SegmentAsk) -> bytes | None:
        """None: its check is not done yet. Raises: NotFound, Corrupt, Unavailable."""
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._files.check(segment.key, seal)
            except TimeoutError:
                return None
            data = await self._files.read(segment.key, lambda copy, points: _read(copy, points, ask))
            if data is not None:
                return data
        raise Unavailable(f"the file of segment {segment.key} changes while it is read: ask again")


def _read(copy: SealedCopy, points: IndexPoints, ask: SegmentAsk) -> bytes:
    """Blocking."""
    if ask.timestamp_ms >= 0:
        return first_batch_since(copy, points, ask.fetch_offset, ask.timestamp_ms)
    seal, most = copy.seal, max(1, min(ask.max_bytes, _MOST_BYTES))
    extent = copy.find(points, ask.fetch_offset, most, seal.size_bytes, seal.end_offset, copy.read_blocking)
    return copy.read_verified(extent)
