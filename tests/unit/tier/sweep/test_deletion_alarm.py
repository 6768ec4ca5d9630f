"""One timer tells the janitor when graces are over, however many segments were deleted."""

from __future__ import annotations

import asyncio

import pytest

from stratalog_node.tier.sweep.janitor import DeletionAlarm
from support.waiting import eventually


class CountedTimers:
    """Counts the timers that are armed on this loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed = 0
        loop = asyncio.get_running_loop()
        for name in ("call_at", "call_later"):
            monkeypatch.setattr(loop, name, self._counting(getattr(loop, name)))

    def _counting(self, call):  # type: ignore[no-untyped-def]
        def counted(*arguments, **options):  # type: ignore[no-untyped-def]
            self.armed += 1
            return call(*arguments, **options)

        return counted


@pytest.mark.fault("deleterecords-retention-deletion-topic")
async def test_thousands_of_deletions_arm_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = CountedTimers(monkeypatch)
    alarm = DeletionAlarm(60.0, lambda: None)
    for _ in range(10_000):
        alarm.deleted()
    assert timers.armed == 1
    alarm.close()


async def test_it_rings_when_the_grace_of_the_last_deletion_is_over_and_not_before() -> None:
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    alarm = DeletionAlarm(0.05, lambda: rung.append(loop.time()))
    first = loop.time()
    alarm.deleted()
    await eventually(lambda: rung)
    assert rung[0] - first >= 0.05
    second = loop.time()
    alarm.deleted()
    alarm.deleted()
    await eventually(lambda: len(rung) == 2)
    assert rung[1] - second >= 0.05
    alarm.close()


@pytest.mark.fault("deleterecords-retention-deletion-topic")
async def test_deletions_over_a_long_time_each_ring_after_their_grace() -> None:
    loop = asyncio.get_running_loop()
    rung: list[float] = []
    alarm = DeletionAlarm(0.08, lambda: rung.append(loop.time()))
    told = []
    for _ in range(20):
        told.append(loop.time())
        alarm.deleted()
        await asyncio.sleep(0.01)
    await eventually(lambda: rung and rung[-1] >= told[-1] + 0.08)
    assert all(any(time >= when + 0.08 for time in rung) for when in told)
    alarm.close()


async def test_a_closed_alarm_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = CountedTimers(monkeypatch)
    alarm = DeletionAlarm(60.0, lambda: None)
    alarm.deleted()
    alarm.close()
    alarm.deleted()
    assert timers.armed == 1
