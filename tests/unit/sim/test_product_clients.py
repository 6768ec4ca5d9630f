"""The simulator's producer sends what a real one would, and ends a batch that no repetition saves."""

from __future__ import annotations

import asyncio
import struct
from random import Random

import pytest

from stratalog.formats.batches.record_batch import parse_header
from stratalog_sim.product.clients import REFUSED_FOR_GOOD, Producer
from support.history import Outcome

TOPIC = "flights"
_BATCH_AT = 12 + 2 + len(TOPIC) + 12
"""Behind the request's fields of one partition."""


class Wire:
    """Answers each request with the next of these codes; None: with nothing."""

    def __init__(self, codes: list[int | None]) -> None:
        self.codes = codes
        self.batches: list[bytes] = []

    def try_next_node(self) -> None:
        pass

    async def ask(self, key: int, version: int, body: bytes) -> memoryview:
        self.batches.append(body[_BATCH_AT:])
        code = self.codes.pop(0)
        if code is None:
            raise TimeoutError
        answer = bytes(4 + 2 + len(TOPIC) + 4) + struct.pack(">ihq", 0, code, -1 if code else 40)
        return memoryview(answer)


def sent_with(codes: list[int | None], batches: int) -> tuple[Producer, Wire]:
    wire = Wire(codes)
    producer = Producer("p", TOPIC, 0, wire, Random(1), producer_id=7)  # type: ignore[arg-type]

    async def run() -> None:
        for _ in range(batches):
            await producer._send_one()

    asyncio.run(run())
    return producer, wire


def outcomes_of(producer: Producer, number: int) -> set[Outcome]:
    return {one.outcome for one in producer.sent if one.value.startswith(f"p.{number}.".encode())}


@pytest.mark.parametrize("code", sorted(REFUSED_FOR_GOOD))
def test_a_batch_that_is_refused_for_good_ends_and_the_next_one_has_its_sequence_number(code: int) -> None:
    producer, wire = sent_with([code, 0], batches=2)
    first, second = (parse_header(batch) for batch in wire.batches)
    assert (first.base_sequence, second.base_sequence) == (0, 0)
    assert wire.batches[0] != wire.batches[1]
    assert (outcomes_of(producer, 1), outcomes_of(producer, 2)) == ({Outcome.FAIL}, {Outcome.OK})


def test_a_repeated_batch_that_is_refused_for_good_may_be_in_the_log() -> None:
    """Its first attempt got no answer: the next batch must not pass for a repetition of it."""
    producer, wire = sent_with([None, 10, 0], batches=2)
    ids = [parse_header(batch).producer_id for batch in wire.batches]
    assert ids == [7, 7, 1_007]
    assert parse_header(wire.batches[2]).base_sequence == 0
    assert (outcomes_of(producer, 1), outcomes_of(producer, 2)) == ({Outcome.INFO}, {Outcome.OK})


@pytest.mark.parametrize("code", [2, 6, 56])
def test_a_batch_that_is_refused_for_now_is_repeated_by_a_producer_with_an_id(code: int) -> None:
    producer, wire = sent_with([code, 0], batches=1)
    assert wire.batches[0] == wire.batches[1]
    assert {one.outcome for one in producer.sent} == {Outcome.OK}
