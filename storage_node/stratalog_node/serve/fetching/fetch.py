"""Fetch: answer with whole batches below the high watermark, or wait until there are some.

Sizes follow KIP-74 (`answer_room.py`), wherever the data of each partition is. A waiting
fetch is notified when the high watermark moves (or a shard is sealed or deleted), without polling, and counts what was
appended instead of reading it (`PartitionCount`); the only timer is the client's own `max_wait_ms`. Fetch sessions are
refused (session
id 0): clients then send full lists.

All fetches together check a limited number of partitions in a turn of the loop (`fetch_scheduler.py`), however many
connections ask or wait: the others follow in the next turns, in the order of their notifications. Until its first check
a request waits as the bytes that it came in, which count against its connection; a large one always does.
Source: docs/kafka.md "Fetch".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from time import perf_counter_ns

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.fetch import (
    FetchedPartition,
    FetchRequest,
    PartitionFetch,
    decode_fetch,
    distinct,
    encode_fetch_response,
)
from stratalog.kafka.frames import RequestHeader
from stratalog.machines.quotas.usage import ClientUsage
from stratalog.model.errors import Corrupt, NotFound, OutOfReach, StratalogError, Unavailable
from stratalog.model.rights import Operation, ResourceType
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.answer import Parkable
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.connections.registry import Need
from stratalog_node.serve.connections.serving import ServeStats
from stratalog_node.serve.fetching.answer_room import AnswerRoom
from stratalog_node.serve.fetching.empty_batches import read_hot
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.serve.fetching.slow_reads import SlowReads
from stratalog_node.shards.copies.local_copy import NotCached
from stratalog_node.shards.log.shard_log import ShardLog
from stratalog_node.shards.read.reading import Read, ReadBuffer

log = logger(__name__)

_NAMED_IN_VAIN = 10_000
"""So many partitions may be asked for that are not here, as after a topic's deletion: each costs the loop 5 us."""
_NAMED_AGAIN = 100_000
"""So many entries may repeat others: each costs the loop 1 us."""
_SLOW_READ_S = 5.0
"""How long a fetch may wait for disk or object store beyond the client's own patience."""

_LARGE_BYTES = 16 << 10
"""A request above it never looks at once. Up to that, some five hundred partitions, decoding takes half a ms."""
_PARTITION_BYTES = 300
"""What a partition takes of a decoded fetch that was kept."""
_OF_ITSELF = 4
"""The fixed cost of checking a fetch, in partitions, apart from its own."""
_FRAME_BYTES = 32
"""Bytes of the frame that cost as much as one partition; one with a long name counts as several."""

NEEDS = (Need(Operation.READ, ResourceType.TOPIC, "29 for its partitions"),)

_NOTHING = Read([], 0)


class PartitionCount:
    """How many bytes a waiting fetch could read of one partition: what its last check found, and what was appended
    since.

    A fetch that waits for `min_bytes` adds up appends without reading them. It checks all its partitions again only
    once the sum may be enough, or when something other than an append happened to a shard.
    Lives on the event loop. Cost: below a microsecond for each append and waiting fetch.
    """

    __slots__ = ("_active", "_grows", "_is_cut", "_log_start_offset", "_most_bytes", "_position", "size_bytes")

    def __init__(self, shard: ShardLog, wanted: PartitionFetch, read: Read | None) -> None:
        """`read`: what the check found, None when there was nothing below the high watermark."""
        active = self._active = shard.active
        self._log_start_offset = shard.log_start_offset
        self._most_bytes = wanted.max_bytes
        self.size_bytes = read.size_bytes if read is not None else 0
        end_offset = read.next_offset if read is not None else wanted.fetch_offset
        # An answer has batches of one segment, up to a limit: behind what was cut short there nothing is added.
        self._is_cut = end_offset < shard.high_watermark
        self._grows = False
        self._position = 0
        if active is not None:
            self._grows = end_offset == shard.high_watermark and wanted.fetch_offset >= active.key.base_offset
            self._position = active.hw_position

    def grow(self, shard: ShardLog) -> int | None:
        """The shard moved: how many bytes more it could give. None: look again to know."""
        active = self._active
        if shard.active is not active or shard.log_start_offset != self._log_start_offset or shard.stop is not None:
            return None
        if not shard.is_leader:
            return None
        if self._is_cut:
            return 0
        if active is None or not self._grows:
            return None
        position, before = active.hw_position, self.size_bytes
        size = min(before + position - self._position, self._most_bytes)
        self._position = position
        if size <= before:
            return 0
        self.size_bytes = size
        return size - before


