"""All shards of this node, and the loop turn that drives them.

Lives on the event loop. `tick` is the heart: requests of one turn have put their batches into shards; the tick flushes
each dirty shard once, then tells the listeners which shards moved.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stratalog.formats.record_batch import check_batch
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import OfferedBatch, ProposeIsr
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import DiskFull, Fenced, OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    Change,
    SegmentChanged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.producers import ProducerSnapshot
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.catalog import Catalog
from stratalog_node.shards.missing_files import look_for
from stratalog_node.shards.rules import ShardRules
from stratalog_node.shards.sealed_points import SealedPoints
from stratalog_node.shards.shard_log import ShardLog
from stratalog_node.shards.shard_lookup import DiskUsage
from stratalog_node.shards.shard_view import ShardView
from stratalog_node.shards.stats import ShardStats
from stratalog_node.shards.stopped import Stop, StopCause

if TYPE_CHECKING:
    from stratalog_node.shards.flusher import Flusher
    from stratalog_node.shards.ranges import ColdTimes
    from stratalog_node.shards.reading import ShardReader
    from stratalog_node.shards.sealing import Sealing

log = logger(__name__)

_PIN_LOOK_S = 0.01
_FAILURE_TOLD_MS = 10_000
"""A failing disk fails every write: one line in so long, with the count."""
_PIN_LOOKS = 200
_TIME_LOOKS = 2
"""Look-ups by time on the disk threads at once: each may take one for a second, and reads need some, too."""
_OPENINGS_PER_TURN = 32
"""First appends per turn that make their file at once: a burst over thousands of new shards must not hold the loop."""
_MOST_DEFERRED_BYTES = 64 << 20
"""What batches may take that wait for their turn to make a file: they are copies, outside the receive buffers' budget.
Those beyond it make their files at once after all."""


class NodeShards:
    """The shards this node leads or holds, by key and by name."""

    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        settings: ProcessSettings,
        catalog: Catalog,
        meta: MetaClient,
        layout: NodeLayout,
        threads: DiskThreads,
        descriptors: Descriptors,
        clock_ms: Callable[[], int],
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.settings = settings
        self.catalog = catalog
        self.meta = meta
        self.layout = layout
        self.threads = threads
        self.descriptors = descriptors
        self.clock_ms = clock_ms
        self.now_ms = clock_ms()
        self.stats = ShardStats()
        self.sealed_points = SealedPoints(threads, settings.log_index_cache_bytes)
        self.refusal: tuple[ErrorCode, str] | None = None
        """Why the whole node takes no writes, if so (disk full, hard limit)."""
        self.flusher: Flusher
        self.reader: ShardReader
        self.cold_times: ColdTimes | None = None
        self.time_looks = asyncio.Semaphore(_TIME_LOOKS)
        self.sealing: Sealing
        self.request_tick: Callable[[], None] = lambda: None
        self._shards: dict[ShardKey, ShardLog] = {}
        self._by_name: dict[str, list[ShardLog | None]] = {}
        self._rules: dict[Any, ShardRules] = {}
        self._failure_told_ms = -_FAILURE_TOLD_MS
        self._dirty: list[ShardLog] = []
        self._deferred: list[ShardLog] = []
        self._openings_left = _OPENINGS_PER_TURN
        self._deferred_bytes = 0
        self._advanced: dict[ShardLog, None] = {}
        self._committed_listeners: list[Callable[[ShardLog], None]] = []
        self._segment_listeners: list[Callable[[ShardLog, Segment], None]] = []
        self._write_listeners: list[Callable[[ShardLog, ActiveSegment], None]] = []
        self._failure_listeners: list[Callable[[StratalogError], None]] = []

    # Looking up -----------------------------------------------------------------------------------------------------
    def get(self, key: ShardKey) -> ShardLog | None:
        return self._shards.get(key)

    def by_name(self, topic: str, shard: int) -> ShardLog | None:
        shards = self._by_name.get(topic)
        if shards is not None and 0 <= shard < len(shards):
            return shards[shard]
        return None

    @property
    def count(self) -> int:
        return len(self._shards)

    def all(self) -> Iterable[ShardLog]:
        return self._shards.values()

    def stopped(self) -> list[tuple[ShardLog, Stop]]:
        """Those that take no writes until the next start, with the reason. Cost: a look at each shard."""
        return [(shard, shard.refusal) for shard in self._shards.values() if shard.refusal is not None]

    def doubted(self) -> dict[ShardKey, int]:
        """Shards of which the active segment takes no batches (see `ShardLog.doubted_epoch`), with its epoch."""
        return {
            key: shard.doubted_epoch
            for key, shard in self._shards.items()
            if shard.doubted_epoch >= 0 and shard.epoch == shard.doubted_epoch
        }

    def on_committed(self, listener: Callable[[ShardLog], None]) -> None:
        self._committed_listeners.append(listener)

    def on_segment_changed(self, listener: Callable[[ShardLog, Segment], None]) -> None:
        self._segment_listeners.append(listener)

    def on_written(self, listener: Callable[[ShardLog, ActiveSegment], None]) -> None:
        """Called once per write group: the checkpointer's dirty set."""
        self._write_listeners.append(listener)

    def on_write_failure(self, listener: Callable[[StratalogError], None]) -> None:
        self._failure_listeners.append(listener)

    def producer_table(self, snapshots: Iterable[ProducerSnapshot]) -> ProducerTable:
        return ProducerTable(snapshots, self.settings.producer_id_max_per_shard)

    # The turn -------------------------------------------------------------------------------------------------------
    def mark_dirty(self, shard: ShardLog) -> None:
        self._dirty.append(shard)
        self.request_tick()

    def tick(self) -> None:
        now_ms = self.now_ms
        self._openings_left = _OPENINGS_PER_TURN
        self._deferred_bytes = 0
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for shard in dirty:
                try:
                    shard.flush_pending(now_ms)
                except Exception as error:  # one shard's fault must not take the turn of all others (F48)
                    log.error("shard stopped by a fault", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)
                    shard.stop_after_fault(f"a fault in the node, see its log: {error}")
        self.announce()
        if self._deferred:
            self._dirty, self._deferred = self._deferred, []
            self.request_tick()

    def may_open(self, batches: Sequence[OfferedBatch]) -> bool:
        """Whether one more segment file is made in this turn, for these. False: `defer` its shard."""
        self._openings_left -= 1
        if self._openings_left >= 0:
            return True
        size_bytes = sum(batch.size_bytes for batch in batches)
        if self._deferred_bytes + size_bytes > _MOST_DEFERRED_BYTES:
            return True
        self._deferred_bytes += size_bytes
        return False

    def defer(self, shard: ShardLog) -> None:
        """Flush it in the next turn; its payloads no longer lie in receive buffers."""
        self._deferred.append(shard)

    def announce(self) -> None:
        """Tell who waits and who uploads which shards moved, once each."""
        while self._advanced:
            advanced, self._advanced = self._advanced, {}
            for shard in advanced:
                shard.wake_waiters()
                for listener in self._committed_listeners:
                    try:
                        listener(shard)
                    except Exception:  # see above
                        log.error("a listener failed", topic=shard.topic.name, shard=shard.key.shard, exc_info=True)

    def advanced(self, shard: ShardLog) -> None:
        self._advanced[shard] = None
        self.request_tick()

    def written(self, shard: ShardLog, active: ActiveSegment) -> None:
        for listener in self._write_listeners:
            listener(shard, active)

    def write_failed(self, shard: ShardLog, error: StratalogError) -> None:
        self.stats.write_failures += 1
        if self.now_ms - self._failure_told_ms >= _FAILURE_TOLD_MS:
            self._failure_told_ms = self.now_ms
            count = self.stats.write_failures
            log.error("write failed", topic=shard.topic.name, shard=shard.key.shard, error=str(error), failures=count)
        for listener in self._failure_listeners:
            listener(error)

    def propose_isr(self, shard: ShardLog, active: ActiveSegment, effect: ProposeIsr) -> None:
        """Carry an ISR proposal to the meta service; its answer steps the leader again."""
        self.sealing.propose_isr(shard, active, effect)

    # Appends of the node itself ---------------------------------------------------------------------------------
    async def append_internally(self, shard: ShardLog, batches: Sequence[bytes]) -> int:
        if not batches:
            return shard.end_offset
        request = InternalAppend(len(batches))
        source = f"batch for {shard.topic.name}-{shard.key.shard}"
        # All are checked before one is offered: of what is refused here nothing is appended.
        headers = [check_batch(data, source=source) for data in batches]
        for place, (data, header) in enumerate(zip(batches, headers, strict=True)):
            shard.offer(
                OfferedBatch(
                    memoryview(bytearray(data)),
                    len(data),
                    header.record_count,
                    header.max_timestamp_ms,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    -1,
                    request,
                    place,
                )
            )
        return await request.first_offset

    # Following the catalog ------------------------------------------------------------------------------------------
    def rules_for(self, topic: Topic) -> ShardRules:
        rules = self._rules.get(topic.topic_id)
        if rules is None:
            rules = self._rules[topic.topic_id] = ShardRules(self.catalog.topic_settings(topic.topic_id))
        return rules

    def attach(self, key: ShardKey) -> ShardLog | None:
        """Make the shard's object, empty. Recovery fills in what the disk holds."""
        topic = self.catalog.topic_by_id(key.topic_id)
        if topic is None or key in self._shards:
            return self._shards.get(key)
        shard = ShardLog(self, key, topic, self.rules_for(topic))
        shard.log_start_offset = self.catalog.log_start_offset(key)
        segments = self.catalog.segments(key)
        shard.high_watermark = segments[-1].base_offset if segments else 0
        shard.led_since_epoch = segments[-1].epoch if segments else 0
        self._shards[key] = shard
        line = self._by_name.setdefault(topic.name, [])
        line.extend([None] * (key.shard + 1 - len(line)))
        line[key.shard] = shard
        return shard

    def follow(self, change: Change) -> None:
        """The catalog changed: keep shards, settings and log starts in step."""
        match change:
            case TopicChanged(topic):
                self._rules.pop(topic.topic_id, None)
                rules = self.rules_for(topic)
                for index in range(topic.shard_count):
                    shard = self._shards.get(ShardKey(topic.topic_id, index))
                    if shard is not None:
                        shard.apply_rules(topic, rules)
            case TopicDeleted(topic):
                self._detach(topic)
            case ShardChanged(changed):
                shard = self._shards.get(changed.key) or self.attach(changed.key)
                if shard is not None and changed.log_start_offset > shard.log_start_offset:
                    shard.log_start_offset = changed.log_start_offset
                    shard.wake_waiters()
            case SegmentChanged(segment):
                shard = self._shards.get(segment.key.shard_key)
                if shard is not None:
                    if segment.state is SegmentState.DELETED:
                        shard.missing.discard(segment.key)
                    self.segment_changed(shard, segment)
            case _:
                pass

    def segment_changed(self, shard: ShardLog, segment: Segment) -> None:
        """Its record changed, or its local copy came or went."""
        for listener in self._segment_listeners:
            listener(shard, segment)

    async def look_for_missing(self, key: ShardKey) -> None:
        """Take back sealed copies whose file is there again."""
        shard = self._shards.get(key)
        for segment in list(shard.missing) if shard is not None else ():
            assert shard is not None
            await look_for(shard, segment)

    def _detach(self, topic: Topic) -> None:
        """The topic is gone: writers and readers learn it now, files go after the grace period."""
        self._rules.pop(topic.topic_id, None)
        line = self._by_name.get(topic.name) or []
        if any(s is not None and s.key.topic_id == topic.topic_id for s in line):
            del self._by_name[topic.name]
        for index in range(max(topic.shard_count, len(line))):
            shard = self._shards.pop(ShardKey(topic.topic_id, index), None)
            if shard is None:
                continue
            shard.stop_leading("the topic was deleted")
            shard.refusal = Stop(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted", StopCause.DEPOSED)
            unsealed = [*shard.ended, *([shard.active] if shard.active else [])]
            self.sealing.detached(shard, unsealed)
            for copy in (*shard.copies.values(), *unsealed):
                copy.file.retire()
                self.sealed_points.forget(copy)
            # Whoever reads now still finds the bytes; nobody else comes.
            shard.copies.update((copy.key.epoch, copy) for copy in unsealed)
            shard.active = None
            shard.ended = []

    # Freeing --------------------------------------------------------------------------------------------------------
    async def free_local(self, shard: ShardView | None, segment: SegmentKey) -> None:
        """Delete a local copy, file and index, off the loop. The caller had meta agree, or the segment is deleted.

        Readers get a moment to finish; one that takes its answer slowly keeps the bytes, but not the names.
        """
        log_of = self._shards.get(segment.shard_key)
        copy = log_of.take_out(segment) if log_of is not None else None
        looks_left = _PIN_LOOKS
        # Readers hold a pin for one read: an event per file would cost more than this look.
        while copy is not None and copy.file.pins and looks_left:
            looks_left -= 1
            await asyncio.sleep(_PIN_LOOK_S)
        file = copy.file if copy is not None else SegmentFile(self.layout.segment(segment), self.descriptors, 0)
        index_path = self.layout.index(segment)
        is_read = file.pins > 0
        is_topic_gone = self.catalog.topic_by_id(segment.topic_id) is None

        def remove() -> None:
            # The index first: a crash in between leaves a segment file, which the next start knows and takes away.
            index_path.unlink(missing_ok=True)
            file.remove(is_read=is_read)
            if is_topic_gone:
                self.layout.remove_leftovers(segment.shard_key)

        file.retire()
        if copy is not None:
            self.sealed_points.forget(copy)
        await self.threads.background(remove)
        self.stats.local_copies_freed += 1

    def local_bytes(self) -> int:
        """Bytes of all local copies."""
        total = 0
        for shard in self._shards.values():
            if shard.active is not None:
                total += shard.active.file.size_bytes
            for ended in shard.ended:
                total += ended.file.size_bytes
            for copy in shard.copies.values():
                total += copy.file.size_bytes
        return total

    def disk_usage(self) -> DiskUsage:
        usage = os.statvfs(self.layout.root)
        return DiskUsage(str(self.layout.root), usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize)

    def is_local_state(self, segment: Segment) -> bool:
        """Whether this node should hold a copy of it."""
        if segment.state is SegmentState.SEALED:
            return self.node_id in segment.local_nodes
        return self.node_id in segment.replicas


_APPEND_ERRORS: dict[int, type[StratalogError]] = {
    ErrorCode.KAFKA_STORAGE_ERROR: DiskFull,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Fenced,
    ErrorCode.REQUEST_TIMED_OUT: OutcomeUnknown,
}
"""What each refusal promises: only `Fenced` says that another leads, only `OutcomeUnknown` that it may be appended."""


class InternalAppend:
    """Answers of batches that the node itself appends, as one awaitable."""

    __slots__ = ("_first", "_missing", "first_offset")

    def __init__(self, count: int) -> None:
        self.first_offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._missing = count
        self._first = -1

    def settle(
        self,
        place: int,
        error_code: int,
        base_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        message: str | None = None,
    ) -> None:
        if self.first_offset.done():
            return
        if error_code:
            kind = _APPEND_ERRORS.get(error_code, Unavailable)
            self.first_offset.set_exception(kind(f"append refused: {ErrorCode(error_code).name}: {message}"))
            return
        if place == 0:
            self._first = base_offset
        self._missing -= 1
        if self._missing == 0:
            self.first_offset.set_result(self._first)
