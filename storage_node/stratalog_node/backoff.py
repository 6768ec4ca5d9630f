"""Pauses between the attempts at one thing that must be done in the end, however long what it needs is away.

Each is twice as long as the one before, up to a longest one, and shortened at random: thousands of shards that wait for
one meta service, or one object store, do not come back in step.
"""

from __future__ import annotations

import asyncio
import random

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    __slots__ = ("next_s",)

    def __init__(self) -> None:
        self.next_s = FIRST_S
        """How long the next pause is, at most."""

    async def pause(self) -> None:
        pause_s, self.next_s = self.next_s, min(self.next_s * 2, LONGEST_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    def expect_little(self) -> None:
        """What failed will hardly be well soon: the next pause is the longest."""
        self.next_s = LONGEST_S
