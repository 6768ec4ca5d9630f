"""When nobody waits: work on a segment that has ended begins once no shard of this node rolls.

Where a shard rolls its producers wait for the roll, for the followers of the next segment, and for their rounds. The
proof of what has ended reads all of it again, on each replica at the same moment, and nobody waits for that.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time

CALM_S = 0.1
"""Since the last roll that this node heard of."""
LONGEST_S = 1.0
"""A node that rolls all the time proves all the same."""


class Calm:
    def __init__(self) -> None:
        self._disturbed_at = float("-inf")

    def disturbed(self) -> None:
        """A shard rolls, here or at the node that is followed."""
        self._disturbed_at = time.monotonic()

    async def come(self) -> None:
        """Returns once it is calm, or nobody waits for that any longer."""
        give_up_at = time.monotonic() + LONGEST_S
        left_s = self._left_s(give_up_at)
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = self._left_s(give_up_at)

    def _left_s(self, give_up_at: float) -> float:
        return min(self._disturbed_at + CALM_S, give_up_at) - time.monotonic()
