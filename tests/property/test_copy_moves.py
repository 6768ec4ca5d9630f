"""Which sealed copies move to which directory: never more than there is room for, and only where they are wanted."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.copies.copy_moves import FIRST, DirectoryRoom, Move, PlacedCopy, plan_moves
from stratalog.model.ids import SegmentKey

_TOPIC = UUID(int=1)
_sizes = st.integers(0, 100)


def _copy(epoch: int, size: int, age: int, directory: int, after: int) -> PlacedCopy:
    return PlacedCopy(SegmentKey(_TOPIC, 0, epoch, epoch), size, age, directory, after)


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[list[PlacedCopy], list[DirectoryRoom], int]:
    count = draw(st.integers(1, 4))
    rooms = [
        DirectoryRoom(number, draw(st.integers(0, 300)), draw(st.integers(0, 50)), draw(st.booleans()) and number > 0)
        for number in range(count)
        if number == 0 or draw(st.booleans())
    ]
    parts = st.tuples(_sizes, st.integers(0, 50), st.integers(0, 3), st.integers(-1, 60))
    copies = [_copy(epoch, *one) for epoch, one in enumerate(draw(st.lists(parts, max_size=12)))]
    return copies, rooms, draw(st.integers(0, 300))


@given(_worlds())
def test_moves_keep_the_reserve_and_have_a_reason(world: tuple[list[PlacedCopy], list[DirectoryRoom], int]) -> None:
    copies, rooms, least_free = world
    moves = plan_moves(copies, rooms, least_free_bytes=least_free)
    by_key, by_number = {one.key: one for one in copies}, {one.number: one for one in rooms}
    free = {one.number: one.free_bytes for one in rooms}
    assert len({one.key for one in moves}) == len(moves), "a copy moves once in a plan"
    for move in moves:
        copy, target = by_key[move.key], by_number[move.target]
        assert move.source == copy.directory != move.target
        assert not target.is_draining
        source = by_number.get(move.source)
        is_drained = source is not None and source.is_draining
        is_old = NEVER < copy.after_ms <= copy.age_ms
        assert is_drained or (move.source == FIRST and move.target != FIRST)
        assert is_drained or is_old or free[FIRST] < least_free, "a young copy moves only for want of room"
        free[move.target] -= copy.size_bytes
        free[move.source] = free.get(move.source, 0) + copy.size_bytes
        assert free[move.target] >= target.reserve_bytes


NEVER = -1


@given(_worlds())
def test_what_is_due_and_fits_somewhere_moves(world: tuple[list[PlacedCopy], list[DirectoryRoom], int]) -> None:
    copies, _, least_free = world
    roomy = [DirectoryRoom(0, 10_000, 0), DirectoryRoom(1, 10_000, 0)]
    moved = {one.key for one in plan_moves(copies, roomy, least_free_bytes=least_free)}
    due = {one.key for one in copies if one.directory == FIRST and NEVER < one.after_ms <= one.age_ms}
    assert moved == due


def test_the_oldest_copies_make_room_first() -> None:
    copies = [_copy(epoch, 10, age, FIRST, NEVER) for epoch, age in enumerate((5, 9, 7))]
    rooms = [DirectoryRoom(0, 5, 0), DirectoryRoom(1, 1_000, 0)]
    moves = plan_moves(copies, rooms, least_free_bytes=20)
    assert moves == [Move(copies[1].key, 0, 1), Move(copies[2].key, 0, 1)]


def test_a_drained_directory_is_emptied_into_the_others() -> None:
    copies = [_copy(0, 10, 1, 1, NEVER), _copy(1, 10, 2, 1, NEVER)]
    rooms = [DirectoryRoom(0, 12, 0), DirectoryRoom(1, 0, 0, is_draining=True), DirectoryRoom(2, 10, 0)]
    moves = plan_moves(copies, rooms, least_free_bytes=0)
    assert {one.key for one in moves} == {one.key for one in copies}
    assert {one.target for one in moves} == {0, 2}
