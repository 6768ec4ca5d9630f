"""Sessions of people: when they end, and that there are never too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.web_sessions import WebSessions

IDLE_MS, LONGEST_MS, MOST = 100, 1_000, 3


def sessions() -> WebSessions:
    return WebSessions(idle_ms=IDLE_MS, longest_ms=LONGEST_MS, most=MOST)


def test_a_session_lasts_while_it_is_used_and_no_longer_than_it_may() -> None:
    one = sessions()
    one.begin("secret", b"digest", 0)
    for now in range(99, LONGEST_MS, 99):
        assert one.token_of("secret", now) == b"digest"
    assert one.token_of("secret", LONGEST_MS) is None
    assert one.token_of("secret", 990) is None and len(one) == 0, "it is over for good"


def test_a_session_that_is_not_used_ends() -> None:
    one = sessions()
    one.begin("secret", b"digest", 0)
    assert one.token_of("secret", IDLE_MS) is None and len(one) == 0


def test_a_logout_ends_one_session_and_no_other() -> None:
    one = sessions()
    one.begin("a", b"1", 0)
    one.begin("b", b"2", 0)
    one.end("a")
    one.end("never there")
    assert one.token_of("a", 1) is None and one.token_of("b", 1) == b"2"


def test_the_one_used_longest_ago_makes_room() -> None:
    one = sessions()
    for number, name in enumerate("abc"):
        one.begin(name, name.encode(), number)
    assert one.token_of("a", 5) == b"a"
    one.begin("d", b"d", 6)
    assert [one.token_of(name, 7) for name in "abcd"] == [b"a", None, b"c", b"d"]


def test_a_holder_of_one_token_ends_no_sessions_of_others() -> None:
    one = sessions()
    one.begin("admin", b"admin", 0)
    for number in range(10):
        one.begin(f"viewer {number}", b"viewer", 1 + number)
    assert one.token_of("admin", 11) == b"admin" and len(one) == MOST
    assert [one.token_of(f"viewer {number}", 11) for number in (7, 8, 9)] == [None, b"viewer", b"viewer"]


def test_neither_secret_nor_token_is_kept() -> None:
    one = sessions()
    one.begin("the-secret-of-a-cookie", b"digest", 0)
    assert "the-secret-of-a-cookie" not in repr(vars(one))
    assert one.token_of("x" * 100_000, 1) is None


STEP = st.tuples(st.sampled_from(["begin", "use", "end"]), st.integers(0, 5), st.integers(0, 120))


@given(st.lists(STEP, max_size=60))
def test_sessions_are_those_of_a_plain_model(steps: list[tuple[str, int, int]]) -> None:
    one = sessions()
    model: dict[int, tuple[int, int]] = {}
    now = 0
    for what, who, pause in steps:
        now += pause
        if what == "begin":
            model.pop(who, None)
            model[who] = now, now
            one.end(str(who))
            one.begin(str(who), b"%d" % who, now)
            if len(model) > MOST:
                del model[min(model, key=lambda name: (model[name][1], list(model).index(name)))]
        elif what == "end":
            model.pop(who, None)
            one.end(str(who))
        else:
            begun, used = model.pop(who, (-(10**9), -(10**9)))
            lives = now - used < IDLE_MS and now - begun < LONGEST_MS
            if lives:
                model[who] = begun, now
            assert (one.token_of(str(who), now) == b"%d" % who) is lives
        assert len(one) <= MOST
