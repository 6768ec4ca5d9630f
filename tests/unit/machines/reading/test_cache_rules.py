"""Ten groups at different positions: the cache rule beside others, over the same reads."""

from __future__ import annotations

import pytest

from support.cache_rules import RULES, play
from support.cold_trace import ten_groups

TRACE = list(ten_groups())


@pytest.mark.fault("cold-readers-far-apart")
def test_ten_groups_fetch_at_most_a_tenth_more_than_they_read() -> None:
    ours, before = (play(TRACE, RULES[name](TRACE)) for name in ("known readers", "2 s after use"))
    assert ours.ratio <= 1.1
    assert before.ratio > 1.5, "or the trace shows nothing"
    for quantile in (0.9, 0.95, 0.99):
        assert ours.wait_ms(quantile) <= before.wait_ms(quantile)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_little_more_is_fetched_than_by_one_who_knows_what_comes(seed: int, speed: float) -> None:
    """Also where what lies between the groups is more than the memory."""
    trace = list(ten_groups(seed, speed))
    ours, bound = (play(trace, RULES[name](trace)).ratio for name in ("known readers", "Belady"))
    assert bound <= ours <= 1.1 * bound


@pytest.mark.parametrize("name", ["LRU", "2Q", "W-TinyLFU"])
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_rules_that_know_no_readers_fetch_half_as_much_again(name: str, speed: float) -> None:
    trace = list(ten_groups(speed=speed))
    ours, other = (play(trace, RULES[rule](trace)).ratio for rule in ("known readers", name))
    assert other > 1.4 * ours
