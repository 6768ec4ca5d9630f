"""Schedules in cron's fields: the next time equals that of a search minute by minute, and a text is a schedule or is
refused with a reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog_operator.plan.cron import parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YEAR = datetime(2013, 1, 1, tzinfo=UTC)


def _items(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    bases = st.one_of(st.just("*"), number.map(str), spans)
    items = st.one_of(bases, st.tuples(bases, st.integers(1, 12)).map(lambda two: f"{two[0]}/{two[1]}"))
    return st.lists(items, min_size=1, max_size=2).map(",".join)


FIELDS = st.tuples(_items(0, 59), _items(0, 23), _items(1, 31), _items(1, 12), _items(0, 6))


def _matches(item: str, value: int, high: int) -> bool:
    span, _, step = item.partition("/")
    if span == "*":
        first, last = None, None
    elif "-" in span:
        first, last = map(int, span.split("-"))
    else:
        first, last = int(span), high if step else int(span)
    low = (0 if high in (59, 23, 6) else 1) if first is None else first
    return low <= value <= (high if last is None else last) and (value - low) % int(step or 1) == 0


def _is_due(words: tuple[str, ...], at: datetime) -> bool:
    """Field by field, as a person reads it."""
    values = (at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
    highs = (59, 23, 31, 12, 6)
    found = [
        any(_matches(item, value, high) for item in word.split(","))
        for word, value, high in zip(words, values, highs, strict=True)
    ]
    is_any = any(item in ("*", "*/1") for word in (words[2], words[4]) for item in word.split(","))
    days = found[2] and found[4] if is_any else found[2] or found[4]
    return found[0] and found[1] and days and found[3]


@given(FIELDS, st.integers(0, 60 * 24 * 365))
def test_the_next_time_is_the_first_minute_that_matches(words: tuple[str, ...], minutes: int) -> None:
    start = NEW_YEAR + timedelta(minutes=minutes, seconds=17)
    due = parse_schedule(" ".join(words)).next_after(start, UTC)
    at = start.replace(second=0) + timedelta(minutes=1)
    if due is not None and due - start <= timedelta(days=1):
        assert _is_due(words, due)
    until = start + timedelta(days=1) if due is None else min(due, start + timedelta(days=1))
    while at < until:
        assert not _is_due(words, at), at
        at += timedelta(minutes=1)


@given(st.text(max_size=120) | FIELDS.map(" ".join) | st.text("*/0123456789,- ?@dailyMON", max_size=30))
def test_every_text_is_a_schedule_or_is_refused_with_a_reason(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except ValueError as error:
        assert 0 < len(str(error)) < 400
        return
    due = schedule.next_after(NEW_YEAR, UTC)
    assert due is None or due > NEW_YEAR


@pytest.mark.parametrize(
    ("text", "after", "due"),
    [
        ("@daily", "2013-01-01T00:00:00", "2013-01-02T00:00:00"),
        ("30 2 * * MON-FRI", "2013-01-04T02:30:00", "2013-01-07T02:30:00"),
        ("0 0 29 feb *", "2013-01-01T00:00:00", "2016-02-29T00:00:00"),
        ("0 12 13 * 5", "2013-01-01T00:00:00", "2013-01-04T12:00:00"),
        ("0 12 */2 * 5", "2013-01-01T13:00:00", "2013-01-03T12:00:00"),
        ("5/20 * * * *", "2013-01-01T00:25:00", "2013-01-01T00:45:00"),
        ("0 0 30 2 *", "2013-01-01T00:00:00", None),
    ],
)
def test_schedules_are_due_as_kubernetes_has_them_due(text: str, after: str, due: str | None) -> None:
    found = parse_schedule(text).next_after(datetime.fromisoformat(after).replace(tzinfo=UTC), UTC)
    assert found == (None if due is None else datetime.fromisoformat(due).replace(tzinfo=UTC))


def test_a_time_that_a_change_of_clocks_skips_is_due_on_the_next_day() -> None:
    """On 31 March 2013 half past two did not exist in Berlin; on 27 October it came twice."""
    schedule = parse_schedule("30 2 * * *")
    spring = schedule.next_after(datetime(2013, 3, 30, 12, tzinfo=UTC), BERLIN)
    assert spring == datetime(2013, 4, 1, 0, 30, tzinfo=UTC)
    autumn = schedule.next_after(datetime(2013, 10, 26, 12, tzinfo=UTC), BERLIN)
    assert autumn == datetime(2013, 10, 27, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("60 * * * *", "minute"),
        ("* * * * 7", "day of the week"),
        ("* * 0 * *", "day of the month"),
        ("* * * foo *", "month"),
        ("*/0 * * * *", "empty"),
        ("5-1 * * * *", "empty"),
        ("* * * *", "five fields"),
        ("@every 1h", "@every"),
        ("@reboot", "five fields"),
        ("TZ=UTC * * * * *", "five fields"),
    ],
)
def test_a_wrong_schedule_is_refused_by_its_field(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_schedule(text)
