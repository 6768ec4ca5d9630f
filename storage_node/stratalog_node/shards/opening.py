"""Opens the file of an unsealed segment at start: checks whose it is, scans it from its checkpoint, finds its end, cuts
room ahead or a torn tail.

Nothing is cut from a file that is shorter than what is known to have been in it: `TailMissing` says what is missing.
A checkpoint is known to be right when batches follow at its position, or lead up to it. Else the file is read from its
start, and decides: the checkpoint is wrong if whole batches reach its offset all the same, and the file if not.
Runs before the shard serves; scans on the disk threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stratalog.formats.checkpoint import Checkpoint
from stratalog.formats.index_points import IndexBuilder, IndexPoint
from stratalog.formats.record_batch import walk
from stratalog.formats.segment_file import (
    SEGMENT_HEADER_BYTES,
    check_identity,
    decode_segment_header,
    encode_segment_header,
)
from stratalog.machines.producer_table import ProducerTable
from stratalog.machines.segment_leader import SegmentLeader
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SegmentIdentity
from stratalog.telemetry.logs import logger
from stratalog_node.disk.files import SegmentFile, read_front
from stratalog_node.disk.layout import UNCONFIRMED_SUFFIX
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.active import ActiveSegment
from stratalog_node.shards.context import ShardContext
from stratalog_node.shards.flusher import Flusher
from stratalog_node.shards.new_segment import identity_of
from stratalog_node.shards.shard_log import ShardLog

log = logger(__name__)

_SHORT_BYTES = 64 << 10


class TailMissing(Exception):
    """The file of a segment ends at `local_end`, though offsets up to `known_end` were in it."""

    def __init__(self, key: SegmentKey, local_end: int, known_end: int) -> None:
        super().__init__(f"{key}: ends at {local_end}, {known_end} is known to have been written")
        self.key = key
        self.local_end = local_end
        self.known_end = known_end


class SegmentOpener:
    def __init__(self, context: ShardContext, flusher: Flusher, checkpoints: Mapping[SegmentKey, Checkpoint]) -> None:
        self._context = context
        self._flusher = flusher
        self._checkpoints = checkpoints
        self.used: set[SegmentKey] = set()
        """Whose checkpoint stands and was gone on from."""

    async def open(
        self,
        shard: ShardLog,
        key: SegmentKey,
        table: ProducerTable,
        *,
        is_confirmed: bool = True,
        known_end: int = 0,
    ) -> ActiveSegment:
        """`table` is the producer state before the segment, and after it. Raises: TailMissing, Corrupt, Unavailable."""
        path = self._context.layout.segment(key)
        file = SegmentFile(path, self._context.descriptors, path.stat().st_size)
        identity = self._identify(file, shard, key)
        data_bytes = file.size_bytes - SEGMENT_HEADER_BYTES
        scan, checked_bytes = await self._scan_file(file, key, data_bytes, table)
        if scan.next_offset < known_end:
            # Before anything is cut: behind one damaged batch there may be whole ones.
            file.close()
            raise TailMissing(key, scan.next_offset, known_end)
        if scan.position < data_bytes:
            if not _holds_only_zeros_from(file, SEGMENT_HEADER_BYTES + scan.position):
                torn = data_bytes - scan.position
                self._context.stats.torn_tail_bytes += torn
                log.warning(
                    "torn tail cut", file=str(file.path), bytes=torn, end_offset=scan.next_offset, reason=scan.stopped
                )
            file.truncate(SEGMENT_HEADER_BYTES + scan.position)
        flushed_bytes = SEGMENT_HEADER_BYTES + checked_bytes if checked_bytes else 0
        if shard.rules.is_fsync and checked_bytes < scan.position:
            # What is found here is below the high watermark from now on, and a repetition of it is acknowledged.
            await self._context.threads.read(lambda: file.sync(with_names=True))
            flushed_bytes = file.size_bytes
        leader = SegmentLeader(
            key,
            self._context.node_id,
            shard.rules.roll,
            table,
            isr=(self._context.node_id,),
            end_offset=scan.next_offset,
            size_bytes=scan.position,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            first_append_ms=identity.created_ms if scan.position else None,
            is_confirmed=is_confirmed,
            # Nothing of a segment that is not confirmed was ever acknowledged or shown.
            is_tail_doubted=is_confirmed and key.epoch == shard.doubted_epoch,
        )
        active = ActiveSegment(identity, file, leader, scan.index, checked_from=checked_bytes)
        active.flushed_bytes = flushed_bytes
        if checked_bytes < scan.position:
            # So that the next start does not read it again, also when nobody writes until then.
            self._flusher.note_written(shard, active)
        return active

    def _identify(self, file: SegmentFile, shard: ShardLog, key: SegmentKey) -> SegmentIdentity:
        """What the file's header says, checked; a file whose header was never written is made again."""
        path = file.path
        identity = identity_of(self._context, key, shard.topic.name)
        front = read_front(path, SEGMENT_HEADER_BYTES) or b""
        if len(front) < SEGMENT_HEADER_BYTES or not any(front):
            # The crash came while the file was being made (or the power went before any of it was flushed).
            if file.size_bytes > SEGMENT_HEADER_BYTES:
                set_aside(file.path)
            file.create(encode_segment_header(identity))
            return identity
        found = decode_segment_header(front, source=str(path))
        check_identity(found, identity, source=str(path))
        return found

    async def _scan_file(
        self, file: SegmentFile, key: SegmentKey, data_bytes: int, table: ProducerTable
    ) -> tuple[SegmentScan, int]:
        """The state at the end of the valid batches, and the position of the checkpoint it started from."""
        before = table.snapshot()
        checkpoint = self._checkpoints.get(key)
        if checkpoint is not None and checkpoint.position > data_bytes:
            checkpoint = None
        scan = self._begin_scan(key, checkpoint, table)
        start = scan.position
        await self._advance(scan, file, data_bytes)
        if start == scan.position < data_bytes and start > 0 and not self._leads_there(file, scan):
            # Not one batch follows the checkpoint, and none leads to it: either the checkpoint is wrong or the file.
            log.warning("checkpoint doubted: reading the segment from its start", file=str(file.path), position=start)
            again = self._context.producer_table(before)
            full = await self._advance(SegmentScan.begin(key, again, self._context.turn.now_ms), file, data_bytes)
            if (full.position, full.next_offset) != (start, scan.next_offset):
                table.replace(again.snapshot())
                full.producers = table
                return full, 0
        if checkpoint is not None:
            self.used.add(key)
        return scan, start

    @staticmethod
    def _leads_there(file: SegmentFile, scan: SegmentScan) -> bool:
        """Whether the batches from the last index point on end just where the checkpoint stands: then what follows is
        room ahead, or a tail torn just there. Only their headers count: a batch damaged since it was flushed is no
        reason to cut what follows."""
        points = scan.index
        last = points[len(points) - 1] if len(points) else IndexPoint(scan.key.base_offset, 0, -1)
        data = file.read(SEGMENT_HEADER_BYTES + last.position, scan.position - last.position)
        next_offset = last.offset
        try:
            for _, header in walk(
                data, source=str(file.path), verify=False, expected_base_offset=next_offset, epoch=scan.key.epoch
            ):
                next_offset = header.end_offset
        except Corrupt:
            return False
        return next_offset == scan.next_offset

    async def _advance(self, scan: SegmentScan, file: SegmentFile, data_bytes: int) -> SegmentScan:
        def work() -> SegmentScan:
            return scan.advance(lambda at, size: file.read(SEGMENT_HEADER_BYTES + at, size), data_bytes)

        if scan.position == data_bytes:
            return scan
        if data_bytes - scan.position <= _SHORT_BYTES:
            return work()  # nobody is served yet, and a thread costs more than this
        return await self._context.threads.read_file(file, work)

    def _begin_scan(self, key: SegmentKey, checkpoint: Checkpoint | None, table: ProducerTable) -> SegmentScan:
        now_ms = self._context.turn.now_ms
        if checkpoint is None:
            return SegmentScan.begin(key, table, now_ms)
        table.replace(checkpoint.producers)
        index = IndexBuilder.resume(
            key.base_offset,
            checkpoint.points,
            checkpoint.position,
            checkpoint.first_timestamp_ms,
            checkpoint.max_timestamp_ms,
        )
        return SegmentScan(
            key, index, table, checkpoint.position, checkpoint.next_offset, checkpoint.digest, now_ms=now_ms
        )


def set_aside(path: Path) -> None:
    """Batches after a gap: never acknowledged, because their roll was not. Kept under another name for a human."""
    target = path.with_suffix(UNCONFIRMED_SUFFIX)
    log.warning("unacknowledged segment set aside", file=str(path), kept_as=str(target))
    path.rename(target)


def _holds_only_zeros_from(file: SegmentFile, position: int) -> bool:
    """Blocking: one window in the usual case, for a torn tail is seen at its first byte and room ahead is short."""
    positions = range(position, file.size_bytes, _SHORT_BYTES)
    return not any(file.read(at, min(_SHORT_BYTES, file.size_bytes - at)).strip(b"\0") for at in positions)
