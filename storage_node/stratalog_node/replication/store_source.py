"""The object store as a source of sealed segments, asked like a peer: when every node that proved a segment is gone.

Reads go through the node's cold reader, which checks each part's identity and CRCs and keeps to the limits of cold
reads. A replica checks what comes as it checks what a peer sends, proves its whole copy, and the meta service compares
that digest with the seal record. A read that fails is a refusal: the replica pauses, and asks a node again if one is
listed. Lives on the event loop; one task for each segment that is asked for, and `copy_queue` bounds their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratalog.event_loop.task_set import TaskSet
from stratalog.kafka.replica_fetch import SegmentAnswer
from stratalog.machines.following.copy_sources import OBJECT_STORE
from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.replication.stats import ReplicationStats
from stratalog_node.shards.copies.cold_reads import ColdReads

log = logger(__name__)

_RANGE_BYTES = 1 << 20
_CATCH_UP_S = 0.05
"""How often a read that waits for its share of catching up looks again."""
_ANSWER_S = 30.0
"""A read that takes longer is a refusal, so that a node that is back is asked; what it fetches stays for the next."""


class StoreSource:
    """Invariant: each wanted segment has one task, and one read under way at most."""

    def __init__(
        self,
        cold: ColdReads,
        segment_of: Callable[[SegmentName], Segment | None],
        take: Callable[[int, SegmentAnswer[memoryview]], int],
        refused: Callable[[SegmentName, int], None],
        catch_up: TokenBucket,
        stats: ReplicationStats,
        steady_ms: Callable[[], int],
    ) -> None:
        """`segment_of`: its record now. `take` is given what was read, as a peer's answer; `refused` is called with a
        segment that could not be read."""
        self._cold = cold
        self._segment_of = segment_of
        self._take = take
        self._refused = refused
        self._catch_up = catch_up
        self._stats = stats
        self._steady_ms = steady_ms
        self._offsets: dict[SegmentName, int] = {}
        self._reading: set[SegmentName] = set()
        self._tasks = TaskSet()

    def want(self, name: SegmentName, offset: int, *, is_throttled: bool) -> None:
        """From now on, from there. What is SEALED is always throttled: no acknowledgement waits for it."""
        self._offsets[name] = offset
        if name not in self._reading:
            self._reading.add(name)
            self._tasks.start(self._read_on(name))

    def unwant(self, name: SegmentName) -> None:
        self._offsets.pop(name, None)

    async def close(self) -> None:
        self._offsets.clear()
        await self._tasks.cancel()

    async def _read_on(self, name: SegmentName) -> None:
        backoff = Backoff()
        try:
            while (offset := self._offsets.get(name)) is not None:
                if self._catch_up.level(self._steady_ms()) <= 0:
                    await asyncio.sleep(_CATCH_UP_S)
                    continue
                await self._read(name, offset)
                if self._offsets.get(name) == offset:  # neither taken nor refused: never ask without a pause
                    await backoff.pause()
                else:
                    backoff = Backoff()
        finally:
            self._reading.discard(name)

    async def _read(self, name: SegmentName, offset: int) -> None:
        segment = self._segment_of(name)
        try:
            assert segment is not None and segment.end_offset is not None, "only what is sealed is asked for here"
            async with asyncio.timeout(_ANSWER_S):
                ranges = await self._cold.read([segment], offset, _RANGE_BYTES, lambda wanted: wanted)
        except Exception as error:  # of whatever kind: the copy must be tried again (F48)
            log.warning("a copy cannot be read from the object store now", segment=str(name), error=str(error))
            if self._offsets.get(name) == offset:
                self._refused(name, OBJECT_STORE)
            return
        if self._offsets.get(name) != offset:
            return
        data = memoryview(ranges[0] if len(ranges) == 1 else b"".join(ranges))
        self._catch_up.consume(len(data), self._steady_ms())
        answer = SegmentAnswer(*name, 0, segment.end_offset, segment.base_offset, (data,), len(data))
        self._stats.stored_bytes += self._take(OBJECT_STORE, answer)
