"""Producer tables at the ends of sealed segments: read from this node's index blocks, other nodes or the object store,
or rebuilt from the batches. A table counts only if it matches the seal record.

Without the table a log cannot recognise retries, so a shard waits for the table of a sealed segment before it continues
behind it (`shards/seal/producers_before.py`). Lives on the event loop; files are read on the disk threads.
Memory: the most recently used tables, as bytes, up to `_HELD_BYTES` and one.
Source: docs/replication.md section 5.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from stratalog.event_loop.task_set import TaskSet
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_block import decode_index_block
from stratalog.formats.segments.producers import NO_TABLE, decode_table, encode_table, table_fault
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.sealed_producers import Producers, sealed_table
from stratalog.model.errors import Corrupt, NotFound, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, SealRecord, Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.durable_files import read_file
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.lost_segments import LostSegments
from stratalog_node.shards.copies.cold_reads import ColdReads
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.single_flight import SingleFlight

log = logger(__name__)

_HELD_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_ASK_AGAIN_S = 60.0
"""The longest pause between two requests for a table that no shard waits for: each may cost another node a read of the
whole segment."""

_Source = Callable[[], Awaitable[bytes]]


class ProducerTables:
    def __init__(
        self,
        node_id: int,
        layout: NodeLayout,
        threads: DiskThreads,
        descriptors: Descriptors,
        catalog: Catalog,
        cold: ColdReads | None,
        peers: PeerReads | None,
    ) -> None:
        """`cold` is None on a node without an object store, `peers` on one that is alone."""
        self._node_id = node_id
        self._layout = layout
        self._threads = threads
        self._descriptors = descriptors
        self._catalog = catalog
        self._are_lost = LostSegments(catalog, catalog.are_producers_lost, lambda: time.monotonic_ns() // 1_000_000)
        self._cold = cold
        self._peers = peers
        self._held: OrderedDict[SegmentKey, bytes] = OrderedDict()
        self._held_bytes = 0
        self._sealed_last: dict[ShardKey, tuple[SegmentKey, SealRecord]] = {}
        """For each shard the segment that this node sealed last, until the metadata show its seal."""
        self._flights: SingleFlight[tuple[SegmentKey, bool], bytes] = SingleFlight()
        self._sought: set[SegmentKey] = set()
        self._read: dict[SegmentKey, Producers] = {}
        """Results of reading own copies of the segments in `_sought`, so that a retry does not read a gigabyte
        again."""
        self._gone: set[SegmentKey] = set()
        """Deleted segments, whose tables are gone along with their records."""
        self._instead: dict[SegmentKey, Producers] = {}
        """Substitutes for tables that are lost for good (`_stand_in`)."""
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()
        await self._flights.close()

    # What is known --------------------------------------------------------------------------------------------------
    def known(self, segment: Segment) -> Producers | None:
        """At the end of a sealed segment. None: not here; it is sought from now on, until it is found."""
        table = self._known(segment)
        if table is None and segment.key in self._instead:
            return self._instead[segment.key]
        if table is None and segment.key in self._gone:
            return ()
        if table is None:
            if segment.key not in self._sought:
                self._sought.add(segment.key)
                self._tasks.start(self._seek(segment.key))
            return None
        return decode_table(table, source=f"table of producers of segment {segment.key}")

    def keep(self, key: SegmentKey, table: bytes) -> None:
        """The table was made here, or found: a shard that continues behind the segment has it at once."""
        if not table:
            return
        self._held_bytes += len(table) - len(self._held.pop(key, NO_TABLE))
        self._held[key] = table
        while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
            _, dropped = self._held.popitem(last=False)
            self._held_bytes -= len(dropped)

    def sealed_here(self, key: SegmentKey, seal: SealRecord, table: bytes) -> None:
        """The metadata may not tell of it yet, and the next segment of the shard follows from it."""
        self._sealed_last.pop(key.shard_key, None)
        self._sealed_last[key.shard_key] = (key, seal)
        while self._sealed_last and self._is_listed((oldest := next(iter(self._sealed_last.values())))[0]):
            del self._sealed_last[oldest[0].shard_key]
        self.keep(key, table)

    def _is_listed(self, key: SegmentKey) -> bool:
        segment = self._catalog.segment(key)
        return segment is None or segment.seal is not None

    def as_sealed(self, segment: Segment) -> Segment:
        """The same, or with the seal that it was given from here just now."""
        key, seal = self._sealed_last.get(segment.key.shard_key, (None, None))
        if segment.seal is not None or seal is None or key != segment.key:
            return segment
        return replace(segment, state=SegmentState.SEALED, end_offset=seal.end_offset, seal=seal)

    def _known(self, segment: Segment) -> bytes | None:
        if not _seal_of(segment).producers.count:
            return NO_TABLE
        table = self._held.get(segment.key)
        if table is None or table_fault(table, _seal_of(segment).producers) is not None:
            return None
        self._held.move_to_end(segment.key)
        return table

    # Looking for it -------------------------------------------------------------------------------------------------
    async def here(self, segment: Segment) -> bytes:
        """From this node's disk alone. Raises: Unavailable."""
        return await self._join(segment, is_far=False)

    async def find(self, segment: Segment) -> bytes:
        """From any source. Raises: Unavailable, with the sources that were tried."""
        return await self._join(segment, is_far=True)

    async def producers(self, segment: Segment, *, is_far: bool) -> Producers:
        """As `find`, decoded; if the table is lost for good, its substitute. Raises: Unavailable."""
        try:
            table = await self._join(segment, is_far=is_far)
        except Unavailable:
            instead = await self._stand_in(segment, is_far=is_far)
            if instead is None:
                raise
            return instead
        return decode_table(table, source=f"table of producers of segment {segment.key}")

    async def for_block(self, segment: Segment, found: Producers | None) -> bytes:
        """The table for the index block of a sealed segment. `found`: the producers of its batches, if they were read
        just now. `NO_TABLE` if the table is not available now; a later reader asks for it again."""
        if found is not None and self._known(segment) is None:
            try:
                before = await self._before(segment, is_far=True)
                table = await self._threads.background(lambda: self._derived(segment, before, found))
                self.keep(segment.key, table)
            except StratalogError as error:
                log.info("a table of producers is not made here", segment=str(segment.key), error=str(error))
        try:
            return await self.find(segment)
        except StratalogError as error:
            log.warning("an index block is written without its table of producers", error=str(error))
            return NO_TABLE

    async def wait_for_table(self, segment: Segment) -> bytes:
        """By others, for as long as this node has a copy of the segment: they may have to write theirs first, and who
        alone has it may be gone for good some day. `NO_TABLE` where there is none."""
        backoff = Backoff(longest_s=_ASK_AGAIN_S)
        while (now := self._catalog.segment(segment.key)) is not None and self._node_id in now.local_nodes:
            table = self._known(now)
            if table is None:
                try:
                    table = await self._first(now, self._far_sources(now))
                except StratalogError:
                    await backoff.pause()
                    continue
                self.keep(now.key, table)
            return table
        return NO_TABLE

    async def _join(self, segment: Segment, *, is_far: bool) -> bytes:
        known = self._known(segment)
        if known is not None:
            return known
        table = await self._flights.join((segment.key, is_far), lambda: self._search(segment, is_far=is_far))
        self.keep(segment.key, table)
        return table

    async def _search(self, segment: Segment, *, is_far: bool) -> bytes:
        sources: list[_Source] = [partial(self._in_block, segment)]
        if is_far:
            sources += self._far_sources(segment)
        return await self._first(segment, [*sources, partial(self._rebuilt, segment, is_far=is_far)])

    def _far_sources(self, segment: Segment) -> Sequence[_Source]:
        peers, cold = self._peers, self._cold
        sources: list[_Source] = []
        if peers is not None:
            near, far = peers.holders(segment)
            # Nodes without a lease may answer, too: every answer is checked.
            nodes = tuple(one for one in dict.fromkeys((*near, *far, *segment.local_nodes)) if one != self._node_id)
            if nodes:
                sources.append(lambda: peers.producer_table(segment, nodes))
        if cold is not None and segment.remote.state is RemoteState.COMPLETE:
            sources.append(lambda: cold.producer_table(segment))
        return sources

    async def _first(self, segment: Segment, sources: Sequence[_Source]) -> bytes:
        problems: list[str] = []
        for ask in sources:
            try:
                table = await ask()
            except (StratalogError, OSError) as error:  # one file that cannot be read holds up no start
                problems.append(str(error))
                continue
            fault = table_fault(table, _seal_of(segment).producers)
            if fault is None:
                return table
            problems.append(fault)
        raise Unavailable(
            f"what producers wrote up to the end of segment {segment.key} is not known here, and cannot be had now: "
            f"{'; '.join(problems)}: start a node of {segment.local_nodes} that has the segment"
        )

    async def _in_block(self, segment: Segment) -> bytes:
        path = self._layout.index(segment.key)

        def read() -> bytes:
            data = read_file(path)
            if data is None:
                raise NotFound(f"{path} is not there")
            block = decode_index_block(data, source=str(path))
            if not block.has_table:
                raise NotFound(f"{path} was written without it")
            return block.table

        return await self._threads.background(read)

    async def _rebuilt(self, segment: Segment, *, is_far: bool) -> bytes:
        """Cost: a read of the segment's file, or of all its parts."""
        path = self._layout.segment(segment.key)
        is_stored = is_far and self._cold is not None and _is_committed(segment)
        if _has_batches(segment) and not is_stored and not path.exists():
            raise NotFound(f"{path} is not there")
        before = await self._before(segment, is_far=is_far)
        try:
            found = await (self._own_producers(segment) if path.exists() else self._stored_producers(segment))
        except StratalogError:  # a damaged copy must not block the other sources
            if not is_stored:
                raise
            found = await self._stored_producers(segment)
        return await self._threads.background(lambda: self._derived(segment, before, found))

    async def _own_producers(self, segment: Segment) -> Producers:
        """What the batches of this node's copy say. Raises: Corrupt, NotFound, Unavailable."""
        if not _has_batches(segment):
            return ()
        if segment.key in self._read:
            return self._read[segment.key]
        seal = _seal_of(segment)
        path = self._layout.segment(segment.key)
        file = SegmentFile(path, self._descriptors, SEGMENT_HEADER_BYTES + seal.size_bytes)
        try:
            scan = await self._threads.read_file(file, lambda: _scan(segment, file, seal))
        finally:
            file.close_when_unused()
        found = scan.producers.snapshot()
        if segment.key in self._sought:
            self._read[segment.key] = found
        return found

    async def _stored_producers(self, segment: Segment) -> Producers:
        """The producers of the batches in the object store, for a segment that no node has and whose table is in no
        index block. Raises: Corrupt, NotFound, Unavailable."""
        if not _has_batches(segment):
            return ()
        if segment.key in self._read:
            return self._read[segment.key]
        assert self._cold is not None, "all of it was committed"
        seal = _seal_of(segment)
        scan = SegmentScan.begin(segment.key, ProducerTable((), limit=max(1, seal.producers.limit)))
        while scan.next_offset < seal.end_offset:
            for data in await self._cold.read([segment], scan.next_offset, _READ_BYTES, lambda wanted: wanted):
                await self._threads.background(partial(_take_in, scan, data))
        _check_digest(scan, seal, f"the parts of segment {segment.key}")
        found = scan.producers.snapshot()
        if segment.key in self._sought:
            self._read[segment.key] = found
        return found

    async def _stand_in(self, segment: Segment, *, is_far: bool) -> Producers | None:
        """The substitute for a table that is lost for good. None: a node may still have the table.

        If all segments before this one are deleted, the table cannot be rebuilt. If the index block of the only copy is
        lost, too, the substitute has the producers of the segment's own batches; the others have no batch left in the
        log. If all nodes with the segment were given up by force and are gone, its producers are forgotten along with
        its records, except those whose batches the object store has. A segment without batches takes the table or
        substitute of the one before it."""
        key = segment.key
        if _is_nowhere(segment):
            try:
                self._instead[key] = _on(segment, await self._before(segment, is_far=is_far), ())
            except Unavailable:
                return None
            return self._instead[key]
        if self._are_lost(segment):
            left = await self._left_of(segment, is_far=is_far)
            if left is not None and self._instead.get(key) != left:
                log.warning(
                    "producers are forgotten: the nodes that had their table were given up",
                    segment=str(key),
                    kept=len(left),
                )
                self._instead[key] = left
            return left
        is_shared = segment.remote.state is RemoteState.COMPLETE or segment.local_nodes != (self._node_id,)
        listed = self._catalog.segments(key.shard_key)
        if is_shared or any(one.epoch < segment.epoch for one in listed):
            return None
        if key not in self._instead:
            try:
                found = await self._own_producers(segment)
            except StratalogError:
                return None
            rule = _seal_of(segment).producers.rule
            made = sealed_table((), found, base_offset=key.base_offset, opened_ms=segment.opened_ms, rule=rule)
            log.warning("producers that wrote only in deleted segments are forgotten", segment=str(key), kept=len(made))
            self._instead[key] = made
        return self._instead[key]

    async def _left_of(self, segment: Segment, *, is_far: bool) -> Producers | None:
        """What is left of a table that was given up. An unreachable store may have the batches. None: not known now."""
        if not self._is_stored_alone(segment):
            return ()
        if not is_far:
            return None
        try:
            return await self._behind(segment, await self._before(segment, is_far=True))
        except Unavailable:
            return None

    def _is_stored_alone(self, segment: Segment) -> bool:
        """Whether all its batches are in the object store, but not its index block with the table, and no node with a
        copy can be asked."""
        if self._cold is None or segment.remote.state is not RemoteState.PARTIAL or not _has_batches(segment):
            return False
        is_read = any(self._catalog.reads_at(one) is not None for one in segment.local_nodes)
        return _is_committed(segment) and not is_read

    def _derived(self, segment: Segment, before: Producers, found: Producers) -> bytes:
        """Raises: Corrupt where that is not what the seal speaks of."""
        tally = _seal_of(segment).producers
        made = sealed_table(
            before, found, base_offset=segment.base_offset, opened_ms=segment.opened_ms, rule=tally.rule
        )
        table = encode_table(made)
        fault = table_fault(table, tally)
        if fault is not None:
            raise Corrupt(f"the batches of segment {segment.key} give {fault}", source="the segment", position=0)
        return table

    async def _before(self, segment: Segment, *, is_far: bool) -> Producers:
        """The table at the segment's base.

        It is not rebuilt from batches that nodes hold, because that would read a whole series of segments. For segments
        without batches, and those whose batches only the object store has, it is derived from the table before them.
        Raises: Unavailable."""
        listed = {one.epoch: one for one in self._catalog.segments(segment.key.shard_key)}
        row: list[Segment] = []
        found: Producers | None = None
        while found is None:
            before = listed.get((row[-1] if row else segment).epoch - 1)
            if before is None:
                found = ()
                break
            try:
                found = await self._stored(before, is_far=is_far)
            except Unavailable:
                if before.seal is None or (_has_batches(before) and not (is_far and self._is_stored_alone(before))):
                    raise
                row.append(before)
        for one in reversed(row):
            found = await self._behind(one, found)
        return found

    async def _behind(self, segment: Segment, before: Producers) -> Producers:
        """At the end of one without a batch, or whose batches the object store has. Raises: Unavailable."""
        try:
            batches = await self._stored_producers(segment)
        except (Corrupt, NotFound) as error:
            if not self._are_lost(segment):
                raise Unavailable(f"the batches of segment {segment.key} cannot be had now: {error}") from error
            log.warning("producers are forgotten: their batches in the object store are lost, too", error=str(error))
            return ()
        try:
            table = await self._threads.background(partial(self._derived, segment, before, batches))
        except Corrupt as error:  # a table derived from a substitute cannot match the seal
            if not _is_nowhere(segment) and not self._are_lost(segment):
                raise Unavailable(f"before the batches of segment {segment.key} others are missing: {error}") from error
            return _on(segment, before, batches)
        self.keep(segment.key, table)
        return decode_table(table, source=f"table of producers of segment {segment.key}")

    async def _stored(self, segment: Segment, *, is_far: bool) -> Producers:
        """The stored table of a sealed segment, or its substitute. Raises: Unavailable."""
        if segment.seal is None:
            raise Unavailable(f"segment {segment.key} is not sealed yet")
        table = self._known(segment)
        if table is None:
            sources: list[_Source] = [partial(self._in_block, segment)]
            try:
                table = await self._first(segment, [*sources, *(self._far_sources(segment) if is_far else ())])
            except Unavailable:
                if _is_nowhere(segment) or self._is_stored_alone(segment):
                    raise  # `_before` tries the segment before it
                if (instead := await self._stand_in(segment, is_far=is_far)) is None:
                    raise
                return instead
            self.keep(segment.key, table)
        return decode_table(table, source=f"table of producers of segment {segment.key}")

    async def _seek(self, key: SegmentKey) -> None:
        """Runs until the table is found, or the segment is gone. The shard that waits for it asks again."""
        backoff = Backoff()
        try:
            while (segment := self._catalog.segment(key)) is not None and segment.seal is not None:
                try:
                    await self.producers(segment, is_far=True)
                    return
                except StratalogError as error:
                    if segment.state is SegmentState.DELETED:
                        self._gone.add(key)
                        return
                    log.warning("a shard waits for a table of producers", segment=str(key), error=str(error))
                except Exception:  # the shard would wait for ever, or ask again at once (F48)
                    log.error("a table of producers was not found: a fault", segment=str(key), exc_info=True)
                await backoff.pause()
        finally:
            self._sought.discard(key)
            self._read.pop(key, None)


