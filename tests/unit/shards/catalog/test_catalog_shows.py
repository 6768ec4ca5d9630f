"""What a request changed is waited for until the catalog shows it, without holding the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from stratalog_node.shards.catalog.wait import catalog_shows_each


async def test_each_of_many_things_is_looked_at_until_it_is_shown_and_not_again() -> None:
    looks: Counter[int] = Counter()

    def is_shown(thing: int) -> bool:
        looks[thing] += 1
        return thing != 700 or looks[thing] > 3

    assert await catalog_shows_each(range(1_000), is_shown, 60_000)
    assert looks[700] == 4
    assert all(count == 1 for thing, count in looks.items() if thing != 700) and len(looks) == 1_000


async def test_others_run_between_slices_of_many_things() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    assert await catalog_shows_each(range(5_000), lambda thing: True, 60_000)
    assert turns >= 15
    running.cancel()


async def test_what_is_not_shown_in_time_is_not_waited_for() -> None:
    assert not await catalog_shows_each([1, 2], lambda thing: thing == 1, 0)
    assert await catalog_shows_each([], lambda thing: False, 0)
