"""Reads a shard's data back from the object store: verified, read ahead, shared by all readers of the node.

A read answers whole batches from the one that contains its offset: it waits for the first block and adds what lies
ready behind it. Nothing is cached or answered before every CRC and the identity of its part were checked, on this
reader's own threads. Blocks are fetched once for all readers, by tasks of their own that a cancelled reader leaves
alone (F43, F47). How far ahead is `machines.reading.read_window`'s to say; how fast is this reader's own limit, so that
producers and hot readers do not feel it.

Memory is counted before it is asked for: a block that does not fit waits its turn (`room_queue`), and what is fetched
stays until its room is needed (`block_cache`). When readers outnumber the blocks that fit they take turns, a block
each; where that does not help, because they are slow, ranges get smaller (`machines.reading.read_range`).

Requires: one event loop; segments oldest first, without the deleted ones.
Cost of a read from memory: about 30 us. An answer keeps at most four times its bytes alive: small cuts of large blocks
are copied, so that slow clients hold no blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar, assert_never

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.segments.index_block import INDEX_INTERVAL_BYTES
from stratalog.machines.reading.cold_rates import ColdRates
from stratalog.machines.reading.fair_queue import NOBODY, Taker
from stratalog.machines.reading.read_range import ReadRange
from stratalog.machines.reading.read_window import Block, ReadWindow, WindowStatus
from stratalog.machines.reading.shard_readers import Reader
from stratalog.model.errors import Archived, Corrupt, NotFound, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, Segment
from stratalog.objects.fair_slots import FairSlots
from stratalog.objects.limits import TransferLimits
from stratalog.objects.store import ObjectStore
from stratalog_node.shards.copies.cold_reads import FOR_THE_NODE, ReadFor
from stratalog_node.single_flight import SingleFlight
from stratalog_node.tier.cold.block_cache import BlockCache, Eviction, HeldBlock
from stratalog_node.tier.cold.cold_limits import ColdReadLimits, ColdReadStats
from stratalog_node.tier.cold.cold_times import TimeSearch
from stratalog_node.tier.cold.refused_ranges import RefusedRanges
from stratalog_node.tier.cold.remote_blocks import RemoteBlock, check_block
from stratalog_node.tier.cold.remote_index import ObjectGone, RemoteIndex, ask_again, object_gone
from stratalog_node.tier.cold.remote_walk import Missing, remote_end_offset, segment_at, walk_blocks
from stratalog_node.tier.cold.room_queue import RoomQueue

T = TypeVar("T")

Reload = Callable[[SegmentKey], Awaitable[Segment | None]]
"""The segment as metadata has it now, None when it is gone; asked when an object was not there."""

_LOOKS = 64
"""Indexes learned for one read-ahead: a bound for a memory too small to hold them."""
_COPIED_BELOW = 4
"""What is less than this part of its block is copied into its answer."""
_AHEAD_MS = 100
_AHEAD_FETCHES = 4
"""What a reader does not reach within this time and that of this number of fetches is not read ahead yet: it would take
the room of what is needed sooner. Above one, so that a reader that is slow because it waits for the store gets more in
flight."""
_FETCH_SHARE = 0.1
"""Of the last fetch, in the mean."""
_SHORTEST_TICK_S = 0.05
_LONGEST_TICK_S = 1.0
"""Between two checks of what was not read in time."""
_GROW_MS = 1_000
"""Between two ranges that grow while there are more readers than ranges of that size fit: one at a time, to see."""
_FORGET_TTLS = 4
"""A shard that is not read for this many unread TTLs starts again."""


@dataclass(slots=True)
class _ShardReads:
    """What is remembered of a shard that is being read."""

    key: ShardKey
    window: ReadWindow
    range: ReadRange
    used_ms: int
    is_suspect: bool = False
    """The store did not answer its last request: few of those run at a time, so that they leave room for others."""


class ColdReader:
    """All cold reads of one node."""

    def __init__(
        self,
        store: ObjectStore,
        names: ObjectNames,
        limits: ColdReadLimits,
        reload: Reload,
        *,
        now_ms: Callable[[], int] = lambda: int(monotonic() * 1_000),
    ) -> None:
        self._store = store
        self._cluster_id = names.cluster_id
        self._limits = limits
        self._reload = reload
        self._now_ms = now_ms
        self.stats = ColdReadStats()
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="cold-read")
        self._transfers = TransferLimits(
            bytes_per_s=limits.bytes_per_s, concurrency=limits.max_concurrency, slot_ms=limits.slot_ms
        )
        # Read-ahead leaves a slot to those who wait.
        self._ahead_slots = FairSlots(max(1, limits.max_concurrency - 1))
        self._suspects = asyncio.Semaphore(limits.max_concurrency)
        self._cache = BlockCache(limits.cache_bytes - limits.index_bytes, limits.readers, self._evicted)
        self._line = RoomQueue(self._cache, self.stats, self._now_ms, self._measure)
        self._wasted_ms = self._grown_ms = self._now_ms() - _FORGET_TTLS * limits.unread_ttl_ms
        self._readers = 0
        self._rates = ColdRates()
        self._fetch_ms = 0.0
        """How long a fetch takes, its waits included: a mean of the last ones."""
        self.refused = RefusedRanges(now_ms)
        self._index = RemoteIndex(
            store, names.cluster_id, limits, self._transfers, self._threads, self.stats, self.refused
        )
        self._search = TimeSearch(self._index, self.hold, self._threads)
        self._fetches: SingleFlight[Block, HeldBlock] = SingleFlight()
        self._looks: SingleFlight[ShardKey, None] = SingleFlight()
        self._shards: dict[ShardKey, _ShardReads] = {}
        self._tick: asyncio.TimerHandle | None = None

    # Reading ----------------------------------------------------------------------------------------------------
    async def read(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        room_bytes: Callable[[int], int] = lambda wanted: wanted,
        read_for: ReadFor = FOR_THE_NODE,
    ) -> list[bytes | memoryview]:
        """Whole batches from the one that contains `offset`: at least one, else at most `max_bytes`.

        `room_bytes` is asked, when the data is there, how much of that may be answered now. A client that read faster
        than it may waits first.

        Raises: NotFound when `offset` is not in the cold tier; Unavailable when the store does not answer or an object
        is gone for good; Corrupt, naming object and byte.
        """
        topic, client, limits = segments[0].key.topic_id if segments else None, read_for.client, read_for.limits
        while wait_ms := self._rates.wait_ms(topic, client, limits, self._now_ms()):
            self.stats.throttled += 1
            self.stats.throttle_ms += wait_ms
            await asyncio.sleep(wait_ms / 1_000)
        self.stats.answers += 1
        pieces = await self._with_reload(
            segments, offset, lambda known: self._read(known, offset, max_bytes, room_bytes, client)
        )
        self._rates.count(topic, client, limits, sum(map(len, pieces)), self._now_ms())
        return pieces

    async def producer_table(self, segment: Segment) -> bytes:
        """See `ColdReads`."""
        return (await self._index.index_block(segment)).table

    async def find_by_time(self, segment: Segment, timestamp_ms: int, from_offset: int = 0) -> tuple[int, int] | None:
        """(offset, timestamp) of the segment's first record from an offset on with that time or a later one, exact
        inside compressed batches; None when what of it is in the cold tier has none."""
        return await self._with_reload(
            [segment], segment.base_offset, lambda s: self._search.first_at(s[0], timestamp_ms, from_offset)
        )

    async def offset_of_max_timestamp(self, segment: Segment) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the segment's highest time."""
        return await self._with_reload([segment], segment.base_offset, lambda s: self._search.first_of_max(s[0]))

    async def _with_reload(
        self, segments: Sequence[Segment], offset: int, work: Callable[[Sequence[Segment]], Awaitable[T]]
    ) -> T:
        """Do `work`; when an object is gone, read the segment's metadata again, once (F33, F35)."""
        try:
            return await work(segments)
        except ObjectGone as gone:
            number = segment_at(segments, offset)
            stale = segments[number]
            self.stats.reloads += 1
            self._index.forget(stale)
            fresh = await self._reload(stale.key)
            if fresh is None:
                raise Unavailable(f"segment {stale.key} is gone: ask for the shard's log start offset") from gone
            if fresh.remote == stale.remote:
                raise
            return await work([*segments[:number], fresh, *segments[number + 1 :]])

    async def _read(
        self, segments: Sequence[Segment], offset: int, max_bytes: int, room_bytes: Callable[[int], int], client: str
    ) -> list[bytes | memoryview]:
        remote = await self._block_at(segments, offset, max_bytes)
        shard = self._shard(remote.segment.shard_key)
        remote = self._grown(shard, segments, offset, remote)
        reach_bytes = min(max_bytes, self._limits.window.cap_bytes)
        taker = Taker(client, shard.key)
        reader = self._cache.readers.begin(shard.key, offset, self._now_ms())
        if reader.has_moved:
            reach_bytes = max(reach_bytes, shard.window.window_bytes)
        self._cache.pin(remote.block)
        try:
            held = self._cache.get(remote.block)
            if held is None:
                fetch = self._demand(shard, remote, taker)
                self._look_ahead(shard, reader, segments, reach_bytes, taker)
                held = await fetch
            else:
                self.stats.hits += 1
                self._look_ahead(shard, reader, segments, reach_bytes, taker)
            return self._collect(shard, reader, segments, held, room_bytes(max_bytes))
        finally:
            self._cache.readers.ended(reader, self._now_ms())
            self._cache.unpin(remote.block)
            self._line.serve()

    def _collect(
        self, shard: _ShardReads, reader: Reader, segments: Sequence[Segment], held: HeldBlock, max_bytes: int
    ) -> list[bytes | memoryview]:
        """Batches of the block that was waited for, and of those behind it that are there."""
        views: list[bytes | memoryview] = []
        offset, left_bytes = reader.position, max_bytes
        now_ms = shard.used_ms = self._now_ms()
        self._arm()
        while True:
            view, end_offset = held.cut(offset, left_bytes, at_least_one=not views)
            if not len(view):
                return views
            self._cache.readers.moved(reader, end_offset, now_ms)
            views.append(view if _COPIED_BELOW * len(view) >= held.block.size_bytes else bytes(view))
            left_bytes -= len(view)
            self.stats.used_bytes += len(view)
            shard.window.used(held.block, len(view), end_offset, now_ms)
            is_read = end_offset >= held.block.end_offset
            self._cache.touched(held.block, now_ms, is_read=is_read)
            following = next(self._walk(segments, end_offset), None) if is_read and left_bytes > 0 else None
            if not isinstance(following, RemoteBlock):
                return views
            ready = self._cache.get(following.block)
            if ready is None:
                return views
            self.stats.hits += 1
            held, offset = ready, end_offset

    # Finding blocks ---------------------------------------------------------------------------------------------
    def _walk(
        self, segments: Sequence[Segment], offset: int, level: int | None = None
    ) -> Iterator[RemoteBlock | Missing]:
        shard = self._shards.get(segments[0].key.shard_key) if segments else None
        if shard is None:
            return walk_blocks(segments, offset, self._index)
        level = shard.range.level if level is None else level
        return walk_blocks(segments, offset, self._index, level, shard.range.finest, self._is_asked_for)

    def _is_asked_for(self, block: Block) -> bool:
        return block in self._cache or block in self._fetches

    async def _block_at(self, segments: Sequence[Segment], offset: int, max_bytes: int = 0) -> RemoteBlock:
        """The block to fetch for a reader that takes `max_bytes` at a time, or the one that is there."""
        for _ in range(_LOOKS):
            shard = self._shards.get(segments[0].key.shard_key) if segments else None
            level = shard.range.level_for(max_bytes) if shard is not None else 0
            found = next(self._walk(segments, offset, level), None)
            if found is None:
                raise NotFound(f"offset {offset} is not in the cold tier: {_extent(segments)}")
            if isinstance(found, RemoteBlock):
                return found
            await self._learn(found)
        raise Unavailable("cold reads: the memory for indexes is too small; raise remote.read.cache.bytes")

    def _grown(self, shard: _ShardReads, segments: Sequence[Segment], offset: int, remote: RemoteBlock) -> RemoteBlock:
        """A range that is about to be fetched, or one twice as large that begins there, if memory allows it."""
        if not shard.range.level or self._is_asked_for(remote.block) or not self._may_grow(shard):
            return remote
        larger = next(self._walk(segments, offset, shard.range.level - 1), None)
        if not isinstance(larger, RemoteBlock) or larger.block.base_offset != remote.block.base_offset:
            return remote
        shard.range.grow()
        self._grown_ms = self._now_ms()
        return larger

    def _may_grow(self, shard: _ShardReads) -> bool:
        now_ms = self._now_ms()
        if now_ms - self._wasted_ms < self._limits.unread_ttl_ms:
            return False
        larger_bytes = shard.range.size_bytes(shard.range.level - 1)
        return self._readers * larger_bytes <= self._cache.budget_bytes or now_ms - self._grown_ms >= _GROW_MS

    async def _learn(self, missing: Missing) -> None:
        if missing.part is None:
            await self._index.manifest(missing.segment)
        else:
            await self._index.part_blocks(missing.segment.key, missing.part)

    # Reading ahead ----------------------------------------------------------------------------------------------
    def _look_ahead(
        self, shard: _ShardReads, reader: Reader, segments: Sequence[Segment], reach_bytes: int, taker: Taker
    ) -> None:
        """Start what the window asks for; never waits. An index that is missing is learned first, beside."""
        offset = reader.position

        def plan() -> Missing | None:
            return self._plan(shard, reader, segments, offset, reach_bytes, taker)

        missing = plan()
        if missing is not None:
            self._looks.start(shard.key, lambda: self._learn_ahead(missing, plan))

    async def _learn_ahead(self, missing: Missing, plan: Callable[[], Missing | None]) -> None:
        for _ in range(_LOOKS):
            await self._learn(missing)
            still = plan()
            if still is None:
                return
            missing = still

    def _plan(
        self,
        shard: _ShardReads,
        reader: Reader,
        segments: Sequence[Segment],
        offset: int,
        reach_bytes: int,
        taker: Taker,
    ) -> Missing | None:
        """Start the fetches of one read-ahead. Returns: the index that is needed to see further."""
        seen: dict[Block, RemoteBlock] = {}
        missing: Missing | None = None

        def ahead() -> Iterator[Block]:
            nonlocal missing
            for found in self._walk(segments, offset):
                if isinstance(found, Missing):
                    missing = found
                    return
                seen[found.block] = found
                yield found.block

        window = shard.window
        share_bytes = self._cache.budget_bytes // max(1, self._readers) - window.unread_bytes - window.in_flight_bytes
        now_ms = self._now_ms()
        horizon_ms = now_ms + _AHEAD_MS + _AHEAD_FETCHES * self._fetch_ms

        def has_room(block: Block) -> bool:
            needed_ms = reader.soonest_ms(block.base_offset)
            return needed_ms <= horizon_ms and self._cache.try_reserve(block.size_bytes, needed_ms, now_ms)

        for block in window.plan(ahead(), reach_bytes, 0 if len(self._line) else share_bytes, has_room):
            self._start(shard, seen[block], taker, is_ahead=True, is_reserved=True)
        return missing

    # Fetching ---------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def hold(self, segment: Segment, offset: int) -> AsyncIterator[HeldBlock]:
        """The block that contains an offset, fetched if need be; for searches by time."""
        remote = await self._block_at([segment], offset)
        self._cache.pin(remote.block)
        try:
            held = self._cache.get(remote.block)
            if held is not None:
                self.stats.hits += 1
            else:
                held = await self._demand(self._shard(segment.key.shard_key), remote, NOBODY)
            yield held
        finally:
            self._cache.unpin(remote.block)
            self._line.serve()

    def _demand(self, shard: _ShardReads, remote: RemoteBlock, taker: Taker) -> Awaitable[HeldBlock]:
        """A reader waits for this block: fetch it, or join who fetches it. It has its room, or its place in the line
        for it, when this returns."""
        if shard.window.demand(remote.block):
            self.stats.misses += 1
            may_go_on = not len(self._line) and not shard.is_suspect
            now_ms = self._now_ms()
            is_reserved = may_go_on and self._cache.try_reserve(remote.block.size_bytes, now_ms, now_ms)
            self._start(shard, remote, taker, is_ahead=False, is_reserved=is_reserved)
        else:
            self.stats.joined += 1
        return self._fetches.join(remote.block, lambda: self._fetch(shard, remote, taker, is_ahead=False, waiter=None))

    def _start(
        self, shard: _ShardReads, remote: RemoteBlock, taker: Taker, *, is_ahead: bool, is_reserved: bool
    ) -> None:
        waiter = None if is_reserved or shard.is_suspect else self._line.enqueue(taker, remote.block.size_bytes)
        self._measure()
        self._fetches.start(
            remote.block,
            lambda: self._fetch(shard, remote, taker, is_ahead=is_ahead, waiter=waiter, is_reserved=is_reserved),
        )

    async def _fetch(
        self,
        shard: _ShardReads,
        remote: RemoteBlock,
        taker: Taker,
        *,
        is_ahead: bool,
        waiter: asyncio.Future[None] | None,
        is_reserved: bool = False,
    ) -> HeldBlock:
        size_bytes = remote.block.size_bytes
        try:
            async with self._suspects if shard.is_suspect else nullcontext():
                if not is_reserved:
                    await self._line.wait_for_room(taker, size_bytes, waiter)
                    is_reserved = True
                if is_ahead:
                    await self._ahead_slots.acquire(taker, size_bytes)
                try:
                    held = await self._transfer_unless_refused(remote, taker)
                finally:
                    if is_ahead:
                        self._ahead_slots.release()
        except BaseException as error:
            if is_reserved:
                self._cache.release(size_bytes)
            shard.window.failed(remote.block)
            shard.is_suspect = isinstance(error, Unavailable) and not isinstance(error, ObjectGone | Archived)
            self.stats.fetch_failures += 1
            self._measure()
            self._line.serve()
            raise
        now_ms = self._now_ms()
        shard.is_suspect = False
        self._cache.hold(held, now_ms)
        shard.window.arrived(remote.block, now_ms)
        self._line.serve()
        self._arm()
        return held

    async def _transfer_unless_refused(self, remote: RemoteBlock, taker: Taker) -> HeldBlock:
        self.refused.check(remote.block, remote)
        try:
            held = await ask_again(lambda: self._transfer(remote, taker))
        except (Corrupt, Archived) as error:
            self.stats.archived_ranges += isinstance(error, Archived)
            self.refused.refused(remote.block, remote, remote.segment, error)
            raise
        self.refused.accepted(remote.block)
        return held

    async def _transfer(self, remote: RemoteBlock, taker: Taker) -> HeldBlock:
        """Fetch and check, once."""
        size_bytes = remote.block.size_bytes
        began_ms = self._now_ms()
        async with self._transfers.transfer(size_bytes, taker):
            with object_gone(remote.block.object_key):
                data = await self._store.get_range_view(remote.block.object_key, remote.start, remote.end)
        self._fetch_ms += _FETCH_SHARE * (self._now_ms() - began_ms - self._fetch_ms)
        self.stats.fetches += 1
        self.stats.fetched_bytes += size_bytes
        if self._cache.was_dropped(remote.block):
            self.stats.refetched_bytes += size_bytes
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, check_block, remote, data, self._cluster_id
            )
        except Corrupt:
            self.stats.corrupt_ranges += 1
            raise

    # Keeping and dropping ---------------------------------------------------------------------------------------
    def _shard(self, key: ShardKey) -> _ShardReads:
        shard = self._shards.get(key)
        if shard is None:
            ranges = ReadRange(self._limits.range_bytes, INDEX_INTERVAL_BYTES)
            shard = self._shards[key] = _ShardReads(key, ReadWindow(self._limits.window), ranges, self._now_ms())
            self._readers += 1
        return shard

    def _evicted(self, held: HeldBlock, is_read: bool, why: Eviction) -> None:
        shard = self._shards[held.segment.shard_key]
        shard.window.dropped(held.block)
        self.stats.evicted_blocks += 1
        if not is_read:
            self.stats.evicted_unread_blocks += 1
        match why:
            case Eviction.PASSED:
                self.stats.evicted_passed_blocks += 1
            case Eviction.FAR:
                self.stats.evicted_far_blocks += 1
            case Eviction.LATE:
                self.stats.evicted_late_blocks += 1
                self._wasted_ms = self._now_ms()
                shard.range.went_unread(held.block.size_bytes)
            case _:
                assert_never(why)

    def _arm(self) -> None:
        """Check again soon what was not read in time, as long as a shard is read."""
        if self._tick is None and any(self._is_read(shard) for shard in self._shards.values()):
            pause_s = min(max(self._limits.unread_ttl_ms / 2_000, _SHORTEST_TICK_S), _LONGEST_TICK_S)
            self._tick = asyncio.get_running_loop().call_later(pause_s, self._judge)

    def _is_read(self, shard: _ShardReads) -> bool:
        return shard.window.is_waiting or self._now_ms() - shard.used_ms <= _FORGET_TTLS * self._limits.unread_ttl_ms

    def _judge(self) -> None:
        self._tick = None
        now_ms = self._now_ms()
        self._cache.readers.pass_time(now_ms)
        for shard in list(self._shards.values()):
            late = shard.window.judge(now_ms)
            self.stats.late_blocks += late.blocks
            self.stats.late_bytes += late.size_bytes
            if not self._is_read(shard):
                self._rest(shard)
        horizon_ms = now_ms - self._limits.unread_ttl_ms
        self._readers = sum(shard.used_ms >= horizon_ms for shard in self._shards.values())
        self.stats.window_bytes = sum(shard.window.window_bytes for shard in self._shards.values())
        self._line.serve()
        self._arm()

    def _rest(self, shard: _ShardReads) -> None:
        """No client reads it: what it has of memory stays until that is needed."""
        if shard.window.is_idle:
            del self._shards[shard.key]
        else:
            shard.window.rest()
            shard.range.rest()

    def _measure(self) -> None:
        self.stats.held_bytes = self._cache.held_bytes + self._index.held_bytes
        self.stats.in_flight_bytes = self._cache.reserved_bytes
        self.stats.readers = len(self._cache.readers)

    def window(self, key: ShardKey) -> WindowStatus | None:
        """A shard's read-ahead, for the cluster UI; None when it is not being read."""
        shard = self._shards.get(key)
        return shard.window.describe() if shard else None

    async def close(self) -> None:
        """Readers that wait get Unavailable. The store is the caller's."""
        if self._tick is not None:
            self._tick.cancel()
        self._line.close()
        await self._looks.close()
        await self._fetches.close()
        await self._index.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _extent(segments: Sequence[Segment]) -> str:
    remote = [segment for segment in segments if segment.remote.state is not RemoteState.NONE]
    if not remote:
        return "nothing of this shard is there"
    return f"it has offsets {remote[0].base_offset} to {remote_end_offset(remote[-1])} of this shard"
