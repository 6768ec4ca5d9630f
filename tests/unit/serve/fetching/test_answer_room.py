"""How many bytes each partition adds to the answer of a fetch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog_node.serve.fetching.answer_room import AnswerRoom


def test_the_first_partition_adds_a_batch_above_both_limits_and_no_other_one_does() -> None:
    room = AnswerRoom(100)
    assert room.wanted_bytes(50) == 50
    assert room.add(300, 50)
    assert room.is_full
    assert not room.add(1, 50)


def test_a_later_partition_obeys_its_own_limit() -> None:
    room = AnswerRoom(1_000)
    assert room.add(100, 100)
    assert not room.add(200, 100), "its first batch is above its limit"
    assert room.add(200, 200)
    assert (room.total_bytes, room.left_bytes) == (300, 700)


def test_a_small_partition_fits_behind_one_that_does_not() -> None:
    room = AnswerRoom(300)
    assert [room.add(size, 300) for size in (200, 150, 100)] == [True, False, True]
    assert room.is_full


def test_what_is_read_later_has_what_was_left_when_its_turn_came() -> None:
    room = AnswerRoom(300)
    assert room.add(100, 300)
    room.read_later()
    assert room.add(200, 300)
    room.read_later()
    assert room.later_bytes == 200


def test_behind_what_is_read_later_one_batch_above_the_limits_is_a_fallback() -> None:
    room = AnswerRoom(100)
    room.read_later()
    assert room.add(300, 300)
    assert (room.total_bytes, room.left_bytes, room.is_full) == (0, 100, False)
    assert not room.add(200, 300), "one fallback is enough"
    assert room.add(100, 300)
    assert room.is_full


def test_an_answer_that_may_hold_nothing_has_one_fallback() -> None:
    room = AnswerRoom(0)
    room.read_later()
    assert not room.is_full
    assert room.wanted_bytes(50) == 1
    assert room.add(300, 50)
    assert room.is_full


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=8))
def test_only_the_first_that_is_added_exceeds_a_limit(limit: int, offered: list[tuple[int, int]]) -> None:
    room, added = AnswerRoom(limit), []
    for size, most in offered:
        was_full = room.is_full
        if room.add(size, most):
            assert not was_full
            assert not added or size <= most
            added.append(size)
    assert bool(added) == bool(offered)
    assert sum(added) == room.total_bytes
    assert sum(added) <= max(limit, *added[:1], 0)
