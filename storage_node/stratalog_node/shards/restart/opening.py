"""The files of one shard's unsealed segments during a restart: inspects, scans, cuts, sets aside, creates them again.

`machines.restart.shard_restart` decides the steps and their order; this performs one step at a time and reports what it
found. Afterwards the files with which the log continues become `ActiveSegment`s.
Runs before the shard serves; scans on the disk threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.disk.segment_file import (
    SEGMENT_HEADER_BYTES,
    check_identity,
    decode_segment_header,
    encode_segment_header,
)
from stratalog.formats.disk.tail_damage import TailKind, judge_tail
from stratalog.formats.segments.index_points import IndexBuilder, IndexPoint
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.restart import restart_events
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentIdentity, SegmentState
from stratalog.model.storage_policy import StoragePolicy
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_front
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import UNCONFIRMED_SUFFIX
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.flush.flusher import Flusher
from stratalog_node.shards.log.new_segment import identity_of
from stratalog_node.shards.log.shard_log import ShardLog

log = logger(__name__)

_SHORT_BYTES = 64 << 10


@dataclass(slots=True)
class _OpenedFile:
    file: SegmentFile
    identity: SegmentIdentity
    scans: dict[int, SegmentScan] = field(default_factory=dict)
    """By the position that each began at."""
    is_flushed: bool = False


class OpenedFiles:
    """The files of one pass over one shard."""

    def __init__(
        self,
        context: ShardContext,
        flusher: Flusher,
        shard: ShardLog,
        checkpoints: Mapping[SegmentKey, Checkpoint],
        *,
        is_memory_kept: bool,
    ) -> None:
        """`is_memory_kept`: all that the last life wrote is there, unless the disk damaged it."""
        self._context = context
        self._flusher = flusher
        self._shard = shard
        self._checkpoints = checkpoints
        self._is_memory_kept = is_memory_kept
        self._opened: dict[SegmentKey, _OpenedFile] = {}

    async def perform(self, step: restart_events.FileStep) -> restart_events.RestartEvent | None:
        """Raises: Unavailable, DiskFull, OSError: the step could not be done."""
        match step:
            case restart_events.OpenFile(key):
                return self._open(key)
            case restart_events.SetAside(key):
                set_aside(self._context.layout.segment(key))
                self._drop(key)
            case restart_events.RecreateFile(key):
                recreate_file(self._context, key, self._shard.topic.name)
            case restart_events.ScanFile(key, from_position, producers):
                return await self._scan(key, from_position, producers)
            case restart_events.TraceCheckpoint(key):
                return self._trace(key)
            case restart_events.CutTail(key, position):
                self._cut(self._opened[key], position)
            case restart_events.FlushFile(key):
                opened = self._opened[key]
                await self._context.threads.read(lambda: opened.file.sync(with_names=True))
                opened.is_flushed = True
            case _:
                assert_never(step)
        return None

    def activate(self, found: restart_events.RecoveredSegment) -> ActiveSegment:
        """The segment with which the log continues. The caller owns its leader and its file from now on."""
        opened = self._opened.pop(found.key)
        scan, file = opened.scans[found.checked_from], opened.file
        active = ActiveSegment(
            opened.identity,
            file,
            self._leader_of(found, scan, opened.identity.created_ms),
            scan.index,
            self._context.ends.mark(found.key),
            checked_from=found.checked_from,
        )
        if opened.is_flushed:
            active.flushed_bytes = file.size_bytes
        elif found.checked_from:
            active.flushed_bytes = SEGMENT_HEADER_BYTES + found.checked_from
        if found.checked_from < found.size_bytes:
            # So that the next start does not read it again, even if no batch is written until then.
            self._flusher.note_written(self._shard, active)
        return active

    def _leader_of(self, found: restart_events.RecoveredSegment, scan: SegmentScan, created_ms: int) -> SegmentLeader:
        record = self._context.catalog.segment(found.key)
        is_direct = record is not None and record.is_direct
        if record is None:  # a roll that the meta service does not know: what it opens is what it was prepared as
            record = self._context.catalog.segments(found.key.shard_key)[-1]
            is_direct = (record.handed.prepared or record).policy is StoragePolicy.DIRECT
        is_end_known = found.is_confirmed and record.state is not SegmentState.ACTIVE
        return SegmentLeader(
            found.key,
            self._context.node_id,
            self._shard.rules.roll,
            scan.producers,
            isr=record.isr,
            isr_version=record.isr_version if found.is_confirmed else 0,
            replicas=record.replicas,
            end_offset=found.end_offset,
            high_watermark=found.end_offset if is_end_known else None,
            size_bytes=found.size_bytes,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            first_append_ms=created_ms if found.size_bytes else None,
            is_confirmed=found.is_confirmed,
            is_tail_doubted=found.is_tail_doubted,
            is_ended=found.is_ended,
            is_direct=is_direct,
        )

    def close(self) -> None:
        """Closes the files that were not taken."""
        for opened in self._opened.values():
            opened.file.close()
        self._opened.clear()

    def _drop(self, key: SegmentKey) -> None:
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.file.close()

    # Steps --------------------------------------------------------------------------------------------------------
    def _open(self, key: SegmentKey) -> restart_events.FileOpened | restart_events.FileDamaged:
        path = self._context.layout.segment(key)
        identity = identity_of(self._context, key, self._shard.topic.name)
        file = SegmentFile(path, self._context.descriptors, path.stat().st_size)
        front = read_front(path, SEGMENT_HEADER_BYTES)
        has_header = is_header(front)
        if has_header:
            assert front is not None
            try:
                found = decode_segment_header(front, source=str(path))
                check_identity(found, identity, source=str(path))
            except Corrupt as error:
                return restart_events.FileDamaged(key, str(error))
            identity = found
        self._opened[key] = _OpenedFile(file, identity)
        return restart_events.FileOpened(key, file.size_bytes - SEGMENT_HEADER_BYTES, has_header)

    async def _scan(
        self, key: SegmentKey, from_position: int, producers: restart_events.Producers
    ) -> restart_events.FileScanned:
        opened = self._opened[key]
        file = opened.file
        if opened.scans:
            log.warning("checkpoint doubted: reading the segment from its start", file=str(file.path))
        scan = opened.scans[from_position] = self._begin_scan(key, from_position, producers)
        data_bytes = file.size_bytes - SEGMENT_HEADER_BYTES

        seen_offset = -1

        def read(at: int, size: int) -> bytes:
            return file.read(SEGMENT_HEADER_BYTES + at, size)

        def work() -> None:
            nonlocal seen_offset
            scan.advance(read, data_bytes)
            if self._is_memory_kept and scan.position < data_bytes:
                tail = judge_tail(read, scan.position, data_bytes, scan.next_offset, key.epoch)
                seen_offset = tail.seen_offset if tail.kind is TailKind.DAMAGED else -1

        if data_bytes - from_position > _SHORT_BYTES:
            await self._context.threads.read_file(file, work)
        elif data_bytes > from_position:
            work()  # the node serves no clients yet, and a thread costs more than this
        if seen_offset >= 0:
            log.error(
                "a file is damaged: batches that were written cannot be read",
                file=str(file.path),
                position=SEGMENT_HEADER_BYTES + scan.position,
                end_offset=scan.next_offset,
                seen_offset=seen_offset,
                reason=scan.stopped,
            )
        return restart_events.FileScanned(key, scan.position, scan.next_offset, scan.producers.snapshot(), seen_offset)

    def _begin_scan(self, key: SegmentKey, from_position: int, producers: restart_events.Producers) -> SegmentScan:
        table, now_ms = self._context.producer_table(producers), self._context.turn.now_ms
        if from_position == 0:
            return SegmentScan.begin(key, table, now_ms)
        checkpoint = self._checkpoints[key]
        index = IndexBuilder.resume(
            key.base_offset,
            checkpoint.points,
            checkpoint.position,
            checkpoint.first_timestamp_ms,
            checkpoint.max_timestamp_ms,
        )
        return SegmentScan(key, index, table, checkpoint.position, checkpoint.next_offset, now_ms=now_ms)

    def _trace(self, key: SegmentKey) -> restart_events.CheckpointTraced:
        """Scans from the last index point on. It checks headers only: a batch that was damaged after its flush must not
        cause the batches behind it to be cut."""
        file, checkpoint = self._opened[key].file, self._checkpoints[key]
        points = checkpoint.points
        last = points[len(points) - 1] if len(points) else IndexPoint(key.base_offset, 0, -1)
        data = file.read(SEGMENT_HEADER_BYTES + last.position, checkpoint.position - last.position)
        next_offset = last.offset
        try:
            for _, header in walk(
                data, source=str(file.path), verify=False, expected_base_offset=next_offset, epoch=key.epoch
            ):
                next_offset = header.end_offset
        except Corrupt:
            return restart_events.CheckpointTraced(key, is_led_to=False)
        return restart_events.CheckpointTraced(key, is_led_to=next_offset == checkpoint.next_offset)

    def _cut(self, opened: _OpenedFile, position: int) -> None:
        file, end = opened.file, SEGMENT_HEADER_BYTES + position
        if not _holds_only_zeros_from(file, end):
            torn = file.size_bytes - end
            reason = next((scan.stopped for scan in opened.scans.values() if scan.position == position), None)
            self._context.stats.torn_tail_bytes += torn
            log.warning("torn tail cut", file=str(file.path), bytes=torn, position=end, reason=reason)
        file.truncate(end)


def is_header(front: bytes | None) -> bool:
    """Whether a file that begins so had its header written, whatever it says."""
    return front is not None and len(front) >= SEGMENT_HEADER_BYTES and any(front)


def recreate_file(context: ShardContext, key: SegmentKey, topic: str) -> None:
    """Blocking. Raises: DiskFull, Unavailable."""
    file = SegmentFile(context.layout.segment(key), context.descriptors, 0)
    file.create(encode_segment_header(identity_of(context, key, topic)))
    file.close()


def set_aside(path: Path) -> None:
    """Batches that this life does without: their roll was not acknowledged, or their header is gone. Kept under another
    name for a human."""
    target = path.with_suffix(UNCONFIRMED_SUFFIX)
    log.warning("segment file set aside", file=str(path), kept_as=str(target))
    path.rename(target)


def _holds_only_zeros_from(file: SegmentFile, position: int) -> bool:
    """Blocking: one window in the usual case, for a torn tail is seen at its first byte and room ahead is short."""
    positions = range(position, file.size_bytes, _SHORT_BYTES)
    return not any(file.read(at, min(_SHORT_BYTES, file.size_bytes - at)).strip(b"\0") for at in positions)
