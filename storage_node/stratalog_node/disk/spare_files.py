"""Creates empty files for future segments off the event loop.

Creating a file waits for the file system's journal, up to 0.1 s beside heavy writes, and a roll happens between two
batches. So a roll takes an existing file under a temporary name. A disk thread gives it its own name
(`SegmentFile.take_name`) before anything in it is acknowledged. If other nodes may lead instead, it gets its name only
once the roll was confirmed and named this node, because their file would have the same name. The next start removes the
spare files that a process leaves behind: nothing in them was acknowledged.

Lives on the event loop; files are created on the background threads. Memory and descriptors: none until the first roll,
then as many as rolled at once, at most `most`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_node.disk.durable_files import made_file, make_directories
from stratalog_node.disk.files import SpareFile
from stratalog_node.disk.threads import DiskThreads

log = logger(__name__)

MOST = 16


class SpareFiles:
    def __init__(self, folder: Path, threads: DiskThreads, most: int = MOST) -> None:
        """`folder` lies on the file system of the segments: the name is given by a rename. Nothing happens before the
        first `take`."""
        self._folder = folder
        self._threads = threads
        self._most = most
        self._ready: deque[SpareFile] = deque()
        self._wanted = 0
        self._made = 0
        self._making: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def pop(self) -> SpareFile | None:
        """The next one, or None when there is none: then make the file yourself. Either way others are made, and more
        of them when there were too few."""
        spare = self._ready.popleft() if self._ready else None
        if spare is None:
            self._wanted = min(max(1, 2 * self._wanted), self._most)
        if self._making is None and len(self._ready) < self._wanted and not self._is_closed:
            self._making = asyncio.get_running_loop().create_task(self._make())
        return spare

    def take_or_make(self) -> SpareFile:
        """As `take`, made now when there is none. Raises: DiskFull, Unavailable."""
        spare = self.pop()
        if spare is None:
            self._made += 1
            path = self._folder / f"{self._made:012}.spare"
            spare = made_file(path), path
        return spare

    async def close(self) -> None:
        """Removes the files that were not taken."""
        self._is_closed = True
        if self._making is not None:
            await self._making
        left, self._ready = self._ready, deque()
        for fd, _ in left:
            os.close(fd)
        await self._threads.background(lambda: _remove(path for _, path in left))

    async def _make(self) -> None:
        try:
            while len(self._ready) < self._wanted and not self._is_closed:
                self._made += 1
                path = self._folder / f"{self._made:012}.spare"
                self._ready.append((await self._threads.background(partial(made_file, path)), path))
        except StratalogError as error:
            log.warning("no segment file was made ahead; the next roll makes its own", error=str(error))
        finally:
            self._making = None


def clear_spare_files(folder: Path) -> None:
    """Remove what a former life left. Blocking; before anything is recovered. Raises: DiskFull, Unavailable."""
    make_directories(folder)
    _remove(folder.glob("*.spare"))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
