"""Background work on a file, wherever it lies, that waits for no disk that failed.

A further directory whose disk hangs keeps the threads that ask it. Work on its files therefore runs on its own threads,
and a caller stops waiting when the directory has failed (`shards/moves/directory_watch.py`); the thread stays with the
disk. Without this, four deletions there would end all background work of the node, and its first disk would fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from stratalog.model.errors import Unavailable
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads

T = TypeVar("T")

_POLL_S: Final = 0.5


async def background_at(layout: NodeLayout, threads: DiskThreads, path: Path, work: Callable[[], T]) -> T:
    """`work` for the file at `path`. Raises: Unavailable when its directory has failed; whether the work is done is not
    known then."""
    directory = layout.further_of(path)
    if directory is None:
        return await threads.background(work)
    if directory.trouble is not None:
        raise Unavailable(directory.trouble)
    running = asyncio.ensure_future(threads.in_directory(directory.root, work))
    try:
        while not (await asyncio.wait([running], timeout=_POLL_S))[0]:
            if directory.trouble is not None:
                raise Unavailable(directory.trouble)
        return await running
    finally:
        running.cancel()  # of what has not begun
