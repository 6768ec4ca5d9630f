"""Turns of the loop for long answers: in each turn only one of them is worked on. A long answer is made in slices so
that the loop serves others in between. Slices alone are not a bound: one client may ask for sixty answers at a time,
and each turn would do sixty slices.
"""

from __future__ import annotations

import asyncio


class FairTurns:
    """Shared by the answers of one port, or one node. Lives on the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Returns in a later turn of the loop, and to only one caller in each turn, in the order of the calls."""
        async with self._lock:
            await asyncio.sleep(0)
