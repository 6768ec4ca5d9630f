"""Pauses between attempts of work that must succeed eventually, however long the service that it needs is away.

Each pause is twice as long as the one before, up to a maximum, and shortened at random (`stratalog.machines.backoff`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from stratalog.machines.backoff import longest_pause, pause_after

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    """One row of failures. Times in seconds."""

    __slots__ = ("_failures", "_first_s", "_jitter", "_longest_s")

    def __init__(
        self,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._failures = 1

    @property
    def next_s(self) -> float:
        """How long the next pause is, at most."""
        return longest_pause(self._failures, self._first_s, self._longest_s)

    async def pause(self) -> None:
        pause_s = pause_after(self._failures, self._first_s, self._longest_s, self._jitter())
        self._failures += 1
        await asyncio.sleep(pause_s)

    def expect_little(self) -> None:
        """What failed will hardly be well soon: the next pause is the longest."""
        while self.next_s < self._longest_s:
            self._failures += 1
