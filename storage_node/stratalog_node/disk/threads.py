"""The node's disk threads: blocking reads, flushes, sealing and deletion, each kind in its own pool.

One slow kind must not hold up another: a flush never waits behind a deletion, a read never behind a flush. Each further
data directory has threads of its own, so a disk that hangs holds up no read of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from stratalog_node.disk.calls import DiskCalls, watch_this_thread

if TYPE_CHECKING:
    from stratalog_node.disk.files import SegmentFile

T = TypeVar("T")

DIRECTORY_THREADS: Final = 4
ROLL_THREADS: Final = 16
COPY_THREADS: Final = 74
"""Most of them wait for the disk; a thread is made when there is work for it (`replication/copy_scheduler.py`)."""


class DiskThreads:
    def __init__(self, read_threads: int = 4, calls: DiskCalls | None = None) -> None:
        """`calls` records what these threads ask of the disk."""
        self.calls = calls or DiskCalls()
        threads = {"read": read_threads, "flush": 1, "seal": 2, "background": 4, "write-behind": 1}
        threads |= {"promise": 1, "probe": 1, "roll": ROLL_THREADS, "copies": COPY_THREADS}
        self._pools = {
            kind: ThreadPoolExecutor(count, f"disk-{kind}", initializer=watch_this_thread, initargs=(self.calls,))
            for kind, count in threads.items()
        }
        self._of_directories: dict[str, ThreadPoolExecutor] = {}
        """By the beginning of the paths in a further directory."""

    def add_directory(self, root: Path) -> None:
        """What is asked of its files from now on has threads of its own, and says nothing of the first disk. Before the
        node serves."""
        self.calls.leave_out(root)
        pool = ThreadPoolExecutor(
            DIRECTORY_THREADS, "disk-further", initializer=watch_this_thread, initargs=(self.calls,)
        )
        self._of_directories[f"{root}/"] = pool

    async def in_directory(self, root: Path, work: Callable[[], T]) -> T:
        """Requires: `add_directory(root)`."""
        return await asyncio.get_running_loop().run_in_executor(self._of_directories[f"{root}/"], work)

    def _pool(self, kind: str, file: SegmentFile) -> ThreadPoolExecutor:
        if self._of_directories:
            path = str(file.path)
            for root, pool in self._of_directories.items():
                if path.startswith(root):
                    return pool
        return self._pools[kind]

    async def read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools["read"], work)

    async def read_file(self, file: SegmentFile, work: Callable[[], T]) -> T:
        """Work that reads one segment's file, which stays pinned until the thread is done, even if the caller is
        cancelled: the descriptor's number must not be reused for another file meanwhile."""
        return await self._pinned("read", file, work)

    async def seal_file(self, file: SegmentFile, work: Callable[[], T]) -> T:
        return await self._pinned("seal", file, work)

    async def change_file(self, file: SegmentFile, work: Callable[[], T]) -> T:
        return await self._pinned("background", file, work)

    async def settle_copy(self, file: SegmentFile, work: Callable[[], T]) -> T:
        """Flushes and proofs of copies of other nodes' segments: several at a time, so that the file system's journal
        commits them together."""
        return await self._pinned("copies", file, work)

    def write_behind(self, file: SegmentFile, work: Callable[[], T]) -> Future[T]:
        """The caller does not wait for it."""
        return self._submit("write-behind", file, work)

    async def _pinned(self, kind: str, file: SegmentFile, work: Callable[[], T]) -> T:
        arrived: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(ended: Future[T]) -> None:
            if arrived.cancelled():
                return
            if ended.cancelled():
                arrived.cancel()
            elif (error := ended.exception()) is not None:
                arrived.set_exception(error)
            else:
                arrived.set_result(ended.result())

        running = self._submit(kind, file, work, settle)
        try:
            return await arrived
        except asyncio.CancelledError:
            running.cancel()
            raise

    def _submit(
        self, kind: str, file: SegmentFile, work: Callable[[], T], settle: Callable[[Future[T]], None] = lambda _: None
    ) -> Future[T]:
        """`settle` is called on the event loop once the work has ended: one wake-up for it and for the file."""
        loop = asyncio.get_running_loop()
        file.pin()
        try:
            running = self._pool(kind, file).submit(work)
        except BaseException:
            file.unpin()
            raise

        def come_back(ended: Future[T]) -> None:
            file.unpin()
            settle(ended)

        def wake(ended: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: so is everything else
                loop.call_soon_threadsafe(come_back, ended)

        running.add_done_callback(wake)
        return running

    async def flush(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools["flush"], work)

    async def flush_ended(self, file: SegmentFile, work: Callable[[], T]) -> T:
        """The flush of a segment that ended: producers wait for it, and it waits for no index block or deletion."""
        return await self._pinned("roll", file, work)

    async def seal(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools["seal"], work)

    async def promise(self, work: Callable[[], T]) -> T:
        """For promises of fences alone: a shard may have no leader until one is written."""
        return await asyncio.get_running_loop().run_in_executor(self._pools["promise"], work)

    async def probe(self, work: Callable[[], T]) -> T:
        """To find out how the disk is: whatever hangs, this thread is free, unless the last probe hangs."""
        return await asyncio.get_running_loop().run_in_executor(self._pools["probe"], work)

    async def background(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools["background"], work)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        for pool in self._of_directories.values():
            pool.shutdown(wait=True, cancel_futures=True)
