"""The control requests of one connection: worked off one after the other, as clients expect it. Lives on the event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ControlLine:
    """`broken` is called when nobody will answer the request under way: the node stops, or a handler's own task was
    cancelled."""

    __slots__ = ("_broken", "_loop", "_task", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, broken: Callable[[str], None]) -> None:
        self._loop = loop
        self._broken = broken
        self._waiting: list[Callable[[], Awaitable[None]]] = []  # not a deque: an empty one takes 760 bytes
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(work)
        if self._task is None:
            self._task = self._loop.create_task(self._work_off())

    def close(self) -> None:
        """The connection is gone."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                await self._waiting.pop(0)()
        except asyncio.CancelledError:
            self._broken("a request was cancelled")
            raise
        finally:
            self._task = None
