"""The file of one attempt to put back what a segment lacks: pinned, and its descriptor open, so that writes and their
flush go through one. Lives on the event loop; the file is read and written on the disk threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import assert_never

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, encode_segment_header
from stratalog.formats.segments.digest import extend_digest_over
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.restart.shard_healing import (
    AskStore,
    FileRefilled,
    GiveUp,
    Obstacle,
    OffsetRange,
    Refill,
)
from stratalog.model.errors import Conflict, Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_node.backoff import Backoff
from stratalog_node.disk.durable_files import read_front
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.cold_reads import CommittedRange, RemoteBatches
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.log.new_segment import identity_of
from stratalog_node.shards.restart.giving_up import GivingUp
from stratalog_node.shards.restart.opening import is_header


class FileRefill:
    """Puts back into a segment's file what it lacks and the object store has, in place.

    It reads the file from its start. Where a batch is damaged or missing, it writes the parts of the object store at
    the same position, checked against the digest chain, and then reads the file again as far as it is whole. So what
    lies behind the damage stays, and only the parts that hold missing batches are fetched.
    Requires: the file is pinned and its descriptor is open, so that writes and their flush go through one; nothing else
    appends to it.
    Lives on the event loop; the file is read and written on the disk threads. Nothing is flushed here.
    """

    def __init__(
        self, context: ShardContext, remote: RemoteBatches | None, segment: Segment, file: SegmentFile
    ) -> None:
        self._context = context
        self._remote = remote
        self._segment = segment
        self._file = file
        self._data_bytes = file.size_bytes - SEGMENT_HEADER_BYTES
        self.scan = SegmentScan.begin(segment.key, ProducerTable())
        """The whole batches from the segment's start on."""
        self.has_written = False

    async def up_to(self, end_offset: int) -> FileRefilled:
        """Raises: Unavailable, Conflict."""
        while True:
            await self._go_on_locally()
            at = self.scan.next_offset
            if at >= end_offset:
                return FileRefilled(at)
            if at >= self._segment.remote.commit_offset:
                return FileRefilled(at, Obstacle.NOT_COMMITTED)
            if self._remote is None:
                return FileRefilled(at, Obstacle.NO_STORE)
            try:
                await self._go_on_remotely(self._remote)
            except (Corrupt, NotFound) as error:
                # It may be in trouble only now, and all of it that was missing before is there.
                return FileRefilled(self.scan.next_offset, Obstacle.NOT_THERE, str(error))

    async def _go_on_locally(self) -> None:
        scan, file = self.scan, self._file

        def work() -> None:
            scan.stopped = None
            scan.advance(lambda at, size: file.read(SEGMENT_HEADER_BYTES + at, size), self._data_bytes)

        if scan.position < self._data_bytes:
            await self._context.threads.read_file(file, work)

    async def _go_on_remotely(self, remote: RemoteBatches) -> None:
        """Until the file has whole batches behind what was fetched, or nothing more was committed."""
        scan = self.scan
        async with aclosing(remote.read(self._segment, scan.next_offset)) as ranges:
            async for found in ranges:
                await self._put_back(found)
                await self._go_on_locally()
                if scan.next_offset != found.end_offset:
                    return

    async def _put_back(self, found: CommittedRange) -> None:
        scan, file = self.scan, self._file
        digest = extend_digest_over(scan.digest, found.data)
        if found.base_offset != scan.next_offset or digest != found.digest_after:
            raise Conflict(
                f"segment {self._segment.key}: what the disk has below {scan.next_offset} is not what the "
                "object store continues: run `stratalog verify`, put a good copy back, then restart"
            )
        self.has_written = True
        position = SEGMENT_HEADER_BYTES + scan.position
        await self._context.threads.change_file(file, lambda: file.put_back(position, found.data))
        scan.position += len(found.data)
        scan.next_offset, scan.digest = found.end_offset, digest
        self._data_bytes = max(self._data_bytes, scan.position)
        self._context.stats.healed_bytes += len(found.data)


