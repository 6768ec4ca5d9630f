"""How large a range is asked for: a block, less after waste, more again when there is memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.reading.read_range import ReadRange

KIB = 1 << 10


@pytest.mark.fault("cold-readers-blocks-fit")
def test_what_went_unread_halves_the_ranges_down_to_the_smallest_that_can_be_cut() -> None:
    ranges = ReadRange(2048 * KIB, 64 * KIB)
    sizes = []
    for _ in range(8):
        size = ranges.size_bytes(ranges.level)
        sizes.append(size // KIB)
        ranges.went_unread(size)
    assert sizes == [2048, 1024, 512, 256, 128, 64, 64, 64]


def test_blocks_of_one_size_that_went_together_count_once() -> None:
    ranges = ReadRange(2048 * KIB, 64 * KIB)
    for _ in range(5):
        ranges.went_unread(900 * KIB)
    assert ranges.level == 0, "smaller than half a range: it was cut off by the end of a part"
    ranges.went_unread(2048 * KIB)
    ranges.went_unread(1024 * KIB)
    ranges.went_unread(512 * KIB)
    assert ranges.level == 3, "each was of the size that was fetched then"


def test_a_reader_that_takes_much_gets_no_less_than_it_takes() -> None:
    ranges = ReadRange(2048 * KIB, 64 * KIB)
    for level in range(5):
        ranges.went_unread(ranges.size_bytes(level))
    assert ranges.level_for(1) == 5
    assert ranges.level_for(256 * KIB) == 3
    assert ranges.level_for(300 * KIB) == 2
    assert ranges.level_for(1 << 30) == 0
    ranges.grow()
    assert ranges.level_for(1) == 4


@given(st.integers(1, 1 << 22), st.lists(st.one_of(st.none(), st.integers(1, 1 << 22))), st.integers(0, 1 << 23))
def test_ranges_stay_within_their_bounds(block: int, waste: list[int | None], taken: int) -> None:
    ranges = ReadRange(block, 64 * KIB)
    for size in waste:
        if size is None:
            ranges.grow()
        else:
            ranges.went_unread(size)
    size = ranges.size_bytes(ranges.level_for(taken))
    assert min(block, 64 * KIB) <= size <= block
    assert size >= min(taken, block)
