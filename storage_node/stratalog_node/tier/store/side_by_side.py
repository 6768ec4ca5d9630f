"""Runs the works of one round, a limited number at a time: a work that hangs takes one place, and the others continue
in the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

Work = Callable[[], Awaitable[object]]


async def side_by_side(works: Iterable[Work], width: int) -> None:
    """Do all of them, at most `width` at a time, begun in order. Returns when the last has ended.

    Requires: a work handles its own failures; one that raises ends the others.
    """
    waiting = iter(works)

    async def worker() -> None:
        for work in waiting:
            await work()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(worker())
