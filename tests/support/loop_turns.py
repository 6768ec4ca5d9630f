"""Counts turns of the event loop while something runs, and the most work done within one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """`count` tells how much of the work has been done so far."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self.turns = 0
        self.most = 0
        """The largest part of the work that was done between two turns."""

    async def __aenter__(self) -> Turns:
        self._task = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()

    async def _watch(self) -> None:
        seen = self._count()
        while True:
            await asyncio.sleep(0)
            now = self._count()
            self.turns += 1
            self.most = max(self.most, now - seen)
            seen = now
