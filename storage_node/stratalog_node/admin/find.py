"""Finds the records of a key in the shards that this node leads: complete segments by their key index in the object
store, everything else by reading it.

Lives on the event loop. Batches are opened on threads, THREADS at a time for all searches, so that other work finds a
thread, too; they are decompressed in pieces of a bounded size, because a few bytes of a client's batch may become
megabytes. Few searches run at a time, each for a bounded time; then the answer says where to continue. Memory of a
search: SEGMENTS_AT_ONCE times what one lookup reads (`stored.key_lookup`), and an answer. Nothing is remembered between
two answers: the cursor is a place in the topic.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from stratalog.admin_api.find import MOST_RECORDS, FindAnswer, FoundRecord, LedElsewhere, NotSearched, found_record
from stratalog.event_loop.fair_turns import FairTurns
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import records_of_key
from stratalog.model.errors import Corrupt, InvalidRequest, NotFound, StratalogError, Unavailable
from stratalog.model.segment import RemoteState, Segment
from stratalog.model.topic import Topic
from stratalog.objects.store import ObjectStore
from stratalog.stored.key_lookup import OPENED_BYTES, LookupCost, OffLoop, Opening, records_of
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.telemetry.metrics import counter
from stratalog_node.admin.services import AdminServices
from stratalog_node.disk.yielding_gil import yielding_gil
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.slices import Slices

SEARCHES_AT_ONCE: Final = 2
SEGMENTS_AT_ONCE: Final = 8
THREADS: Final = 2
"""Threads that open batches; those that decode large requests have the same limit."""
_QUEUE_S: Final = 5.0
"""So long a search waits for its turn."""
_TIME_S: Final = 8.0
"""After this time the answer says where to continue; a hanging read is given up after `_HANGS_S`."""
_SEGMENT_HANGS_S: Final = 17.0
"""If one object hangs, the others have been read by then: it is reported as not searched, and the search continues."""
_HANGS_S: Final = 20.0
_ANSWER_BYTES: Final = 1 << 20
_MOST_RANGES: Final = 200
"""Ranges that were not searched, listed in one answer."""
_READ_BYTES: Final = 256 << 10
_DECODED_BYTES: Final = 32 << 20
"""Of one batch: a larger one is reported as not searched."""
_HUNG: Final = "the object store did not answer in time: try again"
_MOST_OFFSET: Final = (1 << 63) - 1
T = TypeVar("T")
_CURSOR: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,19})", re.ASCII)


@dataclass(slots=True)
class FindStats:
    """Register as `stratalog_find`."""

    searches: int = counter("Searches for the records of a key that were answered.")
    records: int = counter("Records that searches found.")
    range_reads: int = counter("Range reads of key indexes and batches for searches.")
    offsets_read: int = counter("Offsets that searches read whole, for want of a key index.")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    topic: str
    key: bytes
    shards: frozenset[int] | None = None
    limit: int = 100
    cursor: str | None = None
    is_scan: bool = False
    """Reads segments without a key index whole."""


class Finder:
    """All searches of a node."""

    def __init__(self, services: AdminServices, turns: FairTurns) -> None:
        self.stats = FindStats()
        self._services = services
        self._turns = turns
        self._places = asyncio.Semaphore(SEARCHES_AT_ONCE)
        self._threads = asyncio.Semaphore(THREADS)

    async def find(self, wish: SearchRequest) -> FindAnswer:
        """Raises: NotFound for a topic, InvalidRequest, Unavailable where too many search or the store hangs."""
        search = _Search(self._services, self._turns, wish, self.stats, self._off_loop)
        try:
            async with asyncio.timeout(_QUEUE_S):
                await self._places.acquire()
        except TimeoutError:
            raise Unavailable(f"{SEARCHES_AT_ONCE} searches run already: try again") from None
        try:
            answer = await search.run()
        finally:
            self._places.release()
        self.stats.searches += 1
        self.stats.records += len(answer.records)
        return answer

    async def _off_loop(self, work: Callable[[], T], /) -> T:
        """On a thread, which cannot be stopped: who gives up waiting leaves it its place until the work has ended."""
        await self._threads.acquire()
        working = asyncio.get_running_loop().run_in_executor(None, work)
        working.add_done_callback(self._thread_ended)
        return await asyncio.shield(working)

    def _thread_ended(self, working: asyncio.Future[T]) -> None:
        self._threads.release()
        if not working.cancelled():
            working.exception()  # mark it as retrieved, so that asyncio does not log it: the waiting caller gets it


class _Search:
    """One answer."""

    def __init__(
        self, services: AdminServices, turns: FairTurns, wish: SearchRequest, stats: FindStats, off_loop: OffLoop
    ) -> None:
        if not 1 <= wish.limit <= MOST_RECORDS:
            raise InvalidRequest(f"limit={wish.limit}: expected 1 to {MOST_RECORDS}")
        self._services = services
        self._stats = stats
        self._wish = wish
        self._off_loop = off_loop
        self._opening = Opening(_DECODED_BYTES, off_loop, yielding_gil)
        self._topic = services.topic(wish.topic)
        self._slices = Slices(turns)
        self._started_at = _place(wish.cursor)
        self._at = self._started_at
        self._records: list[FoundRecord] = []
        self._bytes = 0
        self._ranges: list[NotSearched] = []
        self._cost = LookupCost()
        self._segments = self._offsets = 0
        self._elsewhere: Counter[int | None] = Counter()
        self._searched: list[tuple[int, int]] = []
        _refuse_no_shard(wish.shards or (), self._topic)
        self._ends_at = 0.0

    async def run(self) -> FindAnswer:
        is_done = False
        self._ends_at = asyncio.get_running_loop().time() + _TIME_S
        try:
            async with asyncio.timeout(_HANGS_S):
                is_done = await self._topic_searched()
        except TimeoutError:
            if self._at == self._started_at:
                raise Unavailable("the search made no progress: the object store or a disk does not answer") from None
        self._stats.range_reads += self._cost.pages + self._cost.reads
        self._stats.offsets_read += self._offsets
        return FindAnswer(
            topic=self._topic.name,
            node_id=self._services.node_id,
            records=self._records,
            cursor=None if is_done else f"{self._at[0]}:{self._at[1]}",
            not_searched=self._ranges,
            led_elsewhere=[LedElsewhere(node_id=node, shards=count) for node, count in self._elsewhere.items()],
            topic_shards=self._topic.shard_count,
            searched=self._searched,
            segments=self._segments,
            key_index_reads=self._cost.pages,
            batch_reads=self._cost.reads,
            bytes_read=self._cost.bytes,
            offsets_read=self._offsets,
        )

    async def _topic_searched(self) -> bool:
        """Whether all of it was."""
        views = self._services.readable(self._topic)
        wanted = [view for view in views if self._wish.shards is None or view.key.shard in self._wish.shards]
        await self._note_elsewhere(wanted)
        for view in wanted:
            shard, offset = self._at
            await self._slices.did()
            if view.key.shard < shard or not self._is_led_here(view):
                continue
            start = offset if view.key.shard == shard else 0
            self._at = (view.key.shard, max(start, view.log_start_offset))
            end = view.high_watermark
            while self._at[1] < end:
                if self._is_full():
                    return False
                await self._step(view, end)
            self._at = (view.key.shard + 1, 0)
            self._note_searched(view.key.shard)
        return True

    def _note_searched(self, shard: int) -> None:
        first = shard
        if self._searched and self._searched[-1][1] == shard:
            first, _ = self._searched.pop()
        self._searched.append((first, shard + 1))

    async def _note_elsewhere(self, views: Sequence[ShardView]) -> None:
        if self._wish.cursor is not None:
            return
        for view in views:
            await self._slices.did()
            if not self._is_led_here(view):
                led = self._services.catalog.leader_of(view.key)
                self._elsewhere[None if led is None else led[0]] += 1

    def _is_led_here(self, view: ShardView) -> bool:
        led = self._services.catalog.leader_of(view.key)
        return led is not None and led[0] == self._services.node_id

    def _is_full(self) -> bool:
        return (
            len(self._records) >= self._wish.limit
            or self._bytes >= _ANSWER_BYTES
            or len(self._ranges) >= _MOST_RANGES
            or self._is_late()
        )

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._ends_at

    async def _step(self, view: ShardView, end: int) -> None:
        """Moves on in a shard."""
        segments = view.segments
        first = max(bisect_right(segments, self._at[1], key=lambda one: one.base_offset) - 1, 0)
        store = self._services.store
        complete: list[Segment] = []
        if store is not None:
            for segment in segments[first : first + SEGMENTS_AT_ONCE]:
                if segment.remote.state is not RemoteState.COMPLETE or segment.remote.manifest_key is None:
                    break
                complete.append(segment)
        if complete:
            assert store is not None
            await self._look_up(store, view, complete, end)
            return
        after = (one.base_offset for one in segments[first + 1 :] if one.remote.state is RemoteState.COMPLETE)
        await self._read(view, min(next(after, end), end) if store is not None else end)

    # By key index ---------------------------------------------------------------------------------------------------
    async def _look_up(self, store: ObjectStore, view: ShardView, segments: Sequence[Segment], end: int) -> None:
        """In several at a time; as many of them count as the answer has room for, in order."""
        shard, offset = self._at
        found = await asyncio.gather(*(self._of_segment(store, shard, one, range(offset, end)) for one in segments))
        if all(records == _HUNG for records in found):
            raise TimeoutError  # it is not this object or that
        for segment, records in zip(segments, found, strict=True):
            assert segment.end_offset is not None, "what is complete has ended"
            base, to = max(segment.base_offset, offset), min(segment.end_offset, end)
            if isinstance(records, str):
                self._skip(shard, base, to, records)
            elif records is not None:
                self._segments += 1
                if not self._add_records(shard, records.records) or records.is_cut:
                    return
            elif self._wish.is_scan:
                self._at = (shard, base)
                await self._read(view, to)
                if self._at[1] < to:
                    return
            else:
                self._skip(shard, base, to, "no key index", is_unindexed=True)
            self._at = (shard, to)
            if self._is_full():
                return

    async def _of_segment(
        self, store: ObjectStore, shard: int, segment: Segment, offsets: range
    ) -> _InSegment | str | None:
        """Its records, None where it has no key index, or why it cannot be searched."""
        found: list[FoundRecord] = []
        try:
            async with asyncio.timeout_at(self._ends_at - _TIME_S + _SEGMENT_HANGS_S):
                return await self._found_in(store, shard, segment, offsets, found)
        except TimeoutError:
            return _InSegment(found, is_cut=True) if found else _HUNG
        except StratalogError as error:
            return str(error)

    async def _found_in(
        self, store: ObjectStore, shard: int, segment: Segment, offsets: range, found: list[FoundRecord]
    ) -> _InSegment | None:
        """`found` has them as they are found. What is mounted may end inside a segment."""
        manifest = await read_manifest(store, ExpectedManifest.of_segment(self._services.cluster_id, segment))
        if not manifest.key_runs:
            return None if manifest.parts else _InSegment([])
        size = 0
        limit = self._wish.limit
        async for record in records_of(
            store, manifest, self._wish.key, self._cost, from_offset=offsets.start, limit=limit, opening=self._opening
        ):
            if record.offset >= offsets.stop:
                break
            found.append(found_record(shard, record.offset, record.timestamp_ms, record.value, record.headers))
            size += found[-1].told_bytes
            if len(found) >= limit or size >= _ANSWER_BYTES or self._is_late():
                return _InSegment(found, is_cut=True)
        return _InSegment(found)

    # By reading -----------------------------------------------------------------------------------------------------
    async def _read(self, view: ShardView, end: int) -> None:
        """What no index tells of, up to `end` or until the answer is full."""
        shard = view.key.shard
        while self._at[1] < end and not self._is_full():
            at = self._at[1]
            try:
                pieces = await view.read(at, _READ_BYTES)
                if not pieces:
                    raise Unavailable("it cannot be read now: try again")
                data = b"".join(pieces)
                records, to = await self._off_loop(partial(_matches, data, shard, at, end, self._wish))
            except _Unopened as unopened:
                self._skip(shard, at, unopened.end_offset, str(unopened))
                self._at = (shard, unopened.end_offset)
                continue
            except StratalogError as error:
                self._skip(shard, at, end, str(error))
                self._at = (shard, end)
                return
            self._offsets += to - at
            if self._add_records(shard, records):
                self._at = (shard, to)

    def _add_records(self, shard: int, records: Sequence[FoundRecord]) -> bool:
        """Whether there was room for all; else the search continues behind the last one taken."""
        for record in records:
            if len(self._records) >= self._wish.limit or self._bytes >= _ANSWER_BYTES:
                return False
            self._records.append(record)
            self._bytes += record.told_bytes
            self._at = (shard, record.offset + 1)
        return True

    def _skip(self, shard: int, from_offset: int, to_offset: int, why: str, *, is_unindexed: bool = False) -> None:
        last = self._ranges[-1] if self._ranges else None
        # A segment without an index is reported by itself: people count segments.
        if (
            last is not None
            and not is_unindexed
            and (last.shard, last.to_offset, last.why) == (shard, from_offset, why)
        ):
            last.to_offset = to_offset
        else:
            fields = {"shard": shard, "from_offset": from_offset, "to_offset": to_offset, "is_unindexed": is_unindexed}
            self._ranges.append(NotSearched.model_validate(fields | {"why": why}))


@dataclass(frozen=True, slots=True)
class _InSegment:
    records: Sequence[FoundRecord]
    is_cut: bool = False
    """There may be more behind the last one."""


class _Unopened(Exception):
    """A batch that cannot be opened, or is too large when it is decompressed."""

    def __init__(self, end_offset: int, why: str) -> None:
        super().__init__(why)
        self.end_offset = end_offset


def _matches(data: bytes, shard: int, offset: int, end: int, wish: SearchRequest) -> tuple[list[FoundRecord], int]:
    """Records of the key in `[offset, end)`, and how far was looked: as far as an answer holds, or OPENED_BYTES. On a
    thread. Raises: Corrupt, _Unopened."""
    found: list[FoundRecord] = []
    to = offset
    opened_bytes = told_bytes = 0
    for position, header in walk(data, source="what was read for a search"):
        stop = position + header.size_bytes
        # An uncompressed batch that does not have these bytes anywhere has no such key.
        lacks = header.is_control or (header.compression == 0 and data.find(wish.key, position, stop) < 0)
        if header.record_count and not lacks and header.end_offset > offset:
            limit = wish.limit - len(found)
            try:
                records, size_bytes = records_of_key(
                    data[position:stop],
                    wish.key,
                    from_offset=offset,
                    limit=limit,
                    pace=yielding_gil,
                    max_bytes=_DECODED_BYTES,
                )
            except Corrupt as error:
                if to > offset:
                    break  # told by the next read, which begins with it
                raise _Unopened(min(header.end_offset, end), str(error)) from None
            for one in records:
                if one.offset < end:
                    found.append(found_record(shard, one.offset, one.timestamp_ms, one.value, one.headers))
                    told_bytes += found[-1].told_bytes
            if len(records) >= limit:
                return found, min(records[-1].offset + 1, end)
            opened_bytes += size_bytes
        to = max(to, min(header.end_offset, end))
        if to >= end or opened_bytes >= OPENED_BYTES or told_bytes >= _ANSWER_BYTES:
            break
    if to == offset:
        raise Corrupt("the batch that was read does not hold the offset", source="a search", position=0)
    return found, to


def _refuse_no_shard(shards: Iterable[int], topic: Topic) -> None:
    """Raises: NotFound for one that the topic does not have, for that it has no record would say nothing."""
    absent = [shard for shard in shards if not 0 <= shard < topic.shard_count]
    if absent:
        raise NotFound(f"topic {topic.name} has no shard {min(absent)}: it has shards 0 to {topic.shard_count - 1}")


def _place(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found[2]) > _MOST_OFFSET:
        raise InvalidRequest(f"cursor={cursor!r:.60}: expected the cursor of the answer before")
    return int(found[1]), int(found[2])
