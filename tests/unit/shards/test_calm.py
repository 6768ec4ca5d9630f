"""Seals and proofs begin once no shard of the node rolls, and are not put off without an end."""

from __future__ import annotations

import asyncio

import pytest

from stratalog_node.shards.copies import calm
from stratalog_node.shards.copies.calm import Calm
from support.waiting import eventually


async def test_whoever_waits_goes_on_at_once_where_nothing_rolled() -> None:
    await Calm().come()


async def test_a_roll_while_somebody_waits_makes_it_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm, "CALM_S", 3_600.0)
    quiet = Calm()
    quiet.disturbed()
    waiting = asyncio.create_task(quiet.come())
    await asyncio.sleep(0)
    quiet.disturbed()
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_node_that_rolls_all_the_time_proves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm, "CALM_S", 3_600.0)
    monkeypatch.setattr(calm, "LONGEST_S", 0.01)
    busy = Calm()
    busy.disturbed()
    waiting = asyncio.create_task(busy.come())

    def rolls_again() -> bool:
        busy.disturbed()
        return waiting.done()

    await eventually(rolls_again)
