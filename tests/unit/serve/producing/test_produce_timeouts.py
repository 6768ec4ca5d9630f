"""Time limits of many produce requests by one timer: each expires in its time, and an answered one never does."""

from __future__ import annotations

import asyncio
import tracemalloc

from stratalog_node.serve.producing.produce_timeouts import ProduceTimeouts
from support.waiting import eventually


class Request:
    def __init__(self, told: list[Request]) -> None:
        self._told = told

    def expire(self) -> None:
        self._told.append(self)


async def test_requests_expire_in_the_order_of_their_patience() -> None:
    told: list[Request] = []
    timeouts = ProduceTimeouts(asyncio.get_running_loop())
    late, soon, also_soon = Request(told), Request(told), Request(told)
    timeouts.add(late, 400)
    timeouts.add(soon, 20)  # before the one that the timer was set for
    timeouts.add(also_soon, 20)
    await eventually(lambda: len(told) == 3)
    assert set(told[:2]) == {soon, also_soon}
    assert told[2] is late


async def test_no_request_expires_before_its_time() -> None:
    told: list[Request] = []
    loop = asyncio.get_running_loop()
    timeouts = ProduceTimeouts(loop)
    due = loop.time() + 0.15
    timeouts.add(Request(told), 150)
    await eventually(lambda: bool(told))
    assert loop.time() >= due


async def test_an_answered_request_is_released_and_never_expires() -> None:
    told: list[Request] = []
    timeouts = ProduceTimeouts(asyncio.get_running_loop())
    answered, waiting = Request(told), Request(told)
    line = timeouts.add(answered, 20)
    timeouts.add(waiting, 20)
    line.pop(answered)
    await eventually(lambda: bool(told))
    assert answered not in told


async def test_answered_requests_of_any_patience_leave_no_memory_behind() -> None:
    loop = asyncio.get_running_loop()
    told: list[Request] = []
    timeouts = ProduceTimeouts(loop)
    waiting = Request(told)
    timeouts.add(waiting, 50)
    for step in range(20_000):  # up to a month
        request = Request(told)
        timeouts.add(request, 1_000 + 100 * step).pop(request)
    tracemalloc.start()
    try:
        for step in range(20_000):
            request = Request(told)
            timeouts.add(request, 3_000_000 + 100 * step).pop(request)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1 << 20
    await eventually(lambda: told == [waiting])


async def test_an_expired_request_may_begin_another() -> None:
    told: list[Request] = []
    timeouts = ProduceTimeouts(asyncio.get_running_loop())

    class Again(Request):
        def expire(self) -> None:
            super().expire()
            timeouts.add(Request(told), 10)

    timeouts.add(Again(told), 10)
    await eventually(lambda: len(told) == 2)


async def test_the_fault_of_one_leaves_the_others_their_timer() -> None:
    told: list[Request] = []
    loop = asyncio.get_running_loop()
    faults: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    timeouts = ProduceTimeouts(loop)

    class Faulty(Request):
        def expire(self) -> None:
            raise ValueError("unforeseen")

    for request in (Request(told), Faulty(told), Request(told)):
        timeouts.add(request, 10)
    await eventually(lambda: len(told) == 2)
    assert len(faults) == 1
