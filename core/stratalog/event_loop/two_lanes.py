"""One thing at a time, with two lanes: work that clients wait for goes before background work. Within a lane, the first
caller goes first. Neither lane starves: after `URGENT_IN_A_ROW` urgent turns one of the others is given. Lives on the
event loop. Cost: a future for each that has to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

URGENT_IN_A_ROW: Final = 64


class TwoLanes:
    __slots__ = ("_in_a_row", "_is_taken", "_other", "_urgent")

    def __init__(self) -> None:
        self._is_taken = False
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._other: deque[asyncio.Future[None]] = deque()
        self._in_a_row = 0

    async def acquire(self, *, is_urgent: bool) -> None:
        """Returns once it is the caller's turn, who ends it with `release`."""
        if self._is_taken:
            await self._wait(self._urgent if is_urgent else self._other)
        self._is_taken = True

    async def _wait(self, lane: deque[asyncio.Future[None]]) -> None:
        """Returns once the turn was handed to this caller."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.release()  # it was given in the same turn of the loop
            elif given in lane:  # else it was passed over, in the same turn of the loop
                lane.remove(given)
            raise

    def release(self) -> None:
        """`_is_taken` stays true for the next waiter, so that no newcomer takes the turn in between."""
        is_urgent = bool(self._urgent) and (self._in_a_row < URGENT_IN_A_ROW or not self._other)
        lane = self._urgent if is_urgent else self._other
        while lane:
            given = lane.popleft()
            if not given.done():
                self._in_a_row = self._in_a_row + 1 if is_urgent else 0
                given.set_result(None)
                return
        if self._urgent or self._other:
            self.release()
            return
        self._is_taken, self._in_a_row = False, 0
