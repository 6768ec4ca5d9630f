"""The checker of the crash tests finds what it is there for, and nothing else: a blind judge acquits everybody."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.history import Log, Outcome, Seen, Sent, anomalies, differences

PLACE = ("orders", 0)
OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


def sent(value: bytes, outcome: Outcome = OK, offset: int = -1, sender: str = "p") -> Sent:
    return Sent(sender, PLACE, value, outcome, offset)


def log(*values: bytes, start: int = 0) -> dict[tuple[str, int], Log]:
    return {PLACE: Log(start, [Seen(start + number, value) for number, value in enumerate(values)])}


def kinds(history: list[Sent], logs: dict[tuple[str, int], Log]) -> list[str]:
    return [anomaly.kind for anomaly in anomalies(history, logs)]


def test_a_log_that_holds_what_was_acknowledged_is_clean() -> None:
    assert kinds([sent(b"a", offset=0), sent(b"b", offset=1)], log(b"a", b"b")) == []


@pytest.mark.parametrize("values", [(), (b"a",)])
def test_an_unknown_outcome_may_be_there_or_not(values: tuple[bytes, ...]) -> None:
    assert kinds([sent(b"a", INFO)], log(*values)) == []


def test_an_acknowledged_record_that_is_not_there_is_lost() -> None:
    assert kinds([sent(b"a", offset=0), sent(b"b", offset=1)], log(b"a")) == ["lost"]


def test_a_shard_that_no_one_read_has_lost_everything() -> None:
    assert kinds([sent(b"a", offset=0)], {}) == ["lost"]


def test_what_lies_below_the_log_start_was_deleted_not_lost() -> None:
    assert kinds([sent(b"a", offset=0), sent(b"b", offset=1)], log(b"b", start=1)) == []


def test_an_acknowledged_offset_that_holds_something_else_is_reported() -> None:
    history = [sent(b"a", offset=0), sent(b"b", INFO, sender="q")]
    assert kinds(history, log(b"b", b"a")) == ["misplaced"]


def test_a_refused_record_that_is_there_is_reported() -> None:
    assert kinds([sent(b"a", FAIL)], log(b"a")) == ["aborted"]


@pytest.mark.parametrize("outcome", [OK, INFO])
def test_a_record_that_is_there_twice_is_a_duplicate(outcome: Outcome) -> None:
    assert kinds([sent(b"a", outcome, 0)], log(b"a", b"a")) == ["duplicate"]


def test_values_of_one_sender_out_of_order_are_reported_also_when_their_outcome_is_unknown() -> None:
    assert kinds([sent(b"a", INFO), sent(b"b", offset=0)], log(b"b", b"a")) == ["reordered"]


def test_values_of_two_senders_may_lie_in_any_order() -> None:
    assert kinds([sent(b"a", offset=1), sent(b"b", offset=0, sender="q")], log(b"b", b"a")) == []


def test_acknowledged_offsets_must_rise_even_when_retention_took_the_records() -> None:
    assert kinds([sent(b"a", offset=5), sent(b"b", offset=4)], log(start=9)) == ["reordered"]


def test_a_value_that_no_one_sent_is_a_phantom() -> None:
    assert kinds([], log(b"a")) == ["phantom"]


def test_a_value_sent_to_another_shard_is_a_phantom_here() -> None:
    history = [Sent("p", ("orders", 1), b"a")]
    assert kinds(history, log(b"a") | {("orders", 1): Log(0, [])}) == ["phantom"]


def test_a_hole_in_the_offsets_is_reported_also_at_the_start() -> None:
    holes = {PLACE: Log(0, [Seen(1, b"a"), Seen(3, b"b")])}
    assert kinds([sent(b"a", INFO), sent(b"b", INFO)], holes) == ["gap", "gap"]


def test_a_reader_that_goes_back_is_reported() -> None:
    again = {PLACE: Log(0, [Seen(0, b"a"), Seen(0, b"a")])}
    assert kinds([sent(b"a", INFO)], again) == ["backwards"]


def test_two_reads_that_differ_are_reported() -> None:
    assert [a.kind for a in differences(PLACE, [Seen(0, b"a"), Seen(1, b"b")], [Seen(1, b"c")])] == ["inconsistent"]
    assert differences(PLACE, [Seen(0, b"a")], [Seen(0, b"a"), Seen(1, b"b")]) == []


def test_an_anomaly_says_where_and_what() -> None:
    (lost,) = anomalies([sent(b"a", offset=7)], log(*(b"x%d" % n for n in range(0))))
    assert str(lost) == "lost in orders-0: b'a', acknowledged at offset 7"


@given(st.integers(0, 2**32), st.sampled_from(["lost", "duplicate", "misplaced", "phantom"]))
def test_any_single_damage_to_a_true_history_is_found(seed: int, damage: str) -> None:
    chance = random.Random(seed)
    values = [b"%d" % number for number in range(chance.randint(2, 30))]
    history = [sent(value, offset=offset) for offset, value in enumerate(values)]
    assert kinds(history, log(*values)) == []
    victim = chance.randrange(len(values) - 1)
    if damage == "lost":
        values[victim] = b"other"
    elif damage == "duplicate":
        values[victim] = values[victim + 1]
    elif damage == "misplaced":
        values[victim], values[victim + 1] = values[victim + 1], values[victim]
    else:
        values.append(b"nobody sent this")
    assert damage in kinds(history, log(*values))


def test_what_was_acknowledged_without_an_offset_must_be_there_at_any() -> None:
    place = ("flights", 0)
    sent = [Sent("a", place, b"x", Outcome.OK, -1)]
    assert anomalies(sent, {place: Log(0, [Seen(0, b"x")])}) == []
    assert [one.kind for one in anomalies(sent, {place: Log(0, [])})] == ["lost"]