def _has_batches(segment: Segment) -> bool:
    return segment.end_offset != segment.base_offset


def _is_committed(segment: Segment) -> bool:
    """All batches of a sealed segment are in the object store, finished there or not."""
    is_there = segment.remote.state is not RemoteState.NONE
    return is_there and segment.remote.commit_offset >= _seal_of(segment).end_offset


def _is_nowhere(segment: Segment) -> bool:
    """A segment without batches or copies, whose holders have left."""
    is_stored = segment.remote.state is RemoteState.COMPLETE
    return not _has_batches(segment) and not segment.local_nodes and not is_stored


def _on(segment: Segment, before: Producers, found: Producers) -> Producers:
    """At its end: after what was at its base, and what its batches say."""
    rule = _seal_of(segment).producers.rule
    return sealed_table(before, found, base_offset=segment.base_offset, opened_ms=segment.opened_ms, rule=rule)


def _seal_of(segment: Segment) -> SealRecord:
    assert segment.seal is not None, f"segment {segment.key} is not sealed"
    return segment.seal


def _scan(segment: Segment, file: SegmentFile, seal: SealRecord) -> SegmentScan:
    """Blocking. Raises: Corrupt unless these are the batches that were sealed."""
    scan = SegmentScan.begin(segment.key, ProducerTable((), limit=max(1, seal.producers.limit)))
    scan.advance(lambda at, size: file.read(SEGMENT_HEADER_BYTES + at, size), seal.size_bytes)
    _check_digest(scan, seal, str(file.path))
    return scan


def _take_in(scan: SegmentScan, data: bytes | memoryview) -> None:
    """Blocking. `data` begins at the batch where the scan stands, and was checked. Raises: Corrupt."""
    before = scan.next_offset
    scan.take_in(scan.position, (header for _, header in walk(data, source="parts", verify=False)), data)
    if scan.next_offset == before:
        raise Corrupt(f"no batch begins at offset {before}", source="parts", position=scan.position)


def _check_digest(scan: SegmentScan, seal: SealRecord, source: str) -> None:
    if scan.digest != seal.digest:
        why = scan.stopped or "other batches"
        raise Corrupt(f"not what was sealed: {why}", source=source, position=scan.position)
