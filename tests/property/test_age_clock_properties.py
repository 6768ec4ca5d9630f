"""However the wall clock jumps and however often a node starts again, data ages by bounded steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.tiering.age_clock import CREDIT_MS, RATE, AgeClock

START_MS = 1_700_000_000_000
HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3 * HOUR),  # time that really passes
        st.one_of(st.just(0), st.integers(-YEAR, YEAR)),  # the wall clock jumps, or the node was down so long
        st.booleans(),  # the process is started again
    ),
    max_size=40,
)


@pytest.mark.fault("wall-clock-set-forward")
@given(STEPS)
def test_age_never_runs_ahead_of_the_wall_clock_nor_faster_than_it_may(steps: list[tuple[int, int, bool]]) -> None:
    wall = START_MS
    monotonic = up = 0
    clock = AgeClock(None, wall, monotonic)
    lowest = START_MS
    lowest_up = 0
    for passed, jump, is_restart in steps:
        monotonic += passed
        up += passed
        wall += passed + jump
        if is_restart:
            monotonic = 12_345
            clock = AgeClock(clock.state, wall, monotonic)
            up -= passed  # it was down, or its clock cannot tell
        age = clock.advance(wall, monotonic)
        assert age <= wall
        assert age == wall - clock.behind_ms
        assert age - lowest <= CREDIT_MS + RATE * (up - lowest_up), "more age than may be had since it was lowest"
        if age <= lowest:
            lowest, lowest_up = age, up


@given(st.integers(0, CREDIT_MS), st.integers(0, CREDIT_MS))
def test_a_short_stop_or_a_small_correction_is_believed_at_once(stop: int, correction: int) -> None:
    clock = AgeClock(None, START_MS, 0)
    clock = AgeClock(clock.state, START_MS + min(stop, CREDIT_MS - correction), 50)
    assert clock.advance(START_MS + min(stop, CREDIT_MS - correction) + correction, 50) == clock.state.now_ms
    assert clock.behind_ms == 0


def test_a_clock_that_steps_back_is_followed_at_once() -> None:
    clock = AgeClock(None, START_MS, 0)
    assert clock.advance(START_MS - YEAR, 10) == START_MS - YEAR
    assert clock.advance(START_MS - YEAR + 10, 20) == START_MS - YEAR + 10


def test_a_jump_of_ten_years_costs_at_first_an_hour_and_then_twice_the_time_that_passes() -> None:
    clock = AgeClock(None, START_MS, 0)
    assert clock.advance(START_MS + 10 * YEAR, 0) == START_MS + HOUR
    assert clock.advance(START_MS + 10 * YEAR + HOUR, HOUR) == START_MS + HOUR + 2 * HOUR
    assert clock.behind_ms == 10 * YEAR - 2 * HOUR


def test_after_a_day_away_it_is_right_a_day_later() -> None:
    clock = AgeClock(AgeClock(None, START_MS, 0).state, START_MS + 24 * HOUR, 0)
    assert clock.behind_ms == 23 * HOUR
    clock.advance(START_MS + 48 * HOUR, 24 * HOUR)
    assert clock.behind_ms == 0
