"""Watches the further data directories: one that fails takes only its own copies with it.

Each is asked for its identity file, from the disk, every second. One that gives an error twice in a row, another
identity, or no answer for `disk.stall.ms` has failed: its copies count as gone at once, as if each file had vanished.
Readers are served by other nodes or the object store; the copies are reported to the meta service where other nodes
hold some, and are made again in the first directory. It stays out of use until the node starts again.
Lives on the event loop; asks on the directory's own threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.disk.further_directories import check_directory
from stratalog_node.disk.layout import FurtherDirectory
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.copies.missing_files import copy_gone
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.slices import Slices

log = logger(__name__)

_POLL_S: Final = 1.0
_ERRORS_TO_FAIL: Final = 2


@dataclass(slots=True)
class DirectoryStats:
    unusable: int = gauge("Further data directories that failed or were absent at the start.")
    failures: int = counter("Further data directories that failed while the node ran.")


class DirectoryWatch:
    def __init__(self, context: ShardContext, shards: ShardDirectory, stall_ms: int) -> None:
        self.stats = DirectoryStats()
        self._context = context
        self._shards = shards
        self._stall_s = stall_ms / 1_000
        self._tasks: list[asyncio.Task[None]] = []
        self._count()

    def start(self) -> None:
        for one in self._context.layout.further:
            if one.trouble is None:
                task = asyncio.get_running_loop().create_task(self._watch(one), name="directory-watch")
                self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def troubles(self) -> dict[str, str]:
        """Why directories are not used, by path."""
        return {str(one.root): one.trouble for one in self._context.layout.further if one.trouble is not None}

    @property
    def lines(self) -> list[str]:
        """A line for each directory that is not used, for people."""
        return [f"data directory {path} is not used: {why}" for path, why in self.troubles.items()]

    async def _watch(self, directory: FurtherDirectory) -> None:
        errors = 0
        while True:
            await asyncio.sleep(_POLL_S)
            why = await self.check(directory)
            errors = 0 if why is None else errors + 1
            if why is not None and errors >= _ERRORS_TO_FAIL:
                await self.fail(directory, why)
                return

    async def check(
        self, directory: FurtherDirectory, ask: Callable[[FurtherDirectory], None] = check_directory
    ) -> str | None:
        """Why it does not work; None while it does."""
        try:
            async with asyncio.timeout(self._stall_s):
                await self._context.threads.in_directory(directory.root, lambda: ask(directory))
        except TimeoutError:
            return f"{directory.root} has not answered for {self._stall_s:.0f} s"
        except (StratalogError, OSError) as error:
            return str(error)
        return None

    async def fail(self, directory: FurtherDirectory, why: str) -> None:
        """Nothing of it counts any more."""
        directory.trouble = f"{why}: replace or mount the disk, then start the node again"
        self.stats.failures += 1
        self._count()
        layout, slices = self._context.layout, Slices()
        keys = [key for key, root in list(layout.moved.items()) if root == directory.root]
        place = str(directory.root)
        log.error("a data directory failed: its copies are gone", directory=place, copies=len(keys), why=why)
        for key in keys:
            shard = self._shards.get(key.shard_key)
            copy = shard.copies.get(key.epoch) if shard is not None else None
            if shard is not None and copy is not None and copy.key == key:
                copy_gone(shard, copy)
            layout.moved.pop(key, None)
            await slices.did()

    def _count(self) -> None:
        self.stats.unusable = len(self.troubles)
