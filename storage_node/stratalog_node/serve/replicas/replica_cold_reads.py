"""Reads what one follower lacks and what is not in memory, on a disk thread, one segment at a time, while this
follower's rounds continue. A node that catches up from the disk waits for these reads; acknowledgements do not. Rounds
that always have data of other segments do not delay them.

Lives on the event loop. Memory: one read of at most `SEGMENT_BYTES`, counted with all answers, and a name for each
queued segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.model.errors import Corrupt, StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import Read, ReadPosition

log = logger(__name__)

SEGMENT_BYTES = 1 << 20
"""Limit for one segment in one answer, because others wait for the same round."""


class Found(NamedTuple):
    """There is more of a segment than its follower has."""

    shard: ShardLog
    where: ReadPosition
    offset: int


class ReplicaColdReads:
    """Invariant: what was read is given out once, for the offset that it was read at, or given back."""

    def __init__(self, scheduler: FetchScheduler, done: Callable[[SegmentName], None]) -> None:
        """`done`: look at this segment again."""
        self._scheduler = scheduler
        self._done = done
        self._line: dict[SegmentName, Found] = {}
        self._task: asyncio.Task[None] | None = None
        self._reading: SegmentName | None = None
        self._found: tuple[SegmentName, int, Read | ErrorCode] | None = None

    def ask(self, name: SegmentName, found: Found) -> None:
        """It will be read, unless it is being read."""
        if name != self._reading:
            self._line[name] = found
            self._begin()

    def take_result(self, name: SegmentName, offset: int) -> Read | ErrorCode | None:
        """What was read of it there, or why it cannot be; None when nothing was."""
        if self._found is None or self._found[0] != name:
            return None
        _, at, found = self._found
        self._found = None
        self._scheduler.loop.call_soon(self._begin)
        if at == offset:
            return found
        _give_back(found)
        return None

    def _begin(self) -> None:
        if self._task is None and self._found is None and self._line:
            name = next(iter(self._line))
            found, self._reading = self._line.pop(name), name
            self._task = self._scheduler.loop.create_task(self._read(name, found))

    async def _read(self, name: SegmentName, found: Found) -> None:
        got: Read | ErrorCode
        try:
            got = await self._scheduler.reader.read_local(found.shard, found.where, found.offset, SEGMENT_BYTES)
            self._scheduler.stats.replica_cold_reads += 1
            self._scheduler.stats.replica_cold_bytes += got.size_bytes
        except StratalogError as error:
            log.warning("data that a follower asks for cannot be read", segment=str(name), error=str(error))
            got = ErrorCode.CORRUPT_MESSAGE if isinstance(error, Corrupt) else ErrorCode.KAFKA_STORAGE_ERROR
        except Exception:
            log.error("data that a follower asks for cannot be read", segment=str(name), exc_info=True)
            got = ErrorCode.UNKNOWN_SERVER_ERROR
        self._task = self._reading = None
        self._found = (name, found.offset, got)
        self._done(name)

    def forget(self, name: SegmentName) -> None:
        """The follower no longer asks for this segment."""
        self._line.pop(name, None)
        if self._found is not None and self._found[0] == name:
            _give_back(self._found[2])
            self._found = None
            self._begin()

    def close(self) -> None:
        self._line.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._found is not None:
            _give_back(self._found[2])
            self._found = None


def _give_back(found: Read | ErrorCode) -> None:
    if isinstance(found, Read):
        found.give_back()
