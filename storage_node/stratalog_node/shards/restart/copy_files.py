"""The files of local copies: deleted when a copy is freed, taken back when one that was missing is there again.

Lives on the event loop.
"""

from __future__ import annotations

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.missing_files import look_for
from stratalog_node.shards.copies.shard_view import ShardView
from stratalog_node.shards.log.directory import ShardDirectory


class CopyFiles:
    def __init__(self, context: ShardContext, directory: ShardDirectory) -> None:
        self._context = context
        self._directory = directory

    async def look_for_missing(self, key: ShardKey) -> None:
        """Take back sealed copies whose file is there again."""
        shard = self._directory.get(key)
        if shard is not None:
            for segment in list(shard.missing):
                await look_for(shard, segment)

    async def free_local(self, shard: ShardView | None, segment: SegmentKey) -> None:
        """Delete a local copy, file and index, off the loop. The caller had meta agree, or the segment is deleted.

        Readers get a moment to finish; one that takes its answer slowly keeps the bytes, but not the names.
        """
        context = self._context
        await context.removal.settle(segment)  # only who took the copy out knows whether it is read
        log_of = self._directory.get(segment.shard_key)
        if log_of is not None:
            await log_of.workers.sealing.name_behind(log_of, segment)
        copy = log_of.take_out(segment) if log_of is not None else None
        file = copy.file if copy is not None else SegmentFile(context.layout.segment(segment), context.descriptors, 0)
        try:
            await context.removal.remove(segment, file)
        finally:
            if copy is not None:
                context.sealed_points.forget(copy)  # a reader may have read them while it was waited for
        context.stats.local_copies_freed += 1
