"""Creates the files of followed segments with their first batches: a few per turn at once, the others on a disk thread.

The first write to a topic of a thousand shards arrives as a thousand first batches in a few answers, and creating a
file takes a third of a millisecond or more. Batches for a segment without a file are not accepted; the next request
asks for them again. A roll creates one file, without waiting for a thread.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import made_file
from stratalog_node.replication.replica_copy import ReplicaCopy

log = logger(__name__)

AT_ONCE = 16
"""Files that one turn of the loop makes itself: some 5 ms."""
_TOGETHER = 64
"""On the disk thread, before others may have it."""


class FirstFiles:
    def __init__(
        self,
        on_disk: Callable[[Callable[[], list[int | None]]], Awaitable[list[int | None]]],
        start: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        """`on_disk` runs one thing at a time for all copies, so that nothing else creates or removes their files
        meanwhile."""
        self._on_disk = on_disk
        self._start = start
        self._left = AT_ONCE
        self._is_counting = False
        self._line: deque[ReplicaCopy] = deque()
        self._due: set[ReplicaCopy] = set()

    def may_make(self, copy: ReplicaCopy) -> bool:
        """Whether a first batch may make its file now. False: it is made soon, ask for the batch again."""
        if copy in self._due:
            return False
        if not self._is_counting:
            self._is_counting, self._left = True, AT_ONCE
            asyncio.get_running_loop().call_soon(self._turn_ended)
        self._left -= 1
        if self._left >= 0:
            return True
        self._due.add(copy)
        self._line.append(copy)
        if len(self._line) == 1:
            self._start(self._make())
        return False

    def _turn_ended(self) -> None:
        self._is_counting = False

    async def _make(self) -> None:
        while self._line:
            group = [self._line[at] for at in range(min(_TOGETHER, len(self._line)))]
            try:
                made = await self._on_disk(lambda group=group: [_make_file(copy) for copy in group])  # type: ignore[misc]
                for copy, fd in zip(group, made, strict=True):
                    _give(copy, fd)
            finally:
                for copy in group:
                    self._line.popleft()
                    self._due.discard(copy)


def _make_file(copy: ReplicaCopy) -> int | None:
    """Blocking. None: it has one by now, or needs none, or the first batch is to find out what is wrong."""
    if copy.is_made or copy.file.closes_when_unused:
        return None
    try:
        return made_file(copy.file.path)
    except StratalogError as error:
        log.warning("the file of a followed segment cannot be made now", segment=str(copy.key), error=str(error))
        return None


def _give(copy: ReplicaCopy, fd: int | None) -> None:
    if fd is None:
        return
    if copy.is_made or copy.file.closes_when_unused:
        os.close(fd)
        return
    try:
        copy.begin(fd)
    except StratalogError as error:
        log.warning("the file of a followed segment cannot be begun now", segment=str(copy.key), error=str(error))
