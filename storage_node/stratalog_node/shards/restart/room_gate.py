"""Lets one shard at a time try while the disk is full, after pauses that grow.

A start may leave 10,000 shards that need room: to be opened, to be healed, or to revoke a checkpoint. While the disk is
full one attempt tells as much as 10,000, which would keep disk, event loop and log busy. So one of them tries, each in
its turn, and the others wait; once one has found room, all try again, `places` at a time.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stratalog.model.errors import DiskFull
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff

log = logger(__name__)


def says_full(error: BaseException) -> bool:
    """Whether something failed because the disk, or the quota of its user, has no room."""
    is_full_file_system = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull) or is_full_file_system


class RoomGate:
    def __init__(self, places: asyncio.Semaphore, new_backoff: Callable[[], Backoff]) -> None:
        self._places = places
        self._new_backoff = new_backoff
        self._trial = asyncio.Lock()
        self._backoff: Backoff | None = None
        """None: nothing says that the disk is full."""
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        """Whoever tries next waits for a turn."""
        return self._backoff is not None

    def found_full(self, error: BaseException) -> None:
        """An attempt failed for want of room."""
        if self._backoff is None:
            self._backoff = self._new_backoff()
        log.warning(
            "shards wait for room on the disk",
            waiting=self._waiting + 1,
            retry_s=self._backoff.next_s,
            error=str(error),
        )

    def found_room(self) -> None:
        """An attempt has succeeded, so others are worth while."""
        self._backoff = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The caller tries once in it, and then calls one of the above, if the attempt says anything about room."""
        async with self._places:
            if self._pauses() is None:  # else whoever came with this one has met a full disk meanwhile
                yield
                return
        self._waiting += 1
        try:
            await self._trial.acquire()
        finally:
            self._waiting -= 1
        try:
            if (backoff := self._pauses()) is not None:
                await backoff.pause()
                async with self._places:
                    yield
                return
        finally:
            self._trial.release()
        async with self._places:
            yield

    def _pauses(self) -> Backoff | None:
        return self._backoff  # it changes while others are waited for
