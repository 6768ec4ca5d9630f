"""Lets one of many that meet the same trouble try, after pauses that grow, while the others wait for it.

One attempt tells as much as thousands would: it is one request, and one line in the log, for each pause. Once the
trouble is over, all try. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stratalog_node.backoff import Backoff


class OneTries:
    def __init__(self, new_backoff: Callable[[], Backoff]) -> None:
        self._new_backoff = new_backoff
        self._trial = asyncio.Lock()
        self.backoff: Backoff | None = None
        """Of the trouble; None: there is none, as far as is known."""
        self.waiting = 0
        """Callers that wait for the one that tries."""

    def met_trouble(self) -> Backoff:
        """An attempt met it. Returns: the pauses, which grow while it lasts."""
        self.backoff = self.backoff or self._new_backoff()
        return self.backoff

    def trouble_ended(self) -> None:
        """An attempt met none."""
        self.backoff = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The caller tries once in it, and then calls one of the above, if the attempt says anything of the trouble."""
        if self._pauses() is None:
            yield
            return
        self.waiting += 1
        try:
            await self._trial.acquire()
        finally:
            self.waiting -= 1
        try:
            if (backoff := self._pauses()) is not None:
                await backoff.pause()
                yield
                return
        finally:
            self._trial.release()
        yield

    def _pauses(self) -> Backoff | None:
        return self.backoff  # it changes while others are waited for
