"""One thing at a time, urgent work first, and nothing starves or is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.event_loop.two_lanes import URGENT_IN_A_ROW, TwoLanes


@asynccontextmanager
async def held(lanes: TwoLanes) -> AsyncIterator[None]:
    await lanes.acquire(is_urgent=True)
    try:
        yield
    finally:
        lanes.release()


class Line:
    """Work that waits for one turn, and the order in which it was done."""

    def __init__(self) -> None:
        self.lanes = TwoLanes()
        self.done: list[str] = []
        self.at_once = 0

    def ask(self, name: str, *, is_urgent: bool) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._work(name, is_urgent))

    async def _work(self, name: str, is_urgent: bool) -> None:
        await self.lanes.acquire(is_urgent=is_urgent)
        try:
            self.at_once += 1
            try:
                assert self.at_once == 1, "two at a time"
                await asyncio.sleep(0)
                self.done.append(name)
            finally:
                self.at_once -= 1
        finally:
            self.lanes.release()


async def test_urgent_work_goes_before_what_has_waited_longer() -> None:
    line = Line()
    async with held(line.lanes):
        tasks = [line.ask(f"proof {number}", is_urgent=False) for number in range(3)]
        tasks += [line.ask(f"file {number}", is_urgent=True) for number in range(3)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert line.done == ["file 0", "file 1", "file 2", "proof 0", "proof 1", "proof 2"]


async def test_other_work_has_its_turn_while_urgent_work_never_ends() -> None:
    line = Line()
    async with held(line.lanes):
        tasks = [line.ask("proof", is_urgent=False)]
        tasks += [line.ask("file", is_urgent=True) for _ in range(3 * URGENT_IN_A_ROW)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert line.done.index("proof") == URGENT_IN_A_ROW


async def test_who_is_cancelled_in_line_takes_no_turn_and_loses_none() -> None:
    line = Line()
    first = line.ask("first", is_urgent=False)
    await asyncio.sleep(0)
    gone, stays = line.ask("gone", is_urgent=True), line.ask("stays", is_urgent=True)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(first, stays)
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert line.done == ["first", "stays"]
    await line.ask("later", is_urgent=False)


async def test_an_error_of_one_hands_the_turn_on() -> None:
    lanes = TwoLanes()
    with pytest.raises(ValueError, match="torn"):
        async with held(lanes):
            raise ValueError("torn")
    async with asyncio.timeout(30), held(lanes):
        pass


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.booleans()), max_size=60))
def test_each_has_its_turn_alone_however_many_come_and_are_cancelled(asked: list[tuple[bool, int, bool]]) -> None:
    """Of each: whether it is urgent, how many turns of the loop pass until the next, whether it is cancelled then."""

    async def play() -> None:
        line, tasks, kept = Line(), [], []
        for number, (is_urgent, pause, is_cancelled) in enumerate(asked):
            task = line.ask(str(number), is_urgent=is_urgent)
            tasks.append(task)
            for _ in range(pause):
                await asyncio.sleep(0)
            if is_cancelled:
                task.cancel()
            else:
                kept.append(str(number))
        async with asyncio.timeout(30):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await line.ask("last", is_urgent=False)
        assert not [one for one in ended if isinstance(one, AssertionError)]
        assert set(kept) <= set(line.done) and line.done[-1] == "last"

    asyncio.run(play())


async def test_who_is_cancelled_and_passed_over_in_one_turn_of_the_loop_is_cancelled() -> None:
    line = Line()
    async with held(line.lanes):
        passed_over, other = line.ask("passed over", is_urgent=True), line.ask("other", is_urgent=True)
        await asyncio.sleep(0)
        passed_over.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passed_over
    await other
    assert line.done == ["other"]
