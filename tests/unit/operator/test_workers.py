"""Passes over clusters: some at once, one at a time for each cluster, and completed after a request to stop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from stratalog.model.errors import Unavailable
from stratalog_operator.queue import Key
from stratalog_operator.stats import OperatorStats
from stratalog_operator.workers import Workers
from support.waiting import eventually

A, B, C = ("data", "a"), ("data", "b"), ("data", "c")
_PATIENT = 60.0


class Looks:
    """Counts looks, which wait while the gate is closed."""

    def __init__(self) -> None:
        self.count: Counter[Key] = Counter()
        self.now: Counter[Key] = Counter()
        self.most = 0
        self.gate = asyncio.Event()
        self.stats = OperatorStats()
        self.fails: set[Key] = set()

    async def run_pass(self, key: Key) -> float | None:
        self.count[key] += 1
        self.now[key] += 1
        assert self.now[key] == 1, f"{key} is looked at twice at once"
        self.most = max(self.most, self.now.total())
        await self.gate.wait()
        self.now[key] -= 1
        if key in self.fails:
            raise Unavailable("nobody answers")
        return 3600.0


async def test_clusters_are_looked_at_beside_each_other_and_each_once_at_a_time() -> None:
    looks = Looks()
    workers = Workers(looks.run_pass, looks.stats, at_once=2)
    running = asyncio.create_task(workers.run())
    for _ in range(3):
        for key in (A, B, C):
            workers.wake(key)
    await eventually(lambda: looks.now.total() == 2, timeout=_PATIENT)
    workers.wake(A)
    workers.wake(B)
    looks.gate.set()
    await eventually(lambda: looks.count[C] == 1 and looks.count[A] == 2 and looks.count[B] == 2, timeout=_PATIENT)
    await workers.finish(_PATIENT)
    await asyncio.wait_for(running, _PATIENT)

    assert looks.most == 2
    assert looks.stats.passes == 5


async def test_what_was_woken_is_looked_at_before_it_stops_and_what_is_due_later_is_not() -> None:
    looks = Looks()
    looks.gate.set()
    workers = Workers(looks.run_pass, looks.stats)
    running = asyncio.create_task(workers.run())
    workers.wake(A)
    await eventually(lambda: looks.count[A] == 1, timeout=_PATIENT)
    workers.wake(B)
    workers.wake(A)
    await workers.finish(_PATIENT)
    await asyncio.wait_for(running, _PATIENT)

    assert looks.count == {A: 2, B: 1}


@pytest.mark.fault("namespace-deleted-operator")
async def test_what_woke_a_cluster_while_it_was_looked_at_is_looked_at_before_it_stops_however_long_that_took() -> None:
    looks = Looks()
    workers = Workers(looks.run_pass, looks.stats)
    running = asyncio.create_task(workers.run())
    workers.wake(A)
    await eventually(lambda: looks.now[A] == 1, timeout=_PATIENT)
    workers.wake(A)
    stopping = asyncio.create_task(workers.finish(_PATIENT))
    # A pass that was due long before the request to stop.
    await asyncio.sleep(1.2)
    looks.gate.set()
    await asyncio.wait_for(stopping, 2 * _PATIENT)
    await asyncio.wait_for(running, _PATIENT)

    assert looks.count == {A: 2}


async def test_a_look_that_does_not_end_is_cut_off_by_a_stop() -> None:
    looks = Looks()
    workers = Workers(looks.run_pass, looks.stats)
    running = asyncio.create_task(workers.run())
    workers.wake(A)
    await eventually(lambda: looks.now[A] == 1, timeout=_PATIENT)
    await workers.finish(0.0)
    await asyncio.wait_for(running, _PATIENT)

    assert looks.stats.passes == 0


async def test_a_cluster_that_fails_holds_up_no_other_and_is_looked_at_again() -> None:
    looks = Looks()
    looks.gate.set()
    looks.fails = {A}
    workers = Workers(looks.run_pass, looks.stats)
    running = asyncio.create_task(workers.run())
    workers.wake(A)
    workers.wake(B)
    await eventually(lambda: looks.count[A] >= 2 and looks.count[B] == 1, timeout=_PATIENT)
    looks.fails = set()
    await workers.finish(_PATIENT)
    await asyncio.wait_for(running, _PATIENT)

    assert looks.stats.failures >= 2 and looks.stats.passes >= 1
