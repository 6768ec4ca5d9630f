"""Long work in slices: the event loop has a turn between two of them.

Cost: nothing for work of one slice. What the work stands on may change between slices: look again before acting on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

SLICE = 500
"""Items between two turns: 1 to 5 ms of work, whatever is done with one."""

_T = TypeVar("_T")


async def in_slices(items: Sequence[_T], size: int = SLICE) -> AsyncIterator[Sequence[_T]]:
    """The items in runs of at most `size`."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
