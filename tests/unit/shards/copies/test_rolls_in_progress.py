"""Seals and proofs begin once no shard of the node rolls, and are not put off without an end."""

from __future__ import annotations

import asyncio

import pytest

from stratalog_node.shards.copies import rolls_in_progress
from stratalog_node.shards.copies.rolls_in_progress import RollsInProgress
from support.waiting import eventually


async def test_a_wait_ends_at_once_if_nothing_rolled() -> None:
    await RollsInProgress().wait_until_none()


async def test_a_roll_during_a_wait_restarts_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolls_in_progress, "PAUSE_S", 3_600.0)
    quiet = RollsInProgress()
    quiet.note_roll()
    waiting = asyncio.create_task(quiet.wait_until_none())
    await asyncio.sleep(0)
    quiet.note_roll()
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_node_that_rolls_all_the_time_still_proves_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolls_in_progress, "PAUSE_S", 3_600.0)
    monkeypatch.setattr(rolls_in_progress, "LONGEST_S", 0.01)
    busy = RollsInProgress()
    busy.note_roll()
    waiting = asyncio.create_task(busy.wait_until_none())

    def rolls_again() -> bool:
        busy.note_roll()
        return waiting.done()

    await eventually(rolls_again)
