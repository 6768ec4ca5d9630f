"""Each turn of the loop works on one of many long answers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from stratalog.event_loop.fair_turns import FairTurns


@pytest.mark.fault("client-asks-pages-lists")
async def test_sixty_that_ask_at_once_continue_one_by_one_in_the_order_in_which_they_asked() -> None:
    turns, turn, went = FairTurns(), 0, []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def look(name: int) -> None:
        for _ in range(3):
            await turns.next()
            went.append((turn, name))

    counting = asyncio.create_task(count())
    await asyncio.gather(*(look(name) for name in range(60)))
    counting.cancel()
    assert max(Counter(at for at, _ in went).values()) == 1
    assert [name for _, name in went] == 3 * list(range(60))


async def test_a_caller_that_gives_up_waiting_keeps_no_one() -> None:
    turns = FairTurns()
    waiting = [asyncio.create_task(turns.next()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait(waiting)
    assert not waiting[2].cancelled()
    await turns.next()
