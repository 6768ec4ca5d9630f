"""The files of local copies: deleted when a copy is freed, taken back when one that was missing is there again.

Lives on the event loop; files go on the background threads.
"""

from __future__ import annotations

import asyncio

from stratalog.model.ids import SegmentKey, ShardKey
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.context import ShardContext
from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.shards.missing_files import look_for
from stratalog_node.shards.shard_view import ShardView

_PIN_POLL_S = 0.01
_PIN_POLLS = 200


class CopyFiles:
    def __init__(self, context: ShardContext, directory: ShardDirectory) -> None:
        self._context = context
        self._directory = directory
        self._being_freed: dict[SegmentKey, asyncio.Event] = {}
        """Until when each is."""

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
        while (freed := self._being_freed.get(segment)) is not None:
            await freed.wait()  # only who took the copy out knows whether it is read
        freed = self._being_freed[segment] = asyncio.Event()
        try:
            await self._free(segment)
        finally:
            del self._being_freed[segment]
            freed.set()

    async def _free(self, segment: SegmentKey) -> None:
        context = self._context
        log_of = self._directory.get(segment.shard_key)
        copy = log_of.take_out(segment) if log_of is not None else None
        polls_left = _PIN_POLLS
        # Readers hold a pin for one read: an event per file would cost more than this poll.
        while copy is not None and copy.file.pins and polls_left:
            polls_left -= 1
            await asyncio.sleep(_PIN_POLL_S)
        file = copy.file if copy is not None else SegmentFile(context.layout.segment(segment), context.descriptors, 0)
        index_path = context.layout.index(segment)
        is_read = file.pins > 0
        is_topic_gone = context.catalog.topic_by_id(segment.topic_id) is None

        def remove() -> None:
            # The index first: a crash in between leaves a segment file, which the next start knows and takes away.
            index_path.unlink(missing_ok=True)
            file.remove(is_read=is_read)
            index_path.unlink(missing_ok=True)  # written again meanwhile, by who had just proven the copy
            if is_topic_gone:
                context.layout.remove_leftovers(segment.shard_key)

        file.close_when_unused()
        if copy is not None:
            context.sealed_points.forget(copy)
        await context.threads.background(remove)
        context.stats.local_copies_freed += 1