def code_of(error: StratalogError, stats: ServeStats) -> int:
    """The error code of a partition whose read failed. Clients retry all of them, unless the user must hear of it."""
    if isinstance(error, NotFound):
        return ErrorCode.OFFSET_NOT_AVAILABLE
    if isinstance(error, Corrupt):
        # The client must see this error: with a retriable code a consumer would wait forever without knowing why.
        return ErrorCode.CORRUPT_MESSAGE
    if isinstance(error, OutOfReach):
        # Kafka's answer if remote storage fails: clients continue, and tell their users.
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(error, Unavailable):
        stats.reads_unavailable += 1
        # Retriable: consumers must not jump because a store is slow (F40), or because data must be restored first.
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def failed(partition: int, code: int, shard: ShardLog | None) -> FetchedPartition[ReadBuffer]:
    """The answer for a partition that the node cannot read."""
    if shard is not None and not shard.is_leader:
        # Whatever a replica cannot read its leader may.
        return FetchedPartition(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, current_leader=shard.leader)
    if shard is None or not shard.is_end_known:
        return FetchedPartition(partition, code, -1, -1, -1)
    return FetchedPartition(partition, code, shard.high_watermark, shard.last_stable_offset, shard.log_start_offset)


class PendingFetch(Parkable):
    """One fetch request until it is answered."""

    __slots__ = (
        "_begun_ns",
        "_connection",
        "_counted_bytes",
        "_enough_bytes",
        "_frame",
        "_header",
        "_is_done",
        "_is_overdue",
        "_is_parked",
        "_is_queued",
        "_is_sure",
        "_reads",
        "_request",
        "_scheduler",
        "_spent_ns",
        "_task",
        "_timer",
        "_usage",
        "_waits_on",
        "weight",
    )

    def __init__(self, scheduler: FetchScheduler, connection: Connection, header: RequestHeader) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._connection = connection
        self._usage = connection.usage
        self._begun_ns = self._spent_ns = 0
        """Since when it keeps the event loop, and for how long it did before: only where its client has a quota."""
        self._header = header
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_queued = False
        self._is_overdue = False
        self._is_parked = False
        self._is_done = False
        self._is_sure: bool | None = None
        """Whether the node has caught up with the metadata because it did not know a topic; None: not asked yet."""
        self._waits_on: dict[ShardLog, PartitionCount | None] = {}
        """Its shards while it waits: those that tell it when they move."""
        self._counted_bytes = 0
        self._reads: list[Read] = []
        """Results that this fetch still owns: it releases them if its connection closes now."""
        self._frame: bytes | None = None
        """What waits to be decoded."""
        self._request: FetchRequest | None = None
        self._enough_bytes = 0
        """What is worth an answer: no more than one may hold."""
        self.weight = _OF_ITSELF
        """The cost of one check, in partitions."""
        self.release = self._abandon

    def start(self, frame: memoryview) -> None:
        """Look now if that may be, or keep the frame until then. Raises: MalformedFrame."""
        size = len(frame)
        self.weight = weight = _OF_ITSELF + size // _FRAME_BYTES
        if size <= _LARGE_BYTES and self._scheduler.may_check(weight):
            self.attempt(frame)
        else:
            self._keep(frame)
            self._retry_soon()

    def _keep(self, frame: memoryview) -> None:
        self._frame = bytes(frame)
        self._connection.keep(self, len(frame))

    def _decode(self, frame: memoryview) -> FetchRequest:
        """Raises: MalformedFrame."""
        scheduler, header = self._scheduler, self._header
        most = scheduler.shard_count + _NAMED_IN_VAIN
        request = decode_fetch(frame, header.body_position, header.api_version, most + _NAMED_AGAIN)
        request.topics = distinct(request.topics, most)
        self._request = request
        self._enough_bytes = min(request.min_bytes, request.max_bytes, self._most_bytes)
        self._is_overdue = request.max_wait_ms <= 0
        if self._frame is not None:
            self._frame = None
            partitions = sum(len(partitions) for _, partitions in request.topics)
            self.weight = _OF_ITSELF + partitions
            self._connection.keep(self, partitions * _PARTITION_BYTES)
        return request

    # Waiting --------------------------------------------------------------------------------------------------------
    def wake(self, shard: ShardLog) -> None:
        """A shard moved: look again at the end of this turn, if that may be enough."""
        count = self._waits_on.get(shard)
        if count is not None and not self._is_queued:
            grown_bytes = count.grow(shard)
            if grown_bytes is not None:
                self._counted_bytes += grown_bytes
                if self._counted_bytes < self._enough_bytes:
                    return
        self._retry_soon()

    def _retry_soon(self) -> None:
        if not self._is_queued and not self._is_done:
            self._is_queued = True
            self._scheduler.retry(self)

    def has_room(self) -> bool:
        return self._connection.has_room_for(self, is_waiting=False)

    def unpark(self) -> bool:
        self._is_parked = False
        if self._is_done or self._task is not None:
            return False
        self._retry_soon()
        return True

    def retry(self) -> None:
        self._is_queued = False
        if not self._is_done and self._task is None:
            self.attempt()
        self._connection.wake_parked()

    def _expire(self) -> None:
        self._timer = None
        self._is_overdue = True
        if self._is_done or self._task is not None:
            return
        if not self._scheduler.may_check(self.weight):
            self._retry_soon()
            return
        try:
            self.attempt()
        except Exception as error:
            self.fail(error)
        self._scheduler.turn.request()

    def _abandon(self) -> None:
        """The connection is gone."""
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()  # before its first step, perhaps
        self._give_back()
        self._unregister()

    def _give_back(self) -> None:
        reads, self._reads = self._reads, []
        _release(reads)

    def _unregister(self) -> None:
        if self._waits_on:
            for shard in self._waits_on:
                shard.waiters.pop(self, None)
            self._waits_on = {}
            self._connection.waiting_fetches -= 1

    @property
    def _rack(self) -> str:
        return self._request.rack_id if self._request is not None else ""

    @property
    def _most_bytes(self) -> int:
        """What an answer may hold: never more than its client's quota could ever allow."""
        most_bytes = self._scheduler.limits.fetch_max_bytes
        if self._usage is None or self._usage.fetched is None:
            return most_bytes
        return min(most_bytes, self._usage.fetched.most_at_once)

    # Looking --------------------------------------------------------------------------------------------------------
    def attempt(self, frame: memoryview | None = None) -> None:
        """Gather what is there; answer, or wait: for more, or for room in the connection. `frame`: the request, where
        it was not kept. Raises: MalformedFrame."""
        if self._usage is None:
            self._check(frame)
            return
        self._begun_ns = perf_counter_ns()
        self._check(frame)
        if self._begun_ns:
            self._spent_ns += perf_counter_ns() - self._begun_ns
            self._begun_ns = 0

    def _check(self, frame: memoryview | None) -> None:
        if not self._connection.has_room_for(self, is_waiting=bool(self._waits_on)):
            self._park(frame)
            return
        request = self._request or self._decode(memoryview(self._frame or b"") if frame is None else frame)
        if request.session_id != 0:
            self._finish([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        scheduler, reads = self._scheduler, self._reads
        reader, shard_of, rack = scheduler.reader, scheduler.shard_of, request.rack_id
        room = AnswerRoom(reader.room_bytes(min(request.max_bytes, self._most_bytes)))
        has_error = is_cut = False
        slow: list[tuple[FetchedPartition[ReadBuffer], ShardLog, PartitionFetch, int]] = []
        answers: list[tuple[str, list[FetchedPartition[ReadBuffer]]]] = []
        looks: list[tuple[ShardLog, PartitionFetch, Read | None]] = []
        for name, partitions in request.topics:
            line = self._denied(name, partitions)
            answers.append((name, line))
            has_error = has_error or bool(line)
            for wanted in () if line else partitions:
                shard = shard_of(name, wanted.partition)
                code = self._refusal(name, shard, wanted)
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._is_sure is None:
                    return self._begin(self._catch_up)
                if (code or rack) and (refusal := self._turned_away(shard, wanted, rack, code)) is not None:
                    has_error = True
                    line.append(refusal)
                    continue
                assert shard is not None
                high_watermark, stable = shard.high_watermark, shard.last_stable_offset
                if not shard.is_leader:  # what a replica serves is sealed: nothing more will come
                    high_watermark = stable = scheduler.replicas.high_watermark(shard)
                    is_cut = True
                stands = wanted.partition, 0, high_watermark, stable, shard.log_start_offset
                if wanted.fetch_offset >= high_watermark:
                    line.append(FetchedPartition(*stands))
                    looks.append((shard, wanted, None))
                    continue
                if room.is_full:
                    line.append(FetchedPartition(*stands))
                    is_cut = True
                    continue
                want = room.wanted_bytes(wanted.max_bytes)
                try:
                    read = read_hot(reader, shard, wanted.fetch_offset, want, high_watermark)
                except NotCached:
                    line.append(FetchedPartition(*stands))
                    slow.append((line[-1], shard, wanted, want))
                    room.read_later()
                    continue
                except StratalogError as error:
                    has_error = True
                    line.append(failed(wanted.partition, code_of(error, scheduler.stats), shard))
                    continue
                is_cut = is_cut or (wanted.max_bytes > room.left_bytes and read.next_offset < high_watermark)
                if not room.add(size := read.size_bytes, wanted.max_bytes):
                    _release([read])
                    line.append(FetchedPartition(*stands))
                    is_cut = True
                    continue
                shard.work.fetched_bytes += size
                reads.append(read)
                looks.append((shard, wanted, read))
                line.append(FetchedPartition(*stands, read.buffers, size))
        if slow:
            self._begin(partial(self._read_slowly, answers, slow, looks, room))
        elif has_error or is_cut or room.total_bytes >= self._enough_bytes or self._is_overdue or not looks:
            # Cut: there is more than this answer has room for, so waiting adds nothing to it.
            self._answer(answers, reads)
        else:
            self._wait(looks, room.total_bytes)

    def _denied(self, name: str, partitions: Iterable[PartitionFetch]) -> list[FetchedPartition[ReadBuffer]]:
        """The answers of a topic that the client may not read; none if it may."""
        if self._connection.rights.may_topic(Operation.READ, name):
            return []
        return [failed(wanted.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None) for wanted in partitions]

    def _park(self, frame: memoryview | None) -> None:
        """It looks again once there is room, and need not be told of anything before."""
        if frame is not None:
            self._keep(frame)
        self._unregister()
        if not self._is_parked:
            self._is_parked = True
            self._connection.park(self)

    def _wait(self, looks: list[tuple[ShardLog, PartitionFetch, Read | None]], total: int) -> None:
        """Also for those that have data: it may be less than the client's min_bytes, and more must wake it."""
        counts: dict[ShardLog, PartitionCount | None]
        if self._enough_bytes > 1:
            counts = {shard: PartitionCount(shard, wanted, read) for shard, wanted, read in looks}
        else:  # as most ask: whatever comes is enough
            counts = dict.fromkeys([shard for shard, _, _ in looks])
        # Once; and again when a topic was made again under its name.
        if not self._waits_on or counts.keys() != self._waits_on.keys():
            self._unregister()
            self._connection.waiting_fetches += 1
            for shard in counts:
                shard.waiters[self] = None
        self._waits_on = counts
        self._counted_bytes = total
        if self._timer is None:
            assert self._request is not None
            self._timer = self._scheduler.loop.call_later(self._request.max_wait_ms / 1000, self._expire)
        self._give_back()

    def _turned_away(
        self, shard: ShardLog | None, wanted: PartitionFetch, rack: str, code: int
    ) -> FetchedPartition[ReadBuffer] | None:
        """What refuses it, or sends a consumer that names its rack to another replica, or back from one."""
        if rack and shard is not None and not (code and shard.is_leader):
            consumer, offset = self._header.client_id or "", wanted.fetch_offset
            replicas = self._scheduler.replicas
            sent = replicas.elsewhere(self._connection, consumer, rack, shard, wanted.partition, offset)
            if sent is not None:
                return sent
        return failed(wanted.partition, code, shard) if code else None

    def _refusal(self, name: str, shard: ShardLog | None, wanted: PartitionFetch) -> int:
        if shard is None:
            code = self._scheduler.missing_shard_error(name, wanted.partition)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if self._is_sure is False else code
        if not shard.is_leader:  # what it knows of the high watermark may be old, and would make consumers jump
            is_served = self._rack and self._scheduler.replicas.serves(shard, wanted.fetch_offset)
            return 0 if is_served else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if wanted.current_leader_epoch >= 0 and (order := shard.compare_epoch(wanted.current_leader_epoch)):
            return ErrorCode.FENCED_LEADER_EPOCH if order < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
        offset, high_watermark = wanted.fetch_offset, shard.high_watermark
        if offset < shard.log_start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset >= high_watermark:
            if not shard.is_end_known:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if offset > high_watermark and offset > shard.end_offset:
                return ErrorCode.OFFSET_OUT_OF_RANGE
        return 0

    async def _catch_up(self) -> None:
        """The client may have heard of the topic from a node that knows more of the metadata. Then look again."""
        self._give_back()
        try:
            self._is_sure = await self._scheduler.catch_up()
        finally:
            self._connection.slow_reads -= 1
        self._task = None
        self._retry_soon()

    # Disk and object store ------------------------------------------------------------------------------------------
    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        self._unregister()
        self._connection.slow_reads += 1
        self._task = self._scheduler.loop.create_task(self._or_close(work))

    async def _or_close(self, work: Callable[[], Awaitable[None]]) -> None:
        """An unforeseen fault costs one connection, not a client that waits forever (F48)."""
        try:
            await work()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        if isinstance(error, MalformedFrame):
            self._connection.close(str(error), is_fault=True)
            return
        log.error("fetch failed", client=self._header.client_id, error=str(error), exc_info=error)
        self._connection.close(f"Fetch failed: {error}")

    async def _read_slowly(
        self,
        answers: list[tuple[str, list[FetchedPartition[ReadBuffer]]]],
        slow: list[tuple[FetchedPartition[ReadBuffer], ShardLog, PartitionFetch, int]],
        looks: list[tuple[ShardLog, PartitionFetch, Read | None]],
        room: AnswerRoom,
    ) -> None:
        """Read the rest, as much as there is room for (`serve.fetching.slow_reads`); the others are left for the next
        fetch.

        `slow`: with how much to read of each. `looks`: at the partitions that were not left to it, in the order of the
        request.
        """
        assert self._request is not None and room.later_bytes is not None
        wants = [(shard, wanted.fetch_offset, want, answer.high_watermark) for answer, shard, wanted, want in slow]
        assert self._header is not None
        client, missing_bytes = self._header.client_id or "", self._enough_bytes - room.total_bytes
        slow_reads = SlowReads(self._scheduler.reader, wants, room.later_bytes, missing_bytes, client)
        tasks = slow_reads.tasks
        try:
            await slow_reads.run(max(self._request.max_wait_ms / 1000, _SLOW_READ_S))
        except asyncio.CancelledError:
            _release(task.result() for task in tasks if task.done() and not task.cancelled() and not task.exception())
            raise
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            self._connection.slow_reads -= 1
        unread: dict[int, FetchedPartition[ReadBuffer]] = {}
        reads: dict[int, tuple[ShardLog, PartitionFetch, Read]] = {}
        for (answer, shard, wanted, _), task in zip(slow, tasks, strict=False):
            if not task.done() or task.cancelled():
                continue
            error = task.exception()
            if isinstance(error, StratalogError):
                unread[id(answer)] = failed(wanted.partition, code_of(error, self._scheduler.stats), shard)
            elif error is not None:
                log.error("read failed", topic=shard.topic.name, error=str(error), exc_info=error)
                unread[id(answer)] = failed(wanted.partition, ErrorCode.UNKNOWN_SERVER_ERROR, shard)
            else:
                reads[id(answer)] = shard, wanted, task.result()
        hot = [(shard, wanted, read) for shard, wanted, read in looks if read is not None]
        self._fit(answers, hot, reads, unread, room.limit_bytes)
        self._answer(answers, self._reads)
        self._scheduler.turn.request()

    def _fit(
        self,
        answers: list[tuple[str, list[FetchedPartition[ReadBuffer]]]],
        hot: list[tuple[ShardLog, PartitionFetch, Read]],
        reads: dict[int, tuple[ShardLog, PartitionFetch, Read]],
        unread: dict[int, FetchedPartition[ReadBuffer]],
        limit_bytes: int,
    ) -> None:
        """Take what was read into the answer in the order of the request: the first in any case, the others as they
        fit. Only the first batch of an answer may exceed the limit: a client that allows for no more could not read it.
        What was read from memory and does not fit is read again, as far as there is room. What the client may not read
        any more is given back.
        """
        in_memory, room = iter(hot), AnswerRoom(limit_bytes)
        self._reads = []
        for name, line in answers:
            is_revoked = self._is_revoked(name, line)
            for index, answer in enumerate(line):
                got = next(in_memory) if answer.records_bytes else reads.get(id(answer))
                if is_revoked:
                    line[index] = failed(answer.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
                    if got is not None:
                        got[0].work.fetched_bytes -= answer.records_bytes
                        _release([got[2]])
                    continue
                if got is None:
                    line[index] = unread.get(id(answer), answer)
                    continue
                shard, wanted, read = got
                if not room.add(read.size_bytes, wanted.max_bytes):
                    _release([read])
                    read = self._read_less(shard, wanted, room) if answer.records_bytes else _NOTHING
                shard.work.fetched_bytes += read.size_bytes - answer.records_bytes
                if read.size_bytes:
                    self._reads.append(read)
                line[index] = answer._replace(records=read.buffers, records_bytes=read.size_bytes)

    def _is_revoked(self, name: str, line: Sequence[FetchedPartition[ReadBuffer]]) -> bool:
        """Whether the client lost its right to read a topic while it was read."""
        was_denied = bool(line) and line[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return not was_denied and not self._connection.rights.may_topic(Operation.READ, name)

    def _read_less(self, shard: ShardLog, wanted: PartitionFetch, room: AnswerRoom) -> Read:
        """The front of what was read before, thus nothing above the high watermark that is answered."""
        if room.is_full:
            return _NOTHING
        try:
            want = room.wanted_bytes(wanted.max_bytes)
            read = read_hot(self._scheduler.reader, shard, wanted.fetch_offset, want, shard.high_watermark)
        except (NotCached, StratalogError):
            return _NOTHING
        if room.add(read.size_bytes, wanted.max_bytes):
            return read
        _release([read])
        return _NOTHING

    # Answering ------------------------------------------------------------------------------------------------------
    def _answer(self, answers: list[tuple[str, list[FetchedPartition[ReadBuffer]]]], reads: list[Read]) -> None:
        self._reads = reads
        if self._connection.is_closed:
            self._give_back()
            return
        self._finish(answers, 0)
        if self._reads:
            self.release = reads[0].release if len(reads) == 1 else lambda: _release(reads)

    def _finish(self, answers: list[tuple[str, list[FetchedPartition[ReadBuffer]]]], error_code: int) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        self._unregister()
        self._scheduler.stats.fetch_requests += 1
        connection, header = self._connection, self._header
        version, number = header.api_version, header.correlation_id
        buffers = encode_fetch_response(version, number, error_code, 0, answers, connection.throttle_ms)
        if self._usage is not None:
            if not self._may_send(self._usage, sum(map(len, buffers))):
                self._keep_back(answers)
                answers = []
            if connection.muted_until_ms:
                buffers = encode_fetch_response(version, number, error_code, 0, answers, connection.throttle_ms)
        self.buffers = buffers
        self.release = None
        connection.hold(self, sum(map(len, buffers)))
        connection.answer_ready()

    def _may_send(self, usage: ClientUsage, size_bytes: int) -> bool:
        spent_ns = self._spent_ns + (perf_counter_ns() - self._begun_ns if self._begun_ns else 0)
        self._begun_ns = self._spent_ns = 0
        return self._scheduler.quotas.may_send(self._connection, usage, size_bytes, spent_ns)

    def _keep_back(self, answers: list[tuple[str, list[FetchedPartition[ReadBuffer]]]]) -> None:
        """What was read is not sent: its client used up its quota."""
        for name, line in answers:
            for one in line:
                if one.records_bytes and (shard := self._scheduler.shard_of(name, one.partition)) is not None:
                    shard.work.fetched_bytes -= one.records_bytes
        self._give_back()


def _release(reads: Iterable[Read]) -> None:
    for read in reads:
        read.give_back()
