"""Pauses between attempts: they double, are bounded, and are never in step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.backoff import longest_pause, pause_after


def test_pauses_double_up_to_the_longest_one() -> None:
    assert [longest_pause(failures, 50, 1_000) for failures in range(1, 8)] == [50, 100, 200, 400, 800, 1_000, 1_000]


@given(st.integers(1, 10**9), st.floats(0.001, 1_000), st.floats(0.001, 100_000), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_between_half_of_the_longest_and_all_of_it(
    failures: int, first: float, longest: float, jitter: float
) -> None:
    whole = longest_pause(failures, first, longest)
    assert 0 < whole <= longest
    assert whole / 2 <= pause_after(failures, first, longest, jitter) <= whole
