"""The file of a segment that another node leads, with what its batches say: end, digest, index points, producers.

Appends on the event loop; scans, flushes and proofs on the disk threads, one at a time. An unwritten segment has no
file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stratalog.formats.batches.record_batch import parse_header, walk
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.disk.segment_file import (
    SEGMENT_HEADER_BYTES,
    check_identity,
    decode_segment_header,
    encode_segment_header,
)
from stratalog.formats.disk.tail_damage import TailKind, judge_tail
from stratalog.formats.segments.index_block import encode_index_block
from stratalog.formats.segments.index_points import IndexBuilder, IndexPoint, IndexPoints
from stratalog.formats.segments.producers import NO_TABLE
from stratalog.machines.leading.sealed_producers import Producers
from stratalog.model.batch import BATCH_HEADER_BYTES, BatchHeader
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord, SegmentIdentity
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import read_front, write_atomically, write_durably
from stratalog_node.disk.files import SegmentFile, SpareFile
from stratalog_node.disk.layout import GIVEN_UP_SUFFIX
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.local_copy import LocalCopy
from stratalog_node.shards.flush.flusher import CHECKPOINT_BYTES, CHECKPOINT_MS
from stratalog_node.shards.log.new_segment import identity_of
from stratalog_node.shards.restart.giving_up import save_rest

log = logger(__name__)

_READ_BYTES = 1 << 20


class CheckedBatches:
    """What `CheckedRange.payload` is here: batches in a buffer that is good until the step ends, and what they say."""

    __slots__ = ("data", "headers")

    def __init__(self, data: memoryview, headers: Sequence[BatchHeader]) -> None:
        self.data = data
        self.headers = headers


class ReplicaCopy:
    """Invariant: `end_offset` is where the whole batches of the file end, from its start on. What a start found behind
    them and no write that was cut off leaves there stays in the file until others say what belongs there."""

    __slots__ = (
        "_checkpointed",
        "_context",
        "_doubts",
        "_has_digest",
        "_identity",
        "_is_made",
        "_local",
        "_mark",
        "_proven_points",
        "_unwritten_points",
        "file",
        "flushed_bytes",
        "found_producers",
        "key",
        "scan",
        "seen_offset",
    )

    def __init__(self, context: ShardContext, key: SegmentKey, topic: str) -> None:
        self.key = key
        self._context = context
        self._identity: SegmentIdentity = identity_of(context, key, topic)
        self._local: LocalCopy | None = None
        self.file = SegmentFile(context.layout.segment(key), context.descriptors, 0)
        self._is_made = False
        self.scan = self._new_scan()
        self.flushed_bytes = 0
        self.found_producers: Producers | None = None
        """What the batches of all of it say of producers, once it was read back."""
        self._proven_points: IndexPoints | None = None
        """With the times of its records, once it was read back."""
        self._unwritten_points: IndexPoints | None = None
        self._has_digest = True
        """The scan has read all of it, and not from a checkpoint on."""
        self._mark = context.ends.mark(key)
        self._checkpointed = 0, context.turn.now_ms
        """Up to where, and when."""
        self._doubts = 0
        """Odd while the file becomes another one."""
        self.seen_offset = key.base_offset
        """Below it this file held batches, as far as a start could see: some of them are damaged, or gone, while
        `end_offset` is lower."""

    def _new_scan(self, *, has_true_times: bool = False) -> SegmentScan:
        """Its producer table covers only these batches: producers of earlier batches may become known later."""
        table, now_ms = self._context.producer_table(()), self._context.turn.now_ms
        return SegmentScan.begin(self.key, table, now_ms, has_true_times=has_true_times)

    @property
    def is_made(self) -> bool:
        """Whether it has a file."""
        return self._is_made

    @property
    def is_known(self) -> bool:
        """Whether it has a file, or the last life wrote to one."""
        return self.file.path.exists() or self.key in self._context.ends.found

    def let_go(self) -> None:
        """Nothing more is appended: the segment is sealed, or not needed here."""
        self._context.ends.forget(self.key)
        self.file.close_when_unused()

    @property
    def end_offset(self) -> int:
        return self.scan.next_offset

    @property
    def is_damaged(self) -> bool:
        """It held more than its whole batches, and others have not made it good yet."""
        return self.end_offset < self.seen_offset

    @property
    def is_flushed(self) -> bool:
        return self.flushed_bytes >= self.file.size_bytes

    @property
    def is_noted(self) -> bool:
        """The newest checkpoint says all of it, or there is nothing to say."""
        return self.scan.position == self._checkpointed[0]

    @property
    def unflushed_bytes(self) -> int:
        return self.file.size_bytes - self.flushed_bytes

    def local(self) -> LocalCopy | None:
        """To be read: all that was appended, which was checked. None: it has no file."""
        if not self._is_made:
            return None
        if self._local is None or self._local.points is not self.scan.index:
            self._local = LocalCopy(self.key, self.file, self.scan.index, checked_from=0)
        return self._local

    def open_found(self, claim: Checkpoint | None = None) -> bool:
        """Blocking. Call it before anything is appended, or after another writer changed the file: reads what is there
        and cuts a torn tail; a damaged one stays. What a checkpoint says was checked is not read again where batches
        lead up to it.

        Returns: whether all is there that is known to have been written: what was on the disk when the checkpoint was
        written, which later checkpoints may not say any more, what the last life wrote since, and nothing damaged.
        Raises: Corrupt, for another segment's file; Unavailable.
        """
        written_end = self._context.ends.found.get(self.key, -1)
        self.seen_offset = max(self.seen_offset, written_end, -1 if claim is None else claim.next_offset)
        self._take_in(claim)
        if not self.is_damaged and self._is_made:
            self._mark.move(self.end_offset)
        return not self.is_damaged

    def _take_in(self, claim: Checkpoint | None) -> None:
        path = self.file.path
        front = read_front(path, SEGMENT_HEADER_BYTES)
        if front is None or len(front) < SEGMENT_HEADER_BYTES or not any(front):
            return  # made again with the first batch
        found = decode_segment_header(front, source=str(path))
        check_identity(found, self._identity, source=str(path))
        self._identity = found
        self.file.size_bytes = path.stat().st_size
        self._is_made = True
        size_bytes = self.file.size_bytes - SEGMENT_HEADER_BYTES
        if claim is not None and 0 < claim.position <= size_bytes and self._is_led_to(claim):
            self._scan_to(self._resumed(claim), size_bytes)
            self._has_digest, self._checkpointed = False, (claim.position, self._context.turn.now_ms)
        else:
            self._rescan(size_bytes)
        self.file.sync(with_names=True)  # what is confirmed from here on is as durable as what follows
        self.flushed_bytes = self.file.size_bytes

    def _is_led_to(self, claim: Checkpoint) -> bool:
        """Whether batches stand between its last index point and its position, end to end."""
        points = claim.points
        last = points[len(points) - 1] if len(points) else IndexPoint(self.key.base_offset, 0, -1)
        data = self.file.read(SEGMENT_HEADER_BYTES + last.position, claim.position - last.position)
        next_offset = last.offset
        try:
            for _, header in walk(
                data, source=str(self.file.path), verify=False, expected_base_offset=next_offset, epoch=self.key.epoch
            ):
                next_offset = header.end_offset
        except Corrupt:
            return False
        return next_offset == claim.next_offset

    def _resumed(self, claim: Checkpoint) -> SegmentScan:
        times = claim.first_timestamp_ms, claim.max_timestamp_ms
        index = IndexBuilder.resume(self.key.base_offset, claim.points, claim.position, *times)
        table, now_ms = self._context.producer_table(claim.producers), self._context.turn.now_ms
        return SegmentScan(self.key, index, table, claim.position, claim.next_offset, now_ms=now_ms)

    def _rescan(self, size_bytes: int) -> None:
        self._scan_to(self._new_scan(), size_bytes)
        self._has_digest, self._checkpointed = True, (0, self._context.turn.now_ms)

    def _scan_to(self, scan: SegmentScan, size_bytes: int) -> None:
        def read(at: int, size: int) -> bytes:
            return self.file.read(SEGMENT_HEADER_BYTES + at, size)

        scan.advance(read, size_bytes)
        end = SEGMENT_HEADER_BYTES + scan.position
        if end < self.file.size_bytes:
            tail = judge_tail(read, scan.position, size_bytes, scan.next_offset, self.key.epoch)
            if tail.kind is TailKind.DAMAGED or scan.next_offset < self.seen_offset:
                self._note_damage(tail.seen_offset, scan)
                self.file.leave_tail(end)
            else:
                self.file.truncate(end)
        self.scan = scan

    def _note_damage(self, seen_offset: int, scan: SegmentScan) -> None:
        self.seen_offset = max(self.seen_offset, seen_offset)
        log.error(
            "a copy is damaged: batches that were written cannot be read",
            file=str(self.file.path),
            position=SEGMENT_HEADER_BYTES + scan.position,
            end_offset=scan.next_offset,
            seen_offset=seen_offset,
            reason=scan.stopped,
        )

    def begin(self, fd: int) -> None:
        """With an empty file that was made for it, whose descriptor goes over. Raises: DiskFull, Unavailable."""
        taken = False

        def take_spare() -> SpareFile:
            nonlocal taken
            taken = True
            return fd, self.file.path

        try:
            self.file.create(encode_segment_header(self._identity), take_spare)
        finally:
            if not taken:
                os.close(fd)
        self._is_made = True

    def append(self, batches: CheckedBatches) -> None:
        """Raises: DiskFull, Unavailable (nothing written); OutcomeUnknown (a start may find some of it)."""
        if not self._is_made:
            self.file.create(encode_segment_header(self._identity))
            self._is_made = True
        data, size = batches.data, len(batches.data)
        self.file.append([data], size)
        self.scan.now_ms = self._context.turn.now_ms
        self.scan.take_in_next(batches.headers, data)
        self._mark.move(self.scan.next_offset)
        assert self.scan.position == self.file.size_bytes - SEGMENT_HEADER_BYTES, "batches that do not follow"

    def cut(self, end_offset: int) -> None:
        """Blocking: cost follows the segment. Requires: its descriptor is open, and it is pinned. What lies behind
        damage is kept under another name, for a human: a recovery decided without it.

        Raises: Corrupt when no batch ends there; Unavailable, DiskFull.
        """
        self._keep_rest()
        self._context.ends.settle(self.key)
        self.seen_offset = self.key.base_offset
        position = self._position_at(end_offset)
        self._mark.move(end_offset)  # first: it is never above what is in the file
        self.file.truncate(SEGMENT_HEADER_BYTES + position)
        self._rescan(position)
        if self.scan.next_offset != end_offset:
            source, position = str(self.file.path), self.scan.position
            raise Corrupt(f"no batch ends at offset {end_offset}", source=source, position=position)

    def _keep_rest(self) -> None:
        """For a damaged copy: keep what lies behind its whole batches, unless it was overwritten since."""
        if not self.is_damaged:
            return
        begin, end = self.file.size_bytes, self.file.path.stat().st_size
        if any(self.file.read(at, min(_READ_BYTES, end - at)).strip(b"\0") for at in range(begin, end, _READ_BYTES)):
            save_rest(self.file, begin, end, self.end_offset)

    def _position_at(self, end_offset: int) -> int:
        """The position where the last batch below the offset ends."""
        points = self.scan.index
        found = points.before_offset(end_offset)
        at = points[found].position if found >= 0 else 0
        while at < self.scan.position:
            header = parse_header(self.file.read(SEGMENT_HEADER_BYTES + at, BATCH_HEADER_BYTES))
            if header.end_offset > end_offset:
                break
            at += header.size_bytes
        return at

    def flush(self) -> tuple[int, int]:
        """Blocking. Returns: the offset, and the size of the file, up to which it is on the disk. Raises: FlushLost,
        NotFound; Unavailable, DiskFull when nothing was tried."""
        end_offset, size_bytes = self.scan.next_offset, self.file.size_bytes
        if self._is_made:
            self.file.sync(with_names=self.flushed_bytes == 0)
        return end_offset, size_bytes

    @property
    def version(self) -> int | None:
        """The version of the file's content, apart from appends: statements about another version may no longer hold.
        None while the content is being replaced."""
        return None if self._doubts % 2 else self._doubts

    @contextmanager
    def change(self) -> Iterator[None]:
        """Its file is cut, or filled by others, meanwhile. On the event loop, begun before its checkpoint is revoked. A
        stop ends the wait and not the work of a thread: then it stays in doubt."""
        self._doubts += 1
        try:
            yield
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._doubts += 1
            raise
        self._doubts += 1

    def due_checkpoint(self, *, force: bool = False) -> Checkpoint | None:
        """What is here, to be kept once it was flushed; None while little is new."""
        scan, (position, at_ms), now_ms = self.scan, self._checkpointed, self._context.turn.now_ms
        if scan.position == position:
            return None
        if not force and scan.position - position < CHECKPOINT_BYTES and now_ms - at_ms < CHECKPOINT_MS:
            return None
        self._checkpointed = scan.position, now_ms
        return Checkpoint(
            key=self.key,
            position=scan.position,
            next_offset=scan.next_offset,
            first_timestamp_ms=scan.index.first_timestamp_ms,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            points=scan.index.freeze(),
            producers=scan.producers.snapshot(),
        )

    async def wait_until_no_rolls(self) -> None:
        """A proof takes the processor from rolls, and no client waits for it."""
        await self._context.rolls_in_progress.wait_until_none()

    def make(self) -> None:
        """Blocking: the file of a segment without a batch. Raises: DiskFull, Unavailable."""
        if not self._is_made:
            self.file.create(encode_segment_header(self._identity))
            self._is_made = True

    def flush_ended(self) -> tuple[int, int]:
        """Blocking: cut what lies behind the batches, and flush. Requires: nothing is appended any more, and the file
        is pinned. Returns and raises: see `flush`."""
        self._keep_rest()
        self.file.cut_room()
        return self.flush()

    def flush_and_prove(self) -> tuple[SealRecord, int]:
        """Both, of a small copy, without an index block: the proof, and the size of the file on the disk. Its points
        stay in memory until the block with the seal record is written: after a node died, the proofs of thousands of
        copies hold up the writes to their shards. Requires and raises: as they do."""
        _, flushed_bytes = self.flush_ended()
        record = self._proven()
        self._unwritten_points = self._proven_points
        return record, flushed_bytes

    @property
    def unwritten_points(self) -> IndexPoints | None:
        """Points of a proven copy of which no index block was written yet."""
        return self._unwritten_points

    def prove(self) -> SealRecord:
        """Blocking: read all of it once more, and write its index block. Requires: `flush_ended` has returned, and
        nothing was appended since. Returns: the seal record as this copy alone would have it, but without producers:
        those of its own batches are `found_producers` then. Raises: Corrupt, Unavailable, DiskFull."""
        record = self._proven()
        # Now, so that it is there as soon as readers are. The one that the seal record completes replaces it, and is
        # flushed.
        self._put_index(record, NO_TABLE, write_atomically)
        return record

    def _proven(self) -> SealRecord:
        scan = self._new_scan(has_true_times=True)
        size = self.file.size_bytes - SEGMENT_HEADER_BYTES
        scan.advance(lambda at, want: self.file.read(SEGMENT_HEADER_BYTES + at, want), size)
        is_other = scan.next_offset != self.scan.next_offset or (self._has_digest and scan.digest != self.scan.digest)
        if scan.stopped is not None or is_other:
            raise Corrupt(
                f"the disk does not have what was written up to offset {self.scan.next_offset}: "
                f"{scan.stopped or 'other batches'}",
                source=str(self.file.path),
                position=SEGMENT_HEADER_BYTES + scan.position,
            )
        record = SealRecord(
            epoch=self.key.epoch,
            base_offset=self.key.base_offset,
            end_offset=scan.next_offset,
            first_timestamp_ms=scan.index.first_timestamp_ms,
            max_timestamp_ms=scan.index.max_timestamp_ms,
            size_bytes=scan.position,
            digest=scan.digest,
            producers=NO_PRODUCERS,
            replicas=(self._context.node_id,),
            sealed_ms=self._context.turn.now_ms,
            times_known=scan.index.times_known,
        )
        self._proven_points = scan.index.freeze()
        self.found_producers = scan.producers.snapshot()
        return record

    def write_index(self, seal: SealRecord, table: bytes = NO_TABLE) -> None:
        """Blocking: the index block, beside a file that does not grow any more. `table`: of producers, that of the
        seal, where it is known. Durability: it is on the disk when this returns. Raises: DiskFull, Unavailable."""
        self._put_index(seal, table, write_durably)

    def _put_index(self, seal: SealRecord, table: bytes, write: Callable[[Path, list[bytes]], None]) -> None:
        path = self._context.layout.index(self.key)
        if not self.file.path.exists():
            return  # freed meanwhile, or deleted
        points = self.scan.index.freeze() if self._proven_points is None else self._proven_points
        write(path, [encode_index_block(self._identity, seal, points, table)])
        if not self.file.path.exists():
            path.unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Blocking. The copy no longer serves any reader, and a person may want its content."""
        kept = self.file.path.with_suffix(GIVEN_UP_SUFFIX)
        if self.file.path.exists() and not kept.exists():
            log.warning("a copy of what was given up is set aside", file=str(self.file.path), kept_as=str(kept))
            self.file.path.rename(kept)
        self.remove()

    def remove(self) -> None:
        """Blocking. Requires: the copy no longer serves any reader."""
        # The index first: a crash in between leaves a segment file, which the next start knows and takes away.
        self._context.layout.index(self.key).unlink(missing_ok=True)
        self.file.remove()
