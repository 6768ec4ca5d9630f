"""One question of another node for a sealed segment that this one proved: batches from an offset on, the first batch
that claims a time, or a piece of its table of producers. It begins no session, confirms nothing, and waits for nothing.
Lives on the event loop.

From the page cache it is answered in its turn; from the disk on a thread, as many at a time as a connection's room
allows, which a node bounds by how much it asks.
"""

from __future__ import annotations

import asyncio

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import NO_SESSION, ReplicaFetch, SegmentAnswer, SegmentAsk
from stratalog.model.errors import Corrupt, NotFound, StratalogError
from stratalog.model.ids import ShardKey
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.serve.replicas.replica_answer import ReplicaAnswer
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.copies.missing_files import copy_gone
from stratalog_node.shards.copies.sealed import SealedCopy
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import ReadBuffer, ReadPosition
from stratalog_node.shards.read.replica_reads import batch_since, proven_copy, segment_of_epoch

log = logger(__name__)

_MOST_BYTES = 1 << 20


class SealedRead(ReplicaAnswer):
    __slots__ = ("_scheduler", "_task")

    def __init__(self, scheduler: FetchScheduler, connection: Connection, correlation_id: int) -> None:
        super().__init__(connection, correlation_id)
        self._scheduler = scheduler
        self._task: asyncio.Task[None] | None = None

    def refuse(self, code: int) -> None:
        """The sender is not a live node."""
        self._finish([], code)

    def begin(self, shards: ShardDirectory, request: ReplicaFetch) -> None:
        """Answers for one segment; further ones in the request are ignored."""
        if not request.asks:
            self._finish([])
            return
        ask = request.asks[0]
        shard = shards.get(ShardKey(ask.topic_id, ask.shard))
        segment = segment_of_epoch(shard.segments, ask.epoch) if shard is not None else None
        if shard is None or segment is None:
            self._answer(ask, ErrorCode.UNKNOWN_LEADER_EPOCH)
            return
        copy = proven_copy(shard, segment)
        if copy is None:
            self._answer(ask, ErrorCode.REPLICA_NOT_AVAILABLE)
        elif ask.table_position >= 0:
            self._connection.slow_reads += 1
            self._task = self._scheduler.loop.create_task(self._read_table(shard, segment, ask))
        elif not copy.seal.base_offset <= ask.fetch_offset < copy.seal.end_offset:
            self._answer(ask, ErrorCode.OFFSET_OUT_OF_RANGE)
        elif ask.timestamp_ms >= 0 or not self._read_cached(shard, copy, ask):
            self._connection.slow_reads += 1
            self._task = self._scheduler.loop.create_task(self._read_slowly(shard, copy, ask))

    def _read_cached(self, shard: ShardLog, copy: SealedCopy, ask: SegmentAsk) -> bool:
        try:
            read = self._scheduler.reader.read_hot(
                shard, ask.fetch_offset, self._room_bytes(ask), for_socket=True, where=_whole(copy)
            )
        except NotCached:
            return False
        self._reads.append(read)
        self._answer(ask, 0, shard, read.buffers, read.size_bytes)
        return True

    def _room_bytes(self, ask: SegmentAsk) -> int:
        return self._scheduler.reader.room_bytes(max(1, min(ask.max_bytes, _MOST_BYTES)))

    async def _read_slowly(self, shard: ShardLog, copy: SealedCopy, ask: SegmentAsk) -> None:
        code, size_bytes = 0, 0
        pieces: list[ReadBuffer] = []
        try:
            if ask.timestamp_ms >= 0:
                batch = await batch_since(shard, copy, ask.fetch_offset, ask.timestamp_ms)
                pieces, size_bytes = [batch] if batch else [], len(batch)
            else:
                read = await self._scheduler.reader.read_local(
                    shard, _whole(copy), ask.fetch_offset, self._room_bytes(ask)
                )
                self._reads.append(read)
                pieces, size_bytes = read.buffers, read.size_bytes
        except StratalogError as error:
            log.warning(
                "a sealed range that another node asks for cannot be read", segment=str(copy.key), error=str(error)
            )
            code = ErrorCode.KAFKA_STORAGE_ERROR
            if isinstance(error, Corrupt):
                code = ErrorCode.CORRUPT_MESSAGE
                self._scheduler.reader.mark_damaged(shard, _whole(copy), error)
            elif isinstance(error, NotFound):
                copy_gone(shard, copy)
        except Exception as fault:  # it costs one connection, not a node that waits forever (F48)
            log.error("a sealed read failed", peer=self._connection.info.peer, error=str(fault), exc_info=fault)
            self._connection.close(f"Fetch failed: {fault}")
            return
        finally:
            self._connection.slow_reads -= 1
        self._task = None
        self._answer(ask, code, shard, pieces, size_bytes)
        self._scheduler.turn.request()

    async def _read_table(self, shard: ShardLog, segment: Segment, ask: SegmentAsk) -> None:
        pieces: list[ReadBuffer] = []
        code, total_bytes = 0, -1
        try:
            table = await shard.context.tables.here(segment)
            begin, total_bytes = ask.table_position, len(table)
            piece = memoryview(table)[begin : begin + self._room_bytes(ask)]
            pieces = [piece] if len(piece) else []
        except StratalogError as error:
            log.warning("a producer table that another node asks for cannot be read", error=str(error))
            code = ErrorCode.REPLICA_NOT_AVAILABLE
        except Exception as fault:  # it costs one connection, not a node that waits forever (F48)
            log.error("a table was not read", peer=self._connection.info.peer, error=str(fault), exc_info=fault)
            self._connection.close(f"Fetch failed: {fault}")
            return
        finally:
            self._connection.slow_reads -= 1
        self._task = None
        self._answer(ask, code, shard, pieces, sum(map(len, pieces)), total_bytes=total_bytes)
        self._scheduler.turn.request()

    def _answer(
        self,
        ask: SegmentAsk,
        code: int,
        shard: ShardLog | None = None,
        records: list[ReadBuffer] | None = None,
        size_bytes: int = 0,
        *,
        total_bytes: int = -1,
    ) -> None:
        """`total_bytes`: the size of a whole table, if the records are a part of one."""
        start = shard.log_start_offset if shard is not None else -1
        self._finish([SegmentAnswer(*ask[:3], code, total_bytes, start, records or (), size_bytes)])

    def _finish(self, answers: list[SegmentAnswer[ReadBuffer]], error_code: int = 0) -> None:
        self._scheduler.stats.sealed_reads += 1
        self._send(answers, error_code, NO_SESSION)

    def _abandon(self) -> None:
        """The connection is gone."""
        if self._task is not None:
            self._task.cancel()
        super()._abandon()


def _whole(copy: SealedCopy) -> ReadPosition:
    return ReadPosition(copy, copy.seal.size_bytes, copy.seal.end_offset, None, is_in_store=False)
