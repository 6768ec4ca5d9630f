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
from stratalog_node.one_tries import OneTries

log = logger(__name__)


def says_full(error: BaseException) -> bool:
    """Whether something failed because the disk, or the quota of its user, has no room."""
    is_full_file_system = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, DiskFull) or is_full_file_system


class RoomGate:
    def __init__(self, places: asyncio.Semaphore, new_backoff: Callable[[], Backoff]) -> None:
        self._places = places
        self._one = OneTries(new_backoff)

    @property
    def is_full(self) -> bool:
        """Whoever tries next waits for a turn."""
        return self._one.backoff is not None

    @property
    def waiting(self) -> int:
        """Shards that wait for the one that tries."""
        return self._one.waiting

    def found_full(self, error: BaseException) -> None:
        """An attempt failed for want of room."""
        log.warning(
            "shards wait for room on the disk",
            retry_s=self._one.met_trouble().next_s,
            waiting=self.waiting + 1,
            error=str(error),
        )

    def found_room(self) -> None:
        """An attempt has succeeded, so others are worth while."""
        self._one.trouble_ended()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The caller tries once in it, and then calls one of the above, if the attempt says anything about room."""
        async with self._places:
            if not self.is_full:  # else whoever came with this one has met a full disk meanwhile
                yield
                return
        async with self._one.turn(), self._places:
            yield
