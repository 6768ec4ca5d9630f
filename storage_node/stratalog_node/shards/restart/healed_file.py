"""The file of one attempt to put back what a segment lacks: pinned, and its descriptor open, so that writes and their
flush go through one. Lives on the event loop; the file is read and written on the disk threads.
"""

from __future__ import annotations

import asyncio
import contextlib

from stratalog.machines.restart.shard_healing import AskStore, GiveUp, HealingEvent, OffsetRange, Refill
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog_node.backoff import Backoff
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.copies.cold_reads import RemoteBatches
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.restart.giving_up import GivingUp
from stratalog_node.shards.restart.refill import FileRefill


class HealedFile:
    """Requires: nobody else writes to it before `close`."""

    def __init__(self, context: ShardContext, remote: RemoteBatches | None, key: SegmentKey) -> None:
        self._context = context
        self._remote = remote
        self._path = context.layout.segment(key)
        self._file: SegmentFile | None = None
        self._refill: FileRefill | None = None
        self.backoff = Backoff()

    def close(self) -> None:
        file, self._file, self._refill = self._file, None, None
        if file is not None:
            file.close_when_unused()  # a stop ends the wait for a thread, and not its write
            file.unpin()

    async def refill(self, step: Refill) -> HealingEvent:
        file = SegmentFile(self._path, self._context.descriptors, self._path.stat().st_size)
        file.pin()
        self._file = file
        file.fd()
        refill = self._refill = FileRefill(self._context, self._remote, step.segment, file)
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
