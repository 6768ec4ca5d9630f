"""Shares one run of a work among all concurrent callers.

The work is a task of its own: a caller that is cancelled, or gives up, leaves it running for the others (F43, F47). So
a caller must not put `asyncio.wait_for` around the work itself; it puts its deadline around `join`.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from stratalog.model.errors import Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Work in progress, by key."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}
        self._is_closed = False

    def __contains__(self, key: K) -> bool:
        return key in self._running

    def __len__(self) -> int:
        return len(self._running)

    def start(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        """The task that works on `key`: the running one, or a new one. Raises: Unavailable when closed."""
        task = self._running.get(key)
        if task is None:
            if self._is_closed:
                raise Unavailable("the node is stopping; read from another node, or later")
            task = self._running[key] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda done: self._finished(key, done))
        return task

    async def join(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of the work on `key`, which outlives this waiter."""
        task = self.start(key, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._is_closed:
                raise Unavailable("the node is stopping; read from another node, or later") from None
            raise
        finally:
            # A failure's trace has this frame in it: a circle, with what was read, that only the collector ends.
            del task

    def _finished(self, key: K, task: asyncio.Task[V]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: asyncio logs a failure that no caller waited for as unhandled

    async def close(self) -> None:
        """Cancel what runs; waiters get Unavailable."""
        self._is_closed = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
