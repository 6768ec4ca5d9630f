"""One piece of work for many waiters: a waiter that leaves does not take it from the others (F43, F47)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from stratalog.model.errors import Unavailable
from stratalog_node.single_flight import SingleFlight


async def test_all_waiters_get_the_one_result() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    begun = 0
    gate = asyncio.Event()

    async def work() -> int:
        nonlocal begun
        begun += 1
        await gate.wait()
        return 7

    waiters = [asyncio.ensure_future(flights.join("a", work)) for _ in range(5)]
    await asyncio.sleep(0)
    assert "a" in flights
    gate.set()
    assert await asyncio.gather(*waiters) == [7] * 5
    assert begun == 1
    assert len(flights) == 0


async def test_cancelling_every_waiter_leaves_the_work_running() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    gate = asyncio.Event()
    done = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        done.set()
        return 7

    waiters = [asyncio.ensure_future(flights.join("a", work)) for _ in range(3)]
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert all(waiter.cancelled() for waiter in waiters)
    gate.set()
    await asyncio.wait_for(done.wait(), 5)


@pytest.mark.fault("cancellation-instant-completion")
async def test_a_waiter_cancelled_at_the_instant_of_completion_takes_nothing_along() -> None:
    """At every step between the end of the work and the waiter's own turn."""
    for steps in range(6):
        flights: SingleFlight[str, int] = SingleFlight()
        gate = asyncio.Event()

        async def work(gate: asyncio.Event = gate) -> int:
            await gate.wait()
            return 7

        victim = asyncio.ensure_future(flights.join("a", work))
        other = asyncio.ensure_future(flights.join("a", work))
        await asyncio.sleep(0)
        gate.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        victim.cancel()
        with suppress(asyncio.CancelledError):
            assert await victim == 7
        assert await other == 7


async def test_a_failure_is_every_waiters_and_the_next_one_tries_again() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    outcomes = [Unavailable("no"), 7]

    async def work() -> int:
        outcome = outcomes.pop(0)
        await asyncio.sleep(0)
        if isinstance(outcome, int):
            return outcome
        raise outcome

    both = await asyncio.gather(flights.join("a", work), flights.join("a", work), return_exceptions=True)
    assert [type(one) for one in both] == [Unavailable, Unavailable]
    assert await flights.join("a", work) == 7


async def test_closing_ends_the_work_and_notifies_the_waiters() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def work() -> int:
        await asyncio.Event().wait()
        return 7

    waiter = asyncio.ensure_future(flights.join("a", work))
    await asyncio.sleep(0)
    await flights.close()
    with pytest.raises(Unavailable, match="stopping"):
        await waiter
    with pytest.raises(Unavailable):
        await flights.join("b", work)


@pytest.mark.fault("consumers-ask-block-bucket")
async def test_what_a_failed_work_had_read_goes_with_its_error() -> None:
    """A server's collector looks seldom, and a consumer asks for a damaged block again and again."""

    class Block(bytearray):
        """Bytes that tell when they are freed."""

    flights: SingleFlight[str, int] = SingleFlight()
    read: list[weakref.ref[Block]] = []

    async def work() -> int:
        block = Block(1 << 20)
        read.append(weakref.ref(block))
        await asyncio.sleep(0)
        raise Unavailable("it is damaged")

    gc.disable()
    try:
        with pytest.raises(Unavailable):
            await flights.join("a", work)
        await asyncio.sleep(0)  # the loop lets go of what it had to wake
        assert [block() for block in read] == [None]
    finally:
        gc.enable()
