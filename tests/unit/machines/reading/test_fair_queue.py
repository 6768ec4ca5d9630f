"""Whose work is served next: each client's in equal parts, its shards by turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.reading.fair_queue import FairQueue, Taker

MIB = 1 << 20


def drain(queue: FairQueue[str], most: int = 1 << 30) -> list[str]:
    found = []
    while len(queue) and len(found) < most:
        item = queue.first()[1]
        assert queue.pop() == item
        found.append(item)
    return found


def test_one_shard_is_served_in_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(5):
        queue.push(Taker("a", 1), MIB, f"{number}")
    assert drain(queue) == ["0", "1", "2", "3", "4"]


def test_a_client_that_asks_for_two_hundred_shards_leaves_half_to_one_that_asks_for_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(200):
        queue.push(Taker("replay", number), MIB, "replay")
    for _ in range(20):
        queue.push(Taker("tail", 1), MIB, "tail")
    assert Counter(drain(queue, 40)) == {"replay": 20, "tail": 20}


def test_a_client_that_asks_once_at_a_time_is_served_every_second_time() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(200):
        queue.push(Taker("replay", number), MIB, "replay")
    drain(queue, 50)
    order = []
    for _ in range(10):
        queue.push(Taker("tail", 1), MIB, "tail")
        order += drain(queue, 2)
    assert Counter(order) == {"replay": 10, "tail": 10}


def test_shares_are_of_bytes_not_of_requests() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.push(Taker("large", number), 4 * MIB, "large")
        queue.push(Taker("small", number), MIB, "small")
    counts = Counter(drain(queue, 50))
    assert abs(counts["small"] - 4 * counts["large"]) <= 4


def test_the_shards_of_a_client_take_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for shard in "abc":
        for number in range(3):
            queue.push(Taker("c", shard), MIB, f"{shard}{number}")
    assert drain(queue) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_client_that_paused_does_not_catch_up() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.push(Taker("busy", number), MIB, "busy")
    drain(queue, 50)
    for number in range(50):
        queue.push(Taker("late", number), MIB, "late")
    assert Counter(drain(queue, 20)) == {"busy": 10, "late": 10}


def test_a_client_that_was_alone_does_not_pay_for_it() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.push(Taker("alone", number), MIB, "alone")
    drain(queue)
    for number in range(10):
        queue.push(Taker("alone", number), MIB, "alone")
        queue.push(Taker("other", number), MIB, "other")
    assert abs(Counter(drain(queue, 10))["alone"] - 5) <= 1


def test_what_was_given_up_counts_for_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(10):
        queue.push(Taker("a", number), MIB, "a")
        queue.push(Taker("b", number), MIB, "b")
    for _ in range(5):
        assert queue.pop(is_served=False) == "a"
    assert Counter(drain(queue, 10)) == {"a": 5, "b": 5}


def test_clients_that_come_once_are_not_remembered_without_bound() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(5_000):
        queue.push(Taker(f"client-{number}", 1), MIB, "x")
        queue.pop()
    assert len(queue._served) <= 1_000
    assert len(queue) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 100)), max_size=60), st.data())
def test_everything_is_served_once_and_clients_that_wait_differ_by_one_piece(
    pieces: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[str, int, int]] = {}
    last: dict[tuple[str, int], int] = {}
    for number, (client, shard, size) in enumerate(pieces):
        queue.push(Taker(client, shard), size, number)
        waiting[number] = client, shard, size
    got = Counter[str]()
    always = {client for client, _, _ in pieces}
    while len(queue):
        number = queue.pop(is_served=data.draw(st.integers(0, 9)) > 0) if len(pieces) < 5 else queue.pop()
        client, shard, size = waiting.pop(number)
        assert last.get((client, shard), -1) < number, "in order within a shard"
        last[client, shard] = number
        got[client] += size
        always &= {one for one, _, _ in waiting.values()} | {client}
        if len(pieces) >= 5 and len(always) > 1:
            assert max(got[one] for one in always) - min(got[one] for one in always) <= 2 * 100
    assert not waiting
