"""Removes the files of segments that this node drops, and knows when they are gone.

A segment that a deposed leader dropped, or a copy that was freed, may come back to this node under the same name a
moment later, to follow or to lead. Before creating or opening a file, a caller awaits `settle` or checks
`is_under_way`; otherwise the removal would delete the new copy.
Lives on the event loop; files are removed on the background threads, in a further directory on those of its own.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path

from stratalog.event_loop.task_set import TaskSet
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.telemetry.logs import logger
from stratalog_node.disk.directory_calls import background_at
from stratalog_node.disk.files import SegmentFile
from stratalog_node.disk.layout import NodeLayout, segment_path
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.catalog.catalog import Catalog

log = logger(__name__)

_PIN_POLL_S = 0.01
_PIN_POLLS = 200


class FileRemoval:
    def __init__(self, layout: NodeLayout, threads: DiskThreads, catalog: Catalog) -> None:
        self._layout = layout
        self._threads = threads
        self._catalog = catalog
        self._tasks = TaskSet()
        self._under_way: dict[SegmentKey, asyncio.Task[None]] = {}
        """The last one of each segment."""

    async def close(self) -> None:
        """What a stop cuts short: a spare is removed by the next start, a file that had its name stays."""
        await self._tasks.cancel()

    def begin(self, key: SegmentKey, file: SegmentFile) -> None:
        """Remove the segment's file and its index block. `settle` waits for this removal as soon as this method
        returns; a file that cannot be removed stays."""
        self._begin(key, self._remove_or_tell(key, file, self._under_way.get(key)))

    def begin_moved(self, key: SegmentKey, file: SegmentFile) -> None:
        """Remove a file whose segment has a proven copy in another directory that is used from now on. That one stays;
        the rest is as in `begin`."""
        self._begin(key, self._remove_or_tell(key, file, self._under_way.get(key), is_moved=True))

    async def remove(self, key: SegmentKey, file: SegmentFile) -> None:
        """As `begin`, but returns once they are gone. The removal continues if the caller is cancelled. Raises:
        OSError."""
        # Cancellation does not reach the thread that removes the file, so the removal must stay registered until it
        # ends.
        await asyncio.shield(self._begin(key, self._remove(key, file, self._under_way.get(key))))

    def is_under_way(self, key: SegmentKey) -> bool:
        return key in self._under_way

    async def settle(self, key: SegmentKey) -> None:
        """Returns once nothing of this segment is being removed."""
        while (task := self._under_way.get(key)) is not None:
            await asyncio.wait([task])

    def _begin(self, key: SegmentKey, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            if self._under_way.get(key) is task:
                del self._under_way[key]

        task = self._under_way[key] = self._tasks.start(work)
        task.add_done_callback(ended)
        return task

    async def _remove_or_tell(
        self, key: SegmentKey, file: SegmentFile, before: asyncio.Task[None] | None, *, is_moved: bool = False
    ) -> None:
        try:
            await self._remove(key, file, before, is_moved=is_moved)
        except OSError as error:
            log.warning("a file that is not used any more stays for now", file=str(file.path), error=str(error))

    async def _remove(
        self, key: SegmentKey, file: SegmentFile, before: asyncio.Task[None] | None, *, is_moved: bool = False
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        polls_left = _PIN_POLLS
        # Readers hold a pin for one read, flushes and who names it for one call: an event per file would cost more.
        while file.pins and polls_left:
            polls_left -= 1
            await asyncio.sleep(_PIN_POLL_S)
        is_read = file.pins > 0
        file.close_when_unused()
        try:
            if is_moved:
                await self._at(file.path, lambda: self._remove_moved(file, is_read=is_read))
                return
            await self._at(file.path, lambda: self._take_away(key, file, is_read=is_read))
        except Unavailable as error:
            raise OSError(errno.EIO, str(error)) from error
        for root in self._layout.roots:  # what a move that was cut short left in another directory
            second = segment_path(root, key)
            with suppress(OSError, Unavailable):  # another disk's trouble
                if second != file.path:
                    await self._at(second, partial(_remove_second, second))
                if self._catalog.topic_by_id(key.topic_id) is None:
                    await self._at(second, partial(self._layout.remove_leftovers, root, key.shard_key))
        self._layout.moved.pop(key, None)

    async def _at(self, path: Path, work: Callable[[], None]) -> None:
        await background_at(self._layout, self._threads, path, work)

    @staticmethod
    def _remove_moved(file: SegmentFile, *, is_read: bool) -> None:
        """Blocking."""
        file.path.with_suffix(".idx").unlink(missing_ok=True)
        file.remove(is_read=is_read)

    def _take_away(self, key: SegmentKey, file: SegmentFile, *, is_read: bool) -> None:
        """Blocking. The index first: a crash in between leaves a segment file, which the next start knows and takes
        away."""
        index = self._layout.index(key)
        index.unlink(missing_ok=True)
        file.remove(is_read=is_read)
        index.unlink(missing_ok=True)  # written again meanwhile, by who had just proven the copy


def _remove_second(path: Path) -> None:
    """Blocking. Raises: OSError."""
    path.with_suffix(".idx").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
