"""How long who uses too much has to wait: the numbers of Kafka's `Rate` and `QuotaUtils.throttleTime`."""

from __future__ import annotations

import pytest
from pytest import approx

from stratalog.machines.quotas.rates import LONGEST_WAIT_MS, UsageRate, Windows

KAFKAS = Windows(11, 1_000)
BEGIN = 1_000_000


def test_what_fits_into_the_windows_may_be_used_at_once() -> None:
    rate = UsageRate(100, KAFKAS)
    assert rate.use(1_000, BEGIN) == 0, "100 a second, in the ten windows before this one"
    assert rate.use(1, BEGIN) == 10
    assert rate.most_at_once == 1_000


def test_the_wait_is_how_long_the_excess_takes_at_the_limit() -> None:
    rate = UsageRate(100, KAFKAS)
    assert rate.use(1_500, BEGIN) == 5_000
    assert UsageRate(50, KAFKAS).use(1_500, BEGIN) == 20_000, "twice as long at half the limit, and ten seconds more"


def test_who_used_more_than_all_windows_hold_waits_in_parts_until_it_is_paid() -> None:
    """1,500 at 100 a second take fifteen seconds, though each wait is five."""
    rate, now_ms = UsageRate(100, KAFKAS), BEGIN
    waits = []
    wait_ms = rate.use(1_500, now_ms)
    while wait_ms:
        waits.append(wait_ms)
        now_ms += wait_ms
        wait_ms = rate.use(0, now_ms)
    assert waits == [5_000, 5_000, 5_000]


def test_time_within_the_first_window_counts_in_full_and_later_time_as_whole_windows() -> None:
    rate = UsageRate(100, KAFKAS)
    rate.use(1_000, BEGIN)
    assert rate.rate(BEGIN) == 100
    assert rate.rate(BEGIN + 999) == approx(1_000 / 10.999)
    assert rate.rate(BEGIN + 1_000) == approx(1_000 / 10)
    assert rate.rate(BEGIN + 10_999) == approx(1_000 / 10.999)
    assert rate.rate(BEGIN + 11_000) == 0, "all windows are over"


def test_what_was_given_back_was_not_used() -> None:
    rate = UsageRate(100, KAFKAS)
    assert rate.use(5_000, BEGIN) > 0
    rate.give_back(5_000, BEGIN)
    assert rate.use(1_000, BEGIN) == 0


def test_a_limit_that_is_lowered_or_raised_counts_from_the_next_use_on() -> None:
    rate = UsageRate(100, KAFKAS)
    assert rate.use(1_000, BEGIN) == 0
    rate.limit = 10
    assert rate.use(0, BEGIN) == 90_000
    rate.limit = 1_000
    assert rate.use(0, BEGIN) == 0


@pytest.mark.fault("clock-is-set-quota")
def test_a_clock_that_steps_back_passes_no_time_and_one_that_jumps_ahead_ends_all_windows() -> None:
    rate = UsageRate(100, KAFKAS)
    rate.use(2_000, BEGIN)
    assert rate.use(0, BEGIN - 500_000) == rate.use(0, BEGIN) == 10_000
    assert rate.use(1_000, BEGIN + 10**12) == 0


def test_a_limit_of_any_size_has_a_whole_number_that_fits_at_once() -> None:
    assert UsageRate(1.7e308, Windows(11, 1_000)).most_at_once == LONGEST_WAIT_MS
    assert UsageRate(1e-6, Windows(11, 1_000)).most_at_once == 1


def test_no_wait_is_longer_than_an_answer_can_say_or_than_its_bound() -> None:
    assert UsageRate(1e-9, KAFKAS).use(2**40, BEGIN) == LONGEST_WAIT_MS
    assert UsageRate(1, KAFKAS, 1_000).use(2**40, BEGIN) == 1_000


def test_a_single_window_limits_what_is_used_within_it() -> None:
    rate = UsageRate(100, Windows(1, 1_000))
    assert rate.use(100, BEGIN) == 0
    assert rate.use(50, BEGIN + 10) == 500
    assert rate.use(100, BEGIN + 1_010) == 0


def test_samples_are_bounded_however_often_something_is_used() -> None:
    rate = UsageRate(100, KAFKAS)
    for step in range(100_000):
        rate.use(1, BEGIN + step)
        assert len(rate._samples) <= 12
