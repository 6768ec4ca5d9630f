"""Which bytes of a copy were checked: never more than was said, and all of it while the ranges are few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog_node.shards.copies.local_copy import CheckedRanges

SIZE = 40
RANGES = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.fault("page-cache-holds-unchecked")
@given(st.integers(0, SIZE), st.lists(RANGES, max_size=30), RANGES)
def test_a_range_is_covered_when_all_of_it_was_checked(
    all_from: int, added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    ranges = CheckedRanges(all_from)
    checked = set(range(all_from, 3 * SIZE))
    for start, end in added:
        ranges.add(start, end)
        checked.update(range(start, end))
    assert ranges.covers(*asked) == (set(range(*asked)) <= checked)


def test_of_very_many_ranges_the_long_ones_are_kept() -> None:
    ranges = CheckedRanges(1 << 40)
    ranges.add(0, 1000)
    for place in range(1000):
        ranges.add(2000 + place * 10, 2001 + place * 10)
    assert ranges.covers(0, 1000)
    assert sum(ranges.covers(2000 + place * 10, 2001 + place * 10) for place in range(1000)) < 100


def test_a_reader_that_continues_to_the_end_leaves_nothing_to_look_for() -> None:
    ranges = CheckedRanges(100)
    for start in range(0, 100, 10):
        ranges.add(start, start + 10)
    assert ranges.all_from == 0
