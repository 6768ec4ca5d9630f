"""Reports of many replicas while the meta service is away: one asks at a time, and all once it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from stratalog.model.errors import Conflict, OutcomeUnknown, StratalogError, Unavailable
from stratalog_node.backoff import Backoff
from stratalog_node.replication import report_gate
from stratalog_node.replication.report_gate import ReportGate
from support.waiting import eventually

pytestmark = pytest.mark.fault("meta-service-away-reports")
REPLICAS = 50


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_gate, "Backoff", lambda: Backoff(0.0001, 0.001))


class Service:
    def __init__(self) -> None:
        self.error: Callable[[], StratalogError] | None = lambda: Unavailable("connection refused")
        self.asked = self.in_flight = self.most_in_flight = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self) -> str:
        self.asked += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.answers.wait()
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error()
        finally:
            self.in_flight -= 1
        return "taken"


async def send(gate: ReportGate, service: Service) -> str:
    async with gate.slot():
        return await service.ask()


async def until_taken(gate: ReportGate, service: Service) -> str:
    """As a replica does."""
    while True:
        try:
            return await send(gate, service)
        except StratalogError:
            await asyncio.sleep(0)


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
async def test_one_asks_at_a_time_with_one_line_each_and_all_once_it_answers(error: type[StratalogError]) -> None:
    gate, service = ReportGate(), Service()
    service.error = lambda: error("no answer")
    with capture_logs() as lines:
        replicas = [asyncio.ensure_future(until_taken(gate, service)) for _ in range(REPLICAS)]
        await eventually(lambda: service.asked >= REPLICAS)  # all of the first round were under way
        await eventually(lambda: service.in_flight <= 1)
        first_round, service.most_in_flight = service.asked, 0
        await eventually(lambda: service.asked >= first_round + 5)
        assert service.most_in_flight == 1
        assert len(lines) <= service.asked - REPLICAS + 1, "the first round is one line"
        service.answers.clear()
        service.error = None
        await eventually(lambda: service.in_flight == 1)
        service.answers.set()
        assert await asyncio.gather(*replicas) == ["taken"] * REPLICAS
    assert max(line["waiting"] for line in lines) >= REPLICAS - 2
    before = len(lines)
    assert await send(gate, service) == "taken" and len(lines) == before


async def test_those_that_wait_go_side_by_side_after_the_first_answer() -> None:
    gate, service = ReportGate(), Service()
    with pytest.raises(Unavailable):
        await send(gate, service)
    service.error = None
    service.answers.clear()
    waiting = [asyncio.ensure_future(send(gate, service)) for _ in range(REPLICAS)]
    await eventually(lambda: service.in_flight == 1)
    assert service.most_in_flight == 1
    service.answers.set()
    await eventually(lambda: service.asked == 1 + REPLICAS)
    await asyncio.gather(*waiting)
    assert service.most_in_flight > 1


async def test_a_refusal_is_an_answer() -> None:
    gate, service = ReportGate(), Service()
    with pytest.raises(Unavailable):
        await send(gate, service)
    service.error = lambda: Conflict("another digest")
    with pytest.raises(Conflict):
        await send(gate, service)
    service.answers.clear()
    some = [asyncio.ensure_future(send(gate, service)) for _ in range(3)]
    await eventually(lambda: service.in_flight == 3)
    service.answers.set()
    await asyncio.gather(*some, return_exceptions=True)


async def test_one_that_is_cancelled_lets_the_next_try() -> None:
    gate, service = ReportGate(), Service()
    with pytest.raises(Unavailable):
        await send(gate, service)
    service.answers.clear()
    service.error = None
    first = asyncio.ensure_future(send(gate, service))
    await eventually(lambda: service.in_flight == 1)
    second = asyncio.ensure_future(send(gate, service))
    first.cancel()
    await eventually(lambda: service.asked == 3)
    service.answers.set()
    assert await second == "taken"
