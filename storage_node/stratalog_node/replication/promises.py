"""Writes the fence promises of copies to the disk: all that wait are written at once.

When a node dies, thousands of segments that it led are fenced at the same moment. Each promise must be on the disk
before it is reported, and each write covers the whole list: one by one they would take seconds, during which the shards
have no leader. For the same reason promises have a thread of their own, so that they do not wait behind flushes, scans
and proofs of copies, which may take arbitrarily long.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.fences import FenceBook


class Promises:
    def __init__(self, on_thread: Callable[[Callable[[], None]], Awaitable[None]], book: FenceBook) -> None:
        """`on_thread` runs something on a disk thread that nothing else keeps busy."""
        self._on_thread = on_thread
        self._writing = asyncio.Lock()
        self._book = book
        self._due: list[tuple[SegmentKey, int, asyncio.Future[None]]] = []

    async def write(self, key: SegmentKey, fence: int) -> None:
        """Durability: the promise is on the disk when this returns. Raises: DiskFull, Unavailable; the outcome is then
        unknown."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._due.append((key, fence, written))
        async with self._writing:
            if not written.done():  # else the write before took it along
                await self._write_all()
        written.result()

    async def _write_all(self) -> None:
        due, self._due = self._due, []
        fences: dict[SegmentKey, int] = {}
        for key, fence, _ in due:
            fences[key] = max(fence, fences.get(key, 0))
        try:
            await self._on_thread(lambda: self._book.promise(fences))
        except StratalogError as error:
            for _, _, written in due:
                written.set_exception(error)
                written.exception()  # mark it as retrieved: its caller may have gone
        except BaseException:
            self._due = [*due, *self._due]  # given up by one of them alone: the next one writes
            raise
        else:
            for _, _, written in due:
                written.set_result(None)
