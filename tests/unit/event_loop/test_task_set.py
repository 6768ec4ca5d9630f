"""Tasks of the background are kept until they end, and end with the part that began them."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from stratalog.event_loop.task_set import TaskSet


async def test_a_task_that_only_the_set_knows_survives_the_collector_and_is_forgotten_once_it_ended() -> None:
    tasks, seen, went = TaskSet(), [], []

    async def wait_for_what_nobody_keeps() -> None:
        waiting = asyncio.get_running_loop().create_future()
        seen.append(weakref.ref(waiting))
        await waiting
        went.append("through")

    tasks.start(wait_for_what_nobody_keeps())
    await asyncio.sleep(0)
    gc.collect()
    kept = seen[0]()
    assert kept is not None, "the task vanished in the middle of its work"
    kept.set_result(None)
    await tasks.ended()
    assert went == ["through"]
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_one_that_fails_keeps_no_one_from_waiting_for_the_others() -> None:
    tasks, may_end = TaskSet(), asyncio.Event()

    async def fail() -> None:
        raise ValueError("its own")

    async def wait() -> None:
        await may_end.wait()

    failed, waits = tasks.start(fail()), tasks.start(wait(), name="waits")
    ending = asyncio.ensure_future(tasks.ended())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failed.done() and not ending.done()
    may_end.set()
    await ending
    assert waits.done() and waits.get_name() == "waits"
    with pytest.raises(ValueError, match="its own"):
        failed.result()


async def test_cancelling_waits_until_each_has_put_its_things_away() -> None:
    tasks, put_away = TaskSet(), []

    async def work(name: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            put_away.append(name)

    for name in range(3):
        tasks.start(work(name))
    await asyncio.sleep(0)
    assert {task.done() for task in tasks} == {False}
    await tasks.cancel()
    assert sorted(put_away) == [0, 1, 2]
