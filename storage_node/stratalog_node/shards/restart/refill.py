"""Puts back into a segment's file what it lacks and the object store has, in place.

The file is read from its start. Where its whole batches end, or one is damaged, the parts of the object store go on,
byte for byte where those batches were, checked against the digest chain; then the file again, as far as it is whole. So
what lies behind a damaged place stays, and no more is fetched than is missing, by the part.
Requires: the file is pinned and its descriptor is open, so that writes and their flush go through one; nobody appends.
Lives on the event loop; the file is read and written on the disk threads. Nothing is flushed here.
"""

from __future__ import annotations

from contextlib import aclosing

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.digest import extend_digest_over
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.restart.shard_healing import FileRefilled, Obstacle
from stratalog.model.errors import Conflict, Corrupt, NotFound
from stratalog.model.segment import Segment
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.segment_scan import SegmentScan
from stratalog_node.shards.copies.cold_reads import CommittedRange, RemoteBatches
from stratalog_node.shards.copies.context import ShardContext


class FileRefill:
    def __init__(
        self, context: ShardContext, remote: RemoteBatches | None, segment: Segment, file: SegmentFile
    ) -> None:
        self._context = context
        self._remote = remote
        self._segment = segment
        self._file = file
        self._data_bytes = file.size_bytes - SEGMENT_HEADER_BYTES
        self.scan = SegmentScan.begin(segment.key, ProducerTable())
        """Where the batches that are whole from the segment's start on end."""
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
