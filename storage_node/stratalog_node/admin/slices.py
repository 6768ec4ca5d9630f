"""Long looks at what is in memory, in slices: between two of them the loop serves everybody else.

A shard may have thousands of segments and a node 10,000 shards; a page that sums them up in one step would hold the
loop for as long as that takes, and everybody can ask for pages.
"""

from __future__ import annotations

from typing import Final

from stratalog.telemetry.fair_turns import FairTurns

UNITS_PER_SLICE: Final = 256
"""Segments, shards or parts looked at in one turn of the loop; each costs microseconds."""


class Slices:
    """One long look. What it holds on to over `did` must be its own: the node goes on meanwhile."""

    __slots__ = ("_turns", "_units")

    def __init__(self, turns: FairTurns) -> None:
        """`turns` are shared by all looks of the node, for everybody can ask for many pages at a time."""
        self._turns = turns
        self._units = UNITS_PER_SLICE  # the first slice waits for its turn, too

    async def did(self, units: int = 1) -> None:
        """So much has been done; lets others run when it was a slice."""
        self._units += units
        if self._units >= UNITS_PER_SLICE:
            self._units = 0
            await self._turns.next()
