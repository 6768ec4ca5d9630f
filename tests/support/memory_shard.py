"""A shard in memory, as `shards.copies.shard_view.ShardView` is: append, HW, read, log start. Outlives coordinators.

What a test may do to it: hold acknowledgements (`hold`, `release`), fail the next appends (`fail`), fence its leader
(`is_led = False`), and damage what is stored (`damage`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from stratalog.formats.batches.record_batch import check_batch, stored_prefix
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Fenced, NotFound, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog_node.shards.copies.shard_view import LogRange, TakeBuffer


class MemoryShard:
    def __init__(self, topic: Topic, index: int) -> None:
        self.key = ShardKey(topic.topic_id, index)
        self.topic = topic
        self.log_start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.segments: Sequence[Segment] = ()
        self.missing: Sequence[SegmentKey] = ()
        self.is_led = True
        self.appends = 0
        self.durable_end = 0
        """What a power cut would leave."""
        self.flush_error: StratalogError | None = None
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self._lost: Segment | None = None
        self._failures: deque[StratalogError] = deque()
        self._open = asyncio.Event()
        self._open.set()

    # What tests do ----------------------------------------------------------------------------------------------
    def hold(self) -> None:
        """Appends are written but not acknowledged until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def fail(self, *failures: StratalogError) -> None:
        """The next appends raise these; those that raise OutcomeUnknown are written anyway."""
        self._failures.extend(failures)

    def trim(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)
        self.batches = [kept for kept in self.batches if kept[0].end_offset > self.log_start_offset]

    def damage(self, number: int) -> None:
        """Flip a bit in the last byte of one batch."""
        header, data = self.batches[number]
        self.batches[number] = (header, data[:-1] + bytes([data[-1] ^ 1]))

    def lose(self, segment: Segment) -> None:
        """Makes the segment unreadable."""
        self.segments, self._lost = (segment,), segment
        end_offset = segment.end_offset or 0
        self.batches = [one for one in self.batches if not segment.base_offset <= one[0].base_offset < end_offset]

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for _, data in self.batches)

    # ShardView --------------------------------------------------------------------------------------------------
    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def has_local(self, segment: SegmentKey) -> bool:
        return False

    def size_below_high_watermark(self, segment: SegmentKey, from_offset: int) -> int:
        raise NotFound(f"{segment} is not here: this shard has no segments")

    async def read_committed_range(
        self,
        segment: SegmentKey,
        from_offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        take_buffer: TakeBuffer | None = None,
    ) -> LogRange:
        raise NotFound(f"{segment} is not here: this shard has no segments")

    async def append(self, batches: Sequence[bytes]) -> int:
        await asyncio.sleep(0)
        if not self.is_led:
            raise Fenced("another node leads this shard: stop writing")
        failure = self._failures.popleft() if self._failures else None
        if failure is not None and not isinstance(failure, OutcomeUnknown):
            raise failure
        base_offset = self.end_offset
        for batch in batches:
            header = check_batch(batch, source="append")
            stored = stored_prefix(self.end_offset, len(batch), 0) + batch[16:]
            self.batches.append((header._replace(base_offset=self.end_offset), stored))
            self.end_offset += header.last_offset_delta + 1
        self.appends += 1
        end_offset = self.end_offset
        await self._open.wait()
        if not self.is_led:
            raise OutcomeUnknown("leadership was lost while the append waited: read before acting again")
        self.high_watermark = max(self.high_watermark, end_offset)
        if failure is not None:
            raise failure
        return base_offset

    async def make_durable(self) -> None:
        end_offset = self.end_offset
        await asyncio.sleep(0)
        if self.flush_error is not None:
            raise self.flush_error
        self.durable_end = end_offset

    async def read(self, offset: int, max_bytes: int) -> list[bytes | memoryview]:
        await asyncio.sleep(0)
        if offset < self.log_start_offset:
            raise Unavailable(f"offset {offset} is below the log start {self.log_start_offset}")
        lost = self._lost
        if lost is not None and lost.base_offset <= offset < (lost.end_offset or 0):
            raise Unavailable(f"offset {offset} is on no node that can be asked")
        found: list[bytes | memoryview] = []
        size = 0
        for header, data in self.batches:
            if header.end_offset <= offset or header.end_offset > self.high_watermark:
                continue
            is_behind = lost is not None and offset < lost.base_offset <= header.base_offset
            if is_behind or (found and size + len(data) > max_bytes):
                break
            found.append(data)
            size += len(data)
        return found
