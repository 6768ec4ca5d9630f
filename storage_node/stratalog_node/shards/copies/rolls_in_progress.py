"""Delays work on ended segments while shards of this node roll.

While a shard rolls, its producers wait for the roll, for the followers of the next segment, and for their fetch rounds.
Proving the ended segment reads all of it again, on every replica at the same moment, and no client waits for it.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time

PAUSE_S = 0.1
"""How long after the last roll the node counts as rolling."""
LONGEST_S = 1.0
"""A node that rolls without a pause still proves its segments: it waits no longer than this."""


class RollsInProgress:
    def __init__(self) -> None:
        self._last_roll_at = float("-inf")

    def note_roll(self) -> None:
        """A shard rolls, on this node or on the node that it follows."""
        self._last_roll_at = time.monotonic()

    async def wait_until_none(self, longest_s: float = LONGEST_S) -> None:
        """Return once no shard has rolled for `PAUSE_S`, at the latest after `longest_s`."""
        give_up_at = time.monotonic() + longest_s
        left_s = self._left_s(give_up_at)
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = self._left_s(give_up_at)

    def _left_s(self, give_up_at: float) -> float:
        return min(self._last_roll_at + PAUSE_S, give_up_at) - time.monotonic()
