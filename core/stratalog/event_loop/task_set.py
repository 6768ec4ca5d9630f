"""Tasks that run in the background of a part, kept until they end, and ended with it.

The event loop holds its tasks weakly: a task without another reference may vanish in the middle of its work.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator


class TaskSet:
    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(list(self._tasks))

    def start(self, work: Coroutine[object, object, None], *, name: str | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def ended(self) -> None:
        """Returns once those that run now have ended; what they raise is theirs."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """End those that run now, and wait until they have."""
        for task in self:
            task.cancel()
        await self.ended()
