"""Limits on transfers: their number at a time, bytes per second; nothing is lost when a waiter goes away."""

from __future__ import annotations

import asyncio
import time

import pytest

from stratalog.objects import TransferLimits


async def test_no_more_transfers_at_a_time_than_allowed() -> None:
    limits = TransferLimits(bytes_per_s=None, concurrency=3)
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        async with limits.transfer(1):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(one() for _ in range(50)))
    assert most == 3


async def test_bytes_beyond_the_burst_wait_for_their_turn() -> None:
    limits = TransferLimits(bytes_per_s=100 << 20, concurrency=8)
    started = time.monotonic()

    async def one() -> None:
        async with limits.transfer(5 << 20):
            pass

    await asyncio.gather(*(one() for _ in range(10)))
    # 50 MiB at 100 MiB/s with 25 MiB at once: never sooner, however fast the machine.
    assert time.monotonic() - started >= 0.24
    assert limits.waited_ms > 0


async def test_a_cancelled_waiter_gives_its_tokens_and_its_slot_back() -> None:
    limits = TransferLimits(bytes_per_s=10 << 20, concurrency=1)

    async def one(size: int) -> None:
        async with limits.transfer(size):
            pass

    await one(2 << 20)
    waiter = asyncio.ensure_future(one(1 << 40))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    async with asyncio.timeout(5):
        await one(1)
