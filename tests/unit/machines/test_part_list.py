"""A part list grows for free and never changes."""

from __future__ import annotations

import pytest

from stratalog.model.parts import PartList
from stratalog.model.segment import RemoteCopy, RemotePart

PARTS = tuple(RemotePart(f"chunk-{number}", 0, 1, number, number + 1) for number in range(6))


def test_a_longer_list_leaves_the_shorter_one_as_it_was() -> None:
    empty = PartList()
    one = empty.appended(PARTS[0])
    two = one.appended(PARTS[1])
    assert (tuple(empty), tuple(one), tuple(two)) == ((), PARTS[:1], PARTS[:2])
    assert two.shared_with(one) == 1


def test_two_continuations_of_one_list_do_not_meet() -> None:
    one = PartList(PARTS[:1])
    left, right = one.appended(PARTS[1]), one.appended(PARTS[2])
    assert tuple(left) == PARTS[:2]
    assert tuple(right) == (PARTS[0], PARTS[2])
    assert right.shared_with(left) == 0


def test_it_reads_like_a_tuple() -> None:
    parts = PartList(PARTS)
    assert len(parts) == 6 and parts[0] is PARTS[0] and parts[-1] is PARTS[5]
    assert parts[1:3] == PARTS[1:3] and list(reversed(parts)) == list(reversed(PARTS))
    assert PARTS[3] in parts and bool(parts) and not PartList()
    for index in (6, -7):
        with pytest.raises(IndexError):
            parts[index]
    assert repr(PartList(PARTS[:1])).startswith("PartList([RemotePart(")


def test_it_equals_a_tuple_of_the_same_parts() -> None:
    assert PartList(PARTS) == PARTS and PartList(PARTS) == PARTS
    assert PartList(PARTS) != PARTS[:5] and PartList(PARTS) != "parts"
    assert RemoteCopy(parts=PARTS) == RemoteCopy(parts=PartList(PARTS))
    assert hash(RemoteCopy(parts=PARTS)) == hash(RemoteCopy(parts=PartList(PARTS)))


def test_a_run_is_found_and_replaced() -> None:
    parts = PartList(PARTS)
    assert [parts.find(offset) for offset in (0, 3, 6, 99)] == [0, 3, 6, 6]
    merged = RemotePart("merged", 0, 1, 1, 4)
    assert tuple(parts.replaced(1, 3, (merged,))) == (PARTS[0], merged, PARTS[4], PARTS[5])
    assert tuple(parts) == PARTS
