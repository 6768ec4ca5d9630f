"""How close together a node dials others."""

from __future__ import annotations

import asyncio

import pytest

from stratalog_node.replication import dial_pace
from stratalog_node.replication.dial_pace import APART_S, MOST_S, DialPace


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        monkeypatch.setattr(dial_pace.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_connections_that_begin_at_once_begin_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), DialPace()
    for _ in range(5):
        await pace.next()
    assert clock.slept == pytest.approx([APART_S * number for number in range(1, 5)])
    clock.now_s += 2.0
    await pace.next()
    assert len(clock.slept) == 4, "one that comes alone does not wait"


async def test_none_waits_long_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), DialPace()
    for _ in range(10_000):
        await pace.next()
    assert max(clock.slept) == pytest.approx(MOST_S)