class HealedFile:
    """Requires: nothing else writes to the file before `close`."""

    def __init__(self, context: ShardContext, remote: RemoteBatches | None, key: SegmentKey) -> None:
        self._context = context
        self._remote = remote
        self._key = key
        self._path = context.layout.segment(key)
        self._file: SegmentFile | None = None
        self._refill: FileRefill | None = None
        self.backoff = Backoff()

    def close(self) -> None:
        file, self._file, self._refill = self._file, None, None
        if file is not None:
            file.close_when_unused()  # a stop ends the wait for a thread, and not its write
            file.unpin()

    async def refill(self, step: Refill) -> FileRefilled:
        file = SegmentFile(self._path, self._context.descriptors, self._path.stat().st_size)
        file.pin()
        self._file = file
        file.fd()
        has_header = await self._context.threads.change_file(file, lambda: self._put_header(file))
        refill = self._refill = FileRefill(self._context, self._remote, step.segment, file)
        refill.has_written = not has_header
        try:
            event = await refill.up_to(step.end_offset)
        except asyncio.CancelledError:
            with contextlib.suppress(StratalogError, OSError):  # a failed flush must not undo the end of this task
                await self._flush_written(file, refill)
            raise
        except BaseException:
            await self._flush_written(file, refill)
            raise
        await self._flush_written(file, refill)
        return event

    def _put_header(self, file: SegmentFile) -> bool:
        """Blocking. A power cut may take the first page of a file and leave later ones. Returns: whether the file had
        a header already."""
        front = read_front(self._path, SEGMENT_HEADER_BYTES)
        topic = self._context.catalog.topic_by_id(self._key.topic_id)
        if topic is None or (front is not None and is_header(front)):
            return True
        file.put_back(0, encode_segment_header(identity_of(self._context, self._key, topic.name)))
        file.size_bytes = max(file.size_bytes, SEGMENT_HEADER_BYTES)
        return False

    async def _flush_written(self, file: SegmentFile, refill: FileRefill) -> None:
        """Also what is not whole yet: the next start takes what it finds for flushed up to the checkpoint."""
        if refill.has_written:
            await self._context.threads.change_file(file, lambda: file.sync(with_names=True))

    async def ask_store(self, step: AskStore) -> tuple[OffsetRange, ...]:
        return await GivingUp(self._context, self._remote, step.segment).ask_for(step.ranges)

    async def give_up(self, step: GiveUp) -> None:
        assert self._file is not None and self._refill is not None, "a file is refilled before anything is given up"
        giving_up = GivingUp(self._context, self._remote, step.segment)
        await giving_up.fill(self._file, self._refill.scan, step.holes, step.end_offset)
        self._context.stats.given_up_offsets += sum(end_offset - base_offset for base_offset, end_offset in step.holes)


async def restore_ended(
    context: ShardContext, remote: RemoteBatches | None, key: SegmentKey, end_offset: int
) -> str | None:
    """Put back what the file of an ended segment lacks below `end_offset`, flushed.

    Returns: why it is not whole; None: it is. Raises: Unavailable, Conflict, OSError.
    """
    segment = context.catalog.segment(key)
    if segment is None:
        return "the metadata do not list the segment"
    if remote is None:
        return Obstacle.NO_STORE.value
    file = HealedFile(context, remote, key)
    try:
        found = await file.refill(Refill(segment, end_offset))
    finally:
        file.close()
    match found.obstacle:
        case None:
            return None
        case Obstacle.NO_STORE:
            return Obstacle.NO_STORE.value
        case Obstacle.NOT_COMMITTED:
            stored_end = max(segment.remote.commit_offset, segment.base_offset)
            return f"the object store has the segment only up to offset {stored_end}"
        case Obstacle.NOT_THERE:
            return found.why
        case _:
            assert_never(found.obstacle)
