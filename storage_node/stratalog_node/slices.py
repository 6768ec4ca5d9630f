"""Runs long work on the event loop in slices, so that the loop serves other work between two of them.

A request may name a hundred thousand things, a shard have thousands of segments and a node 10,000 shards; in one step
each of them would hold the loop for seconds. The state that the work depends on may change between slices: check it
again before acting on it, and keep only what is your own. Cost: nothing for work of less than one slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

from stratalog.event_loop.fair_turns import FairTurns

UNITS_PER_SLICE: Final = 256
"""Things looked at, or entries made, between two turns: a millisecond or two, whatever is done with one."""

_T = TypeVar("_T")


class _Effort:
    """What was done on the event loop beyond the units that works count, by whichever of them."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units = 0


_EFFORT: Final = _Effort()


def add_effort(units: int) -> None:
    """Something cost as much as this number of units: the slice that it was done in ends earlier."""
    _EFFORT.units += units


class Slices:
    """One long piece of work that counts what it has done."""

    __slots__ = ("_seen", "_turns", "_units")

    def __init__(self, turns: FairTurns | None = None) -> None:
        """`turns`, if given, are shared with other works: only one of them continues per turn, and the first slice
        waits for its turn, too. For requests that any client may send many of at once."""
        self._turns = turns
        self._units = UNITS_PER_SLICE if turns is not None else 0
        self._seen = _EFFORT.units

    async def did(self, units: int = 1) -> None:
        """So much has been done; lets others run when it was a slice."""
        effort = _EFFORT.units
        self._units += units + effort - self._seen
        self._seen = effort
        if self._units >= UNITS_PER_SLICE:
            self._units = 0
            if self._turns is not None:
                await self._turns.next()
            else:
                await asyncio.sleep(0)
            self._seen = _EFFORT.units


async def in_slices(items: Sequence[_T], size: int = UNITS_PER_SLICE) -> AsyncIterator[Sequence[_T]]:
    """The items in runs of at most `size`."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
