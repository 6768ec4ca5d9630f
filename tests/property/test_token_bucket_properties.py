"""The token bucket under any sequence of takers: the rate holds, no taker overtakes another, none waits forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.token_bucket import TokenBucket

steps = st.lists(st.tuples(st.floats(0, 5_000), st.floats(0, 10_000)), min_size=1, max_size=60)


@given(rate=st.floats(1, 1e6), burst=st.floats(1, 1e5), steps=steps)
def test_no_span_of_time_hands_out_more_than_the_rate_and_one_burst(
    rate: float, burst: float, steps: list[tuple[float, float]]
) -> None:
    bucket = TokenBucket(rate, burst, now_ms=0)
    now_ms = 0.0
    grants: list[tuple[float, float]] = []
    for pause_ms, tokens in steps:
        now_ms += pause_ms
        grants.append((now_ms + bucket.consume(tokens, now_ms), tokens))
    for index, (begin, _) in enumerate(grants):
        handed_out = 0.0
        for at, tokens in grants[index + 1 :]:
            handed_out += tokens
            allowed = burst + (at - begin) * rate / 1_000
            assert handed_out <= allowed * (1 + 1e-6) + 1e-3


@given(rate=st.floats(1, 1e6), burst=st.floats(1, 1e5), steps=steps)
def test_takers_are_served_in_the_order_they_came(rate: float, burst: float, steps: list[tuple[float, float]]) -> None:
    bucket = TokenBucket(rate, burst, now_ms=0)
    now_ms = last = 0.0
    for pause_ms, tokens in steps:
        now_ms += pause_ms
        served = now_ms + bucket.consume(tokens, now_ms)
        assert served >= last - 1e-6
        last = served


@given(rate=st.floats(1, 1e6), burst=st.floats(1, 1e5), tokens=st.floats(0, 1e6), now=st.floats(0, 1e6))
def test_what_is_given_back_is_as_if_never_taken(rate: float, burst: float, tokens: float, now: float) -> None:
    bucket = TokenBucket(rate, burst, now_ms=0)
    before = bucket.level(now)
    bucket.consume(tokens, now)
    bucket.give_back(tokens, now)
    assert abs(bucket.level(now) - before) <= 1e-6 * max(1.0, tokens)


@given(rate=st.floats(1, 1e6), burst=st.floats(1, 1e5), back=st.floats(0, 1e6))
def test_a_clock_that_steps_back_neither_gives_nor_takes(rate: float, burst: float, back: float) -> None:
    bucket = TokenBucket(rate, burst, now_ms=2e6)
    bucket.consume(burst / 2, 2e6)
    level = bucket.level(2e6)
    assert bucket.level(2e6 - back) == level


def test_a_changed_rate_keeps_the_debt_and_pays_it_at_the_new_rate() -> None:
    bucket = TokenBucket(100, 100, now_ms=0)
    bucket.consume(300, 0)
    bucket.change_rate(1_000, 50, now_ms=0)
    assert bucket.level(0) == -200
    assert bucket.consume(0, 0) == 200
