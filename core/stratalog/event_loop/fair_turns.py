"""Turns of the loop for long answers: of all that are being made, one goes on in a turn.

A long answer is made in slices so that the loop serves others in between. That is no bound by itself: sixty at a time,
which one client may ask for, would do sixty slices in each turn.
"""

from __future__ import annotations

import asyncio


class FairTurns:
    """Shared by the answers of one port, or one node. Lives on the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Returns in a later turn of the loop, in which it returns to nobody else; who asked first goes first."""
        async with self._lock:
            await asyncio.sleep(0)
