"""The one heap of deadlines, and the place of a group."""

from __future__ import annotations

import pytest

from stratalog_node.groups.deadlines import DeadlineHeap
from stratalog_node.groups.placement import shard_of


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.timer: int | None = None


def names(heap: DeadlineHeap[Item], now_ms: int) -> list[str]:
    return [item.name for item in heap.due(now_ms)]


def test_items_come_out_in_time_and_once() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    late, soon = Item("late"), Item("soon")
    assert heap.schedule(late, 20)
    assert heap.schedule(soon, 10), "the earliest deadline came nearer"
    assert heap.earliest_ms() == 10
    assert names(heap, 9) == []
    assert names(heap, 15) == ["soon"]
    assert names(heap, 100) == ["late"]
    assert heap.earliest_ms() is None


def test_an_earlier_deadline_supersedes_and_a_later_one_waits_for_it() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    item = Item("a")
    heap.schedule(item, 20)
    heap.schedule(item, 10)
    assert not heap.schedule(item, 30), "a heartbeat must cost nothing"
    assert names(heap, 10) == ["a"]
    assert names(heap, 100) == []


def test_a_thousand_heartbeats_leave_one_entry() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    item = Item("a")
    for deadline_ms in range(10, 1_010):
        heap.schedule(item, deadline_ms)
    assert len(heap._heap) == 1


def test_a_forgotten_item_is_not_woken() -> None:
    heap: DeadlineHeap[Item] = DeadlineHeap()
    item = Item("a")
    heap.schedule(item, 10)
    heap.forget(item)
    assert heap.earliest_ms() is None
    assert names(heap, 10) == []


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [("", 0), ("a", 97), ("hello", 99_162_322), ("Aa", 2112), ("BB", 2112), ("polygenelubricants", -2_147_483_648)],
)
def test_a_group_is_where_kafka_would_put_it(group_id: str, java_hash: int) -> None:
    absolute = 0 if java_hash == -(1 << 31) else abs(java_hash)
    assert shard_of(group_id, 50) == absolute % 50


def test_every_group_has_a_place() -> None:
    places = {shard_of(f"group-{n}", 8) for n in range(200)}
    assert places == set(range(8))
