"""Reads sealed segments that other nodes hold and this one does not.

A disk thread checks each answer before it is used: CRCs, contiguous offsets, epoch. Concurrent reads of the same range
share one request. An unreachable node is skipped for increasing pauses; a node that refuses a segment is skipped for
half a minute, for that segment. The limits are those of cold reads: concurrent reads, and bytes per second; memory is
bounded by what these reads may return. Probes of whether a node answers at all have their own limits, because a probe
of a dead machine takes until its time limit. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stratalog.formats.batches.batch_scan import scan_batches
from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.segments.producers import most_table_bytes
from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.replica_fetch import SegmentAnswer, SegmentAsk, decode_replica_answer
from stratalog.machines.backoff import longest_pause
from stratalog.machines.reading.read_sources import provers
from stratalog.model.batch import BATCH_HEADER_BYTES, LARGEST_BATCH_BYTES
from stratalog.model.errors import Corrupt, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.objects.limits import TransferLimits
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.peer_connection import PeerConnection
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.peer_reads import MOST_LOOKS, PeerBusy, PeerRefused
from stratalog_node.shards.read.time_scan import TimeScan
from stratalog_node.single_flight import SingleFlight

log = logger(__name__)

_RANGE_BYTES = 1 << 20
"""The limit of one read; a larger batch is sent anyway."""
_ANSWER_S = 2.0
_MOST_NAMED = 2
"""One segment, and its topic."""
_SLOT_MS = 1_000
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 500, 30_000
_REFUSED_MS = 30_000
_MOST_REFUSALS = 1_000


@dataclass(slots=True)
class PeerReadStats:
    """Register as `stratalog_peer_read`."""

    ranges: int = counter("Ranges of sealed segments read from other nodes.")
    bytes: int = counter("Bytes of batches read from other nodes.")
    tables: int = counter("Pieces of tables of producers read from other nodes.")
    joined: int = counter("Reads of a range that was on its way already.")
    failures: int = counter("Reads that another node did not answer.")
    refusals: int = counter("Reads that another node refused, or answered with bytes that failed their check.")
    in_flight: int = gauge("Reads from other nodes under way, those that wait for their turn included.")


class NodePeerReads:
    """All such reads of one node."""

    def __init__(
        self,
        asker: Asker,
        catalog: Catalog,
        threads: Callable[[], DiskThreads],
        settings: ProcessSettings,
        steady_ms: Callable[[], int],
        *,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """`threads`: those that check what came. `answer_s`: how long one node may send nothing."""
        rate = settings.remote_read_bytes_per_second
        self._asker = asker
        self._catalog = catalog
        self._threads = threads
        self._steady_ms = steady_ms
        self._answer_s = answer_s
        self._limits = TransferLimits(
            bytes_per_s=None if rate < 0 else rate,
            concurrency=settings.remote_read_max_concurrency,
            slot_ms=_SLOT_MS,
        )
        self._look_places = asyncio.Semaphore(MOST_LOOKS)
        self._lines: dict[int, PeerConnection] = {}
        self._flights: SingleFlight[tuple[SegmentKey, int, int, int], bytes | memoryview] = SingleFlight()
        self._failed: dict[int, tuple[int, int]] = {}
        """For nodes that did not answer: how often in a row, and until when they are skipped."""
        self._refused: dict[tuple[int, SegmentKey], int] = {}
        """Until when a node is not asked for a segment."""
        self.stats = PeerReadStats()

    # Sources --------------------------------------------------------------------------------------------------------
    def holders(self, segment: Segment) -> tuple[Sequence[int], Sequence[int]]:
        """See `PeerReads`."""
        near, far = provers(segment, self._asker.node_id, self._rack_of(self._asker.node_id), self._rack_of)
        return [node for node in near if self._may_ask(node, segment.key)], [
            node for node in far if self._may_ask(node, segment.key)
        ]

    def _rack_of(self, node_id: int) -> str | None:
        node = self._catalog.node(node_id)
        return node.rack if node is not None else None

    def _may_ask(self, node_id: int, key: SegmentKey) -> bool:
        if self._catalog.reads_at(node_id) is None:
            return False
        now_ms = self._steady_ms()
        return now_ms >= self._failed.get(node_id, (0, 0))[1] and now_ms >= self._refused.get((node_id, key), 0)

    def _note_failed(self, node_id: int) -> None:
        self.stats.failures += 1
        failures = self._failed.get(node_id, (0, 0))[0] + 1
        pause_ms = int(longest_pause(failures, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS))
        self._failed[node_id] = failures, self._steady_ms() + pause_ms

    def _note_refused(self, node_id: int, key: SegmentKey) -> None:
        self.stats.refusals += 1
        self._refused.pop((node_id, key), None)
        if len(self._refused) >= _MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]
        self._refused[node_id, key] = self._steady_ms() + _REFUSED_MS

    # Reading --------------------------------------------------------------------------------------------------------
    async def read(self, segment: Segment, nodes: Sequence[int], offset: int, max_bytes: int) -> bytes | memoryview:
        """See `PeerReads`."""
        return await self._of_any(segment, nodes, offset, max(1, min(max_bytes, _RANGE_BYTES)), -1)

    async def probe(self, segment: Segment, node_id: int, offset: int) -> None:
        """See `PeerReads`."""
        async with self._look_places:
            await self._tried(node_id, segment, _ask_for(segment.key, offset, 1, -1))

    async def find_by_time(
        self, segment: Segment, nodes: Sequence[int], timestamp_ms: int, from_offset: int
    ) -> tuple[int, int] | None:
        """See `PeerReads`. A batch may hold no such record at or above the offset: then the search continues behind
        it."""
        look = TimeScan(timestamp_ms, from_offset)
        offset = max(from_offset, segment.base_offset)
        while segment.seal is not None and offset < segment.seal.end_offset:
            batch = await self._of_any(segment, nodes, offset, 1, timestamp_ms)
            if not len(batch):
                return None
            header = parse_header(batch)
            if not look.passes(header):
                opened = partial(look.first_in, batch, header, f"segment {segment.key} at another node")
                found = await self._threads().read(opened)
                if found is not None:
                    return found.offset, found.timestamp_ms
            offset = header.end_offset
        return None

    async def producer_table(self, segment: Segment, nodes: Sequence[int]) -> bytes:
        """See `PeerReads`. In pieces, each from a node that has it: the table is one and the same."""
        assert segment.seal is not None, "of a sealed one"
        table, most_bytes = bytearray(), most_table_bytes(segment.seal.producers)
        while True:
            piece, size_bytes = await self._table_slice(segment, nodes, len(table))
            if max(size_bytes, len(table) + len(piece)) > most_bytes:
                raise Unavailable(
                    f"another node gives {max(size_bytes, len(table) + len(piece))} bytes for the table of producers "
                    f"of segment {segment.key}, which has at most {most_bytes}: see its log and its version"
                )
            table += piece
            if not piece or len(table) >= size_bytes:
                return bytes(table)

    async def _table_slice(self, segment: Segment, nodes: Sequence[int], position: int) -> tuple[memoryview, int]:
        problems: list[str] = []
        key = segment.key
        ask = SegmentAsk(key.topic_id, key.shard, key.epoch, key.base_offset, _RANGE_BYTES, -1, position)
        async with self._limits.transfer(_RANGE_BYTES):
            for node_id in nodes:
                try:
                    answer = await self._ask(node_id, key, ask)
                except PeerRefused as refusal:
                    problems.append(str(refusal))
                except Unavailable as error:
                    self._note_failed(node_id)
                    problems.append(str(error))
                else:
                    self._failed.pop(node_id, None)
                    self.stats.tables += 1
                    return (answer.records[0] if answer.records else memoryview(b"")), answer.high_watermark
        raise Unavailable(f"no other node gives the table of producers of segment {key}: {'; '.join(problems)}")

    async def _of_any(
        self, segment: Segment, nodes: Sequence[int], offset: int, max_bytes: int, timestamp_ms: int
    ) -> bytes | memoryview:
        flight = (segment.key, offset, max_bytes, timestamp_ms)
        if flight in self._flights:
            self.stats.joined += 1
        return await self._flights.join(
            flight, lambda: self._from_one_of(segment, tuple(nodes), offset, max_bytes, timestamp_ms)
        )

    async def _from_one_of(
        self, segment: Segment, nodes: Sequence[int], offset: int, max_bytes: int, timestamp_ms: int
    ) -> bytes | memoryview:
        problems: list[str] = []
        has_refused_only = len(nodes) > 0
        key = segment.key
        ask = _ask_for(key, offset, max_bytes, timestamp_ms)
        self.stats.in_flight += 1
        try:
            async with self._limits.transfer(max_bytes):
                for node_id in nodes:
                    try:
                        return await self._tried(node_id, segment, ask)
                    except Unavailable as error:
                        has_refused_only &= isinstance(error, PeerRefused)
                        problems.append(str(error))
        finally:
            self.stats.in_flight -= 1
        words = f"segment {key} cannot be read from another node now: {'; '.join(problems)}"
        raise PeerRefused(words) if has_refused_only else Unavailable(words)

    async def _tried(self, node_id: int, segment: Segment, ask: SegmentAsk) -> bytes | memoryview:
        """What comes of it is remembered of that node. Raises: PeerRefused, PeerBusy, Unavailable."""
        try:
            data = await self._from(node_id, segment, ask)
        except PeerRefused:
            self._note_refused(node_id, segment.key)
            raise
        except PeerBusy:
            self._failed.pop(node_id, None)
            raise
        except Unavailable:
            self._note_failed(node_id)
            raise
        self._failed.pop(node_id, None)
        self.stats.ranges += 1
        self.stats.bytes += len(data)
        return data

    async def _from(self, node_id: int, segment: Segment, ask: SegmentAsk) -> bytes | memoryview:
        """Raises: PeerRefused, PeerBusy, Unavailable."""
        answer = await self._ask(node_id, segment.key, ask)
        data = answer.records[0] if answer.records else memoryview(b"")
        source = f"node {node_id}, segment {segment.key}"
        try:
            await self._threads().read(lambda: _check(data, segment, ask, source))
        except Corrupt as error:
            log.warning("data from another node failed its check", peer=node_id, error=str(error))
            raise PeerRefused(str(error)) from error
        return data

    async def _ask(self, node_id: int, key: SegmentKey, ask: SegmentAsk) -> SegmentAnswer[memoryview]:
        """Returns an answer that is not checked yet. Raises: PeerRefused, PeerBusy, Unavailable."""
        frame = await self._line(node_id).ask(ask, self._answer_s)
        try:
            _, answer = decode_replica_answer(memoryview(frame), _MOST_NAMED)
        except MalformedFrame as error:
            raise Unavailable(f"node {node_id}: {error}") from error
        if answer.error_code or len(answer.segments) != 1:
            # It does not know this life yet, or a later one began.
            raise Unavailable(f"node {node_id} does not answer this node: error {answer.error_code}")
        reported = answer.segments[0]
        if reported.error_code == ErrorCode.REQUEST_TIMED_OUT:
            raise PeerBusy(f"node {node_id} checks its file of segment {key} first: ask again")
        if reported.error_code or reported[:3] != ask[:3]:
            raise PeerRefused(f"node {node_id} does not serve segment {key}: {_name_of(reported.error_code)}")
        return reported

    def _line(self, node_id: int) -> PeerConnection:
        line = self._lines.get(node_id)
        if line is None:
            line = self._lines[node_id] = PeerConnection(
                node_id, self._asker, lambda: self._address_of(node_id), _RANGE_BYTES + LARGEST_BATCH_BYTES
            )
        return line

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        """A node without a lease is asked at its last address, and only for what no other node may have
        (`producer_table`)."""
        address, node = self._catalog.reads_at(node_id), self._catalog.node(node_id)
        return (node.host, node.port) if address is None and node is not None else address

    async def close(self) -> None:
        await self._flights.close()
        for line in self._lines.values():
            line.close()


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _ask_for(key: SegmentKey, offset: int, max_bytes: int, timestamp_ms: int) -> SegmentAsk:
    return SegmentAsk(key.topic_id, key.shard, key.epoch, offset, max_bytes, timestamp_ms)


def _check(data: memoryview, segment: Segment, ask: SegmentAsk, source: str) -> None:
    """Raises: Corrupt unless these are whole batches of the segment that answer what was asked."""
    is_by_time = ask.timestamp_ms >= 0
    if not len(data):
        if is_by_time:
            return
        raise Corrupt("the node sent an empty answer", source=source, position=0)
    if len(data) < BATCH_HEADER_BYTES:
        raise Corrupt(f"the node sent {len(data)} bytes, which is less than a batch header", source=source, position=0)
    first = parse_header(data)
    found = scan_batches(data, base_offset=first.base_offset, epoch=segment.epoch, source=source)
    end = segment.seal.end_offset if segment.seal is not None else 0
    is_asked = first.end_offset > ask.fetch_offset and (is_by_time or first.base_offset <= ask.fetch_offset)
    if not is_asked or first.base_offset < segment.base_offset or found.end_offset > end:
        raise Corrupt(
            f"the node sent offsets [{first.base_offset}, {found.end_offset}), asked for was offset {ask.fetch_offset}",
            source=source,
            position=0,
        )
